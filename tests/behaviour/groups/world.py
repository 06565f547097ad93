"""A small world of three tensors over one upstream, which counts what is computed."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorGroup, TensorWindow, TileStore

SIDE = 8


class World:
    """Height, and a biome with an id and weights, all made from one tensor of noise.

    Attributes
    ----------
    calls : Counter of (str, tuple of int)
        How often each window of each tensor was computed.
    group : TensorGroup
        The three, without the noise.
    """

    def __init__(self, store: TileStore | None = None) -> None:
        self.calls: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self.store = MemoryTileStore() if store is None else store
        self.noise = self.tensor("noise", (None, None), torch.float32)
        self.height = self.tensor("height", (None, None), torch.float32, self.noise)
        self.id = self.tensor("id", (None, None), torch.int64, self.noise)
        self.weight = self.tensor("weight", (3, None, None), torch.bfloat16, self.noise)
        self.group = TensorGroup({"height": self.height, "biome": {"id": self.id, "weight": self.weight}})

    def tensor(
        self, name: str, shape: tuple[int | None, ...], dtype: torch.dtype, *args: InfiniteTensor
    ) -> InfiniteTensor:
        """A tensor of windows with side `SIDE`, which overlap by half where they read another tensor."""
        size = tuple(SIDE if extent is None else extent for extent in shape)
        window = TensorWindow(size, stride=(*size[:-2], SIDE // 2, SIDE // 2) if args else None)
        # The unbounded dimensions are the last ones.
        read = TensorWindow((SIDE, SIDE), stride=SIDE // 2, dimension_map=(len(shape) - 2, len(shape) - 1))
        f = partial(self.window, name, dtype, size)
        stored: dict[str, Any] = {"tile_store": self.store, "tensor_id": name, "version": "world"}
        return InfiniteTensor(shape, f, window, args, [read] * len(args), dtype=dtype, **stored)

    def window(
        self, name: str, dtype: torch.dtype, size: tuple[int, ...], ctx: tuple[int, ...], *regions: torch.Tensor
    ) -> torch.Tensor:
        """Different in every pixel, and small enough for every dtype."""
        self.calls[name, ctx] += 1
        ramp = torch.arange(torch.Size(size).numel()).reshape(size) % 13 + 3 * ctx[-2] + 5 * ctx[-1]
        return sum((region % 7 for region in regions), ramp.float()).to(dtype)

    def expected(self, region: tuple[Any, ...]) -> dict[tuple[str, ...], torch.Tensor]:
        """What a region holds, read tensor by tensor in a world of its own."""
        other = World()
        return {
            ("height",): other.height[region],
            ("biome", "id"): other.id[region],
            ("biome", "weight"): other.weight[(slice(None), *region)].movedim(0, -1),
        }


def plain(shape: tuple[int | None, ...], value: float = 0.0, **options: Any) -> InfiniteTensor:
    """A tensor whose pixels count along the last dimension, window by window."""
    size = tuple(4 if extent is None else extent for extent in shape)

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        return value + torch.arange(float(size[-1])).expand(size) + size[-1] * ctx[-1]

    return InfiniteTensor(shape, f, TensorWindow(size), **options)
