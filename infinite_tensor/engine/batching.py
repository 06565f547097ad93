"""How windows are split into calls of ``f``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from infinite_tensor.errors import ValidationError
from infinite_tensor.window import as_index


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
            allowed = {size for size in sizes if size is not None and size > 0}
            if len(allowed) != len(set(given)) or 1 not in allowed:
                raise ValidationError(f"batch_size as a tuple must hold positive ints and contain 1, got {given!r}")
            return cls(tuple(sorted(allowed)), tuple(sorted(allowed)))
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
        rest = min(count, self.largest * self.largest)
        # What is left out fills the largest calls.
        return len(self.split(rest + (count - rest) % self.largest)) + (count - rest) // self.largest

    def split(self, count: int) -> list[int]:
        """Sizes of the fewest calls that take `count` windows, large ones first."""
        if not isinstance(self.given, tuple):
            rest = count % self.largest
            return [self.largest] * (count // self.largest) + ([rest] if rest else [])
        # Any `largest` smaller calls hold some that fill whole large ones, so only a bounded rest is open.
        open_rest = min(count, self.largest * self.largest)
        full = (count - open_rest) // self.largest
        return [self.largest] * full + _fewest(self.sizes, count - full * self.largest)


@lru_cache(maxsize=256)
def _best_last(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    """For each number up to `count`, one size that a split into fewest calls contains."""
    calls = [0] * (count + 1)
    last = [0] * (count + 1)
    for number in range(1, count + 1):
        last[number] = min((s for s in sizes if s <= number), key=lambda s: (calls[number - s], -s))
        calls[number] = calls[number - last[number]] + 1
    return tuple(last)


def _fewest(sizes: tuple[int, ...], count: int) -> list[int]:
    last = _best_last(sizes, count)
    split = []
    while count:
        split.append(last[count])
        count -= last[count]
    return sorted(split, reverse=True)
