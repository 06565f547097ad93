"""Lists the integer points of boxes without a Python loop, up to a limit."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.errors import ValidationError

Index: TypeAlias = tuple[int, ...]
IntArray: TypeAlias = npt.NDArray[np.int64]

UNBOUNDED = 2**62
"""Stands for infinity in interval arithmetic. Sums with it still fit into int64."""

LARGEST = 2**53
"""The limit of extents, sizes, strides and offsets. All metadata represent such numbers exactly."""

COORDINATE_LIMIT = 2**51
"""Unbounded dimensions have pixels in [-2**51, 2**51). All metadata represent such positions exactly."""

MOST_AT_ONCE = 2**23
"""The maximum number of windows or tiles to process at once. More indices would not fit into memory."""

_FEW = 16
"""Below this number of points, Python is faster than numpy."""

MOST_PAIRS = 2**25
"""The greatest number of points listed at once for many boxes. A point in several boxes is counted several times."""


def points_of_boxes(low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
    """Return all integer points of N half-open boxes, and their boxes.

    Points come box by box, in lexicographic order within a box. Returns the points, (P, ndim), and the number of the
    box of each point, (P,).

    Raises
    ------
    ValidationError
        If there are more points than fit into memory.
    """
    count, ndim = low.shape
    widths = np.maximum(high - low, 0)
    # Floats do not overflow.
    check_count(float(widths.prod(axis=1, dtype=np.float64).sum()), MOST_PAIRS)
    volumes = widths.prod(axis=1)
    owner = np.arange(count).repeat(volumes)
    rank = np.arange(len(owner)) - (volumes.cumsum() - volumes).repeat(volumes)
    points = np.empty((len(owner), ndim), dtype=np.int64)
    for d in range(ndim - 1, -1, -1):
        rank, points[:, d] = np.divmod(rank, widths[owner, d])
    points += low[owner]
    return points, owner


def points_of_box(low: Sequence[int], high: Sequence[int]) -> IntArray:
    """Return all integer points of a half-open box, in lexicographic order.

    The result has shape (P, ndim).

    Raises
    ------
    ValidationError
        If there are too many points.
    """
    widths = [max(0, b - a) for a, b in zip(low, high, strict=True)]
    check_count(math.prod(widths), MOST_AT_ONCE)
    return np.indices(widths, dtype=np.int64).reshape(len(widths), -1).T + np.array(low, dtype=np.int64)


def unique_rows(rows: IntArray) -> IntArray:
    """Return the distinct rows of an array, in lexicographic order.

    This is faster than `numpy.unique` with an axis, because no structured values are compared.
    """
    rows = rows[np.lexsort(rows.T[::-1])]
    distinct = np.ones(len(rows), dtype=bool)
    distinct[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[distinct]


def unique_points(points: IntArray) -> IntArray:
    """Return the distinct rows of `points`, in lexicographic order.

    Raise ValidationError if there are too many.
    """
    if len(points) > 1:
        points = unique_rows(points)
        check_count(len(points), MOST_AT_ONCE)
    return points


def with_entry(point: Sequence[int], d: int, value: int) -> Index:
    """Return `point` with `value` as its entry in dimension `d`."""
    return (*point[:d], value, *point[d + 1 :])


def is_empty(low: Sequence[int], high: Sequence[int]) -> bool:
    """Whether a half-open box contains no point."""
    return not all(map(operator.lt, low, high))


def joined(points: IntArray, more: IntArray) -> IntArray:
    """Return the rows of `points`, followed by the new rows of `more`.

    Rows of `more` that are also in `points` are left out.
    """
    if not len(points) or not len(more):
        return points if len(points) else more
    known = set(as_tuples(points))
    fresh = [point not in known for point in as_tuples(more)]
    return np.concatenate([points, more[np.array(fresh, dtype=bool)]])


def inside(point: Index, low: Sequence[int], high: Sequence[int]) -> bool:
    """Whether a half-open box contains the point."""
    return all(a <= i < b for i, a, b in zip(point, low, high, strict=True))


def as_tuples(points: IntArray) -> list[Index]:
    """Return the rows of `points` as tuples of ints.

    There must be at least one column.
    """
    # Column by column: a list for each row would keep the garbage collector busy.
    return list(zip(*points.T.tolist(), strict=True))


def rows_of(points: IntArray) -> list[tuple[int, int]]:
    """Return the start and stop of each row in `points`.

    Within a row, the last coordinate grows by 1 from point to point, and all other coordinates are equal.
    """
    if len(points) < _FEW:
        tuples = points.tolist()
        breaks = [i for i in range(1, len(tuples)) if tuples[i] != [*tuples[i - 1][:-1], tuples[i - 1][-1] + 1]]
        return list(itertools.pairwise([0, *breaks, len(tuples)])) if tuples else []
    steps = points[1:] - points[:-1]
    (breaks,) = ((steps[:, -1] != 1) | steps[:, :-1].any(axis=1)).nonzero()
    bounds = [0, *(breaks + 1).tolist(), len(points)]
    return list(itertools.pairwise(bounds))


def check_count(count: float, most: int) -> None:
    """Raise ValidationError if `count` windows or tiles exceed the limit `most`."""
    if count > most:
        raise ValidationError(
            f"at most {most} windows or tiles at once are possible, got {count:.3g}; read a smaller region, or use "
            "a larger stride or tile_size"
        )
