"""Storage that is far away: requests of one call are under way at the same time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import MemoryStore, WrapperStore

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore

LATENCY = 0.05
TILES = 64
WELL_UNDER_A_SECOND = LATENCY * TILES / 4
"""One request after the other would take 3.2 s."""


class FarStore(WrapperStore[MemoryStore]):
    """A store of which every request takes 50 ms."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.requests: Counter[str] = Counter()

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        await self._arrive("get")
        return await super().get(key, prototype, byte_range)

    async def set(self, key: str, value: Buffer) -> None:
        await self._arrive("set")
        await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await self._arrive("create")
        await super().set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        await self._arrive("delete")
        await super().delete(key)

    async def _arrive(self, request: str) -> None:
        self.requests[request] += 1
        await asyncio.sleep(LATENCY)


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.monotonic()
    call()
    return time.monotonic() - start


@pytest.fixture
def far() -> FarStore:
    return FarStore(MemoryStore())


def halves(store: ZarrTileStore) -> InfiniteTensor:
    """Two windows to a tile, each full of its index."""
    return InfiniteTensor(
        (None,), lambda ctx: torch.full((4,), float(ctx[0])), TensorWindow((4,)), tile_store=store, tensor_id="t"
    )


def part(number: int) -> slice:
    """The pixels of 64 tiles that no other part has: each is measured three times, for the machine may be busy."""
    return slice(8 * TILES * number, 8 * TILES * (number + 1))


def test_64_stored_tiles_are_read_at_once(far: FarStore) -> None:
    with ZarrTileStore(far, tile_size=8) as store:
        halves(store)[0 : part(2).stop]
    with ZarrTileStore(far, tile_size=8) as store:
        t = halves(store)
        far.requests.clear()
        assert min(seconds(partial(t.__getitem__, part(number))) for number in range(3)) < WELL_UNDER_A_SECOND
        assert far.requests == {"get": 3 * TILES}
        assert t[0 : part(2).stop : 4].tolist() == list(range(3 * 2 * TILES))


def test_64_missing_tiles_are_computed_at_once(far: FarStore) -> None:
    with ZarrTileStore(far, tile_size=8) as store:
        halves(store)
    # Who has created the tensor need not look.
    with ZarrTileStore(far, tile_size=8) as store:
        t = halves(store)
        far.requests.clear()
        assert min(seconds(partial(t.__getitem__, part(number))) for number in range(3)) < WELL_UNDER_A_SECOND
        # Three for each, and two where those before were missing as well.
        assert far.requests["get"] >= 7 * TILES + 3


@pytest.mark.parametrize("covered", [8, 4], ids=["complete", "incomplete"])
def test_64_tiles_are_stored_at_once(far: FarStore, covered: int) -> None:
    with ZarrTileStore(far, tile_size=8) as store:
        t = halves(store)

        def stored(number: int) -> float:
            t[[slice(start, start + covered) for start in range(part(number).start, part(number).stop, 8)]]
            return seconds(store.flush)

        assert min(map(stored, range(3))) < WELL_UNDER_A_SECOND
        info = store.tensor_info("t")
        assert (info.tiles_complete, info.tiles_partial) == ((3 * TILES, 0) if covered == 8 else (0, 3 * TILES))


def test_the_logs_of_64_tiles_are_deleted_at_once(far: FarStore) -> None:
    with ZarrTileStore(far, tile_size=8) as store:
        t = halves(store)

        def completed(number: int) -> float:
            t[[slice(start, start + 4) for start in range(part(number).start, part(number).stop, 8)]]
            store.flush()
            t[part(number)]
            return seconds(store.flush)

        assert min(map(completed, range(3))) < WELL_UNDER_A_SECOND
        assert far.requests["delete"] == 3 * TILES
