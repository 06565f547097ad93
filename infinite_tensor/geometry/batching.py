"""Splits windows into calls of ``f``."""

from __future__ import annotations

from dataclasses import dataclass

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import as_index, members, quoted


@dataclass(frozen=True)
class Batching:
    """Batch sizes for calls of ``f``.

    Attributes
    ----------
    given : int, tuple of int, or None
        The ``batch_size`` of the user. A tuple is sorted.
    sizes : tuple of int
        The allowed batch sizes, in ascending order.
    """

    given: int | tuple[int, ...] | None
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, given: object) -> Batching:
        """Create a `Batching` from the user's ``batch_size``.

        Raises
        ------
        ValidationError
            If `given` is not None, a positive int, or a tuple of positive ints including 1.
        """
        if given is None:
            return cls(None, (1,))
        listed = members(given)
        if listed is not None:
            sizes = [as_index(size) for size in listed]
            allowed = sorted({size for size in sizes if size is not None and size > 0})
            if len(allowed) != len({*sizes}) or None in sizes or 1 not in allowed:
                raise ValidationError(
                    "batch_size as a tuple must contain positive ints, including 1, as in (1, 4, 16), "
                    f"got {quoted(given)}"
                )
            return cls(tuple(allowed), tuple(allowed))
        size = as_index(given)
        if size is None or size < 1:
            raise ValidationError(
                f"batch_size must be a positive int, a tuple of positive ints or None, got {quoted(given)}"
            )
        return cls(size, (size,))

    @property
    def largest(self) -> int:
        """The largest batch size."""
        return self.sizes[-1]

    def full(self, count: int) -> int:
        """Round `count` down to a multiple of the largest batch size."""
        return count - count % self.largest

    def calls(self, count: int) -> int:
        """Return the number of calls for `count` windows."""
        calls = 0
        for size in reversed(self.sizes):
            often, count = divmod(count, size)
            calls += often
        return calls + (count > 0)

    def first(self, count: int) -> int:
        """Return the size of the next batch for `count` remaining windows.

        This is the largest allowed size up to `count`, or `count` if all allowed sizes are larger.
        """
        return next((size for size in reversed(self.sizes) if size <= count), count)
