"""What `gc(partial=True)` deletes of tiles that are half computed, and who goes on from there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from zarr.storage import MemoryStore

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    StoreError,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
)
from infinite_tensor.tilestore import Garbage
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.interpreters import enter_child, exit_code
from tests.support.moments import Kill, before

TILE = 8
WINDOW = TensorWindow((4,), stride=2)
STORED = slice(0, 8)
"""A tile that is read whole; of the windows over it, -1 to 3, the first and the last reach into others."""

MAKERS: dict[str, Callable[[Path], TileStore]] = {
    "zarr": lambda path: ZarrTileStore(path / "s", tile_size=TILE),
    "hdf5": lambda path: HDF5TileStore(path / "s.h5", tile_size=TILE),
    "url": lambda path: ZarrTileStore(f"memory://{path}", tile_size=TILE),
    "memory": lambda _path: ZarrTileStore(MemoryStore(), tile_size=TILE),
}


@pytest.fixture(params=list(MAKERS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    return MAKERS[request.param](tmp_path)


def made(store: Any) -> tuple[InfiniteTensor, Counted]:
    f = Counted(lambda ctx: torch.full((4,), float(ctx[0])))
    return InfiniteTensor((None,), f, WINDOW, tile_store=store, tensor_id="t"), f


def parts(path: Path) -> list[str]:
    return sorted("/".join(part.parts[-2:]) for part in path.glob("t-t/partial-*/0.*/*"))


def grow_old(path: Path, seconds: float) -> None:
    """Have all parts of logs have been written so long ago."""
    for part in path.glob("t-t/partial-*/0.*/*"):
        os.utime(part, (time.time() - seconds,) * 2)


def test_it_is_dropped_counted_and_computed_again(store: TileStore) -> None:
    with store:
        t, f = made(store)
        expected = t[STORED]
        stored = store.tensor_info("t")
        assert (stored.tiles_complete, stored.tiles_partial) == (1, 2)
        assert store.gc() == Garbage()
        dropped = store.gc(partial=True, older_than=0)
        found = store.tensor_info("t")
        assert (found.tiles_complete, found.tiles_partial) == (1, 0)
        assert dropped == Garbage(2, stored.bytes_stored - found.bytes_stored, 2, dropped.bytes)
        assert dropped.bytes > 0
        calls = len(f.calls)
        assert torch.equal(t[STORED], expected)
        assert len(f.calls) == calls
        assert torch.equal(t[-8:16], made(MemoryTileStore())[0][-8:16])
        assert {index for index, count in f.counts.items() if count > 1} == {(-1,), (3,)}
        assert store.verify("t") == []


def test_what_was_added_to_lately_stays(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=TILE) as store:
        t, _ = made(store)
        t[STORED]
        store.flush()
        assert store.gc(partial=True) == Garbage()
        grow_old(tmp_path, 3000)
        assert store.gc(partial=True) == Garbage()
        assert store.gc(partial=True, older_than=2000).partial_tiles == 2


def test_the_newest_part_says_how_old_a_tile_is(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=TILE) as store:
        t, _ = made(store)
        t[STORED]
        store.flush()
        grow_old(tmp_path, 4000)
        t[12:13]
        store.flush()
        assert parts(tmp_path) == ["0.-1/0", "0.1/0", "0.1/1"]
        assert store.gc(partial=True).partial_tiles == 1
        assert parts(tmp_path) == ["0.1/0", "0.1/1"]


def test_times_of_writing_are_kept_by_folders_and_file_systems_and_else_all_or_nothing_is_dropped(
    store: TileStore,
) -> None:
    with store:
        made(store)[0][STORED]
        if isinstance(store, ZarrTileStore) and not isinstance(store.target, MemoryStore):
            assert store.gc(partial=True).partial_tiles == 0
            assert store.gc(partial=True, older_than=1e-9).partial_tiles == 2
        else:
            with pytest.raises(ValidationError, match="older_than=0"):
                store.gc(partial=True)
            assert store.tensor_info("t").tiles_partial == 2


@pytest.mark.parametrize("age", [-1, float("nan"), "an hour", True, None])
def test_what_is_no_age_is_refused(age: Any, store: TileStore) -> None:
    for each in (store, MemoryTileStore()):
        with pytest.raises(ValidationError, match="older_than"):
            each.gc(partial=True, older_than=age)


def test_a_backend_that_cannot_says_so() -> None:
    with pytest.raises(StoreError, match="_drop_partials"):
        DictTileStore({}, tile_size=TILE).gc(partial=True, older_than=0)


@pytest.mark.parametrize("kind", ["zarr", "url"])
def test_a_writer_that_finds_its_log_gone_begins_it_anew(kind: str, tmp_path: Path) -> None:
    with MAKERS[kind](tmp_path) as writer, MAKERS[kind](tmp_path) as sweeper:
        t, f = made(writer)
        for last in (2, 4):
            t[0:last]
            writer.flush()
        assert sweeper.gc(partial=True, older_than=0).partial_tiles == 2
        t[4:6]
        writer.flush()
        with MAKERS[kind](tmp_path) as reader:
            assert reader.verify("t") == []
            other, of_other = made(reader)
            assert torch.equal(other[STORED], made(MemoryTileStore())[0][STORED])
        # The first windows are stored as one, with those that had been dropped.
        assert (f.calls, of_other.calls) == ([(-1,), (0,), (1,), (2,)], [(3,)])


def drop(path: Path, kill: Kill) -> None:
    enter_child()
    kill.arm(path)
    with ZarrTileStore(path) as store:
        store.gc(partial=True, older_than=0)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_kill_meanwhile_leaves_logs_without_gaps(number: int, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=TILE) as store:
        t, _ = made(store)
        for last in (2, 4, 6):
            t[0:last]
            store.flush()
    assert parts(tmp_path) == ["0.-1/0", "0.0/0", "0.0/1", "0.0/2"]
    assert exit_code(drop, tmp_path, before("os.remove", "", number)) == -signal.SIGKILL
    assert len(parts(tmp_path)) == 5 - number
    with ZarrTileStore(tmp_path) as store:
        assert store.verify("t") == []
        assert torch.equal(made(store)[0][STORED], made(MemoryTileStore())[0][STORED])
        store.gc(partial=True, older_than=0)
    assert parts(tmp_path) == []
