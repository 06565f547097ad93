"""Limits of caches: of the memory store, reads that exceed them, and those that fills lend."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ZarrTileStore
from tests.support.building import built
from tests.support.counting import Counted

WINDOW_BYTES = 16


def counted(store: MemoryTileStore, calls: list[int], *args: InfiniteTensor) -> InfiniteTensor:
    f = Counted(lambda ctx, *_regions: torch.full((4,), float(ctx[0])), lambda ctx: calls.append(ctx[0]))
    halo = TensorWindow((6,), stride=4, offset=-1)
    return built(f, 4, *((arg, halo) for arg in args), store=store)


@pytest.mark.parametrize("limits", [{"cache_size_windows": 3}, {"cache_size_bytes": 3 * WINDOW_BYTES}])
def test_the_least_recently_used_tiles_go(limits: dict[str, int]) -> None:
    store, calls = MemoryTileStore(**limits, tile_size=4), list[int]()
    t = counted(store, calls)
    t[0:12]
    t[0:4]
    t[12:16]
    calls.clear()
    t[0:4]
    t[8:16]
    assert calls == []
    t[4:8]
    assert calls == [1]


def test_a_read_larger_than_the_limits_computes_each_window_once_and_then_they_hold() -> None:
    store = MemoryTileStore(cache_size_windows=2, tile_size=4)
    upstream, downstream = list[int](), list[int]()
    t = counted(store, downstream, counted(store, upstream))
    assert t[0:40:4].tolist() == list(range(10))
    assert sorted(upstream) == list(range(-1, 11))
    assert sorted(downstream) == list(range(10))
    assert sum(store.tensor_info(name).tiles_complete for name in store.tensor_ids()) == 2


class CountedBlend:
    """A sum that counts the pixels that it has blended."""

    def __init__(self) -> None:
        self.pixels = 0

    def __call__(self, existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        self.pixels += existing.numel()
        return existing + incoming


def overlapping(store: MemoryTileStore, blend: CountedBlend) -> InfiniteTensor:
    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        return torch.arange(64, dtype=t.dtype).reshape(8, 8) + 10 * ctx[0] + ctx[1]

    window = TensorWindow((8, 8), stride=4)
    t = built(f, window, store=store, name="t", blend=blend)
    blend.pixels = 0
    return t


def test_what_overlaps_is_blended_once_however_often_it_is_read() -> None:
    blend = CountedBlend()
    t = overlapping(MemoryTileStore(), blend)
    first = t[0:1024, 0:1024]
    blended = blend.pixels
    assert blended >= 4 * 1024 * 1024
    assert torch.equal(t[0:1024, 0:1024], first)
    for y in range(0, 900, 50):
        assert torch.equal(t[y : y + 70, y : y + 30], first[y : y + 70, y : y + 30])
    assert blend.pixels == blended


def test_a_limit_that_is_set_later_holds_for_what_is_there() -> None:
    store, calls = MemoryTileStore(tile_size=4), list[int]()
    t = counted(store, calls)
    t[0:400]
    store.cache_size_bytes = 3 * WINDOW_BYTES
    assert store.tensor_info(t.tensor_id).tiles_complete == 3
    t[0:400]
    assert len(calls) == 197


@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_windows_far_apart_are_read_with_what_lies_between_unless_that_is_too_many_tiles() -> None:
    t = built(lambda _ctx: torch.ones(2, 2), TensorWindow((2, 2), stride=2**40))
    assert t[-1:3, 2**40 - 1 : 2**40 + 3].tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert t[0, 2**40 : 2**40 + 3].tolist() == [1, 1, 0]


def test_a_tensor_whose_id_another_has_taken_knows_none_of_its_tiles() -> None:
    store = MemoryTileStore()
    old = built(lambda _ctx: torch.ones(4), 4, shape=(8,), store=store, name="t", version=1)
    store.clear_tensor("t")
    new = built(lambda _ctx: torch.ones(4), 4, shape=(8,), store=store, name="t", version=2)
    new[...]
    assert (new.is_filled(...), new.plan(...).windows) == (True, 0)
    assert (old.is_filled(...), old.plan(...).windows) == (False, 2)


# Limits that fills lend to caches without one: each lasts as long as its fill.


WINDOW = TensorWindow((256,))
SIZE = 1024
"""Bytes of a window, which is a tile."""

MAKE: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _folder: MemoryTileStore(tile_size=256),
    "zarr": lambda folder: ZarrTileStore(folder, tile_size=256, cache_size_bytes=None),
}


def tensor(store: TileStore, tensor_id: str = "t") -> InfiniteTensor:
    return built(lambda _ctx: torch.ones(256), WINDOW, store=store, name=tensor_id)


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
    """Tiles in memory, which take a KiB each."""
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
def test_of_limits_of_user_and_fill_the_smaller_counts(of_user: int, of_fill: int, kept: int, tmp_path: Path) -> None:
    limit = of_user * SIZE
    for store in (
        MemoryTileStore(limit, tile_size=256),
        ZarrTileStore(tmp_path, tile_size=256, cache_size_bytes=limit),
    ):
        with store:
            with lent(store, of_fill * SIZE):
                read(tensor(store), 0, 20)
                assert held(store) == kept
            read(tensor(store), 20, 20)
            assert held(store) == of_user


def test_a_limit_that_is_set_meanwhile_stays() -> None:
    store = MemoryTileStore(tile_size=256)
    with lent(store, 2 * SIZE):
        store.cache_size_bytes = 7 * SIZE
    read(tensor(store), 0, 20)
    assert (store.cache_size_bytes, held(store)) == (7 * SIZE, 7)


def test_a_lent_limit_is_no_option_of_the_store(store: Any) -> None:
    with store, lent(store, 2 * SIZE):
        tensor(store)
        with pickle.loads(pickle.dumps(store)) as again:  # noqa: S301
            assert (store._contents.cache_limit, again._contents.cache_limit) == (None, None)
