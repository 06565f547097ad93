"""The box of pixels that other programs see of a tensor, which for them begins at 0 and is cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import parse
from infinite_tensor.support.given import quoted
from infinite_tensor.tensor import InfiniteTensor

HALF = 2**30
"""Pixels on each side of 0 that are shown of an unbounded dimension: viewers count on 32 bits."""
_MOST_COORDINATES = 2**22
"""Programs read all coordinates of a dimension when they open an array; of longer ones only the first is told."""


@dataclass(frozen=True)
class Frame:
    """A box of pixels of a tensor.

    Attributes
    ----------
    origin : tuple of int
        Its first pixel.
    shape : tuple of int
        Its pixels per dimension.
    tiles : tuple of int
        The tile of the tensor.
    """

    origin: Index
    shape: Index
    tiles: Index

    @classmethod
    def of(cls, tensor: InfiniteTensor, region: object = None) -> Frame:
        """The frame that a region means; by default all of the tensor, and of what is unbounded the middle.

        Raises
        ------
        RegionError
            (an IndexError) If it is no region of the tensor.
        ValidationError
            If it is no box of pixels.
        """
        tiles = node_of(tensor).contents.layout(node_of(tensor).spec).tile_shape
        if region is None:
            halves = [-(-HALF // n) * n for n in tiles]
            origin = [0 if extent else -half for extent, half in zip(tensor.shape, halves, strict=True)]
            shape = [extent or 2 * half for extent, half in zip(tensor.shape, halves, strict=True)]
            return cls(tuple(origin), tuple(shape), tiles)
        selection = parse(region, tensor.shape, node_of(tensor).spec.labels)
        if selection.squeezed or set(selection.steps) - {1} or 0 in selection.shape:
            raise ValidationError(
                f"the region must be a box of pixels, given by a slice a:b for each dimension, got {quoted(region)}"
            )
        return cls(selection.start, selection.shape, tiles)

    @property
    def chunks(self) -> Index:
        """Pixels of a chunk: a tile, where the frame is not smaller."""
        return tuple(map(min, self.tiles, self.shape))

    def chunk(self, index: Sequence[int]) -> tuple[slice, ...]:
        """The pixels of the tensor in a chunk, as far as it lies in the frame."""
        lows = [first + i * n for first, i, n in zip(self.origin, index, self.chunks, strict=True)]
        ends = [first + extent for first, extent in zip(self.origin, self.shape, strict=True)]
        return tuple([slice(low, min(low + n, end)) for low, n, end in zip(lows, self.chunks, ends, strict=True)])

    @property
    def grid(self) -> Index:
        """How many chunks there are per dimension."""
        return tuple([-(-extent // n) for extent, n in zip(self.shape, self.chunks, strict=True)])

    def has_chunk(self, index: Sequence[int]) -> bool:
        """Whether there is a chunk of this index."""
        return len(index) == len(self.shape) and all(0 <= i < n for i, n in zip(index, self.grid, strict=True))

    @property
    def cuts(self) -> tuple[tuple[int, ...], ...]:
        """Pixels of the tiles that hold the frame, as far as they lie in it, per dimension."""
        cuts = []
        for first, extent, n in zip(self.origin, self.shape, self.tiles, strict=True):
            borders = [first, *range(first - first % n + n, first + extent, n), first + extent]
            cuts.append(tuple(int(size) for size in np.diff(borders)))
        return tuple(cuts)

    def coordinates(self, d: int) -> npt.NDArray[np.int64] | None:
        """The coordinates of the pixels along a dimension; None where these are too many."""
        if self.shape[d] > _MOST_COORDINATES:
            return None
        return np.arange(self.origin[d], self.origin[d] + self.shape[d], dtype=np.int64)


def shown_dtype(dtype: torch.dtype) -> np.dtype[np.generic]:
    """The dtype of numpy in which pixels are shown; that of bfloat16, which numpy lacks, is float32."""
    return np.dtype(str(torch.float32 if dtype is torch.bfloat16 else dtype).removeprefix("torch."))


def shown(pixels: torch.Tensor) -> npt.NDArray[np.generic]:
    """Pixels of a tensor as an array of `shown_dtype`."""
    array: npt.NDArray[np.generic] = (pixels.float() if pixels.dtype is torch.bfloat16 else pixels).numpy(force=True)
    return array
