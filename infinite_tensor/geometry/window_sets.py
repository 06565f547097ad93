"""Compact sets of windows, pixels and tiles.

`WindowSet` is for counting windows and tiles before a fill. It has lists of indices along each window coordinate, which
stand for all their combinations: ``[0, 1]`` and ``[5, 7]`` for the windows (0, 5), (0, 7), (1, 5) and (1, 7). So two
lists of 10**6 indices stand for 10**12 windows.

`BoxUnion` is for everything else, for example the windows and tiles to delete when a region is invalidated. It is a
list of boxes. Instead of very many boxes, a single box around them is used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.geometry.points import Index, IntArray, as_tuples, points_of_boxes, unique_rows
from infinite_tensor.geometry.window import TensorWindow, WindowGrid, followed, narrow

_MOST_PARTS = 10
"""With more overlapping sets than this, windows are not counted exactly."""


Indices: TypeAlias = "range | IntArray"
"""A set of window indices along one coordinate, in ascending order. A range has step 1."""

MOST_BOXES = 2**12
"""The maximum number of boxes in a union. A larger union is replaced by the smallest box around it."""
FARTHEST = 2**53
"""No read reaches farther than this in an unbounded dimension."""
_FEW_POINTS = 2**20


@dataclass(frozen=True)
class Intervals:
    """Pixels of a tensor, given by intervals for each dimension.

    The rows ``[0, 4)`` and ``[8, 12)`` with the columns ``[0, 2)`` stand for two boxes of 4 x 2 pixels.

    Attributes
    ----------
    starts, stops : tuple of int64 array
        The bounds of the intervals ``[start, stop)`` of each dimension, in ascending order.
    """

    starts: tuple[IntArray, ...]
    stops: tuple[IntArray, ...]

    @classmethod
    def of_box(cls, start: Sequence[int], stop: Sequence[int]) -> Intervals:
        """Return the pixels of a box."""
        return cls(*(tuple(np.array([bound], dtype=np.int64) for bound in bounds) for bounds in (start, stop)))

    @classmethod
    def of_windows(cls, window: TensorWindow, product: IndexProduct) -> Intervals:
        """Return the pixels covered by windows, even beyond the ends of the tensor."""
        starts, stops = [], []
        for d, k in enumerate(followed(window)):
            size, stride, offset = window.size[d], window.stride[d], window.offset[d]
            indices: Indices = range(1) if k is None else product.coordinates[k]
            if isinstance(indices, range) and stride <= size:
                # The windows leave no gaps.
                starts.append(np.array([indices[0] * stride + offset], dtype=np.int64))
                stops.append(np.array([indices[-1] * stride + offset + size], dtype=np.int64))
            else:
                starts.append(as_array(indices) * stride + offset)
                stops.append(starts[-1] + size)
        return cls(tuple(starts), tuple(stops))

    @classmethod
    def covered(cls, grid: WindowGrid, product: IndexProduct) -> Intervals:
        """Return the pixels covered by windows, up to the ends of the tensor."""
        reached = cls.of_windows(grid.window, product)
        ends = [(FARTHEST, -FARTHEST) if extent is None else (extent, 0) for extent in grid.shape]
        starts = [np.maximum(a, low) for a, (_, low) in zip(reached.starts, ends, strict=True)]
        stops = [np.minimum(b, high) for b, (high, _) in zip(reached.stops, ends, strict=True)]
        return cls(tuple(starts), tuple(stops))

    def within(self, start: Sequence[int], stop: Sequence[int]) -> Intervals:
        """Return the pixels within the box ``[start, stop)``."""
        kept = [
            (low < last) & (high > first)
            for low, high, first, last in zip(self.starts, self.stops, start, stop, strict=True)
        ]
        starts = [np.maximum(low[each], first) for low, each, first in zip(self.starts, kept, start, strict=True)]
        stops = [np.minimum(high[each], last) for high, each, last in zip(self.stops, kept, stop, strict=True)]
        return Intervals(tuple(starts), tuple(stops))

    @property
    def boxes(self) -> tuple[IntArray, IntArray]:
        """The pixels as starts and stops of boxes, each of shape (N, ndim)."""
        starts, stops = (
            np.stack([axis.ravel() for axis in np.meshgrid(*of, indexing="ij")], axis=1)
            for of in (self.starts, self.stops)
        )
        return starts, stops

    @property
    def hull(self) -> tuple[list[int], list[int]]:
        """The smallest box around the pixels.

        There must be at least one pixel.
        """
        return [int(start[0]) for start in self.starts], [int(stop[-1]) for stop in self.stops]


@dataclass(frozen=True)
class IndexProduct:
    """Windows, given by the indices along each window coordinate.

    The indices ``[0, 1]`` and ``[5, 7]`` stand for the windows (0, 5), (0, 7), (1, 5) and (1, 7).

    Attributes
    ----------
    coordinates : tuple of range or int64 array
        The indices along each coordinate, in ascending order. A range has step 1.
    """

    coordinates: tuple[Indices, ...]

    @classmethod
    def touching(cls, grid: WindowGrid, intervals: Intervals) -> IndexProduct:
        """Return the windows of `grid` covering at least one pixel of `intervals`."""
        sets: list[list[Indices]] = [[] for _ in range(grid.ndim)]
        window = grid.window
        apart = False
        for d, k in enumerate(followed(window)):
            size, stride, offset = window.size[d], window.stride[d], window.offset[d]
            starts, stops = intervals.starts[d], intervals.stops[d]
            if k is None:
                apart |= not bool(((starts < offset + size) & (stops > offset)).any())
            else:
                low = np.maximum(-((offset + size - 1 - starts) // stride), grid.first[k])
                high = np.minimum((stops - 1 - offset) // stride, grid.last[k])
                sets[k].append(_merged(low, high))
        # A coordinate followed by no dimension has only index 0, or nothing without any window.
        whole = [
            range(a, b + 1) if of == [] else reduce(_common, of)
            for a, b, of in zip(grid.first, grid.last, sets, strict=True)
        ]
        return cls(tuple(range(0) if apart else indices for indices in whole))

    @property
    def count(self) -> int:
        """The number of windows."""
        return math.prod(len(indices) for indices in self.coordinates)

    def holds(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Return whether the product contains each of `windows`.

        `windows` has shape (N, coordinates), and the result has shape (N,).
        """
        held = np.ones(len(windows), dtype=bool)
        for column, indices in zip(windows.T, self.coordinates, strict=True):
            if isinstance(indices, range):
                held &= (column >= indices.start) & (column < indices.stop)
            else:
                held &= np.isin(column, indices)
        return held

    def lies_in(self, other: IndexProduct) -> bool:
        """Whether `other` contains all windows of the product."""
        return self.meet(other).count == self.count

    def within(self, grid: WindowGrid) -> IndexProduct:
        """Return the windows of the product that exist on `grid`.

        If `grid` has more window coordinates than the product, the additional indices are 0.
        """
        clipped: list[Indices] = []
        more = (range(1),) * (grid.ndim - len(self.coordinates))
        for indices, first, last in zip((*self.coordinates, *more), grid.first, grid.last, strict=True):
            if isinstance(indices, range):
                clipped.append(range(max(indices.start, first), min(indices.stop, last + 1)))
            else:
                clipped.append(indices[(indices >= first) & (indices <= last)])
        return IndexProduct(tuple(clipped))

    def meet(self, other: IndexProduct) -> IndexProduct:
        """Return the common windows of both products."""
        return IndexProduct(tuple(map(_common, self.coordinates, other.coordinates)))


