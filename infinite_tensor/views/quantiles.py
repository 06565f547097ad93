"""Which numbers stand at some places among all: about, by how many there are in ranges, or exactly, by another look."""

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
"""Bits of a float32, by which they are counted: its sign, its exponent and 11 of its mantissa."""
_DIGIT = 16
"""So many more bits of a number are found by each look."""


@dataclass(frozen=True)
class Bins:
    """How often there are numbers in some ranges, without those that are empty.

    Attributes
    ----------
    values : array
        The number of each range that is nearest to 0, ascending.
    ends : int64 array
        How many numbers there are up to the end of each.
    exact : bool
        Whether ranges hold one number each.
    """

    values: Numbers
    ends: npt.NDArray[np.int64]
    exact: bool

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return int(self.ends[-1])

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many numbers there are in each."""
        return np.diff(self.ends, prepend=0)

    def numbers(self, ranks: Sequence[int]) -> list[int]:
        """In which of them the number is that so many others stand before, for each."""
        found: list[int] = np.searchsorted(self.ends, ranks, side="right").tolist()
        return found

    def at(self, ranks: Sequence[int]) -> list[float]:
        """About the numbers that so many others stand before."""
        found: list[float] = self.values[self.numbers(ranks)].tolist()
        return found


def exactly(
    read: Callable[[Callable[[Numbers], None]], object], dtype: np.dtype[Any], bins: Bins, ranks: Sequence[int]
) -> list[float]:
    """The numbers that so many others stand before, each found by its leading bits, and then by more and more.

    Parameters
    ----------
    read : callable
        ``read(use)`` calls `use` with all numbers, array by array.
    dtype : numpy.dtype
        Theirs.
    bins : Bins
        How they were counted.
    ranks : sequence of int
        How many numbers stand before each that is looked for.

    Raises
    ------
    StoreError
        If they are no longer those that were counted.
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
                    "pixels were dropped or changed after their statistics were taken, so that there are no exact "
                    "quantiles of them; take the statistics again"
                )
            place = int(np.searchsorted(ends, left[n], side="right"))
            inside[n] = int(counts[prefix][place])
            left[n] -= int(ends[place]) - inside[n]
            prefixes[n] = prefix << digit | place
        known += digit
    return _numbers(prefixes, dtype)


def _count(counts: Mapping[int, npt.NDArray[np.int64]], rest: int, digit: int, piece: Numbers) -> None:
    """Count the next bits of keys that begin with each of some prefixes, before so many others."""
    keys = _keys(piece)
    for prefix, found in counts.items():
        # No key is shifted by all of its bits.
        inside = keys if rest == 8 * keys.itemsize else keys[keys >> rest == prefix]
        np.add.at(found, ((inside >> (rest - digit)) & (2**digit - 1)).astype(np.intp), 1)


def _keys(numbers: Numbers) -> Numbers:
    """Integers without a sign that have the order of some numbers."""
    sign, keys = 1 << (8 * numbers.itemsize - 1), numbers.view(f"u{numbers.itemsize}")
    if numbers.dtype.kind == "f":
        return np.where(keys & sign, ~keys, keys | sign)
    return keys ^ sign if numbers.dtype.kind == "i" else keys


def _numbers(keys: Sequence[int], dtype: np.dtype[Any]) -> list[float]:
    """The numbers whose `_keys` they are."""
    sign, found = 1 << (8 * dtype.itemsize - 1), np.array(keys, f"u{dtype.itemsize}")
    if dtype.kind == "f":
        found = np.where(found & sign, found ^ sign, ~found)
    numbers: list[float] = (found ^ sign if dtype.kind == "i" else found).view(dtype).tolist()
    return numbers
