"""Dropping windows that have been stored, while reads are in progress.

A read notices that windows have been dropped since it began: what it computes from their pixels is its own from then
on, and stored nowhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from infinite_tensor.forking import renew_in_children
from infinite_tensor.visits import visit

if TYPE_CHECKING:
    from infinite_tensor.tilestore.contract import TileStore


T = TypeVar("T")


class Drops:
    """Counts how often windows have been dropped in this process.

    Attributes
    ----------
    count : int
        How often that was begun.
    """

    def __init__(self) -> None:
        self.count = 0
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.RLock()

    def carry_out(self, stores: Sequence[TileStore], drop: Callable[[], T]) -> T:
        """Call ``drop()``, which drops windows of these stores: one thread does at a time, and no read begins there."""
        call = visit()
        with call.running:
            call.begin(*stores, reads=True)
            with self._lock:
                return self._paused(stores, drop)

    def _paused(self, stores: Sequence[TileStore], drop: Callable[[], T]) -> T:
        if stores:
            # Not by an ExitStack: an interrupt in the middle of that would leave the store paused.
            with stores[0].paused():
                return self._paused(stores[1:], drop)
        self.count += 1
        return drop()


DROPS = Drops()
