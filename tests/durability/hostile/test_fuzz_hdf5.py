"""Made-up HDF5 files: nothing but our own errors, in bounded time and memory."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import HDF5TileStore
from tests.durability.hostile.honest import EXPECTED, MAKE, TILE, fill, recreate_all, use
from tests.durability.hostile.mutations import as_text, mutated, plausible
from tests.support.bounds import bounded
from tests.support.reference import same_bits
from tests.support.stored import sealed

_names = st.sampled_from(list(MAKE))
_parts = st.sampled_from(["definition", "0,0", "0,0.part0", "0,0.part1"])


@functools.cache
def _honest_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.h5")
        fill(HDF5TileStore(path, tile_size=TILE))
        return path.read_bytes()


def _check(change: Callable[[Any], None], *, keeps_definitions: bool = True) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.h5")
        path.write_bytes(_honest_file())
        with h5py.File(path, "r+") as h5:
            change(h5)
        open_store = functools.partial(HDF5TileStore, path, tile_size=TILE)
        with bounded():
            found = use(open_store)
        again = recreate_all(open_store)
    assert all(same_bits(again[name], pixels) for name, pixels in EXPECTED.items())
    assert not keeps_definitions or all(same_bits(pixels, EXPECTED[name]) for name, pixels in found.items())


def _replace(group: Any, name: str, **dataset: Any) -> None:
    if name in group:
        del group[name]
    group.create_dataset(name, **dataset)


@functools.cache
def _honest_definition(name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.h5")
        path.write_bytes(_honest_file())
        with h5py.File(path, "r") as h5:
            return json.loads(h5[f"infinite_tensor/t-{name}"]["definition"][()])


@given(st.data())
def test_any_definition_in_hdf5_is_refused_or_does_no_harm(data: st.DataObject) -> None:
    name = data.draw(_names)
    definition = data.draw(mutated(_honest_definition(name)) | plausible(_honest_definition(name)))
    # Of what has no digest an attacker has none to give.
    with suppress(TypeError, ValueError, AttributeError):
        definition = sealed(definition)
    text = np.bytes_(as_text(definition).encode("utf-8", "surrogatepass"))
    _check(lambda h5: _replace(h5[f"infinite_tensor/t-{name}"], "definition", data=text), keeps_definitions=False)


@given(st.data())
def test_any_dataset_in_the_place_of_another_is_refused_or_does_no_harm(data: st.DataObject) -> None:
    path = f"infinite_tensor/t-{data.draw(_names)}/{data.draw(_parts)}"
    what = data.draw(st.sampled_from(["gone", "group", "dataset", "dataset", "text", "link", "empty"]))
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    dtype = data.draw(st.sampled_from(["u1", "i8", "f4", "f8", "c8", "S8", "?"]))

    def change(h5: Any) -> None:
        if path in h5:
            del h5[path]
        if what == "group":
            h5.create_group(path)
        elif what == "dataset":
            h5.create_dataset(path, data=np.ones(shape, dtype=dtype))
        elif what == "text":
            h5[path] = "text"
        elif what == "link":
            h5[path] = h5py.SoftLink("/nowhere")
        elif what == "empty":
            h5[path] = h5py.Empty(dtype)

    _check(change)


@given(st.data())
def test_any_log_of_partial_tiles_is_refused_or_does_no_harm(data: st.DataObject) -> None:
    path = f"infinite_tensor/t-{data.draw(_names)}"
    names = st.sampled_from(["0,0.part0", "1,0.part7", "0,0.part-1", "x.part0", "0,0", "1_0,0.part0", "0,0,0.part0"])
    key = data.draw(names | st.text(st.characters(exclude_characters="/.\0", codec="utf-8"), min_size=1, max_size=9))
    content = np.frombuffer(data.draw(st.binary(max_size=99)), dtype=data.draw(st.sampled_from(["u1", "i1"])))
    _check(lambda h5: _replace(h5[path], key, data=content))
