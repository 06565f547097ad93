"""A mapping that forgets what was used least recently once it holds more than it may."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.window import as_index

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(Generic[K, V]):
    """Values with a size in bytes, in order of use.

    Parameters
    ----------
    max_bytes, max_items : int or None
        Limits; None is no limit.

    Not safe for threads: the owner holds a lock.
    """

    def __init__(self, max_bytes: int | None = None, max_items: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.max_items = max_items
        self.total_bytes = 0
        self._lent: list[int] = []
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._sizes: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def items(self) -> Iterator[tuple[K, V]]:
        """Keys and values, least recently used first, as they are now."""
        return iter(list(self._entries.items()))

    def get(self, key: K) -> V | None:
        """The value of `key`, now the most recently used, or None."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V, size: int) -> None:
        """Keep `value`, replacing what `key` held. Call `evict` to make the limits hold."""
        self.total_bytes += size - self._sizes.get(key, 0)
        self._entries[key] = value
        self._entries.move_to_end(key)
        self._sizes[key] = size

    def pop(self, key: K) -> V | None:
        """Forget `key` without asking; its value or None."""
        self.total_bytes -= self._sizes.pop(key, 0)
        return self._entries.pop(key, None)

    def evict(self, release: Callable[[K, V], bool] = lambda _key, _value: True) -> None:
        """Forget the least recently used values until the limits hold.

        ``release(key, value)`` is asked before; False keeps the value, which is asked for again at the next
        eviction. A value stays until `release` has returned.
        """
        if not self._over():
            return
        for key, value in self.items():
            if not self._over():
                return
            if release(key, value):
                self.pop(key)

    @contextmanager
    def limited(self, room: int) -> Iterator[None]:
        """While it is entered, values without a limit have one: what there is now and `room` bytes.

        Of several that are entered at once, each keeps its own until it is left.
        """
        limit = self.total_bytes + room
        self._lent.append(limit)
        try:
            yield
        finally:
            self._lent.remove(limit)

    def recount(self, keep: Callable[[V], bool] = lambda _value: True) -> None:
        """Drop what `keep` refuses, and add up sizes anew, after a fork in the middle of a change."""
        self._entries = OrderedDict((key, value) for key, value in self._entries.items() if keep(value))
        self._sizes = {key: self._sizes.get(key, 0) for key in self._entries}
        self.total_bytes = sum(self._sizes.values())

    def _over(self) -> bool:
        if self._lent and self.max_bytes is None and self.max_items is None:
            return self.total_bytes > min(self._lent, default=self.total_bytes)
        return (self.max_bytes is not None and self.total_bytes > self.max_bytes) or (
            self.max_items is not None and len(self._entries) > self.max_items
        )


def check_limit(name: str, value: object) -> int | None:
    """`value` as a cache limit: a positive int, or None for no limit; else ValidationError."""
    number = as_index(value)
    if value is not None and (number is None or number < 1):
        raise ValidationError(f"{name} must be a positive int, or None for no limit, got {value!r}")
    return number
