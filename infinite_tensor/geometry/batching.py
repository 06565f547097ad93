"""How windows are split into calls of ``f``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import as_index, members, quoted

Times: TypeAlias = tuple[int, ...]
"""How often each of some sizes is called for, the largest first."""

_WORK = 3 * 2**20
"""Most steps that are taken to find the fewest calls: a matter of milliseconds, and of 6 MiB. Three sizes up to 1024
need no more."""


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
        listed = members(given)
        if listed is not None:
            sizes = [as_index(size) for size in listed]
            allowed = sorted({size for size in sizes if size is not None and size > 0})
            if len(allowed) != len({*sizes}) or None in sizes or 1 not in allowed:
                raise ValidationError(
                    "batch_size as a tuple must hold positive ints and contain 1, as in (1, 4, 16), "
                    f"got {quoted(given)}"
                )
            return cls(tuple(allowed), tuple(allowed))
        size = as_index(given)
        if size is None or size < 1:
            raise ValidationError(f"batch_size must be a positive int, a tuple of them or None, got {quoted(given)}")
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
        return sum(_fewest(self.sizes, count)) if isinstance(self.given, tuple) else -(-count // self.sizes[-1])

    def split(self, count: int) -> list[int]:
        """Sizes of the fewest calls that take `count` windows, large ones first, with as many of the largest as may be.

        Of a tuple of sizes that hardly fit each other it may be a few calls more, where to find the fewest would take
        long.
        """
        if not isinstance(self.given, tuple):
            calls, rest = divmod(count, self.sizes[-1])
            return [self.sizes[-1]] * calls + ([rest] if rest else [])
        return [
            size for size, times in zip(self.sizes[::-1], _fewest(self.sizes, count), strict=True) for _ in range(times)
        ]


@lru_cache(maxsize=256)
def _fewest(sizes: tuple[int, ...], count: int) -> Times:
    """How often each of the sizes, ascending from 1, is called for in the fewest calls that take `count` windows."""
    times: list[int] = []
    while sizes[-1] > _WORK // len(sizes):
        # To find fewer calls than with as many of these as may be would take long.
        often, count = divmod(count, sizes[-1])
        times.append(often)
        sizes = sizes[:-1]
    # Of as many smaller calls as a largest one has windows, some take what fewer of the largest take.
    room = min(_WORK // len(sizes), sizes[-1] * sizes[-2:][0])
    surely = max(0, -((room - count) // sizes[-1]))
    often, *others = _traced(sizes, _fewest_calls(sizes, count - surely * sizes[-1]))
    return (*times, surely + often, *others)


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
    return calls[: most + 1]


def _traced(sizes: Sequence[int], calls: npt.NDArray[np.int32]) -> Iterator[int]:
    """How often each size is called for, the largest first and as often as may be, in the fewest calls for the last."""
    count = len(calls) - 1
    for size in reversed(sizes[1:]):
        times = 0
        while count >= size and calls[count - size] == calls[count] - 1:
            count, times = count - size, times + 1
        yield times
    yield count
