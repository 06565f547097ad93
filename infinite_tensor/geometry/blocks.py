"""A selection in blocks of pixels, between which lies no pixel that is wanted and no window that must be computed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

import numpy as np
import torch

from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.geometry.window import TensorWindow, followed
from infinite_tensor.support.allocation import IN_PARTS, new_block

T = TypeVar("T")


class Block(NamedTuple):
    """One of them.

    Attributes
    ----------
    start, shape : tuple of int
        Its box of pixels.
    place : tuple of slice
        Where those that are wanted stand among the pixels of the selection.
    """

    start: Index
    shape: Index
    place: tuple[slice, ...]


@dataclass(frozen=True)
class Blocks:
    """All blocks of a selection, in lexicographic order.

    Where a step is larger than the windows of a tensor, each pixel along that dimension is a block of its own. Every
    window that shares a pixel with a block has one that is wanted.

    Attributes
    ----------
    selection : Selection
        What is read.
    window : TensorWindow
        The windows that it is read from.
    far : tuple of bool
        Along which dimensions windows fit between two pixels that are wanted.
    lows, highs : tuple of sequence of int
        Per dimension, where blocks begin and end.
    """

    selection: Selection
    window: TensorWindow
    far: tuple[bool, ...]
    lows: tuple[Sequence[int], ...]
    highs: tuple[Sequence[int], ...]

    @classmethod
    def of(cls, selection: Selection, window: TensorWindow) -> Self:
        """As few as there can be."""
        pixels = selection.pixels
        far = tuple([along.step > size for along, size in zip(pixels, window.size, strict=True)])
        lows = [along if is_far else [along.start] for along, is_far in zip(pixels, far, strict=True)]
        highs = [
            range(along.start + 1, along.stop + 1, along.step) if is_far else [along.stop]
            for along, is_far in zip(pixels, far, strict=True)
        ]
        return cls(selection, window, far, tuple(lows), tuple(highs))

    def cut(self, most: int) -> Self:
        """Cut at the borders of windows, so that the box of a block has no more than so many pixels where possible."""
        lows, highs = list(self.lows), list(self.highs)
        left = math.prod([b[0] - a[0] for is_far, a, b in zip(self.far, lows, highs, strict=True) if not is_far])
        for d, (k, wanted) in enumerate(zip(followed(self.window), self.selection.pixels, strict=True)):
            if k is not None and not self.far[d] and left > max(1, most):
                extent, stride = highs[d][0] - lows[d][0], self.window.stride[d]
                unit = -(-wanted.step // stride) * stride
                rows = max(unit, most * extent // left // unit * unit)
                lows[d] = _cut(wanted, rows, self.window.offset[d])
                highs[d] = [*[low - wanted.step + 1 for low in lows[d][1:]], highs[d][0]]
                left = -(-left * min(rows, extent) // extent)
        return replace(self, lows=tuple(lows), highs=tuple(highs))

    @property
    def pixels(self) -> int:
        """How many pixels the boxes have, or the windows around single pixels."""
        along = zip(self.far, self.lows, self.highs, self.window.size, strict=True)
        return math.prod([len(low) * size if is_far else high[-1] - low[0] for is_far, low, high, size in along])

    def bounds(self) -> tuple[IntArray, IntArray]:
        """Where blocks start and stop, two arrays of shape (N, ndim)."""
        return _product(self.lows), _product(self.highs)

    def __len__(self) -> int:
        return math.prod(map(len, self.lows))

    def __iter__(self) -> Iterator[Block]:
        along = [
            [
                (a, b - a, slice((a - pixels.start) // pixels.step, (b - 1 - pixels.start) // pixels.step + 1))
                for a, b in ends
            ]
            for pixels, ends in zip(self.selection.pixels, map(zip, self.lows, self.highs), strict=True)
        ]
        for parts in itertools.product(*along):
            yield Block(*zip(*parts, strict=True))

    def fill(self, block: Block, out: torch.Tensor, read: Callable[[Index, torch.Tensor], T]) -> T:
        """Have ``read(start, box)`` write one of them, and what is wanted of it into `out`; what that returns."""
        target = out[block.place]
        if target.shape == block.shape:
            return read(block.start, target)
        box = new_block(block.shape, out.dtype, out.device, IN_PARTS)
        found = read(block.start, box)
        target.copy_(box[tuple([slice(None, None, pixels.step) for pixels in self.selection.pixels])])
        return found


def _cut(wanted: range, rows: int, offset: int) -> list[int]:
    """The first pixels that are wanted of each `rows` pixels, which begin at `offset` and its multiples."""
    first, last = ((pixel - offset) // rows for pixel in (wanted[0], wanted[-1]))
    borders = [cell * rows + offset for cell in range(first + 1, last + 1)]
    return [wanted[0], *[wanted[-((wanted[0] - border) // wanted.step)] for border in borders]]


def _product(ends: Sequence[Sequence[int]]) -> IntArray:
    if math.prod(map(len, ends)) == 1:
        return np.array([[each[0] for each in ends]], dtype=np.int64)
    columns = np.meshgrid(*[np.array(each, dtype=np.int64) for each in ends], indexing="ij")
    return np.stack(columns, axis=-1).reshape(-1, len(ends))
