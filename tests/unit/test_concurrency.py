"""How many requests one read or write of a store has under way at a time."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import MemoryStore, WrapperStore

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, ZarrTileStore


class BusyStore(WrapperStore[MemoryStore]):
    """Counts the requests that are under way."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.now = self.most = 0

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        async with self._under_way():
            return await super().get(key, prototype, byte_range)

    async def set(self, key: str, value: Buffer) -> None:
        async with self._under_way():
            await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        async with self._under_way():
            await super().set_if_not_exists(key, value)

    @asynccontextmanager
    async def _under_way(self) -> AsyncIterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.005)
        yield
        self.now -= 1


def halves(store: ZarrTileStore) -> InfiniteTensor:
    """Two windows to a tile of 8 pixels."""
    return InfiniteTensor((None,), lambda _: torch.ones(4), TensorWindow((4,)), tile_store=store, tensor_id="t")


@pytest.mark.parametrize("concurrency", [1, 3, 40])
def test_a_read_has_so_many_requests_under_way(concurrency: int) -> None:
    busy = BusyStore(MemoryStore())
    with ZarrTileStore(busy, tile_size=8) as store:
        halves(store)[0 : 8 * 64]
    with ZarrTileStore(busy, tile_size=8, concurrency=concurrency) as store:
        t = halves(store)
        busy.most = 0
        t[0 : 8 * 64]
    assert busy.most == concurrency


@pytest.mark.parametrize("concurrency", [1, 3, 40])
def test_so_many_incomplete_tiles_are_stored_at_a_time(concurrency: int) -> None:
    busy = BusyStore(MemoryStore())
    with ZarrTileStore(busy, tile_size=8, concurrency=concurrency) as store:
        t = halves(store)
        t[[slice(start, start + 4) for start in range(0, 8 * 64, 8)]]
        busy.most = 0
        store.flush()
    assert busy.most == concurrency


def test_two_stores_in_one_place_have_each_its_own(tmp_path: Path) -> None:
    with (
        ZarrTileStore(tmp_path, concurrency=2) as few,
        ZarrTileStore(tmp_path, concurrency=64) as many,
    ):
        assert (few._concurrency, many._concurrency) == (2, 64)


def test_a_pickled_store_keeps_it(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, concurrency=5) as store, pickle.loads(pickle.dumps(store)) as copy:  # noqa: S301
        assert copy._concurrency == 5


@pytest.mark.parametrize("concurrency", [0, -1, 257, 2.5, True, "16", None])
def test_what_is_no_number_of_requests_is_refused(concurrency: object) -> None:
    with pytest.raises(ValidationError, match=r"concurrency must be an int from 1 to 256, got "):
        ZarrTileStore("memory://refused", concurrency=concurrency)  # type: ignore[arg-type]
