"""Folders, stores in memory and HDF5 files that are deleted, or cleared by somebody else, under an open store."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import h5py
import pytest

from infinite_tensor import HDF5TileStore, InfiniteTensor, StoreError, ZarrTileStore
from tests.support.building import halves

GONE, REMADE, VANISHED = "is gone", "recreated elsewhere", "since it was opened"
_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """How a place is opened, deleted as somebody else would, and listed."""

    open: Callable[..., Any]
    delete: Callable[[], object]
    keys: Callable[[], list[str]]

    def filled(self) -> tuple[Any, InfiniteTensor]:
        store = self.open(tile_size=8)
        t = halves(store)
        t[0:16]
        store.flush()
        return store, t


def _of_file(path: Path) -> list[str]:
    if not path.exists():
        return []
    with h5py.File(path, "r") as file:
        found: list[str] = []
        file.visit(found.append)
        return found + [f"{name}: {file[name][()].tolist()}" for name in found if hasattr(file[name], "dtype")]


@pytest.fixture(params=["folder", "memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        path = tmp_path / "s.zarr"
        yield Place(
            lambda **options: ZarrTileStore(path, **options),
            lambda: shutil.rmtree(path),
            lambda: sorted(map(str, tmp_path.rglob("*"))),
        )
    elif request.param == "file":
        file = tmp_path / "s.h5"
        yield Place(lambda **options: HDF5TileStore(file, **options), file.unlink, lambda: _of_file(file))
    else:
        name, files = f"vanished-{next(_numbers)}", fsspec.filesystem("memory")
        yield Place(
            lambda **options: ZarrTileStore(f"memory://{name}", **options),
            lambda: files.rm(name, recursive=True),
            lambda: sorted(files.find(name)),
        )
        if files.exists(name):
            files.rm(name, recursive=True)


@pytest.mark.parametrize("complete", [True, False])
def test_it_is_no_store_full_of_missing_tiles_and_nothing_is_written_into_it(place: Place, complete: bool) -> None:
    store, t = place.filled()
    t[96:100]
    place.delete()
    if complete:
        t[100:104]
    for _ in range(2):
        with pytest.raises(StoreError, match=GONE):
            t[200:208]
        with pytest.raises(StoreError, match=GONE):
            store.flush()
    assert t[0:16:4].tolist() == [0, 1, 2, 3], "what is in memory is served all the same"
    store.clear_tensor("t")
    store.close()
    assert place.keys() == []


def test_nothing_can_be_told_of_it(place: Place) -> None:
    store, _ = place.filled()
    place.delete()
    questions: list[Callable[[], object]] = [
        store.tensor_ids,
        lambda: store.tensor_info("t"),
        lambda: store.verify("t"),
        store.gc,
        store.group_ids,
        lambda: halves(store, "new"),
    ]
    for question in questions:
        with pytest.raises(StoreError, match=VANISHED):
            question()
    assert place.keys() == []


def test_it_can_be_opened_again(place: Place) -> None:
    _, t = place.filled()
    place.delete()
    with place.open(tile_size=8) as store:
        assert halves(store)[100:108].tolist() == [25] * 4 + [26] * 4
    with pytest.raises(StoreError, match=REMADE):
        t[200:208]


def test_what_somebody_else_has_recreated_is_left_alone(place: Place) -> None:
    store, t = place.filled()
    t[96:100]
    with place.open(tile_size=8) as other:
        other.clear_tensor("t")
        assert halves(other)[0:4].tolist() == [0] * 4
        other.flush()
        before = place.keys()
        for use in (store.flush, lambda: t[100:108], lambda: t.invalidate((slice(0, 8),))):
            with pytest.raises(StoreError, match=REMADE):
                use()
        store.close(discard=True)
        assert place.keys() == before
        assert other.tensor_info("t").tiles_partial == 1
        assert other.verify("t") == []


@pytest.mark.parametrize("complete", [True, False])
def test_what_somebody_else_has_cleared_is_not_taken_for_stored(place: Place, complete: bool) -> None:
    store, t = place.filled()
    t[96:100]
    with place.open(tile_size=8) as other:
        other.clear_tensor("t")
        before = place.keys()
        if complete:
            t[100:104]
        for use in (store.flush, store.flush, lambda: t[200:208], lambda: t.fill((slice(200, 216),), progress=False)):
            with pytest.raises(StoreError, match=GONE):
                use()
        assert place.keys() == before
    store.clear_tensor("t")
    assert t[96:104].tolist() == [24] * 4 + [25] * 4
    store.close()
    with place.open(mode="r") as again:
        assert again.open("t")[96:104].tolist() == [24] * 4 + [25] * 4


def test_what_somebody_else_has_cleared_is_not_filled(place: Place) -> None:
    store, t = place.filled()
    assert t.is_filled((slice(0, 16),))
    with place.open(tile_size=8) as other:
        other.clear_tensor("t")
        store.clear_cache("t")
        assert not t.is_filled((slice(0, 16),))
        assert not t.coverage((slice(0, 16),)).any()
    store.close(discard=True)
