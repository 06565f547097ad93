"""Storage that is far away: requests of one call are under way at the same time."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from zarr.storage import MemoryStore

from infinite_tensor import ValidationError, ZarrTileStore, predict
from tests.support.building import halves, line
from tests.support.watched import Watched

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


# How many requests are under way at a time.


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


# How many requests there are does not grow with what else a store holds.


LONG = "n" * 200


def asked(call: Callable[[ZarrTileStore], object], others: int) -> Counter[str]:
    """What a call asks of a store that holds some tensors, opened anew."""
    counting = Watched(MemoryStore())
    with ZarrTileStore(counting, tile_size=8) as store:
        for number in range(others):
            line(store, tensor_id=f"map {number}")
            line(store, tensor_id=f"apart/{LONG}{number}")
    with ZarrTileStore(counting, tile_size=8) as store:
        counting.requests.clear()
        call(store)
        return Counter(counting.requests)


def predicted(store: ZarrTileStore) -> None:
    net, source = torch.nn.Conv2d(1, 1, 1), torch.zeros(1, 8, 8)
    for overwrite in (False, True):
        predict(
            net, source, store, window=8, dims=("c", "y", "x"), tensor_id="map", overwrite=overwrite, progress=False
        )


CALLS: dict[str, Callable[[ZarrTileStore], object]] = {
    "predict": predicted,
    "ids": lambda store: store.tensor_ids("map/"),
    "clear": lambda store: store.clear_tensor("map 1"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_other_tensors_are_not_read(call: Callable[[ZarrTileStore], object]) -> None:
    assert asked(call, 2) == asked(call, 20)


def test_gc_reads_no_definition_where_nothing_may_be_garbage() -> None:
    assert asked(lambda store: store.gc(), 20)["get"] == 1


def test_ids_are_found_by_what_they_begin_with() -> None:
    ids = ["a", "a.", "a.b", "a/", "a/b", f"a/{LONG}", f"{LONG}1", f"{LONG}/2", "b", "ü/b"]
    with ZarrTileStore(MemoryStore(), tile_size=8) as store:
        for tensor_id in ids:
            line(store, tensor_id=tensor_id)
    with ZarrTileStore(store.target, mode="r") as store:
        for prefix in ["", *ids, LONG, "a/n", "ü", "c"]:
            assert store.tensor_ids(prefix) == sorted(each for each in ids if each.startswith(prefix)), prefix
        with pytest.raises(ValidationError, match="prefix must be a non-empty str, got 3"):
            store.tensor_ids(3)  # type: ignore[arg-type]
