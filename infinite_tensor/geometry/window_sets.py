"""Compact sets of windows, pixels and tiles: what a chain needs, and what depends on changed windows.

The windows that a box of pixels needs combine one set of indices for each window coordinate in all ways. So two arrays
of 10**6 indices stand for 10**12 windows (`WindowSet`). What depends on changed windows is a union of boxes. It may be
slightly too large if there are very many boxes (`BoxUnion`).
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
"""If more sets than this overlap, their windows are not counted exactly."""


Indices: TypeAlias = "range | IntArray"
"""A set of window indices along one coordinate, in ascending order."""

MOST_BOXES = 2**12
"""A union of more boxes than this is replaced by the smallest box around them."""
FARTHEST = 2**53
"""No read reaches farther than this in an unbounded dimension."""
_FEW_POINTS = 2**20


@dataclass(frozen=True)
class Intervals:
    """Pixels of a tensor: all combinations of the intervals ``[start, stop)`` of each dimension.

    Attributes
    ----------
    starts, stops : tuple of int64 array
        For each dimension, the bounds of its intervals in pixels, in ascending order.
    """

    starts: tuple[IntArray, ...]
    stops: tuple[IntArray, ...]

    @classmethod
    def of_box(cls, start: Sequence[int], stop: Sequence[int]) -> Intervals:
        """Return the pixels of a box."""
        return cls(*(tuple(np.array([bound], dtype=np.int64) for bound in bounds) for bounds in (start, stop)))

    @classmethod
    def of_windows(cls, window: TensorWindow, product: IndexProduct) -> Intervals:
        """Return the pixels of an arg that these windows reach, including pixels beyond its ends."""
        starts, stops = [], []
        for d, k in enumerate(followed(window)):
            size, stride, offset = window.size[d], window.stride[d], window.offset[d]
            indices: Indices = range(1) if k is None else product.coordinates[k]
            if isinstance(indices, range) and stride <= size:
                # One interval.
                starts.append(np.array([indices[0] * stride + offset], dtype=np.int64))
                stops.append(np.array([indices[-1] * stride + offset + size], dtype=np.int64))
            else:
                starts.append(as_array(indices) * stride + offset)
                stops.append(starts[-1] + size)
        return cls(tuple(starts), tuple(stops))

    @classmethod
    def covered(cls, grid: WindowGrid, product: IndexProduct) -> Intervals:
        """Return the pixels of a tensor that these windows cover."""
        reached = cls.of_windows(grid.window, product)
        ends = [(FARTHEST, -FARTHEST) if extent is None else (extent, 0) for extent in grid.shape]
        starts = [np.maximum(a, low) for a, (_, low) in zip(reached.starts, ends, strict=True)]
        stops = [np.minimum(b, high) for b, (high, _) in zip(reached.stops, ends, strict=True)]
        return cls(tuple(starts), tuple(stops))

    def within(self, start: Sequence[int], stop: Sequence[int]) -> Intervals:
        """Return the part of the pixels that lies in the box ``[start, stop)``."""
        kept = [
            (low < last) & (high > first)
            for low, high, first, last in zip(self.starts, self.stops, start, stop, strict=True)
        ]
        starts = [np.maximum(low[each], first) for low, each, first in zip(self.starts, kept, start, strict=True)]
        stops = [np.minimum(high[each], last) for high, each, last in zip(self.stops, kept, stop, strict=True)]
        return Intervals(tuple(starts), tuple(stops))

    @property
    def boxes(self) -> tuple[IntArray, IntArray]:
        """The pixels as bounds of boxes: two arrays of shape (N, ndim)."""
        starts, stops = (
            np.stack([axis.ravel() for axis in np.meshgrid(*of, indexing="ij")], axis=1)
            for of in (self.starts, self.stops)
        )
        return starts, stops

    @property
    def hull(self) -> tuple[list[int], list[int]]:
        """Return the smallest box around the pixels. There must be at least one."""
        return [int(start[0]) for start in self.starts], [int(stop[-1]) for stop in self.stops]


@dataclass(frozen=True)
class IndexProduct:
    """Windows given by one set of integers per coordinate: all combinations of these integers are window indices.

    Attributes
    ----------
    coordinates : tuple of range or int64 array
        The set of each coordinate in ascending order; a range if it has no gaps.
    """

    coordinates: tuple[Indices, ...]

    @classmethod
    def touching(cls, grid: WindowGrid, intervals: Intervals) -> IndexProduct:
        """Return the windows of `grid` that cover at least one pixel of `intervals`."""
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
        # The set of a coordinate that no dimension follows contains only 0, or nothing if there is no window at all.
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
        """Return, for each of these windows, (N, coordinates), whether it is in the product."""
        held = np.ones(len(windows), dtype=bool)
        for column, indices in zip(windows.T, self.coordinates, strict=True):
            if isinstance(indices, range):
                held &= (column >= indices.start) & (column < indices.stop)
            else:
                held &= np.isin(column, indices)
        return held

    def lies_in(self, other: IndexProduct) -> bool:
        """Whether another product contains all windows of this one."""
        return self.meet(other).count == self.count

    def within(self, grid: WindowGrid) -> IndexProduct:
        """Return the windows that exist on a grid, with index 0 along coordinates that only the grid has."""
        clipped: list[Indices] = []
        more = (range(1),) * (grid.ndim - len(self.coordinates))
        for indices, first, last in zip((*self.coordinates, *more), grid.first, grid.last, strict=True):
            if isinstance(indices, range):
                clipped.append(range(max(indices.start, first), min(indices.stop, last + 1)))
            else:
                clipped.append(indices[(indices >= first) & (indices <= last)])
        return IndexProduct(tuple(clipped))

    def meet(self, other: IndexProduct) -> IndexProduct:
        """Return the windows that are in both products."""
        return IndexProduct(tuple(map(_common, self.coordinates, other.coordinates)))


class WindowSet:
    """The windows of one tensor that downstream tensors need, as a union of `IndexProduct`."""

    def __init__(self) -> None:
        self.parts: list[IndexProduct] = []
        self.exact = True

    @classmethod
    def touching(cls, grid: WindowGrid, intervals: Iterable[Intervals]) -> WindowSet:
        """Return the windows of a grid that cover a pixel of any of the intervals."""
        return cls.all_of(IndexProduct.touching(grid, span) for span in intervals)

    @classmethod
    def all_of(cls, parts: Iterable[IndexProduct]) -> WindowSet:
        """Return the union of `parts`. If there are too many parts, return a larger set; its `exact` is False."""
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
        """Whether there are few enough parts for `count`."""
        return len(self.parts) <= _MOST_PARTS

    def _hull(self) -> WindowSet:
        """Return one product that contains all of the windows, and maybe more."""
        columns = zip(*(part.coordinates for part in self.parts), strict=True)
        bounds = [(min(int(of[0]) for of in column), max(int(of[-1]) for of in column)) for column in columns]
        hull = WindowSet()
        hull.exact = False
        hull.add(IndexProduct(tuple(range(low, high + 1) for low, high in bounds)))
        return hull

    def count(self) -> int:
        """The number of windows in all parts, each counted once."""
        total = 0
        for number in range(1, len(self.parts) + 1):
            for parts in itertools.combinations(self.parts, number):
                total += (-1) ** (number + 1) * reduce(IndexProduct.meet, parts).count
        return total


def separable(window: TensorWindow) -> bool:
    """Whether each coordinate of the window index moves at most one dimension.

    If so, what windows read along a dimension does not depend on the other dimensions.
    """
    moving = [k for k in followed(window) if k is not None]
    return len(moving) == len(set(moving))


def as_array(indices: Indices) -> IntArray:
    """The set as an array."""
    return np.arange(indices.start, indices.stop, dtype=np.int64) if isinstance(indices, range) else indices


def _common(a: Indices, b: Indices) -> Indices:
    if isinstance(a, range) and isinstance(b, range):
        return range(max(a.start, b.start), max(a.start, b.start, min(a.stop, b.stop)))
    return np.intersect1d(as_array(a), as_array(b), assume_unique=True)


def _merged(low: IntArray, high: IntArray) -> Indices:
    """Return all integers of the intervals ``[low, high]``, each once. The bounds must be in ascending order."""
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
    """A union of non-empty half-open boxes of integer points, which may overlap.

    Attributes
    ----------
    low, high : int64 array of shape (N, ndim)
        The bounds of the boxes.
    """

    low: IntArray
    high: IntArray

    @classmethod
    def of(cls, low: npt.ArrayLike, high: npt.ArrayLike) -> BoxUnion:
        """Return the union of boxes ``[low, high)``. If there are very many, return one box around all of them."""
        bounds = np.stack([np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)], axis=1)
        bounds = bounds[(bounds[:, 0] < bounds[:, 1]).all(axis=1)]
        bounds = unique_rows(bounds.reshape(len(bounds), 2 * bounds.shape[2])).reshape(-1, *bounds.shape[1:])
        if len(bounds) > MOST_BOXES:
            bounds = np.stack([bounds[:, 0].min(axis=0), bounds[:, 1].max(axis=0)])[None]
        return cls(bounds[:, 0], bounds[:, 1])

    def __bool__(self) -> bool:
        return bool(len(self.low))

    def joined(self, other: BoxUnion) -> BoxUnion:
        """Return the points of this union and of another one, as one union."""
        return BoxUnion.of(np.concatenate([self.low, other.low]), np.concatenate([self.high, other.high]))

    @property
    def hull(self) -> tuple[Index, Index]:
        """Return the smallest box around all points. There must be at least one."""
        return tuple(self.low.min(axis=0).tolist()), tuple(self.high.max(axis=0).tolist())

    @property
    def most_points(self) -> float:
        """An upper bound of the number of points."""
        return float((self.high - self.low).prod(axis=1, dtype=np.float64).sum())

    def points(self) -> set[Index]:
        """Return all points. Check `most_points` first, because there may be too many to list."""
        return set(as_tuples(points_of_boxes(self.low, self.high)[0]))

    def held(self, points: Sequence[Index]) -> list[Index]:
        """Return those of the given points that lie in the union."""
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
    """Return the windows of `grid` whose index has the same first `coordinates` entries as one of `windows`."""
    low, high = _every_window(grid, len(windows.low))
    low[:, :coordinates] = np.maximum(low[:, :coordinates], windows.low[:, :coordinates])
    high[:, :coordinates] = np.minimum(high[:, :coordinates], windows.high[:, :coordinates])
    return BoxUnion.of(low, high)


def all_windows(grid: WindowGrid) -> BoxUnion:
    """Return all windows that a read may need."""
    return BoxUnion.of(*_every_window(grid, 1))


def _every_window(grid: WindowGrid, times: int) -> tuple[IntArray, IntArray]:
    """Return the bounds of the box of all windows that a read may need, as arrays of `times` equal rows."""
    start = [-FARTHEST if extent is None else 0 for extent in grid.shape]
    stop = [FARTHEST if extent is None else extent for extent in grid.shape]
    low, high = (np.array([bounds], dtype=np.int64) for bounds in grid.box(start, stop))
    return low.repeat(times, axis=0), high.repeat(times, axis=0)


def windows_over(grid: WindowGrid, start: Sequence[int], stop: Sequence[int]) -> BoxUnion:
    """Return the windows that intersect the pixels ``[start, stop)``."""
    low, high = grid.box(start, stop)
    return BoxUnion.of([low], [high])


def pixels_of(grid: WindowGrid, windows: BoxUnion) -> BoxUnion:
    """Return the pixels of a tensor that these windows cover.

    If windows leave gaps or lie along a diagonal, there may be too many boxes. Then the result contains more pixels.
    """
    windows = _split(grid.window, windows)
    return BoxUnion(grid.bounds(windows.low)[0], grid.bounds(windows.high - 1)[1])


def _split(window: TensorWindow, windows: BoxUnion) -> BoxUnion:
    """Split boxes of windows so that the windows of each new box fill one box of pixels without gaps.

    If this would make too many boxes, return `windows`.
    """
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
    """Return the windows of the consumer's `grid` that read any of the pixels of an arg through the arg window."""
    low, high = _every_window(grid, len(pixels.low))
    narrow(window, pixels.low, pixels.high, low, high)
    return BoxUnion.of(low, high)


def tiles_of(grid: WindowGrid, pixels: BoxUnion) -> BoxUnion:
    """Return the tiles that contain any of the pixels. The windows of `grid` are the tiles; they leave no gaps."""
    return BoxUnion.of(*grid.boxes(pixels.low, pixels.high))
