"""The limits that fills lend to caches without one: each lasts as long as its fill."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ZarrTileStore

WINDOW = TensorWindow((256,))
SIZE = 1024
"""Bytes of a window, and of a tile."""

MAKE: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _folder: MemoryTileStore(),
    "zarr": lambda folder: ZarrTileStore(folder, tile_size=256, cache_size_bytes=None),
}


def tensor(store: TileStore, tensor_id: str = "t") -> InfiniteTensor:
    return InfiniteTensor((None,), lambda _ctx: torch.ones(256), WINDOW, tile_store=store, tensor_id=tensor_id)


@contextmanager
def lent(store: TileStore, room: int) -> Iterator[None]:
    """A limit as a fill lends it."""
    held = threading.Lock()
    with held:
        store._contents.lend(held, room)
        yield


def read(t: InfiniteTensor, start: int, count: int) -> None:
    """Windows one by one: a cache is limited between reads."""
    for at in range(start, start + count):
        t[256 * at : 256 * at + 256]


def held(store: Any) -> int:
    """Windows or tiles in memory, which take a KiB each."""
    if isinstance(store, MemoryTileStore):
        return store.tensor_info("t").tiles_complete
    return len(store._contents.tiles.entries)


@pytest.fixture(params=list(MAKE))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    return MAKE[request.param](tmp_path)


@pytest.mark.parametrize("left_first", [0, 1])
def test_of_two_limits_each_holds_until_it_is_left(store: TileStore, left_first: int) -> None:
    with store:
        t = tensor(store)
        read(t, 0, 3)
        limits = [lent(store, 2 * SIZE), lent(store, 2 * SIZE)]
        for limit in limits:
            limit.__enter__()
        read(t, 100, 20)
        assert held(store) == 5
        limits.pop(left_first).__exit__(None, None, None)
        read(t, 200, 20)
        assert held(store) == 5
        limits.pop().__exit__(None, None, None)
        read(t, 300, 20)
        assert held(store) == 25


@pytest.mark.parametrize(("of_user", "of_fill", "kept"), [(8, 2, 2), (2, 8, 2), (8, 8, 8)])
def test_of_the_limits_of_user_and_fill_the_smaller_counts(
    of_user: int, of_fill: int, kept: int, tmp_path: Path
) -> None:
    limit = of_user * SIZE
    for store in (MemoryTileStore(limit), ZarrTileStore(tmp_path, tile_size=256, cache_size_bytes=limit)):
        with store:
            with lent(store, of_fill * SIZE):
                read(tensor(store), 0, 20)
                assert held(store) == kept
            read(tensor(store), 20, 20)
            assert held(store) == of_user


def test_a_limit_that_is_set_meanwhile_stays() -> None:
    store = MemoryTileStore()
    with lent(store, 2 * SIZE):
        store.cache_size_bytes = 7 * SIZE
    read(tensor(store), 0, 20)
    assert (store.cache_size_bytes, held(store)) == (7 * SIZE, 7)


def test_a_lent_limit_is_no_option_of_the_store(store: Any) -> None:
    with store, lent(store, 2 * SIZE):
        tensor(store)
        with pickle.loads(pickle.dumps(store)) as again:  # noqa: S301
            assert (store._contents.cache_limit, again._contents.cache_limit) == (None, None)


@pytest.mark.parametrize("limit", [None, 8 * SIZE])
def test_of_fills_that_have_ended_no_more_than_the_last_is_kept(limit: int | None, tmp_path: Path) -> None:
    for store in (MemoryTileStore(limit), ZarrTileStore(tmp_path, tile_size=256, cache_size_bytes=limit)):
        locks: list[weakref.ref[threading.Lock]] = []
        with store:
            for _ in range(5):
                held = threading.Lock()
                locks.append(weakref.ref(held))
                with held:
                    store._contents.lend(held, SIZE)
                del held
            assert sum(each() is not None for each in locks) <= 1
