"""Storage that is far away: requests of one call are under way at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from zarr.storage import MemoryStore

from infinite_tensor import ZarrTileStore
from tests.support.tensors import halves
from tests.support.watched_store import Watched

LATENCY = 0.05
TILES = 64
WELL_UNDER_A_SECOND = LATENCY * TILES / 4
"""One request after the other would take 3.2 s."""


class FarStore(Watched):
    """A store of which every request takes 50 ms."""

    @asynccontextmanager
    async def under_way(self, request: str, key: str) -> AsyncIterator[None]:
        async with super().under_way(request, key):
            await asyncio.sleep(LATENCY)
            yield


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.monotonic()
    call()
    return time.monotonic() - start


@pytest.fixture
def far() -> FarStore:
    return FarStore(MemoryStore())


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