class WindowSet:
    """Windows of one tensor, as a union of `IndexProduct`."""

    def __init__(self) -> None:
        self.parts: list[IndexProduct] = []
        self.exact = True

    @classmethod
    def touching(cls, grid: WindowGrid, intervals: Iterable[Intervals]) -> WindowSet:
        """Return the windows of `grid` covering a pixel in any of `intervals`."""
        return cls.all_of(IndexProduct.touching(grid, span) for span in intervals)

    @classmethod
    def all_of(cls, parts: Iterable[IndexProduct]) -> WindowSet:
        """Return the union of `parts`.

        If there are too many parts to be counted, the result contains all windows of a box around the parts, and its
        attribute `exact` is False.
        """
        needs = cls()
        for part in parts:
            needs.add(part)
        return needs if needs.countable else needs._hull()

    def add(self, part: IndexProduct) -> None:
        """Add the windows of `part`."""
        if part.count and not any(part.lies_in(known) for known in self.parts):
            self.parts = [known for known in self.parts if known.meet(part).count < known.count] + [part]

    @property
    def countable(self) -> bool:
        """Whether `count` is fast enough.

        Each additional part doubles the time of `count`.
        """
        return len(self.parts) <= _MOST_PARTS

    def _hull(self) -> WindowSet:
        columns = zip(*(part.coordinates for part in self.parts), strict=True)
        bounds = [(min(int(of[0]) for of in column), max(int(of[-1]) for of in column)) for column in columns]
        hull = WindowSet()
        hull.exact = False
        hull.add(IndexProduct(tuple(range(low, high + 1) for low, high in bounds)))
        return hull

    def count(self) -> int:
        """Return the number of windows.

        A window in several parts is counted once.
        """
        total = 0
        for number in range(1, len(self.parts) + 1):
            for parts in itertools.combinations(self.parts, number):
                total += (-1) ** (number + 1) * reduce(IndexProduct.meet, parts).count
        return total


