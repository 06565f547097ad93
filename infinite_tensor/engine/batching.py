"""How windows are split into calls of ``f``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import as_index

Times: TypeAlias = tuple[int, ...]
"""How often each of some sizes is called for, the largest first."""

_WORK = 3 * 2**20
"""Most steps that are taken to find the fewest calls: a matter of milliseconds, and of 6 MiB. Three sizes up to 1024
need no more."""
_TRIED = 2**10
"""How many numbers of calls of the largest size are looked at to find a good split."""


@dataclass(frozen=True)
class Batching:
    """How many windows a call of ``f`` takes: ``sizes`` are the allowed numbers, ascending."""

    given: int | tuple[int, ...] | None
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, given: object) -> Batching:
        """From the ``batch_size`` that a user gave.

        Raises
        ------
        ValidationError
            If it is neither None, a positive int, nor a tuple of positive ints that contains 1.
        """
        if given is None:
            return cls(None, (1,))
        if isinstance(given, tuple | list):
            sizes = [as_index(size) for size in given]
            allowed = sorted({size for size in sizes if size is not None and size > 0})
            if len(allowed) != len({*sizes}) or None in sizes or 1 not in allowed:
                raise ValidationError(
                    f"batch_size as a tuple must hold positive ints and contain 1, as in (1, 4, 16), got {given!r}"
                )
            return cls(tuple(allowed), tuple(allowed))
        size = as_index(given)
        if size is None or size < 1:
            raise ValidationError(f"batch_size must be a positive int, a tuple of them or None, got {given!r}")
        return cls(size, (size,))

    @property
    def largest(self) -> int:
        """Most windows that one call takes."""
        return self.sizes[-1]

    def full(self, count: int) -> int:
        """How many of `count` windows fill the largest calls."""
        return count - count % self.largest

    def calls(self, count: int) -> int:
        """The fewest calls that take `count` windows."""
        return sum(self._times(count))

    def split(self, count: int) -> list[int]:
        """Sizes of the fewest calls that take `count` windows, large ones first, with as many of the largest as may be.

        Of a tuple of sizes that hardly fit each other it may be a few calls more, where to find the fewest would take
        long.
        """
        if not isinstance(self.given, tuple):
            calls, rest = divmod(count, self.sizes[-1])
            return [self.sizes[-1]] * calls + ([rest] if rest else [])
        return [size for size, times in zip(self.sizes[::-1], self._times(count), strict=True) for _ in range(times)]

    def _times(self, count: int) -> Times:
        if not isinstance(self.given, tuple):
            return (-(-count // self.sizes[-1]),)
        return _fewest(self.sizes, count)


@lru_cache(maxsize=256)
def _fewest(sizes: tuple[int, ...], count: int) -> Times:
    """How often each of the sizes, ascending from 1, is called for in the fewest calls that take `count` windows."""
    times: list[int] = []
    for at in range(len(sizes) - 1, -1, -1):
        most, rest = divmod(count, sizes[at])
        # Otherwise no split takes fewer calls, or none more of this size, or to find one would take long.
        if most and rest and at and rest not in sizes and rest < _WORK // (at + 1):
            number, calls = _of_largest(sizes[: at + 1], most, rest)
            return (*times, number, *_traced(sizes[:at], calls, rest + (most - number) * sizes[at]))
        times.append(most)
        count = rest
    return tuple(times)


def _of_largest(sizes: Sequence[int], most: int, rest: int) -> tuple[int, npt.NDArray[np.int32]]:
    """How often the largest size is called for, at most `most` times, and the fewest calls of others for what is left.

    With `n` calls in all, those of other sizes take at most as many windows as so many of the second largest size.
    """
    *smaller, largest = sizes
    fewer = np.arange(min(most + 1, _TRIED), dtype=np.int64)
    good = most + int((_greedy(smaller, rest + fewer * largest) - fewer).min())
    least = max(0, -((good * smaller[-1] - most * largest - rest) // (largest - smaller[-1])))
    room = max(0, _WORK // len(sizes) - rest) // largest
    fewer = np.arange(min(most - min(least, most), room) + 1, dtype=np.int64)
    calls = _fewest_calls(smaller, rest + int(fewer[-1]) * largest)
    # The first of those that are as good has most calls of the largest size.
    return most - int(np.argmin(calls[rest + fewer * largest] - fewer)), calls


def _greedy(sizes: Sequence[int], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Calls for each of some numbers of windows, where each call is as large as may be."""
    calls = np.zeros_like(counts)
    for size in reversed(sizes):
        calls += counts // size
        counts = counts % size
    return calls


def _fewest_calls(sizes: Sequence[int], most: int) -> npt.NDArray[np.int32]:
    """The fewest calls for each number of windows up to `most`."""
    room = -(-(most + 1) // sizes[-1]) * sizes[-1]
    calls = np.arange(room, dtype=np.int32)
    for size in sizes[1:]:
        # A column holds the numbers that differ by calls of this size.
        columns = calls[: room // size * size].reshape(-1, size)
        steps = np.arange(len(columns), dtype=np.int32)[:, None]
        columns -= steps
        np.minimum.accumulate(columns, axis=0, out=columns)
        columns += steps
        rest = calls[room // size * size :]
        np.minimum(rest, calls[room - len(rest) - size :][: len(rest)] + 1, out=rest)
    return calls


def _traced(sizes: Sequence[int], calls: npt.NDArray[np.int32], count: int) -> Iterator[int]:
    """How often each size is called for, the largest first and as often as may be, in the fewest calls."""
    for size in reversed(sizes[1:]):
        times = 0
        while count >= size and calls[count - size] == calls[count] - 1:
            count, times = count - size, times + 1
        yield times
    yield count
