"""Small reads at new places through maps that nobody stores; they run in the environment of this repository.

The floors draw the same numbers, and compute the region that is needed with torch alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import avg_pool2d, avg_pool3d, conv3d, interpolate

from infinite_tensor import InfiniteTensor, map_windows, noise

from .stage import Stage

FAR = 10**9
PIXELS = 2**19
"""Of all reads together, but for the largest."""

_CUBE = torch.ones(1, 1, 5, 5, 5) / 125
Filter = Callable[[torch.Tensor], torch.Tensor]
Read = Callable[[tuple[int, ...]], torch.Tensor]


def eroded(pixels: torch.Tensor) -> torch.Tensor:
    """A mean that looks 4 pixels far."""
    return avg_pool2d(pixels[None], 9, stride=1)[0]


def smoothed(voxels: torch.Tensor) -> torch.Tensor:
    """A filter that looks 2 voxels far."""
    return conv3d(voxels[None, None], _CUBE)[0, 0]


def solid(voxels: torch.Tensor) -> torch.Tensor:
    """Where there is rock."""
    return (voxels > 0.5).float()


def opened(voxels: torch.Tensor) -> torch.Tensor:
    """A mean that looks 1 voxel far."""
    return avg_pool3d(voxels[None], 3, stride=1)[0]


EROSION: Sequence[tuple[Filter, int]] = ((eroded, 4),) * 8
CAVES: Sequence[tuple[Filter, int]] = ((smoothed, 2), (solid, 0), (opened, 1))


def _chain(ndim: int, steps: Sequence[tuple[Filter, int]]) -> InfiniteTensor:
    tensor = noise((None,) * ndim, seed=5)
    for function, halo in steps:
        tensor = tensor.map(function, halo=halo)
    return tensor


def _read(ndim: int, steps: Sequence[tuple[Filter, int]], side: int) -> Read:
    tensor = _chain(ndim, steps)

    def read(start: tuple[int, ...]) -> torch.Tensor:
        pixels: torch.Tensor = tensor[tuple([slice(a, a + side) for a in start])]
        return pixels

    return read


def _by_torch(ndim: int, steps: Sequence[tuple[Filter, int]], side: int) -> Read:
    numbers, margin = noise((None,) * ndim, seed=5), sum(halo for _, halo in steps)

    def read(start: tuple[int, ...]) -> torch.Tensor:
        pixels: torch.Tensor = numbers[tuple([slice(a - margin, a + side + margin) for a in start])]
        for function, _ in steps:
            pixels = function(pixels)
        return pixels

    return read


def _timed(stage: Stage, read: Read, expected: Read, ndim: int, side: int) -> None:
    dice = random.Random(0)  # noqa: S311  (some places)
    count = max(1, min(64, PIXELS // side**ndim))

    def place() -> tuple[int, ...]:
        return tuple([dice.randrange(-FAR, FAR) for _ in range(ndim)])

    def walk() -> None:
        for _ in range(count):
            read(place())

    read(place())
    stage.timed(walk, per=count, rounds=5)
    here = place()
    torch.testing.assert_close(read(here), expected(here))


def erosion(stage: Stage) -> None:
    """Squares of 8 steps that look 4 pixels far."""
    _timed(stage, _read(2, EROSION, stage.size), _by_torch(2, EROSION, stage.size), 2, stage.size)


def erosion_floor(stage: Stage) -> None:
    """The same, without a library."""
    _timed(stage, _by_torch(2, EROSION, stage.size), _read(2, EROSION, stage.size), 2, stage.size)


def voxels(stage: Stage) -> None:
    """Chunks of caves."""
    _timed(stage, _read(3, CAVES, 16), _by_torch(3, CAVES, 16), 3, 16)


def voxels_floor(stage: Stage) -> None:
    """The same, without a library."""
    _timed(stage, _by_torch(3, CAVES, 16), _read(3, CAVES, 16), 3, 16)


def filters(stage: Stage) -> None:
    """All of a large square, through so many filters."""
    _timed(stage, _read(2, EROSION[: stage.size], 2048), _by_torch(2, EROSION[: stage.size], 2048), 2, 2048)


def filters_floor(stage: Stage) -> None:
    """The same, without a library."""
    _timed(stage, _by_torch(2, EROSION[: stage.size], 2048), _read(2, EROSION[: stage.size], 2048), 2, 2048)


def _climate(heights: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
    return interpolate(coarse[None], scale_factor=256, mode="bilinear")[0][:, 256:-256, 256:-256] - heights


_HEIGHTS, _COARSE = (noise(shape, seed=seed) for seed, shape in enumerate([(None, None), (5, None, None)]))


def terrain(stage: Stage) -> None:
    """Tiles of five channels, from heights and from a coarse map of 1/256 with a halo of one coarse pixel."""
    tensor = map_windows(
        _climate,
        _HEIGHTS.map(eroded, halo=4),
        noise((5, None, None), seed=1, dims=("c", "y", "x")),
        halo=(0, 1),
        scale=(1, 256),
        channels=5,
    )
    _timed(stage, lambda start: tensor[:, start[0] : start[0] + 256, start[1] : start[1] + 256], _tile, 2, 256)


def terrain_floor(stage: Stage) -> None:
    """The same, without a library."""
    _timed(stage, _tile, _tile, 2, 256)


def _tile(start: tuple[int, ...]) -> torch.Tensor:
    y, x = start
    rows, columns = (slice(a // 256 - 1, (a + 255) // 256 + 2) for a in start)
    heights = eroded(_HEIGHTS[y - 4 : y + 260, x - 4 : x + 260])
    coarse = _COARSE[:, rows, columns]
    large = interpolate(coarse[None], scale_factor=256, mode="bilinear")[0]
    top, left = y - 256 * rows.start, x - 256 * columns.start
    return large[:, top : top + 256, left : left + 256] - heights
