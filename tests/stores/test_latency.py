"""Storage that is far away: requests of one call are under way at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from zarr.storage import MemoryStore

from infinite_tensor import ValidationError, ZarrTileStore, predict
from tests.support.building import halves, line
from tests.support.watched import Watched

TILES = 64
PIXELS = slice(0, 8 * TILES)
HALF = [slice(start, start + 4) for start in range(0, 8 * TILES, 8)]
"""Of each tile the first of two windows."""


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


def read(store: ZarrTileStore, region: Any) -> None:
    halves(store)[region]
    store.flush()


# What is stored before, and what is asked for then.
OPERATIONS: dict[str, tuple[Any, Any]] = {
    "stored tiles are read": (PIXELS, PIXELS),
    "missing tiles are looked for and stored": (slice(0, 0), PIXELS),
    "incomplete tiles are stored": (slice(0, 0), HALF),
    "incomplete tiles are completed, and their logs deleted": (HALF, PIXELS),
}


@pytest.mark.parametrize("concurrency", [1, 3, 40])
@pytest.mark.parametrize("name", OPERATIONS)
def test_so_many_requests_are_under_way_at_a_time(name: str, concurrency: int) -> None:
    before, region = OPERATIONS[name]
    busy = BusyStore(MemoryStore())
    with ZarrTileStore(busy, tile_size=8) as store:
        read(store, before)
    with ZarrTileStore(busy, tile_size=8, concurrency=concurrency) as store:
        busy.most = 0
        busy.requests.clear()
        read(store, region)
        assert busy.most == concurrency
        if name == "stored tiles are read":
            assert busy.requests["get"] <= TILES + 2
        assert busy.requests["delete"] == (TILES if before is HALF else 0)


@pytest.mark.parametrize("concurrency", [0, -1, 257, 2.5, True, "16", None])
def test_what_is_no_number_of_requests_is_refused(concurrency: object) -> None:
    with pytest.raises(ValidationError, match="concurrency"):
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
        with pytest.raises(ValidationError, match="prefix"):
            store.tensor_ids(3)  # type: ignore[arg-type]
