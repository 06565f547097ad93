"""An HDF5 file of somebody else's becomes a store too, and what is theirs stays as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, StoreError, TensorGroup, TensorWindow
from infinite_tensor.tilestore import Garbage
from tests.stores.hdf5.files import EXPECTED, make_theirs, pixels, tensor, theirs

MODES: list[Any] = ["r", "r+", "a", "w", "w-"]
ADOPTING: list[Any] = ["a", "r+", "w"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "world.h5"


class Terrain:
    """A program that keeps its settings in the attributes of the file, and what it computes in a store in it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.calls = 0
        with h5py.File(path, "a") as h5:
            if "SETTINGS" not in h5.attrs:
                h5.attrs["SETTINGS"] = json.dumps({"seed": seed, "scale": [1.5, 3.0]}, sort_keys=True)
            self.seed = json.loads(h5.attrs["SETTINGS"])["seed"]
        self.store = HDF5TileStore(path, mode="a", compression="gzip", compression_opts=4, cache_size_tiles=100)
        window = TensorWindow((64, 64), stride=48)
        self.world = InfiniteTensor((None, None), self, window, tile_store=self.store, tensor_id="world")

    def __call__(self, ctx: tuple[int, ...]) -> torch.Tensor:
        self.calls += 1
        return torch.full((64, 64), float(self.seed + ctx[0] - ctx[1]))


def test_a_program_finds_its_settings_and_its_pixels_again(path: Path) -> None:
    first = Terrain(path, seed=7)
    expected = first.world[-100:100, -100:100]
    first.store.close()
    again = Terrain(path, seed=8)
    assert torch.equal(again.world[-100:100, -100:100], expected)
    assert (first.calls, again.calls) == (36, 0)
    again.store.close()
    with h5py.File(path, "r") as h5:
        assert h5.attrs["SETTINGS"] == '{"scale": [1.5, 3.0], "seed": 7}'


@pytest.mark.parametrize("mode", ADOPTING)
def test_what_is_theirs_stays_through_all_that_a_store_does(mode: Any, path: Path) -> None:
    make_theirs(path)
    before = theirs(path)
    with HDF5TileStore(path, mode, tile_size=8) as store:
        assert store.tensor_ids() == store.group_ids() == []
        assert pixels(store) == EXPECTED
        TensorGroup({"height": tensor(store)}).save(store, "world")
        assert pixels(store, "gone") == EXPECTED
        store.clear_tensor("gone")
        assert store.gc() == Garbage(0, 0)
        assert store.verify("map", repair=True) == []
    assert theirs(path) == before
    with HDF5TileStore(path, "r", tile_size=8) as store:
        assert (store.tensor_ids(), store.group_ids()) == (["map"], ["world"])
        assert pixels(store) == EXPECTED
    with HDF5TileStore(path, "a") as store:
        store.clear_group("world")
    assert theirs(path) == before


def test_mode_w_deletes_what_is_ours_and_nothing_else(path: Path) -> None:
    make_theirs(path)
    before = theirs(path)
    with HDF5TileStore(path, tile_size=8) as store:
        pixels(store)
        TensorGroup({"height": tensor(store)}).save(store, "world")
    with HDF5TileStore(path, "w", tile_size=8) as store:
        assert store.tensor_ids() == store.group_ids() == []
        assert theirs(path) == before
        assert pixels(store) == EXPECTED
    with h5py.File(path, "r") as h5:
        assert set(h5) == {"alias", "groups", "infinite_tensor", "raw"}
        assert list(h5["infinite_tensor"]) == ["t-map"]
    assert theirs(path) == before


def test_room_that_mode_w_makes_is_used_again(path: Path) -> None:
    make_theirs(path)
    sizes = []
    for _ in range(4):
        with HDF5TileStore(path, "w", compression=None, tile_size=64) as store:
            tensor(store)[0:512, 0:512]
        sizes.append(path.stat().st_size)
    assert sizes[0] > 2**20
    assert max(sizes) < 1.2 * sizes[0]


# What is refused, and left as it is: what lies there, the modes, and a word of the error.


