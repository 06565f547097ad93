"""How windows are split into calls of ``f``."""

from __future__ import annotations

from dataclasses import dataclass

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import as_index, members, quoted


@dataclass(frozen=True)
class Batching:
    """How many windows a call of ``f`` takes: ``sizes`` are the allowed batch sizes, ascending."""

    given: int | tuple[int, ...] | None
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, given: object) -> Batching:
        """Create a `Batching` from the user's ``batch_size``.

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
        """The largest number of windows that one call takes."""
        return self.sizes[-1]

    def full(self, count: int) -> int:
        """Return how many of `count` windows can go into calls of the largest size."""
        return count - count % self.largest

    def calls(self, count: int) -> int:
        """Return the number of calls that `count` windows need."""
        calls = 0
        for size in reversed(self.sizes):
            often, count = divmod(count, size)
            calls += often
        return calls + (count > 0)

    def first(self, count: int) -> int:
        """Return how many of `count` windows the next call takes: as many as possible."""
        return next((size for size in reversed(self.sizes) if size <= count), count)
