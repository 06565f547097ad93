"""Quantiles of numbers, by rank in sorted order.

Approximate quantiles are read from a histogram. Exact quantiles require reading all numbers again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.errors import StoreError

Numbers: TypeAlias = npt.NDArray[Any]

LEADING = 20
"""Leading bits of a float32 for binning: sign, exponent and 11 bits of the mantissa."""
_DIGIT = 16
"""Bits of each number found by a pass."""


@dataclass(frozen=True)
class Bins:
    """The non-empty bins of a histogram.

    Attributes
    ----------
    values : array
        The number nearest to 0 in each bin, ascending.
    ends : int64 array
        The number of values in each bin and all before it.
    exact : bool
        Whether all values of a bin are equal.
    """

    values: Numbers
    ends: npt.NDArray[np.int64]
    exact: bool

    @property
    def count(self) -> int:
        """The number of values in all bins."""
        return int(self.ends[-1])

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of values in each bin."""
        return np.diff(self.ends, prepend=0)

    def numbers(self, ranks: Sequence[int]) -> list[int]:
        """Return the index of the bin for each rank. Ranks count from 0."""
        found: list[int] = np.searchsorted(self.ends, ranks, side="right").tolist()
        return found

    def at(self, ranks: Sequence[int]) -> list[float]:
        """Return an approximate value for each rank: the entry of `values` for its bin."""
        found: list[float] = self.values[self.numbers(ranks)].tolist()
        return found


def exactly(
    read: Callable[[Callable[[Numbers], None]], object], dtype: np.dtype[Any], bins: Bins, ranks: Sequence[int]
) -> list[float]:
    """Return the exact numbers at some ranks.

    Each pass over all numbers finds more bits of each result, leading bits first.

    Parameters
    ----------
    read : callable
        ``read(use)`` calls `use` with all numbers, array by array.
    dtype : numpy.dtype
        The dtype of the numbers.
    bins : Bins
        The histogram of the numbers.
    ranks : sequence of int
        The ranks, counted from 0 in ascending order of the numbers.

    Raises
    ------
    StoreError
        If the numbers have changed since the histogram was made.
    """
    bits, known, prefixes, left, inside = 8 * dtype.itemsize, 0, [0] * len(ranks), [*ranks], [bins.count] * len(ranks)
    if dtype == np.float32:
        numbers, known = bins.numbers(ranks), LEADING
        prefixes = (_keys(bins.values[numbers].astype(dtype)) >> (bits - known)).tolist()
        inside = bins.counts[numbers].tolist()
        left = [rank - int(bins.ends[n]) + count for rank, n, count in zip(ranks, numbers, inside, strict=True)]
    while known < bits:
        digit = min(_DIGIT, bits - known)
        counts = {prefix: np.zeros(2**digit, np.int64) for prefix in prefixes}
        read(functools.partial(_count, counts, bits - known, digit))
        for n, prefix in enumerate(prefixes):
            ends = np.cumsum(counts[prefix])
            if ends[-1] != inside[n]:
                raise StoreError(
                    "pixels were dropped or changed after their statistics were taken, so exact quantiles cannot be "
                    "computed; take the statistics again"
                )
            place = int(np.searchsorted(ends, left[n], side="right"))
            inside[n] = int(counts[prefix][place])
            left[n] -= int(ends[place]) - inside[n]
            prefixes[n] = prefix << digit | place
        known += digit
    return _numbers(prefixes, dtype)


def _count(counts: Mapping[int, npt.NDArray[np.int64]], rest: int, digit: int, piece: Numbers) -> None:
    """Add the numbers in `piece` to the histograms in `counts`.

    Each number is mapped to an unsigned integer by `_keys`, and its last `rest` bits are cut off. What remains selects
    the histogram; without such a histogram, the number is ignored. The first `digit` of the `rest` bits are the bin.
    """
    keys = _keys(piece)
    for prefix, found in counts.items():
        # A shift by all bits of a key is undefined.
        inside = keys if rest == 8 * keys.itemsize else keys[keys >> rest == prefix]
        np.add.at(found, ((inside >> (rest - digit)) & (2**digit - 1)).astype(np.intp), 1)


def _keys(numbers: Numbers) -> Numbers:
    """Map numbers to unsigned integers with the same order."""
    sign, keys = 1 << (8 * numbers.itemsize - 1), numbers.view(f"u{numbers.itemsize}")
    if numbers.dtype.kind == "f":
        return np.where(keys & sign, ~keys, keys | sign)
    return keys ^ sign if numbers.dtype.kind == "i" else keys


def _numbers(keys: Sequence[int], dtype: np.dtype[Any]) -> list[float]:
    sign, found = 1 << (8 * dtype.itemsize - 1), np.array(keys, f"u{dtype.itemsize}")
    if dtype.kind == "f":
        found = np.where(found & sign, found ^ sign, ~found)
    numbers: list[float] = (found ^ sign if dtype.kind == "i" else found).view(dtype).tolist()
    return numbers
