"""Mean and standard deviation of any number of values, without rounded sums.

So the order of values does not matter.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_Floats: TypeAlias = npt.NDArray[np.float64]

MOST = 2**16
"""The maximum number of numbers to add at once."""
_UNIT = 1074
"""Every float64 is a multiple of ``2**-_UNIT``."""
_BITS = 22
"""The bits in a part of a wide integer. Products of two parts are exact in float64."""
_HUGE, _TINY, _SHIFT = 2.0**400, 2.0**-400, 600
"""Numbers are divided by ``2**_SHIFT`` if any is above `_HUGE`, and multiplied if all are below `_TINY`.

Otherwise, squares would leave the range of float64.
"""


class Moments:
    """Exact sums of numbers and their squares.

    A few bits are lost in two cases. If float64 numbers are added together with a number above ``2**400``, bits below
    ``2**-420`` are lost. If squares are added together with larger squares, bits below ``2**-1074`` are lost.
    """

    def __init__(self) -> None:
        self.count = 0
        # The sum in units of 2**-1074, the sum of squares in units of 2**-2148.
        self._sum = self._squares = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add up to `MOST` finite numbers, of any real dtype of numpy."""
        down = 0
        if values.dtype == np.float64:
            largest = max(values.max(), -values.min())
            down = _SHIFT if largest > _HUGE else -_SHIFT if largest < _TINY else 0
        parts = _parts(np.ldexp(values, -down) if down else values)
        self.count += values.size
        for i, j in itertools.combinations_with_replacement(range(len(parts)), 2):
            self._squares += _shifted(_exact_sum(parts[i] * parts[j]), _UNIT + 2 * down + (i != j))
        for part in parts:
            self._sum += _shifted(_exact_sum(part), down)

    @property
    def mean(self) -> float:
        """The mean, rounded to the nearest float.

        There must be at least one number.
        """
        return self._sum / (self.count << _UNIT)

    @property
    def std(self) -> float:
        """The population standard deviation."""
        squares = self._squares * self.count - self._sum**2
        return _root(max(squares, 0), self.count**2 << 2 * _UNIT)


def _parts(values: npt.NDArray[Any]) -> list[_Floats]:
    """Split each number into one or more floats of few bits, so that products are exact.

    Return one array for the first part of all numbers, one for the second part, and so on. The parts of a number add up
    to the number. The product of any two parts is exact.
    """
    if values.dtype == np.float64:
        # The split of Dekker and Veltkamp.
        scaled = values * (2.0**27 + 1)
        high = scaled - (scaled - values)
        return [high, values - high]
    if values.dtype.kind == "f" or values.dtype.itemsize <= 2:
        return [values.astype(np.float64)]
    shifts = range(0, 8 * values.dtype.itemsize, _BITS)
    low = [((values >> shift) & (2**_BITS - 1)) * 2.0**shift for shift in shifts[:-1]]
    return [*low, (values >> shifts[-1]) * 2.0 ** shifts[-1]]


def _exact_sum(values: _Floats) -> int:
    """Return the sum of up to `MOST` floats, in units of ``2**-1074``, and overwrite the floats.

    Each pass splits off the leading part of each float. These parts are multiples of a unit so large that their sum is
    exact. Passes repeat until nothing is left (Rump, Ogita, Oishi: Accurate floating-point summation, 2008).
    """
    total, part = 0, np.empty_like(values)
    bound = math.ldexp(MOST, math.frexp(max(values.max(), -values.min()))[1])
    while values.any():
        np.add(values, bound, out=part)
        np.subtract(part, bound, out=part)
        np.subtract(values, part, out=values)
        numerator, denominator = float(part.sum()).as_integer_ratio()
        total += numerator << (_UNIT + 1 - denominator.bit_length())
        bound *= MOST * 2.0**-53
    return total


def _shifted(number: int, by: int) -> int:
    return number << by if by >= 0 else number >> -by


def _root(numerator: int, denominator: int) -> float:
    half = (numerator.bit_length() - denominator.bit_length()) // 2
    ratio = numerator / (denominator << 2 * half) if half > 0 else (numerator << -2 * half) / denominator
    return math.ldexp(math.sqrt(ratio), half)
