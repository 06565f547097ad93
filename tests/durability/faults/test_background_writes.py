"""Writes in the background that fail: reported once, kept in memory, stored by a later flush."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from zarr.storage import MemoryStore

from infinite_tensor import MemoryTileStore, StoreError, ZarrTileStore
from tests.durability.faults.conftest import check_stored, pair, wait_for_writers
from tests.support.faulty_store import FaultyStore, Outage, writes


class Broken:
    """A chain all of whose tiles are in memory, since none of them could be stored."""

    def __init__(self, cache_size_tiles: int = 100) -> None:
        self.outage, self.storage = Outage(), MemoryStore()
        self.store = self.opened(cache_size_tiles=cache_size_tiles)
        self.chain = pair(self.store)
        self.outage.hits = writes
        self.pixels = self.chain.slope[0:60, 0:20]
        self.wait()

    def opened(self, **options: Any) -> ZarrTileStore:
        return ZarrTileStore(FaultyStore(self.storage, self.outage), tile_size=16, **options)

    def wait(self) -> None:
        """Until nothing is being written in the background."""
        self.store._contents.tiles._writer.drain()

    def read(self) -> None:
        self.chain.slope[0:60, 0:20]

    def read_at_last(self, y: int) -> torch.Tensor:
        """Twenty rows from `y`, after what there is to report: letting go of a tile tries to store it."""
        for _ in range(2):
            self.wait()
            with contextlib.suppress(StoreError):
                rows: torch.Tensor = self.chain.slope[y : y + 20, 0:20]
                return rows
        raise AssertionError("reported twice")


@pytest.fixture
def broken() -> Iterator[Broken]:
    """Given up at the end."""
    broken = Broken()
    yield broken
    broken.store.close(discard=True)


NAMED = (
    r"ZarrTileStore\(.*\) could not store tile \(-?\d+, -?\d+\)( and \d+ more)? of tensor '(slope|ground)': .*injected"
)


@pytest.mark.parametrize(
    "notice",
    [Broken.read, lambda broken: broken.store.flush(), lambda broken: broken.store.close()],
    ids=["read", "flush", "close"],
)
def test_the_next_call_names_store_tensor_and_tile_and_the_next_read_is_served(
    broken: Broken, notice: Callable[[Broken], None]
) -> None:
    with pytest.raises(StoreError, match=NAMED):
        notice(broken)
    calls = broken.chain.calls.copy()
    assert torch.equal(broken.read_at_last(0), broken.pixels[:20])
    assert broken.chain.calls == calls


def test_what_the_cache_lets_go_of_is_still_there() -> None:
    broken = Broken(cache_size_tiles=1)
    calls = broken.chain.calls.copy()
    for y in (0, 40, 0):
        assert torch.equal(broken.read_at_last(y), broken.pixels[y : y + 20])
    assert broken.chain.calls == calls
    broken.store.close(discard=True)


def test_each_flush_tries_again_and_says_what_went_wrong_this_time(broken: Broken) -> None:
    for _ in range(3):
        with pytest.raises(StoreError, match=NAMED):
            broken.store.flush()
    broken.outage.stop()
    broken.store.close()
    check_stored(broken.opened(), broken.pixels)


def test_a_tensor_that_cannot_be_stored_does_not_hold_up_another() -> None:
    outage, storage = Outage(), MemoryStore()
    store = ZarrTileStore(FaultyStore(storage, outage), tile_size=16)
    chain = pair(store)
    # The writer comes upon `ground` first.
    outage.hits = lambda operation, key: writes(operation, key) and key.startswith("t-ground/")
    pixels = chain.slope[0:60, 0:20]
    with pytest.raises(StoreError, match="of tensor 'ground'"):
        store.flush()
    outage.stop()
    check_stored(ZarrTileStore(storage, tile_size=16), pixels)
    store.close()


def test_what_was_stored_beside_it_is_neither_stored_nor_counted_again(broken: Broken) -> None:
    written: list[str] = []

    def hits(operation: str, key: str) -> bool:
        if writes(operation, key) and key.startswith("t-slope/"):
            written.append(key)
        return writes(operation, key) and key.startswith("t-ground/")

    # All tiles wait, and so those of both tensors are in one batch now.
    broken.outage.hits = hits
    with pytest.raises(StoreError, match="of tensor 'ground'"):
        broken.store.flush()
    assert written
    written.clear()
    counted = broken.store._contents.written("slope")
    for _ in range(2):
        with pytest.raises(StoreError, match="of tensor 'ground'"):
            broken.store.flush()
    assert (written, broken.store._contents.written("slope")) == ([], counted)
    broken.outage.stop()
    broken.store.close()
    check_stored(broken.opened(), broken.pixels)


def test_a_store_that_cannot_be_closed_serves_and_can_be_told_to_forget(broken: Broken) -> None:
    for _ in range(2):
        with pytest.raises(StoreError, match=NAMED):
            broken.store.close()
    assert torch.equal(broken.chain.slope[0:60, 0:20], broken.pixels)
    broken.store.close(discard=True)
    with pytest.raises(StoreError, match="closed"):
        broken.read()
    broken.outage.stop()
    again = pair(broken.opened())
    assert torch.equal(again.slope[0:60, 0:20], broken.pixels)
    assert again.calls == broken.chain.calls


def test_a_store_that_is_dropped_unflushed_says_what_is_lost() -> None:
    broken = Broken()
    with pytest.raises(StoreError):
        broken.store.close()
    gone = weakref.ref(broken.store._home)
    with pytest.warns(RuntimeWarning, match=r"(?s)^\d+ tiles are lost: .*of tensor 'ground'.*of tensor 'slope'"):
        del broken
        gc.collect()
        wait_for_writers()
        gc.collect()
    assert gone() is None


def test_a_long_fill_over_broken_storage_stops_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 20 * 16 * 16 * 4
    monkeypatch.setattr("infinite_tensor.tilestore.writer._QUEUE_BYTES", limit)
    broken = Broken(cache_size_tiles=10)
    writer = broken.store._contents.tiles._writer
    raised = 0
    for y in range(0, 3000, 30):
        try:
            broken.chain.slope[y : y + 30, 0:40]
        except StoreError:
            raised += 1
    broken.wait()
    computed = len(broken.chain.calls)
    assert raised > 50
    assert sum(job.nbytes for job in writer._failed.values()) < 5 * limit
    for y in range(3000, 3300, 30):
        with pytest.raises(StoreError, match=NAMED):
            broken.chain.slope[y : y + 30, 0:40]
    assert len(broken.chain.calls) == computed
    assert torch.equal(broken.read_at_last(0), broken.pixels[:20])
    broken.outage.stop()
    # What is stuck is stored as room is needed, without a flush.
    assert torch.equal(broken.chain.slope[3000:3030, 0:20], pair(MemoryTileStore()).slope[3000:3030, 0:20])
    broken.store.close()
    check_stored(broken.opened(), broken.pixels)
