"""A chain of three in one dimension, over data that changes.

A window of `top` is made from `mid`, and one of `mid` from `ground`, with a halo of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ZarrTileStore
from tests.support.dict_store import DictTileStore
from tests.support.elsewhere import Elsewhere
from tests.support.reference import Index

TILE = 6
END = 48


class Data:
    """What the ``f`` of `ground` reads from elsewhere: a number for each pixel."""

    numbers: Elsewhere[torch.Tensor] = Elsewhere()
    before: Elsewhere[Callable[[str, int], None]] = Elsewhere()

    def __init__(self) -> None:
        self.numbers = torch.arange(-100, 100).to(torch.float64)
        self.calls: list[tuple[str, int]] = []
        self.before = lambda _name, _window: None

    @classmethod
    def like(cls, other: Data) -> Data:
        copy = cls()
        copy.numbers = other.numbers.clone()
        return copy

    def change(self, start: int, stop: int) -> None:
        self.numbers[start + 100 : stop + 100] += 1000

    def ground(self, ctx: Index) -> torch.Tensor:
        begin = ctx[0] * 3 + 100
        numbers = self.numbers[begin : begin + 4].clone()
        self._called("ground", ctx)
        return numbers

    def smooth(self, name: str, ctx: Index, region: torch.Tensor) -> torch.Tensor:
        self._called(name, ctx)
        return region[:-2] + region[1:-1] * 3 + region[2:]

    def _called(self, name: str, ctx: Index) -> None:
        self.calls.append((name, ctx[0]))
        self.before(name, ctx[0])


GROUND = TensorWindow((4,), stride=3)
SMOOTH = TensorWindow((5,))
HALO = TensorWindow((7,), stride=5, offset=-1)


def ground_on(data: Data, store: TileStore, **options: Any) -> InfiniteTensor:
    options = {"tensor_id": "ground", "dtype": torch.float64, **options}
    return InfiniteTensor((None,), data.ground, GROUND, tile_store=store, **options)


def smooth_over(data: Data, name: str, arg: InfiniteTensor, store: TileStore, *, named: bool = True) -> InfiniteTensor:
    tensor_id = name if named else None
    f = partial(data.smooth, name)
    return InfiniteTensor((None,), f, SMOOTH, [arg], [HALO], dtype=torch.float64, tile_store=store, tensor_id=tensor_id)


def chain_on(data: Data, store: TileStore) -> tuple[InfiniteTensor, InfiniteTensor, InfiniteTensor]:
    ground = ground_on(data, store)
    mid = smooth_over(data, "mid", ground, store)
    return ground, mid, smooth_over(data, "top", mid, store)


def fresh(data: Data, name: str = "top", start: int = 0, stop: int = END) -> torch.Tensor:
    """The true pixels of a stage, by the data as they are now."""
    stages = chain_on(Data.like(data), MemoryTileStore())
    pixels: torch.Tensor = stages[("ground", "mid", "top").index(name)][start:stop]
    return pixels


KINDS: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _path: MemoryTileStore(tile_size=TILE),
    "memory with a limit": lambda _path: MemoryTileStore(2**20, tile_size=TILE),
    "zarr": lambda path: ZarrTileStore(path / "store", tile_size=TILE),
    "hdf5": lambda path: HDF5TileStore(path / "store.h5", tile_size=TILE),
    "third party": lambda _path: DictTileStore({}, tile_size=TILE),
}
