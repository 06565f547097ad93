"""A chain of three overlapping tensors, and what is true of it: what the processes of these tests fill.

`ground` has windows smaller than a tile, `slope` larger ones and a blend for which order matters, and `map` a
finite dimension and a `blend_init`. Each reads the ones before it with a halo.
"""

from __future__ import annotations

import functools
import math
import os
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore, open_store
from tests.support.reference import Box, Index, Reference, Stage, windows_over

TILE = 8

Window: TypeAlias = tuple[int, Index]
"""A stage's number, and the index of one of its windows."""


@dataclass(frozen=True)
class WindowFunction:
    """A deterministic ``f``: every bit of the args decides every value."""

    number: int
    size: Index
    dtype: torch.dtype

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        """The window at `ctx`."""
        seed = zlib.crc32(repr((self.number, ctx)).encode())
        for region in regions:
            seed = zlib.crc32(region.numpy().tobytes(), seed)
        numbers = (torch.arange(math.prod(self.size)) * 7919 + seed) % 1000003
        return (numbers.to(self.dtype) / 1009).reshape(self.size)


def fade(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    """A blend for which the order of windows matters."""
    return incoming - existing * 0.5


GROUND, SLOPE, MAP = range(3)

NAMES = ("ground", "slope", "map")

STAGES = (
    Stage(
        (None, None),
        torch.float32,
        TensorWindow((5, 5), stride=3, offset=-1),
        WindowFunction(GROUND, (5, 5), torch.float32),
    ),
    Stage(
        (None, None),
        torch.float64,
        TensorWindow((12, 12), stride=8),
        WindowFunction(SLOPE, (12, 12), torch.float64),
        ((GROUND, TensorWindow((14, 14), stride=8, offset=-1)),),
        fade,
    ),
    Stage(
        (2, None, None),
        torch.float32,
        TensorWindow((2, 6, 6), (2, 4, 4)),
        WindowFunction(MAP, (2, 6, 6), torch.float32),
        (
            (SLOPE, TensorWindow((8, 8), stride=4, offset=-1, dimension_map=(1, 2))),
            (GROUND, TensorWindow((6, 6), stride=4, dimension_map=(1, 2))),
        ),
        blend_init=2.5,
    ),
)

CANVASES: tuple[Box, ...] = (((-32, -32), (32, 32)), ((-16, -16), (24, 24)), ((0, -8, -8), (2, 16, 16)))
"""What is filled of each stage. Each holds every pixel that filling the next ones reads."""


@functools.cache
def _truth() -> list[torch.Tensor]:
    reference = Reference(STAGES)
    return [reference.region(number, canvas)[0] for number, canvas in enumerate(CANVASES)]


def expected(stage: int, box: Box) -> torch.Tensor:
    """The true pixels of a part of a stage's canvas."""
    origin = CANVASES[stage][0]
    return _truth()[stage][tuple(slice(low - at, high - at) for low, high, at in zip(*box, origin, strict=True))]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors agree in every bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@functools.cache
def windows_of(stage: int, box: Box) -> frozenset[Window]:
    """The windows that cover a box."""
    return frozenset((stage, index) for index in windows_over(STAGES[stage].shape, STAGES[stage].window, box))


def region(box: Box) -> tuple[slice, ...]:
    """A box as it is written between brackets."""
    return tuple(slice(low, high) for low, high in zip(*box, strict=True))


def random_box(rng: random.Random, stage: int, longest: int = 8) -> Box:
    """A random part of a stage's canvas; a finite dimension is taken whole."""
    low, high = [], []
    for extent, first, end in zip(STAGES[stage].shape, *CANVASES[stage], strict=True):
        length = end - first if extent is not None else rng.randint(1, longest)
        low.append(rng.randint(first, end - length))
        high.append(low[-1] + length)
    return tuple(low), tuple(high)


@dataclass(frozen=True)
class Reported:
    """``f`` of a stage as the library gets it: tells of each call before it computes."""

    number: int
    called: Callable[[Window], object]

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        """The window at `ctx`."""
        self.called((self.number, ctx))
        return STAGES[self.number].f(ctx, *regions)


def open_chain_store(path: Path, **options: Any) -> TileStore:
    """A store for the chain: HDF5 where the path ends in ``.h5``, else Zarr."""
    return open_store(os.fspath(path), **({"tile_size": TILE} | options))


def build(store: TileStore, called: Callable[[Window], object]) -> list[InfiniteTensor]:
    """The chain in `store`."""
    tensors: list[InfiniteTensor] = []
    for number in range(len(STAGES)):
        tensors.append(build_stage(store, number, tensors, called))
    return tensors


def build_stage(
    store: TileStore,
    number: int,
    upstream: Sequence[InfiniteTensor],
    called: Callable[[Window], object],
) -> InfiniteTensor:
    """One stage of the chain over the ones before it."""
    stage = STAGES[number]
    return InfiniteTensor(
        stage.shape,
        Reported(number, called),
        stage.window,
        [upstream[n] for n, _ in stage.args],
        [window for _, window in stage.args],
        dtype=stage.dtype,
        tile_store=store,
        tensor_id=NAMES[number],
        blend=stage.blend,
        blend_init=stage.blend_init,
    )
