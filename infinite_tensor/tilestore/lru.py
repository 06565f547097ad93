"""A mapping with limits for size and number of values."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import as_index, quoted

_FEW = 4
_MISSING = (None, 0)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(Generic[K, V]):
    """Mapping from keys to values, in order of use.

    `evict` removes the least recently used values. Not safe for threads: the owner holds a lock.

    Parameters
    ----------
    max_bytes, max_items : int or None
        Limits; None is no limit.

    Attributes
    ----------
    total_bytes : int
        The size of all values together.
    """

    def __init__(self, max_bytes: int | None = None, max_items: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.max_items = max_items
        self.total_bytes = 0
        self._lent: dict[threading.Lock, int] = {}
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    @property
    def most_bytes(self) -> int | None:
        """The limit in bytes at present: the lowest of `max_bytes` and the limits set by `lend`.

        None is no limit.
        """
        if not self._lent:
            return self.max_bytes
        self._lent = {held: most for held, most in self._lent.items() if held.locked()}
        limits = [*self._lent.values(), *([] if self.max_bytes is None else [self.max_bytes])]
        return min(limits, default=None)

    @property
    def limited(self) -> bool:
        """Whether values may be removed."""
        return self.max_items is not None or self.most_bytes is not None

    def lend(self, held: threading.Lock, room: int) -> None:
        """Limit the total size while the lock `held` is locked.

        The limit is the present size plus `room` bytes.
        """
        self._lent = {
            **{each: most for each, most in self._lent.items() if each.locked()},
            held: self.total_bytes + room,
        }

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over a snapshot of keys and values, least recently used first."""
        return iter([(key, value) for key, (value, _) in self._entries.items()])

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None.

        The value becomes the most recently used.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def get_all(self, keys: Iterable[K]) -> list[V | None]:
        """Return the value of each key, or None; see `get`."""
        wanted = list(keys)
        found = [self._entries.get(key, _MISSING)[0] for key in wanted]
        if self.limited:
            for key, value in zip(wanted, found, strict=True):
                if value is not None:
                    self._entries.move_to_end(key)
        return found

    def add(self, values: Mapping[K, V], sizes: Iterable[int]) -> dict[K, V]:
        """Add values, except for keys that have one, and return the values of these keys; see `put`."""
        known = {key: self._entries[key][0] for key in values.keys() & self._entries.keys()}
        for (key, value), size in zip(values.items(), sizes, strict=True):
            if key not in known:
                self._entries[key] = value, size
                self.total_bytes += size
        return known

    def look(self, key: K, default: V | None = None) -> V | None:
        """Return the value of `key`, or `default`.

        Does not count as a use.
        """
        entry = self._entries.get(key)
        return default if entry is None else entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Set the value of `key`, with a size of `size` bytes.

        Call `evict` afterwards to apply the limits.
        """
        _, before = self._entries.pop(key, (None, 0))
        self._entries[key] = value, size
        self.total_bytes += size - before

    def pop(self, key: K) -> V | None:
        """Remove `key`, and return the value, or None for an unknown key."""
        value, size = self._entries.pop(key, (None, 0))
        self.total_bytes -= size
        return value

    def evict(self, release: Callable[[K, V], bool] = lambda _key, _value: True) -> None:
        """Remove the least recently used values until the limits are met.

        ``release(key, value)`` is called before a value is removed. If it returns False, the value stays; the next
        eviction asks again.
        """
        kept, some, most = 0, _FEW, self.most_bytes
        while self._exceeds(most):
            # Look at a few keys only: usually the first one or two can be removed.
            keys = list(itertools.islice(self._entries, kept, kept + some))
            if not keys:
                return
            some *= 2
            for key in keys:
                if not self._exceeds(most):
                    return
                if release(key, self._entries[key][0]):
                    self.pop(key)
                else:
                    kept += 1

    def recount(self, keep: Callable[[V], bool]) -> None:
        """Drop all values rejected by `keep` and all limits set by `lend`, and recompute the total size.

        ``keep(value)`` returns False to reject a value. After a fork in the middle of a change, the total size may be
        wrong, and the locks of `lend` stay locked.
        """
        self._lent = {}
        self._entries = OrderedDict((key, entry) for key, entry in self._entries.items() if keep(entry[0]))
        self.total_bytes = sum(size for _, size in self._entries.values())

    def _exceeds(self, most: int | None) -> bool:
        return (most is not None and self.total_bytes > most) or (
            self.max_items is not None and len(self._entries) > self.max_items
        )


def check_limit(name: str, value: object) -> int | None:
    """Return `value` as a cache limit: a positive int, or None for no limit.

    Raise ValidationError for other values.
    """
    number = as_index(value)
    if value is not None and (number is None or number < 1):
        raise ValidationError(f"{name} must be a positive int, or None for no limit, got {quoted(value)}")
    return number
