"""A mapping that forgets what was used least recently once it holds more than it may."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import as_index, quoted
from infinite_tensor.support.interrupts import Mark

_FEW = 4

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(Generic[K, V]):
    """Values with a size in bytes, in order of use.

    Parameters
    ----------
    max_bytes, max_items : int or None
        Limits; None is no limit.

    Not safe for threads: the owner holds a lock. A signal handler may use it in the middle of a call, if only
    `max_items` limits it.
    """

    def __init__(self, max_bytes: int | None = None, max_items: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.max_items = max_items
        self._lent: dict[Mark, int] = {}
        # Values with their sizes: one mapping, which an interrupt finds before or after a change, never in the middle.
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        # False in the middle of a change: who finds it so counts again.
        self._counted = True

    @property
    def total_bytes(self) -> int:
        """What all values take together."""
        if not self._counted:
            self._bytes = sum(size for _, size in list(self._entries.values()))
            self._counted = True
        return self._bytes

    @property
    def most_bytes(self) -> int | None:
        """`max_bytes`, or the least that has been lent; None for no limit."""
        if not self._lent:
            return self.max_bytes
        self._lent = self._still_lent()
        limits = [*self._lent.values(), *([] if self.max_bytes is None else [self.max_bytes])]
        return min(limits, default=None)

    def lend(self, mark: Mark, room: int) -> None:
        """While `mark` is under way, keep no more than what there is now and `room` bytes."""
        self._lent = {**self._still_lent(), mark: self.total_bytes + room}

    def _still_lent(self) -> dict[Mark, int]:
        return {mark: most for mark, most in self._lent.items() if mark.is_under_way}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def items(self) -> Iterator[tuple[K, V]]:
        """Keys and values, least recently used first, as they are now."""
        return iter([(key, value) for key, (value, _) in list(self._entries.items())])

    def get(self, key: K) -> V | None:
        """The value of `key`, now the most recently used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        try:
            self._entries.move_to_end(key)
        except KeyError:
            # A signal handler has used other values, in whose place it was evicted.
            return entry[0]
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep `value`, replacing what `key` held. Call `evict` to make the limits hold."""
        _, before = self._entries.get(key, (None, 0))
        # Where a change was interrupted before, this counts no more than that did.
        counted, self._counted = self._counted, False
        self._entries[key] = value, size
        try:
            self._entries.move_to_end(key)
        except KeyError:
            # As in `get`.
            return
        self._bytes, self._counted = self._bytes + size - before, counted

    def pop(self, key: K) -> V | None:
        """Forget `key` without asking; its value or None."""
        total, self._counted = self.total_bytes, False
        value, size = self._entries.pop(key, (None, 0))
        self._bytes, self._counted = total - size, True
        return value

    def evict(self, release: Callable[[K, V], bool] = lambda _key, _value: True) -> None:
        """Forget the least recently used values until the limits hold.

        ``release(key, value)`` is asked before; False keeps the value, which is asked for again at the next
        eviction. A value stays until `release` has returned.
        """
        kept, some, most = 0, _FEW, self.most_bytes
        while self._exceeds(most):
            # Not all that there are: most often the first one or two are let go.
            keys = list(itertools.islice(self._entries, kept, kept + some))
            if not keys:
                return
            some *= 2
            for key in keys:
                if not self._exceeds(most):
                    return
                # A signal handler may have evicted it.
                entry = self._entries.get(key)
                if entry is not None and release(key, entry[0]):
                    self.pop(key)
                else:
                    kept += 1

    def recount(self, keep: Callable[[V], bool] = lambda _value: True) -> None:
        """Drop what `keep` refuses, and add up sizes again, after a fork in the middle of a change."""
        self._entries = OrderedDict((key, entry) for key, entry in self._entries.items() if keep(entry[0]))
        self._counted = False

    def _exceeds(self, most: int | None) -> bool:
        return (most is not None and self.total_bytes > most) or (
            self.max_items is not None and len(self._entries) > self.max_items
        )


def check_limit(name: str, value: object) -> int | None:
    """`value` as a cache limit: a positive int, or None for no limit; else ValidationError."""
    number = as_index(value)
    if value is not None and (number is None or number < 1):
        raise ValidationError(f"{name} must be a positive int, or None for no limit, got {quoted(value)}")
    return number
