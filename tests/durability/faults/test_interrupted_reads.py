"""Ctrl-C anywhere in a read, or in whatever else a thread asks of a store: it stays right, and nobody hangs."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType

import numpy as np
import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, MemoryTileStore, TileStore, ZarrTileStore, sl
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.tilestore import lru
from infinite_tensor.tilestore.memory import kept_windows, window_cache
from infinite_tensor.tilestore.memory.window_cache import RecentWindows
from infinite_tensor.tilestore.persistent import PersistentTileStore, cache
from tests.durability.faults.conftest import pair
from tests.support.interrupts import NewLines, finishes, interrupted_by_a_timer, interrupted_where

SMALL = 3000
"""Bytes of a cache that holds a few windows, or a tile or two."""

STORES: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _: MemoryTileStore(),
    "memory-limited": lambda _: MemoryTileStore(cache_size_bytes=SMALL),
    "zarr": lambda path: ZarrTileStore(path / "t.zarr", tile_size=16, cache_size_bytes=SMALL),
    "hdf5": lambda path: HDF5TileStore(path / "t.h5", tile_size=16, cache_size_bytes=SMALL),
}


@pytest.fixture(scope="module", autouse=True)
def _little_garbage_to_look_for() -> None:
    """Garbage is looked for after every interrupt: not in all that the tests before have left, which takes long."""
    gc.collect()
    gc.freeze()


def read(tensor: InfiniteTensor, y: int) -> torch.Tensor:
    pixels: torch.Tensor = tensor.read((slice(y, y + 14), slice(0, 14)))
    return pixels


def stream(tensor: InfiniteTensor, y: int) -> list[list[torch.Tensor]]:
    return list(tensor.iter_regions([sl[y : y + 3, 0:9], sl[y + 9 : y + 14, 2:14]]))


def fill(tensor: InfiniteTensor, y: int) -> object:
    return tensor.fill((slice(y, y + 14), slice(0, 14)), progress=False)


def read_on_threads(tensor: InfiniteTensor, y: int) -> torch.Tensor:
    pixels: torch.Tensor = tensor.read((slice(y, y + 14), slice(0, 14)), workers=2)
    return pixels


def invalidate(tensor: InfiniteTensor, y: int) -> object:
    return tensor.args[0].invalidate((slice(y - 9, y), slice(0, 14)))


def clear_cache(tensor: InfiniteTensor, _y: int) -> None:
    tensor.clear_cache()


def plan(tensor: InfiniteTensor, y: int) -> object:
    return tensor.plan((slice(y, y + 14), slice(0, 14)))


ACTIONS = [read, stream, fill, read_on_threads, invalidate, clear_cache, plan]


@pytest.mark.parametrize(
    "lines", [pytest.param(48, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.parametrize("kind", STORES)
def test_ctrl_c_at_any_line(kind: str, lines: NewLines, tmp_path: Path) -> None:
    store, true = STORES[kind](tmp_path), pair(MemoryTileStore())
    top, turn = pair(store).slope, 0
    for action in ACTIONS:
        interrupted = True
        while interrupted:
            turn += 1
            interrupted = False
            y = 7 * turn
            try:
                with interrupted_where(lines, lines.are_left_in):
                    action(top, y)
            except KeyboardInterrupt:
                interrupted = True
            expected = read(true.slope, y)
            finishes(partial(check_same, top, y, expected))
            check_same(top, y, expected)
            check_together(store)
    assert len(lines) > 6
    finishes(store.close)
    if isinstance(store, PersistentTileStore):
        again = pair(STORES[kind](tmp_path)).slope
        for y in range(0, 7 * turn, 14):
            check_same(again, y, read(true.slope, y))


CACHES = {module.__file__ for module in (cache, lru, kept_windows, window_cache)}


def is_of_a_cache(code: CodeType) -> bool:
    return code.co_filename in CACHES


@pytest.mark.parametrize("kind", ["memory-limited", "zarr"])
def test_ctrl_c_at_any_line_of_a_cache(kind: str, tmp_path: Path) -> None:
    store, true, lines = STORES[kind](tmp_path), pair(MemoryTileStore()), NewLines()
    top, y, interrupted = pair(store).slope, 0, True
    while interrupted:
        interrupted = False
        y += 7
        try:
            with interrupted_where(lines, is_of_a_cache):
                read(top, y)
        except KeyboardInterrupt:
            interrupted = True
        finishes(partial(check_same, top, y, read(true.slope, y)))
    assert len(lines) > 20
    check_together(store)


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> NewLines:
    return NewLines(request.param)


def check_same(tensor: InfiniteTensor, y: int, expected: torch.Tensor) -> None:
    assert torch.equal(read(tensor, y), expected)


def check_together(store: TileStore) -> None:
    """What a store counts is what it holds, and nothing is left of reads that have ended."""
    assert not CLAIMS._active
    assert not CLAIMS._waits
    if isinstance(store, PersistentTileStore):
        entries = store.contents.tiles.entries
        assert entries.total_bytes == sum(size for _, size in entries._entries.values())
        assert not any(mark.is_under_way for mark in store.contents.tiles._loading.values())
        # Where a clean-up itself was interrupted, its traceback keeps the read until then.
        gc.collect()
        assert not any(store.contents.tiles._is_pinned(key) for key in list(store.contents.tiles._pins))
    elif isinstance(store, MemoryTileStore) and isinstance(store.contents.kept.windows, RecentWindows):
        assert store.contents.kept.windows.total_bytes <= SMALL
        assert store.contents.kept.windows.total_bytes == sum(
            size for _, size in store.contents.kept.windows._windows._entries.values()
        )


# Python itself drops an exception that comes in a callback of the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
@pytest.mark.parametrize("reads", [300, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", STORES)
def test_ctrl_c_by_a_timer(kind: str, reads: int, tmp_path: Path) -> None:
    store, true = STORES[kind](tmp_path), pair(MemoryTileStore())
    top, draw, interrupts = pair(store).slope, np.random.default_rng(len(kind)), 0
    expected = {y: read(true.slope, y) for y in range(0, 400, 5)}
    with interrupted_by_a_timer() as is_interrupted:
        for _ in range(reads):
            y = 5 * int(draw.integers(80))
            check = partial(check_same, top, y, expected[y])
            if is_interrupted(draw.uniform(1e-5, 4e-3), check):
                interrupts += 1
                check()
    assert interrupts > reads // 50
    check_together(store)
    finishes(store.close)
