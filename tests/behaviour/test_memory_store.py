"""Limits of caches: of the memory store, reads that exceed them, and those that fills lend."""

from __future__ import annotations

import math
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ValidationError, ZarrTileStore
from infinite_tensor.engine.chain import node_of
from infinite_tensor.tilestore.cache import TileCache
from infinite_tensor.tilestore.layout import tile_in_memory
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


def test_the_cache_is_shared_by_all_tensors() -> None:
    store, calls = MemoryTileStore(cache_size_windows=2, tile_size=4), list[int]()
    one, other = counted(store, calls), counted(store, [])
    one[0:4]
    other[0:8]
    one[0:4]
    assert calls == [0, 0]


def test_a_large_read_is_worked_through_in_blocks_with_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream, downstream = list[int](), list[int]()
    store = MemoryTileStore(cache_size_windows=1, tile_size=4)
    t = counted(store, downstream, counted(store, upstream))
    monkeypatch.setattr("infinite_tensor.engine.assemble._BLOCK_BYTES", 3 * WINDOW_BYTES)
    assert t[-7:90].tolist() == [float(x // 4) for x in range(-7, 90)]
    assert sorted(upstream) == sorted(set(upstream))
    assert sorted(downstream) == sorted(set(downstream))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", True])
@pytest.mark.parametrize("name", ["cache_size_bytes", "cache_size_windows"])
def test_other_limits_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        MemoryTileStore(**{name: wrong})


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


def test_small_reads_of_what_overlaps_blend_each_pixel_once_where_the_windows_are_there() -> None:
    blend = CountedBlend()
    t = overlapping(MemoryTileStore(), blend)
    # Together all windows of some tiles, and never as large as one.
    for y in range(-8, 520, 8):
        t[y : y + 8, -8:520]
    blend.pixels = 0
    for _ in range(3):
        for y in range(0, 500, 30):
            t[y : y + 10, y : y + 10]
    assert blend.pixels <= 4 * 528 * 528


@pytest.mark.slow
def test_blended_pixels_stay_within_the_limit_and_fill_it() -> None:
    limit = 2**20
    store = MemoryTileStore(cache_size_bytes=limit)
    blend = CountedBlend()
    t = overlapping(store, blend)
    for y in range(0, 1024, 256):
        t[y : y + 256, 0:1024]
        assert store.tensor_info("t").bytes_stored <= limit
    assert store.tensor_info("t").bytes_stored > limit - 2**18


@pytest.mark.slow
def test_blended_pixels_go_with_what_is_cleared_and_with_another_dtype() -> None:
    blend = CountedBlend()
    store = MemoryTileStore()
    t = overlapping(store, blend)
    for forget in (t.clear_cache, lambda: store.clear_tensor("t"), lambda: t.to(torch.float64)):
        before = t[0:512, 0:512]
        forget()
        blend.pixels = 0
        assert torch.equal(t[0:512, 0:512], before.to(t.dtype))
        assert blend.pixels >= 4 * 512 * 512


def test_a_limit_that_is_set_later_holds_for_what_is_there() -> None:
    store, calls = MemoryTileStore(tile_size=4), list[int]()
    t = counted(store, calls)
    t[0:400]
    store.cache_size_bytes = 3 * WINDOW_BYTES
    assert store.tensor_info(t.tensor_id).tiles_complete == 3
    t[0:400]
    assert len(calls) == 197


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((None, None), TensorWindow((2, 2), stride=2**40)),
        ((2**40, 2**40), TensorWindow((2, 2), stride=(2**41, 2))),
        ((None, None), TensorWindow((2**20, 2**20), stride=2**12)),
        ((None, 3), TensorWindow((2, 3), stride=(1, 3))),
    ],
)
@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_tiles_are_small_whatever_the_windows(shape: tuple[int | None, ...], window: TensorWindow) -> None:
    tile = tile_in_memory(built(torch.ones, window, shape=shape)._spec)
    assert min(tile) > 0
    assert math.prod(tile) * 4 <= 2**24


def test_a_large_window_beside_others_is_a_tile_and_small_ones_are_tiles_by_the_row() -> None:
    tiles = {
        size: tile_in_memory(built(torch.ones, TensorWindow(size))._spec) for size in [(2, 2**30), (32, 32), (8, 8)]
    }
    assert tiles == {(2, 2**30): (2, 2**30), (32, 32): (32, 32), (8, 8): (8, 8 * 64)}


@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_windows_far_apart_are_read_with_what_lies_between_unless_that_is_too_many_tiles() -> None:
    t = built(lambda _ctx: torch.ones(2, 2), TensorWindow((2, 2), stride=2**40))
    assert t[-1:3, 2**40 - 1 : 2**40 + 3].tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert t[0, 2**40 : 2**40 + 3].tolist() == [1, 1, 0]


def test_a_window_that_two_reads_have_computed_is_dropped_whichever_was_first() -> None:
    store, value = MemoryTileStore(tile_size=4), 1.0
    t = built(lambda _ctx: torch.full((4,), value), 4, store=store)
    t[0:16]
    with closing(store._contents.access(node_of(t).spec)) as second:
        second.deposit(np.array([[2]]), np.ones((1, 4), dtype=np.float32))
    value = 7.0
    t.invalidate(slice(8, 12))
    assert t[0:16:4].tolist() == [1.0, 1.0, 7.0, 1.0]


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


@pytest.mark.parametrize("limit", [None, 8 * SIZE])
def test_of_fills_that_have_ended_no_more_than_the_last_is_kept(limit: int | None, tmp_path: Path) -> None:
    for store in (
        MemoryTileStore(limit, tile_size=256),
        ZarrTileStore(tmp_path, tile_size=256, cache_size_bytes=limit),
    ):
        locks: list[weakref.ref[threading.Lock]] = []
        with store:
            for _ in range(5):
                held = threading.Lock()
                locks.append(weakref.ref(held))
                with held:
                    store._contents.lend(held, SIZE)
                del held
            assert sum(each() is not None for each in locks) <= 1


def test_a_window_in_memory_looks_for_nothing_to_store(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[TileCache] = []
    monkeypatch.setattr(TileCache, "submit_partials", looks.append)
    overlapping(MemoryTileStore(), CountedBlend())[0:20, 0:20]
    assert looks == []
