"""Reads of one tensor: of what nobody has computed yet, and of what lies in memory, on disk or nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from infinite_tensor import InfiniteTensor, TensorWindow

from . import functions, loops
from .functions import Function
from .stage import Stage

T = TypeVar("T")
Corners = list[tuple[int, int]]

EXTENT = 2048
READ = 64
READS = 500
FEW_READS = 100
HEAVY = 1024, 8
VOLUME = 128


def plane(
    store: Any, function: Function, size: int, stride: int | None = None, *, name: str = "plane"
) -> InfiniteTensor:
    """A tensor of two unbounded dimensions with square windows."""
    window = TensorWindow((size, size), stride=(stride or size,) * 2)
    return InfiniteTensor((None, None), function, window, tile_store=store, tensor_id=name)


def timed_fill(stage: Stage, store: Any, read: Callable[[], T], *, per: int = 1) -> T:
    """Measure a read until the store keeps what it computed."""

    def whole() -> T:
        result = read()
        stage.finish(store)
        return result

    return stage.timed(whole, per=per)


def counts_of(windows: int) -> tuple[int, int]:
    """A power of two as a grid that is square or twice as wide as high."""
    rows = 1 << (windows.bit_length() - 1) // 2
    return rows, windows // rows


def places(extent: int, number: int) -> Corners:
    """Random corners of reads within a square from 0, the same ones in each process."""
    dice = random.Random(0)  # noqa: S311  (it is no secret where a benchmark reads)
    return [(dice.randrange(extent - READ), dice.randrange(extent - READ)) for _ in range(number)]


def _cold(stage: Stage, size: int) -> None:
    """A number of windows of so many pixels along each side."""
    function, (rows, columns) = functions.patterned(size, size), counts_of(stage.size)
    store = stage.store(tile_size=256)
    tensor = plane(store, function, size)
    pixels = timed_fill(stage, store, lambda: tensor[0 : rows * size, 0 : columns * size])
    assert torch.equal(pixels, loops.assembled(function, (rows, columns), size))


def _cold_floor(stage: Stage, size: int) -> None:
    """Call, copy, copy."""
    counts = counts_of(stage.size)
    stage.timed(lambda: loops.assembled(functions.patterned(size, size), counts, size))


cold_64, cold_8 = partial(_cold, size=64), partial(_cold, size=8)
cold_64_floor, cold_8_floor = partial(_cold_floor, size=64), partial(_cold_floor, size=8)


def heavy(stage: Stage) -> None:
    """Four windows that take long."""
    extent = HEAVY[0]
    function = functions.heavy(*HEAVY)
    tensor = plane(stage.store(), function, extent)
    pixels = stage.timed(lambda: tensor[0 : 2 * extent, 0 : 2 * extent])
    assert torch.equal(pixels, loops.dense(function, 2, 0, 2 * extent, extent, extent))


def heavy_floor(stage: Stage) -> None:
    """The calls alone."""
    function = functions.heavy(*HEAVY)
    stage.timed(lambda: [function((row, column)) for row in range(2) for column in range(2)])


def volume(stage: Stage) -> None:
    """Windows of 32x32x32 that overlap by half in each of three dimensions."""
    function = functions.patterned(32, 32, 32)
    store = stage.store(tile_size=64)
    window = TensorWindow((32, 32, 32), stride=(16, 16, 16))
    tensor = InfiniteTensor((None, None, None), function, window, tile_store=store, tensor_id="volume")
    pixels = timed_fill(stage, store, lambda: tensor[0:VOLUME, 0:VOLUME, 0:VOLUME])
    assert torch.equal(pixels, loops.dense(function, 3, 0, VOLUME, 32, 16))


def volume_floor(stage: Stage) -> None:
    """Call, and add into the result."""
    stage.timed(lambda: loops.blended(functions.patterned(32, 32, 32), 3, 0, VOLUME, 32, 16))


def warm(stage: Stage) -> None:
    """2048x2048 pixels again, of windows that overlap by half in both dimensions."""
    function, store = functions.patterned(64, 64), stage.store()
    tensor = plane(store, function, 64, 32)
    tensor[0:EXTENT, 0:EXTENT]
    pixels = stage.timed(lambda: tensor[0:EXTENT, 0:EXTENT], rounds=10)
    stage.finish(store)
    assert torch.equal(pixels, loops.dense(function, 2, 0, EXTENT, 64, 32))


def warm_floor(stage: Stage) -> None:
    """`torch.clone` of the result."""
    pixels = torch.ones(EXTENT, EXTENT)
    stage.timed(lambda: torch.clone(pixels), rounds=10)


def warm_random(stage: Stage) -> None:
    """64x64 pixels at random places of the same region, each time as they lie in memory."""
    function, store, corners = functions.patterned(64, 64), stage.store(), places(EXTENT, READS)
    tensor = plane(store, function, 64, 32)
    tensor[0:EXTENT, 0:EXTENT]
    found = stage.timed(lambda: _reads(tensor, corners), per=READS, rounds=5)
    stage.finish(store)
    check_reads(found, corners, loops.dense(function, 2, 0, EXTENT, 64, 32))


def random_stored(stage: Stage) -> None:
    """64x64 pixels at random places, each time from disk: the cache holds one tile."""
    function, corners = functions.noisy(64, 64), places(EXTENT, FEW_READS)
    store = stage.store(tile_size=256)
    plane(store, function, 64)[0:EXTENT, 0:EXTENT]
    stage.finish(store)
    store = stage.store(tile_size=256, cache_size_tiles=1)
    tensor = plane(store, function, 64)
    found = stage.timed(lambda: _reads(tensor, corners), per=FEW_READS, rounds=2)
    stage.finish(store)
    check_reads(found, corners, loops.dense(function, 2, 0, EXTENT, 64, 64))


def random_missing(stage: Stage) -> None:
    """64x64 pixels at random places far apart, which are computed and stored."""
    function, corners = functions.patterned(64, 64), places(2**40, FEW_READS)
    store = stage.store(tile_size=256)
    tensor = plane(store, function, 64)
    found = timed_fill(stage, store, lambda: _reads(tensor, corners), per=FEW_READS)
    for pixels, corner in zip(found, corners, strict=True):
        assert torch.equal(pixels, _computed(function, corner))


def random_missing_floor(stage: Stage) -> None:
    """Call, and copy into the result."""
    function, corners = functions.patterned(64, 64), places(2**40, FEW_READS)
    stage.timed(lambda: [_computed(function, corner) for corner in corners], per=FEW_READS)


def _computed(function: Function, corner: tuple[int, int]) -> torch.Tensor:
    top, left = corner
    windows = [
        torch.cat([function((row, column)) for column in range(left // 64, (left + READ - 1) // 64 + 1)], dim=1)
        for row in range(top // 64, (top + READ - 1) // 64 + 1)
    ]
    return torch.cat(windows)[top % 64 : top % 64 + READ, left % 64 : left % 64 + READ].clone()


def _reads(tensor: InfiniteTensor, corners: Corners) -> list[torch.Tensor]:
    return [tensor[top : top + READ, left : left + READ] for top, left in corners]


def check_reads(found: list[torch.Tensor], corners: Corners, expected: torch.Tensor) -> None:
    """Assert that each read is what `expected` holds there."""
    for pixels, (top, left) in zip(found, corners, strict=True):
        assert torch.equal(pixels, expected[top : top + READ, left : left + READ])
