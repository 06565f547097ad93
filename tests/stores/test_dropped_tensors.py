"""What a store that is open for long keeps of tensors that nobody has any more."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, ZarrTileStore
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor_stores.handles import TensorHandle
from infinite_tensor_stores.hdf5.slots import TileSlots
from tests.support.counting import Counted
from tests.support.stores import sample
from tests.support.tensors import line, numbers

Make: TypeAlias = Callable[..., PersistentTileStore]


@pytest.fixture(params=sample([ZarrTileStore, HDF5TileStore], ZarrTileStore))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Opens a store, again and again."""
    return lambda **options: request.param(tmp_path / "store", tile_size=8, **options)


def named(store: PersistentTileStore, name: str, f: Counted) -> InfiniteTensor:
    return line(store, f, name, stride=2)


def opened_of(store: PersistentTileStore) -> int:
    """How many tensors the store has open."""
    gc.collect()
    return sum(isinstance(item, TensorHandle) and item.owner is store._contents.storage for item in gc.get_objects())


def test_a_store_keeps_few_tensors_that_were_read_and_dropped(make: Make) -> None:
    with make() as store:
        for number in range(280):
            named(store, f"t{number}", Counted(numbers))[0:8]
            store.flush()
        assert opened_of(store) < 250


def test_nothing_is_kept_of_a_dropped_tensor_whose_cache_is_cleared(make: Make) -> None:
    with make() as store:
        named(store, "a", Counted(numbers))[0:20]
        store.clear_cache("a")
        assert opened_of(store) == 0


def test_a_tensor_that_somebody_has_stays_open(make: Make) -> None:
    with make() as store:
        t = named(store, "a", Counted(numbers))
        t[0:20]
        store.clear_cache("a")
        assert opened_of(store) == 1
        assert t[0:4].tolist() == [-1, -1, 1, 1]


def test_what_is_pending_of_a_dropped_tensor_is_stored_whoever_else_is_used(make: Make) -> None:
    first = Counted(numbers)
    with make() as store:
        expected = named(store, "first", first)[2:30]
        calls = len(first.calls)
        for number in range(200):
            named(store, f"t{number}", Counted(numbers))[0:8]
    with make() as store:
        assert torch.equal(named(store, "first", first)[2:30], expected)
        assert len(first.calls) == calls


def test_a_dropped_tensor_that_is_got_again_computes_nothing_again(make: Make) -> None:
    f = Counted(numbers)
    with make() as store:
        expected = named(store, "a", f)[2:30]
        calls = len(f.calls)
        store.clear_cache("a")
        assert torch.equal(named(store, "a", f)[2:30], expected)
        assert torch.equal(store.open("a")[2:30], expected)
        assert len(f.calls) == calls


def test_an_invalidated_tensor_keeps_the_tiles_that_were_not_dropped(make: Make) -> None:
    f = Counted(numbers)
    with make() as store:
        t = named(store, "a", f)
        t[0:64]
        t.invalidate((slice(0, 4),))
        store.clear_cache("a")
        calls = len(f.calls)
        t[16:64]
        assert len(f.calls) == calls
        assert opened_of(store) == 1


def test_gc_keeps_no_tensor_open(tmp_path: Path) -> None:
    path = tmp_path / "store.h5"
    with HDF5TileStore(path, tile_size=8) as store:
        for number in range(20):
            named(store, f"t{number}", Counted(numbers))[0:20]
    gc.collect()
    # Another test may have left some.
    before = [item for item in gc.get_objects() if isinstance(item, TileSlots)]
    with HDF5TileStore(path) as store:
        store.gc()
        gc.collect()
        assert len([item for item in gc.get_objects() if isinstance(item, TileSlots)]) <= len(before)


def test_logs_of_tiles_that_were_completed_are_deleted_though_nobody_has_the_tensor(make: Make) -> None:
    with make(cache_size_tiles=1) as store:
        t = named(store, "a", Counted(numbers))
        t[2:6]
        store.flush()
        t[0:64]
        del t
        for number in range(200):
            named(store, f"t{number}", Counted(numbers))
    with make() as store:
        assert store.gc().objects == 0