def separable(window: TensorWindow) -> bool:
    """Whether no two dimensions follow the same window coordinate.

    Then the pixels of a set of windows can be computed for each dimension separately. Windows along a diagonal are not
    separable.
    """
    moving = [k for k in followed(window) if k is not None]
    return len(moving) == len(set(moving))


def as_array(indices: Indices) -> IntArray:
    """Return a set of indices as an array."""
    return np.arange(indices.start, indices.stop, dtype=np.int64) if isinstance(indices, range) else indices


def _common(a: Indices, b: Indices) -> Indices:
    if isinstance(a, range) and isinstance(b, range):
        return range(max(a.start, b.start), max(a.start, b.start, min(a.stop, b.stop)))
    return np.intersect1d(as_array(a), as_array(b), assume_unique=True)


def _merged(low: IntArray, high: IntArray) -> Indices:
    """Return the integers in the intervals ``[low, high]``, each once. The bounds must be ascending."""
    kept = low <= high
    low, high = low[kept], high[kept]
    if not len(low):
        return range(0)
    if bool((low[1:] <= high[:-1] + 1).all()):
        return range(int(low[0]), int(high[-1]) + 1)
    low = np.maximum(low, np.concatenate([low[:1], high[:-1] + 1]))
    lengths = np.maximum(high - low + 1, 0)
    begins = np.cumsum(lengths) - lengths
    joined: IntArray = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(begins - low, lengths)
    return joined


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

        Empty boxes are left out. If there are more than `MOST_BOXES` boxes, return one box around all boxes.
        """
        bounds = np.stack([np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)], axis=1)
        bounds = bounds[(bounds[:, 0] < bounds[:, 1]).all(axis=1)]
        bounds = unique_rows(bounds.reshape(len(bounds), 2 * bounds.shape[2])).reshape(-1, *bounds.shape[1:])
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
    def most_points(self) -> float:
        """An upper bound of the number of points."""
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
    return low.repeat(times, axis=0), high.repeat(times, axis=0)


def windows_over(grid: WindowGrid, start: Sequence[int], stop: Sequence[int]) -> BoxUnion:
    """Return the windows intersecting the pixels ``[start, stop)``."""
    low, high = grid.box(start, stop)
    return BoxUnion.of([low], [high])


def pixels_of(grid: WindowGrid, windows: BoxUnion) -> BoxUnion:
    """Return the pixels of a tensor covered by `windows`.

    If there are gaps between the windows, or windows lie along a diagonal, the result has several boxes without the
    pixels in between. If there would be too many boxes, the result has larger boxes, including these pixels.
    """
    windows = _split(grid.window, windows)
    return BoxUnion(grid.bounds(windows.low)[0], grid.bounds(windows.high - 1)[1])


def _split(window: TensorWindow, windows: BoxUnion) -> BoxUnion:
    follows = followed(window)
    strides = zip(follows, window.size, window.stride, strict=True)
    gaps = {k for k, size, stride in strides if k is not None and stride > size}
    apart = sorted(gaps | {k for k in follows if k is not None and follows.count(k) > 1})
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


def tiles_of(grid: WindowGrid, pixels: BoxUnion) -> BoxUnion:
    """Return the tiles containing any of `pixels`.

    `grid` is the grid of the tiles, not of the windows of a tensor.
    """
    return BoxUnion.of(*grid.boxes(pixels.low, pixels.high))
