"""Compact sets of windows, pixels and tiles, as lists of boxes.

They are for counting windows and tiles before a fill, and for deleting them when a region is invalidated. Instead of
very many boxes, a single box around them is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infinite_tensor.geometry.periodic import boxes_around
from infinite_tensor.geometry.points import Index, IntArray, as_tuples, points_of_boxes, unique_rows
from infinite_tensor.geometry.window import TensorWindow, WindowGrid, followed, narrow

MOST_BOXES = 2**12
"""The maximum number of boxes in a union. A larger union is replaced by the smallest box around it."""
FARTHEST = 2**53
"""No read reaches farther than this in an unbounded dimension."""
_FEW_POINTS = 2**20
_FEW_BOXES = 2**6
"""Up to this number of boxes, boxes inside another one are looked for."""
_MOST_CELLS = 2**16
"""The maximum number of cells, between the ends of boxes, for counting points exactly."""


@dataclass(frozen=True, eq=False)
class BoxUnion:
    """A union of half-open boxes of integer points.

    Boxes may overlap, and are not empty.

    Attributes
    ----------
    low, high : int64 array of shape (N, ndim)
        The bounds of the boxes.
    """

    low: IntArray
    high: IntArray

    @classmethod
    def of(cls, low: npt.ArrayLike, high: npt.ArrayLike) -> BoxUnion:
        """Return the union of boxes ``[low, high)``.

        Empty boxes are left out, and of few boxes also those inside another one. If there are more than `MOST_BOXES`
        boxes, return one box around all boxes.
        """
        bounds = np.stack([np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)], axis=1)
        bounds = bounds[(bounds[:, 0] < bounds[:, 1]).all(axis=1)]
        bounds = unique_rows(bounds.reshape(len(bounds), 2 * bounds.shape[2])).reshape(-1, *bounds.shape[1:])
        if 1 < len(bounds) <= _FEW_BOXES:
            first, last = bounds[:, 0], bounds[:, 1]
            inside = (first[:, None] >= first).all(axis=2) & (last[:, None] <= last).all(axis=2)
            # Each box lies in itself.
            bounds = bounds[inside.sum(axis=1) == 1]
        if len(bounds) > MOST_BOXES:
            bounds = np.stack([bounds[:, 0].min(axis=0), bounds[:, 1].max(axis=0)])[None]
        return cls(bounds[:, 0], bounds[:, 1])

    def __bool__(self) -> bool:
        return bool(len(self.low))

    def joined(self, other: BoxUnion) -> BoxUnion:
        """Return the union with `other`."""
        return BoxUnion.of(np.concatenate([self.low, other.low]), np.concatenate([self.high, other.high]))

    @property
    def hull(self) -> tuple[Index, Index]:
        """The smallest box around all points.

        There must be at least one point.
        """
        return tuple(self.low.min(axis=0).tolist()), tuple(self.high.max(axis=0).tolist())

    @property
    def is_counted(self) -> bool:
        """Whether there are few enough boxes for `count` to be exact."""
        count, ndim = self.low.shape
        return bool(count <= 1 or (2 * count) ** ndim <= _MOST_CELLS)

    @property
    def count(self) -> int:
        """The number of points, or an upper bound."""
        if not self.is_counted:
            hull = math.prod(b - a for a, b in zip(*self.hull, strict=True))
            return min(hull, sum(map(math.prod, (self.high - self.low).tolist())))
        # The ends of all boxes cut space into cells, each of them inside or outside of every box.
        ends = [np.unique(along) for along in np.concatenate([self.low, self.high]).T]
        cells = np.zeros([max(0, len(along) - 1) for along in ends], dtype=bool)
        for box in np.stack([self.low, self.high], axis=2):
            cells[tuple(slice(*np.searchsorted(*each)) for each in zip(ends, box, strict=True))] = True
        sizes = [[along[1:][i] - along[:-1][i] for i in at] for along, at in zip(ends, cells.nonzero(), strict=True)]
        return sum(math.prod(map(int, size)) for size in zip(*sizes, strict=True))

    @property
    def most_points(self) -> float:
        """An upper bound of the number of points, where a point counts once for each box."""
        return float((self.high - self.low).prod(axis=1, dtype=np.float64).sum())

    def points(self) -> set[Index]:
        """Return all points.

        Check `most_points` first, because there may be too many points to list.
        """
        return set(as_tuples(points_of_boxes(self.low, self.high)[0]))

    def held(self, points: Sequence[Index]) -> list[Index]:
        """Return the elements of `points` inside the union."""
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


def same_windows(windows: BoxUnion, coordinates: int, grid: WindowGrid) -> BoxUnion:
    """Return the windows of another output of ``f``, as computed in the same calls as `windows`.

    `grid` has all windows of the other output. A call computes the windows with the same first entries of the index, as
    many entries as `coordinates` says.
    """
    low, high = _every_window(grid, len(windows.low))
    low[:, :coordinates] = np.maximum(low[:, :coordinates], windows.low[:, :coordinates])
    high[:, :coordinates] = np.minimum(high[:, :coordinates], windows.high[:, :coordinates])
    return BoxUnion.of(low, high)


def all_windows(grid: WindowGrid) -> BoxUnion:
    """Return all windows of `grid`.

    In an unbounded dimension, these are the windows up to `FARTHEST`, because no read reaches farther.
    """
    return BoxUnion.of(*_every_window(grid, 1))


def _every_window(grid: WindowGrid, times: int) -> tuple[IntArray, IntArray]:
    start = [-FARTHEST if extent is None else 0 for extent in grid.shape]
    stop = [FARTHEST if extent is None else extent for extent in grid.shape]
    low, high = (np.array([bounds], dtype=np.int64) for bounds in grid.box(start, stop))
    for k, count in grid.around.items():
        low[:, k], high[:, k] = 0, count
    return low.repeat(times, axis=0), high.repeat(times, axis=0)


def windows_over(grid: WindowGrid, pixels: BoxUnion) -> BoxUnion:
    """Return the windows intersecting any of `pixels`, or the tiles if `grid` is a grid of tiles."""
    return BoxUnion.of(*boxes_around(*grid.boxes(pixels.low, pixels.high), grid.around))


def gapless(window: TensorWindow, windows: BoxUnion) -> bool:
    """Whether the windows of each box cover a box of pixels: without gaps, and not along a diagonal."""
    apart = _apart(window)
    return bool((windows.high[:, apart] - windows.low[:, apart] <= 1).all())


def pixels_of(grid: WindowGrid, windows: BoxUnion) -> BoxUnion:
    """Return the pixels of a tensor covered by `windows`.

    If there are gaps between the windows, or windows lie along a diagonal, the result has several boxes without the
    pixels in between. If there would be too many boxes, the result has larger boxes, including these pixels.
    """
    windows = split(grid.window, windows)
    return BoxUnion(*grid.pixels(windows.low, windows.high))


def _apart(window: TensorWindow) -> list[int]:
    """Return the window coordinates along which neighbours cover no box together."""
    follows = followed(window)
    strides = zip(follows, window.size, window.stride, strict=True)
    gaps = {k for k, size, stride in strides if k is not None and stride > size}
    return sorted(gaps | {k for k in follows if k is not None and follows.count(k) > 1})


def split(window: TensorWindow, windows: BoxUnion) -> BoxUnion:
    """Split boxes of windows, so that the windows of each box cover a box of pixels.

    Boxes stay as they are if there would be too many.
    """
    apart = _apart(window)
    low, high = windows.low[:, apart], windows.high[:, apart]
    if not apart or BoxUnion(low, high).most_points > MOST_BOXES:
        return windows
    points, owner = points_of_boxes(low, high)
    low, high = windows.low[owner], windows.high[owner]
    low[:, apart], high[:, apart] = points, points + 1
    return BoxUnion(low, high)


def readers_of(pixels: BoxUnion, grid: WindowGrid, window: TensorWindow) -> BoxUnion:
    """Return the windows of a consumer reading any of `pixels` of an arg.

    `grid` is the grid of the consumer, and `window` is the arg window.
    """
    low, high = _every_window(grid, len(pixels.low))
    narrow(window, pixels.low, pixels.high, low, high)
    return BoxUnion.of(low, high)
