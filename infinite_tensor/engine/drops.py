"""Dropping windows that have been stored, while reads are in progress.

A read notices that windows have been dropped since it began: what it computes from their pixels is its own from then
on, and stored nowhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from infinite_tensor.forking import renew_in_children

if TYPE_CHECKING:
    from infinite_tensor.tilestore.contract import TileStore


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

    @contextmanager
    def begin(self, stores: Iterable[TileStore]) -> Iterator[None]:
        """Drop windows of these stores within it: one thread does at a time, and no read begins there meanwhile."""
        with self._lock, ExitStack() as paused:
            for store in stores:
                paused.enter_context(store.paused())
            self.count += 1
            yield


DROPS = Drops()
