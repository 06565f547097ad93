"""How many requests one read or write of a store has under way at a time."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from zarr.storage import MemoryStore

from infinite_tensor import ValidationError, ZarrTileStore
from tests.support.tensors import halves
from tests.support.watched_store import Watched


class BusyStore(Watched):
    """Counts the requests that are under way."""

    now = most = 0

    @asynccontextmanager
    async def under_way(self, request: str, key: str) -> AsyncIterator[None]:
        async with super().under_way(request, key):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.005)
            yield
            self.now -= 1


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