def file(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def prepare(path: Path) -> None:
        with h5py.File(path, "w") as h5:
            change(h5)

    return prepare


def of_version_0(*tensors: str) -> Callable[[Path], None]:
    """A file as versions 0.2 and 0.4 write it, beside the settings of the program that uses them."""

    def write(h5: Any) -> None:
        h5.attrs["SETTINGS"] = "{}"
        h5.create_group("tensors")
        for tensor_id in tensors:
            group = h5.create_group(f"tensors/{tensor_id}")
            group.create_group("metadata").attrs["meta"] = "{}"
            group.create_group("tiles")["0_0"] = np.zeros((4, 4))
            group.create_dataset("processed_windows", data=["0_0"])

    return file(write)


def of_slots(h5: Any) -> None:
    h5.attrs["infinite_tensor_format"] = 1
    h5["t-map/index"] = [[0, 0, 7]]


def with_something_behind_its_end(path: Path) -> None:
    with h5py.File(path, "w") as h5:
        h5["infinite_tensor"] = 1
    with path.open("ab") as end:
        end.write(b"behind the end, where HDF5 does not look")


def marked(mark: object) -> Callable[[Path], None]:
    """A store whose mark is another one."""

    def prepare(path: Path) -> None:
        with HDF5TileStore(path, tile_size=8) as store:
            pixels(store)
        with h5py.File(path, "r+") as h5:
            del h5["infinite_tensor"].attrs["format"]
            if mark is not None:
                h5["infinite_tensor"].attrs["format"] = mark

    return prepare


OPENING = MODES[:4]
REFUSED: dict[str, tuple[Callable[[Path], Any], list[Any], str]] = {
    "a group": (file(lambda h5: h5.create_group("infinite_tensor/theirs")), OPENING, "another path"),
    "a dataset": (file(lambda h5: h5.create_dataset("infinite_tensor", data=[1])), OPENING, "another path"),
    "a link": (file(lambda h5: h5.__setitem__("infinite_tensor", h5py.SoftLink("/x"))), OPENING, "another path"),
    "something behind the end": (with_something_behind_its_end, MODES, "another path|exists"),
    "version 0": (of_version_0(), OPENING, "written by version 0"),
    "version 0 with tensors": (of_version_0("map", "nested/map"), OPENING, "written by version 0"),
    "slots": (file(of_slots), OPENING, "a pre-release"),
    "theirs": (make_theirs, ["r"], "open it with mode 'a'"),
    "theirs, to be created": (make_theirs, ["w-"], "exists"),
    "no HDF5": (lambda path: path.write_text("years of work"), OPENING, "not an HDF5 file"),
    "a folder": (Path.mkdir, OPENING, "not a regular file"),
    "a FIFO": (os.mkfifo, OPENING, "not a regular file"),
    "an empty file": (Path.touch, ["r", "w-"], "an empty file|exists"),
    **{
        f"mark {mark!r}": (marked(mark), OPENING, r"attrs\['format'\] = 2 restores it")
        for mark in (0, 1, -1, "one", 1.5, [1, 2], None)
    },
    "a later mark": (marked(3), OPENING, "format 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_left_as_it_is(name: str, path: Path) -> None:
    prepare, modes, word = REFUSED[name]
    prepare(path)
    before = path.read_bytes() if path.is_file() else b""
    for mode in modes:
        with pytest.raises(StoreError, match=word):
            HDF5TileStore(path, mode)
    assert not path.is_file() or path.read_bytes() == before
    if "mark" in name:
        with h5py.File(path, "r+") as h5:
            h5["infinite_tensor"].attrs["format"] = 2
        with HDF5TileStore(path) as store:
            assert store.tensor_info("map").tiles_complete == 1


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="File name too long"):
        HDF5TileStore(tmp_path / f"{'x' * 300}.h5")


def test_a_group_named_tensors_need_not_be_of_versions_0(path: Path) -> None:
    with h5py.File(path, "w") as h5:
        h5["tensors/metric"] = np.eye(4)
        h5["tensors/metric"].attrs["signature"] = "-+++"
    before = theirs(path)
    with HDF5TileStore(path) as store:
        pixels(store)
    assert theirs(path) == before


def test_what_lies_before_the_file_stays(path: Path) -> None:
    make_theirs(path, userblock_size=512)
    with path.open("r+b") as file:
        file.write(b"#!/usr/bin/env reader")
    for mode in ("a", "w"):
        with HDF5TileStore(path, mode, tile_size=8) as store:
            assert pixels(store) == EXPECTED
    assert path.read_bytes().startswith(b"#!/usr/bin/env reader")


@pytest.mark.parametrize("mode", ADOPTING)
def test_an_empty_file_becomes_a_store(mode: Any, path: Path) -> None:
    path.touch()
    with HDF5TileStore(path, mode, tile_size=8) as store:
        assert pixels(store) == EXPECTED


def test_what_they_put_beside_our_tensors_later_is_not_deleted(path: Path) -> None:
    with HDF5TileStore(path, tile_size=8) as store:
        pixels(store)
    with h5py.File(path, "r+") as h5:
        h5["t-shirts/sizes"] = [36, 38]
        h5["infinite_tensor/notes"] = "taken in May"
        h5["sizes"] = h5["t-shirts"]
        h5["infinite_tensor/t-linked"] = h5py.SoftLink("/t-shirts")
    for mode in ("a", "w"):
        with HDF5TileStore(path, mode, tile_size=8) as store:
            assert store.tensor_ids() == (["map"] if mode == "a" else [])
            assert store.gc() == Garbage(0, 0)
            store.clear_tensor("linked")
        with h5py.File(path, "r") as h5:
            assert h5["infinite_tensor/notes"][()] == b"taken in May"
            assert h5["t-shirts/sizes"][()].tolist() == [36, 38]


def test_a_program_may_have_the_file_open_in_this_process(path: Path) -> None:
    make_theirs(path)
    with h5py.File(path, "r+") as h5:
        for mode in ADOPTING:
            with HDF5TileStore(path, mode, tile_size=8) as store:
                h5.attrs["mode"] = mode
                assert pixels(store) == EXPECTED
            assert h5["raw/heights"][0, 1] == 1
    with h5py.File(path, "r") as h5:
        assert h5.attrs["mode"] == "w"


@pytest.mark.parametrize("mode", ["a", "r+", "w"])
def test_a_file_with_names_that_are_no_text_is_adopted(mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "theirs.h5"
    with h5py.File(path, "w") as theirs:
        theirs.create_group(b"t-\xff")
    HDF5TileStore(path, mode=mode).close()
    with h5py.File(path, "r+") as theirs:
        theirs["infinite_tensor"].create_group(b"t-\xff")
    with HDF5TileStore(path, mode=mode) as store:
        assert store.tensor_ids() == []
        assert store.group_ids() == []
        store.gc()
    with h5py.File(path, "r") as theirs:
        assert set(theirs) == {b"t-\xff", "infinite_tensor"}
        assert list(theirs["infinite_tensor"]) == [b"t-\xff"]
