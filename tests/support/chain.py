"""A chain of overlapping tensors, and what is true of it.

`ground` has windows smaller than a tile, `slope` larger ones and a blend for which order matters, and `map` a
finite dimension and a `blend_init`. Each reads the ones before it with a halo. `haze` is a weighted mean,
which is summed in another dtype, of windows that are clipped at an end. `coast` is clipped too, and reads `haze` beyond
both its ends.
"""

from __future__ import annotations

import functools
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore, WeightedMean, open_store
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.support.counting import Counted
from tests.support.reference import Box, Index, Reference, Stage, region, same_bits, windows_over

TILE = 8

Window: TypeAlias = tuple[int, Index]
"""A stage's number, and the index of one of its windows."""

Part: TypeAlias = tuple[int, Box]
"""A stage's number, and a part of its canvas."""


@dataclass(frozen=True)
class Scrambled:
    """An ``f`` in which every bit of the args decides every value."""

    number: int
    size: Index
    dtype: torch.dtype

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        """The window at `ctx`."""
        seed = zlib.crc32(repr((self.number, ctx)).encode())
        for pixels in regions:
            seed = zlib.crc32(pixels.numpy().tobytes(), seed)
        return torch.rand(self.size, dtype=self.dtype, generator=torch.Generator().manual_seed(seed))


def fade(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    """A blend for which the order of windows matters."""
    return incoming - existing * 0.5


GROUND, SLOPE, MAP, HAZE, COAST = range(5)

NAMES = ("ground", "slope", "map", "haze", "coast")

STAGES = (
    Stage(
        (None, None),
        torch.float32,
        TensorWindow((5, 5), stride=3, offset=-1),
        Scrambled(GROUND, (5, 5), torch.float32),
    ),
    Stage(
        (None, None),
        torch.float64,
        TensorWindow((12, 12), stride=8),
        Scrambled(SLOPE, (12, 12), torch.float64),
        ((GROUND, TensorWindow((14, 14), stride=8, offset=-1)),),
        fade,
    ),
    Stage(
        (2, None, None),
        torch.float32,
        TensorWindow((2, 6, 6), (2, 4, 4)),
        Scrambled(MAP, (2, 6, 6), torch.float32),
        (
            (SLOPE, TensorWindow((8, 8), stride=4, offset=-1, dimension_map=(1, 2))),
            (GROUND, TensorWindow((6, 6), stride=4, dimension_map=(1, 2))),
        ),
        blend_init=2.5,
    ),
    Stage(
        (11, None),
        torch.float16,
        TensorWindow((6, 10), stride=(4, 5)),
        Scrambled(HAZE, (6, 10), torch.float16),
        ((GROUND, TensorWindow((8, 12), stride=(4, 5), offset=-1)),),
        WeightedMean("hann"),
        edge=("clip", "drop"),
    ),
    Stage(
        (8, None),
        torch.float32,
        TensorWindow((5, 6), stride=4),
        Scrambled(COAST, (5, 6), torch.float32),
        ((HAZE, TensorWindow((9, 8), stride=(6, 4), offset=(-2, -1))),),
        edge=("clip", "drop"),
        paddings=(("reflect", "error"),),
    ),
)

CANVASES: tuple[Box, ...] = (
    ((-32, -32), (32, 32)),
    ((-16, -16), (24, 24)),
    ((0, -8, -8), (2, 16, 16)),
    ((0, -8), (11, 17)),
    ((0, -2), (8, 12)),
)
"""What is filled of each stage. Each holds every pixel that filling the next ones reads."""


@functools.cache
def _truth() -> list[torch.Tensor]:
    reference = Reference(STAGES)
    return [reference.region(number, canvas)[0] for number, canvas in enumerate(CANVASES)]


def expected(stage: int, box: Box) -> torch.Tensor:
    """The true pixels of a part of a stage's canvas."""
    origin = CANVASES[stage][0]
    return _truth()[stage][tuple(slice(low - at, high - at) for low, high, at in zip(*box, origin, strict=True))]


@functools.cache
def windows_of(stage: int, box: Box) -> frozenset[Window]:
    """The windows that cover a box."""
    shape, window, edge = STAGES[stage].shape, STAGES[stage].window, STAGES[stage].edge
    return frozenset((stage, index) for index in windows_over(shape, window, box, edge))


def random_box(rng: random.Random, stage: int, longest: int = 8) -> Box:
    """A random part of a stage's canvas; a finite dimension is taken whole."""
    low, high = [], []
    for extent, first, end in zip(STAGES[stage].shape, *CANVASES[stage], strict=True):
        length = end - first if extent is not None else rng.randint(1, longest)
        low.append(rng.randint(first, end - length))
        high.append(low[-1] + length)
    return tuple(low), tuple(high)


def random_parts(seed: int, count: int) -> list[Part]:
    """Random parts of random stages."""
    rng = random.Random(seed)  # noqa: S311
    stages = [rng.randrange(len(STAGES)) for _ in range(count)]
    return [(stage, random_box(rng, stage)) for stage in stages]


def open_chain_store(target: str | Path, **options: Any) -> PersistentTileStore:
    """A store for the chain: HDF5 where the path ends in ``.h5``, else Zarr."""
    return open_store(os.fspath(target), **({"tile_size": TILE} | options))


class Chain:
    """The tensors of some stages in a store, with a note of what is computed of them.

    Parameters
    ----------
    store : TileStore
        Where their tiles are.
    called : callable, optional
        Called with each window before it is computed.
    stages : sequence of Stage
        As many as there are names, or fewer.

    Attributes
    ----------
    tensors : list of InfiniteTensor
        By the numbers of their stages.
    """

    def __init__(
        self,
        store: TileStore,
        called: Callable[[Window], object] | None = None,
        stages: Sequence[Stage] = STAGES,
    ) -> None:
        self._store = store
        self._called = called
        self._stages = stages
        self._functions = [Counted(stage.f, partial(self._tell, number)) for number, stage in enumerate(stages)]
        self.tensors: list[InfiniteTensor] = []
        for number in range(len(stages)):
            self.tensors.append(self.made(number))

    @property
    def ground(self) -> InfiniteTensor:
        """The first one."""
        return self.tensors[GROUND]

    @property
    def slope(self) -> InfiniteTensor:
        """The second one, computed from `ground`."""
        return self.tensors[SLOPE]

    @property
    def calls(self) -> Counter[Window]:
        """How often each window was computed."""
        return Counter((number, ctx) for number, f in enumerate(self._functions) for ctx in f.calls)

    def made(self, number: int) -> InfiniteTensor:
        """The tensor of a stage, over those of the stages before it."""
        stage = self._stages[number]
        return InfiniteTensor(
            stage.shape,
            self._functions[number],
            stage.window,
            [self.tensors[n] for n, _ in stage.args],
            [window for _, window in stage.args],
            dtype=stage.dtype,
            tile_store=self._store,
            tensor_id=NAMES[number],
            blend=stage.blend,
            blend_init=stage.blend_init,
            edge=stage.edge or "drop",
            args_padding=stage.paddings or None,
        )

    def check(self, *parts: Part) -> None:
        """Read parts of the canvases of `STAGES`: they are right."""
        for stage, box in parts:
            check_right(self.tensors[stage], stage, box)

    def _tell(self, number: int, ctx: Index) -> None:
        if self._called is not None:
            self._called((number, ctx))


def check_right(tensor: InfiniteTensor, stage: int, box: Box) -> None:
    """Read a part of a stage's canvas: it is right."""
    assert same_bits(tensor[region(box)], expected(stage, box)), f"{NAMES[stage]} has wrong pixels in {box}"
