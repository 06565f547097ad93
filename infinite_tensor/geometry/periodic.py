"""Dimensions that go around: after the last pixel comes the first one again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Self, SupportsIndex

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import LARGEST, IntArray
from infinite_tensor.support.given import as_index, quoted


class Periodic(int):
    """The extent of a periodic dimension, as in ``InfiniteTensor((180, Periodic(360)), ...)``.

    ``Periodic(n)`` has `n` pixels once around. Pixel ``p`` is pixel ``p % n``, so a read may begin and end anywhere:
    ``heights[:, -32:32]`` has 64 columns on both sides of the seam. A slice needs both ends, as in an unbounded
    dimension, and ``...`` stands for ``0:n``. In all other respects, the extent is an int.

    Windows are numbered from 0 to ``n // stride - 1``, and go on at the other end where they reach past one. So their
    stride must divide `n`, and they must not be longer than `n`. Halos may be longer. An arg is read around its ends
    without a padding.

    Raises
    ------
    ValidationError
        If `n` is not an int from 1 to 2**53.

    Examples
    --------
    >>> ring = InfiniteTensor(
    ...     (Periodic(6),),
    ...     lambda ctx: torch.arange(3.0) + 3 * ctx[0],
    ...     TensorWindow((3,)),
    ... )
    >>> ring[-2:8]
    tensor([4., 5., 0., 1., 2., 3., 4., 5., 0., 1.])
    """

    __slots__ = ()

    def __new__(cls, n: SupportsIndex) -> Self:
        """Check `n`."""
        number = as_index(n)
        if number is None or not 1 <= number <= LARGEST:
            raise ValidationError(f"Periodic takes the number of pixels once around, from 1 to 2**53, got {quoted(n)}")
        return super().__new__(cls, number)

    def __repr__(self) -> str:
        return f"Periodic({int(self)})"

    # Messages and addresses show the number.
    __str__ = int.__repr__


def is_endless(extent: int | None) -> bool:
    """Whether a dimension is unbounded or periodic, so that coordinates may lie anywhere."""
    return extent is None or isinstance(extent, Periodic)


def joint_extent(extents: Iterable[int | None]) -> int | None:
    """Return the extent of a dimension of several tensors: a `Periodic` one if any is."""
    return max(extents, key=lambda extent: (extent is not None, isinstance(extent, Periodic), extent or 0))


def scaled_extent(extent: int | None, scale: Fraction) -> int | None:
    """Return the extent for `scale` new pixels on each pixel, rounded up. A rounded one is not periodic."""
    if extent is None:
        return None
    pixels = extent * scale
    return Periodic(int(pixels)) if isinstance(extent, Periodic) and pixels.denominator == 1 else math.ceil(pixels)


def side_of(extent: int | None, most: int) -> int:
    """Return the length of windows that lie side by side along a dimension: about `most` pixels, or all of fewer.

    Along a periodic dimension, it is the divisor nearest to that.
    """
    if extent is None:
        return most
    if not isinstance(extent, Periodic):
        return max(1, min(most, extent))
    numbers = np.append(np.arange(1, min(extent, _LONGER * most) + 1), extent)
    divisors = numbers[extent % numbers == 0]
    return int(divisors[np.abs(np.log(divisors / most)).argmin()])


_LONGER = 8
"""Longer divisors are not looked for, except once around: a prime number has no other."""


def divisors_near(n: int, number: int) -> str:
    """Return the next smaller and the next larger divisor of `n`, for messages."""
    smaller = next((k for k in range(min(number, _MOST_TRIED), 0, -1) if n % k == 0), 1)
    larger = next((k for k in range(number + 1, min(n, number + _MOST_TRIED) + 1) if n % k == 0), n)
    return f"{smaller} or {larger}"


_MOST_TRIED = 2**16


def images_around(starts: IntArray, stops: IntArray, period: int) -> list[tuple[IntArray, IntArray]]:
    """Map non-empty intervals to the one or two intervals with the same numbers modulo `period`.

    The second intervals may be empty.
    """
    whole = stops - starts >= period
    low = np.where(whole, 0, starts % period)
    high = np.where(whole, period, low + stops - starts)
    return [(low, np.minimum(high, period)), (np.zeros_like(low), np.maximum(high - period, 0))]


def boxes_around(low: IntArray, high: IntArray, periods: Mapping[int, int]) -> tuple[IntArray, IntArray]:
    """Map boxes to boxes with the same points modulo the period of each dimension in `periods`.

    A box across the end of a period becomes two. Empty boxes are left out.
    """
    if periods:
        some = (low < high).all(axis=1)
        low, high = low[some], high[some]
    for d, period in periods.items():
        images = images_around(low[:, d], high[:, d], period)
        low, high = (np.concatenate([side] * len(images)) for side in (low, high))
        low[:, d], high[:, d] = (np.concatenate(sides) for sides in zip(*images, strict=True))
        some = low[:, d] < high[:, d]
        low, high = low[some], high[some]
    return low, high
