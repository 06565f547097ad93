"""Thousands of damaged and made-up stores: nothing but our own errors, in bounded time and memory.

How many cases run is said in `tests/conftest.py`; five times as many of those that no digest keeps from the core.
"""

from __future__ import annotations

import copy
import functools
import json
from contextlib import suppress
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from infinite_tensor import ZarrTileStore
from tests.durability.hostile.honest import EXPECTED, MAKE, TILE, Open, Storage, fill, opened, recreate_all, use
from tests.durability.hostile.mutations import as_text, made_up_files, made_up_parts, mutated, plausible, spoilt_bytes
from tests.support.bounds import bounded
from tests.support.dict_store import DictTileStore
from tests.support.reference import same_bits
from tests.support.stored import sealed

Objects: TypeAlias = dict[str, bytes]

MANY = settings(max_examples=5 * settings().max_examples)
_names = st.sampled_from(list(MAKE))


def check(open_store: Open) -> None:
    """Use a store in every way; whatever is in it, its tensors can be cleared and created again."""
    with bounded():
        use(open_store)
    again = recreate_all(open_store)
    assert all(same_bits(again[name], pixels) for name, pixels in EXPECTED.items())


# A backend of a third party, which keeps no digest: whatever is in it reaches the core.


@functools.cache
def _honest_storage() -> Storage:
    storage: Storage = {}
    fill(DictTileStore(storage, tile_size=TILE))
    return storage


def _partial_keys() -> list[Any]:
    return [key for key in _honest_storage() if key[1] == "partial"]


@MANY
@given(st.data())
def test_any_definition_is_refused_or_does_no_harm(data: st.DataObject) -> None:
    name = data.draw(_names)
    honest = json.loads(_honest_storage()[name, "definition"])
    storage = _honest_storage() | {(name, "definition"): as_text(data.draw(mutated(honest) | plausible(honest)))}
    check(lambda: opened(storage))


@MANY
@given(st.data())
def test_any_part_of_a_partial_tile_is_refused_or_does_no_harm(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(_partial_keys()))
    parts = st.lists(made_up_parts(str(key)) | made_up_files(str(key)), min_size=1, max_size=3)
    storage = _honest_storage() | {key: (*_honest_storage()[key], *data.draw(parts))}
    with bounded():
        assert use(lambda: opened(storage)).keys() == MAKE.keys()


@given(st.data())
def test_a_spoilt_part_never_changes_a_pixel(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(_partial_keys()))
    *others, last = _honest_storage()[key]
    storage = _honest_storage() | {key: (*others, data.draw(spoilt_bytes(last)))}
    with bounded():
        found = use(lambda: opened(storage))
    assert all(same_bits(found[name], pixels) for name, pixels in EXPECTED.items())


# A Zarr store, whose definitions carry a digest: made up, it is right as well.


@functools.cache
def _honest_objects() -> Objects:
    store = MemoryStore()
    fill(ZarrTileStore(store, tile_size=TILE))
    return {key: buffer.to_bytes() for key, buffer in store._store_dict.items()}


def _zarr(changes: Objects) -> Open:
    buffer = default_buffer_prototype().buffer
    stored = {key: buffer.from_bytes(data) for key, data in (_honest_objects() | changes).items()}
    return lambda: ZarrTileStore(MemoryStore(stored), tile_size=TILE)


def _keys_of(part: str) -> list[str]:
    return [key for key in _honest_objects() if part in key]


def _sealed(document: Any) -> Any:
    """`document` with the digest that an attacker would give it, where that can be computed."""
    document = copy.deepcopy(document)
    with suppress(KeyError, TypeError, IndexError, ValueError):
        attributes = document["attributes"]
        attributes["infinite_tensor"] = sealed(attributes["infinite_tensor"])
    return document


@given(st.data())
def test_any_definition_in_zarr_is_refused_or_does_no_harm(data: st.DataObject) -> None:
    key = f"t-{data.draw(_names)}/zarr.json"
    honest = json.loads(_honest_objects()[key])
    ours = honest["attributes"]["infinite_tensor"]
    changed = data.draw(mutated(ours) | plausible(ours))
    check(_zarr({key: as_text(_sealed({**honest, "attributes": {"infinite_tensor": changed}})).encode()}))


@given(st.data())
def test_any_metadata_in_zarr_is_refused_or_does_no_harm(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([key for key in _keys_of("zarr.json") if key != "zarr.json"]))
    honest = json.loads(_honest_objects()[key])
    check(_zarr({key: as_text(_sealed(data.draw(mutated(honest)))).encode()}))


@given(st.data())
def test_any_root_of_zarr_is_refused_or_does_no_harm(data: st.DataObject) -> None:
    document = as_text(data.draw(mutated(json.loads(_honest_objects()["zarr.json"]))))
    with bounded():
        use(_zarr({"zarr.json": document.encode()}))


@given(st.data())
def test_any_spoilt_object_in_zarr_never_changes_a_pixel(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([key for key in _keys_of("/") if key.startswith("t-")]))
    with bounded():
        found = use(_zarr({key: data.draw(spoilt_bytes(_honest_objects()[key]))}))
    assert all(same_bits(pixels, EXPECTED[name]) for name, pixels in found.items())


@pytest.mark.parametrize("honest", [_honest_storage, _honest_objects])
def test_what_is_attacked_holds_complete_and_partial_tiles(honest: Any) -> None:
    names = [str(key) for key in honest()]
    assert any("partial" in name for name in names)
    assert any("tile'" in name or "/c/" in name for name in names)
