"""Unions of boxes of windows, pixels or tiles, and which of them lead to which: what depends on what has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infinite_tensor.boxes import Index, IntArray, as_tuples, points_of_boxes, unique_rows
from infinite_tensor.window import TensorWindow, WindowGrid

MOST_BOXES = 2**12
"""A union of more boxes is taken for the smallest box around them."""

FARTHEST = 2**53
"""No read reaches a pixel that is farther out in an unbounded dimension."""

_FEW_POINTS = 2**20


@dataclass(frozen=True, eq=False)
class BoxSet:
    """A union of half-open boxes of integer points, none of them empty; they may overlap.

    Attributes
    ----------
    low, high : int64 array of shape (N, ndim)
        Their bounds.
    """

    low: IntArray
    high: IntArray

    @classmethod
    def of(cls, low: npt.ArrayLike, high: npt.ArrayLike) -> BoxSet:
        """The union of boxes ``[low, high)``, some of which may be empty; a bit more where they are very many."""
        bounds = np.stack([np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)], axis=1)
        bounds = bounds[(bounds[:, 0] < bounds[:, 1]).all(axis=1)]
        bounds = unique_rows(bounds.reshape(len(bounds), 2 * bounds.shape[2])).reshape(-1, *bounds.shape[1:])
        if len(bounds) > MOST_BOXES:
            bounds = np.stack([bounds[:, 0].min(axis=0), bounds[:, 1].max(axis=0)])[None]
        return cls(bounds[:, 0], bounds[:, 1])

    def __bool__(self) -> bool:
        return bool(len(self.low))

    def joined(self, other: BoxSet) -> BoxSet:
        """The points of both."""
        return BoxSet.of(np.concatenate([self.low, other.low]), np.concatenate([self.high, other.high]))

    @property
    def hull(self) -> tuple[Index, Index]:
        """The smallest box around all points, of which there is at least one."""
        return tuple(self.low.min(axis=0).tolist()), tuple(self.high.max(axis=0).tolist())

    @property
    def most_points(self) -> float:
        """How many points there are at most."""
        return float((self.high - self.low).prod(axis=1, dtype=np.float64).sum())

    def points(self) -> set[Index]:
        """All points; not to be called where there are too many."""
        return set(as_tuples(points_of_boxes(self.low, self.high)[0]))

    def held(self, points: Sequence[Index]) -> list[Index]:
        """Those of some points that are in it."""
        if not points or not self:
            return []
        if self.most_points <= _FEW_POINTS:
            mine = self.points()
            return [point for point in points if point in mine]
        given = np.array(points, dtype=np.int64)
        inside = np.zeros(len(given), dtype=bool)
        for low, high in zip(self.low, self.high, strict=True):
            inside |= ((given >= low) & (given < high)).all(axis=1)
        return [points[number] for number in np.flatnonzero(inside).tolist()]


def same_windows(windows: BoxSet, coordinates: int, grid: WindowGrid) -> BoxSet:
    """The windows on another grid that share their first coordinates with some; further ones are 0."""
    every = all_windows(grid)
    if not windows or not every:
        return BoxSet.of(*np.empty((2, 0, grid.ndim), dtype=np.int64))
    low, high = (np.repeat(bounds, len(windows.low), axis=0) for bounds in (every.low, every.high))
    low[:, :coordinates] = np.maximum(low[:, :coordinates], windows.low[:, :coordinates])
    high[:, :coordinates] = np.minimum(high[:, :coordinates], windows.high[:, :coordinates])
    return BoxSet.of(low, high)


def all_windows(grid: WindowGrid) -> BoxSet:
    """The windows that a read may need."""
    low = [-FARTHEST if extent is None else 0 for extent in grid.shape]
    high = [FARTHEST if extent is None else extent for extent in grid.shape]
    return windows_over(grid, low, high)


def windows_over(grid: WindowGrid, start: Sequence[int], stop: Sequence[int]) -> BoxSet:
    """The windows that intersect the pixels ``[start, stop)``."""
    low, high = grid.box(start, stop)
    return BoxSet.of([low], [high])


def pixels_of(window: TensorWindow, windows: BoxSet) -> BoxSet:
    """The pixels that some windows cover, or read of an arg.

    Exact unless there are very many boxes to tell apart: where windows leave gaps, or lie along a diagonal.
    """
    windows = _split(window, windows)
    return BoxSet(window.starts(windows.low), window.bounds(windows.high - 1)[1])


def _split(window: TensorWindow, windows: BoxSet) -> BoxSet:
    """The same windows in boxes that each cover one box of pixels, unless these are too many."""
    strides = zip(window.followed, window.size, window.stride, strict=True)
    gaps = {k for k, size, stride in strides if k is not None and stride > size}
    apart = sorted(gaps | {k for k in window.followed if k is not None and window.followed.count(k) > 1})
    low, high = windows.low[:, apart], windows.high[:, apart]
    if not apart or BoxSet(low, high).most_points > MOST_BOXES:
        return windows
    points, owner = points_of_boxes(low, high)
    low, high = windows.low[owner], windows.high[owner]
    low[:, apart], high[:, apart] = points, points + 1
    return BoxSet(low, high)


def readers_of(pixels: BoxSet, grid: WindowGrid, window: TensorWindow) -> BoxSet:
    """The windows of a consumer, by its grid, that read some of the pixels of an arg through its arg window."""
    every = all_windows(grid)
    if not every or not pixels:
        return BoxSet.of(*np.empty((2, 0, grid.ndim), dtype=np.int64))
    low, high = (np.repeat(bounds, len(pixels.low), axis=0) for bounds in (every.low, every.high))
    for d, (k, size, stride) in enumerate(zip(window.followed, window.size, window.stride, strict=True)):
        begin, end = pixels.low[:, d] - window.offset[d], pixels.high[:, d] - window.offset[d]
        if k is None:
            unread = (begin >= size) | (end <= 0)
            high[unread] = low[unread]
        else:
            low[:, k] = np.maximum(low[:, k], -((size - 1 - begin) // stride))
            high[:, k] = np.minimum(high[:, k], (end - 1) // stride + 1)
    return BoxSet.of(low, high)


def tiles_of(grid: WindowGrid, pixels: BoxSet) -> BoxSet:
    """The tiles, windows of a grid without gaps, that hold some of the pixels."""
    return BoxSet.of(*grid.boxes(pixels.low, pixels.high))
