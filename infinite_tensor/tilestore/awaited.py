"""Who waits for which windows in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakSet

from infinite_tensor.boxes import Index
from infinite_tensor.tilestore.rows import Row

if TYPE_CHECKING:
    from infinite_tensor.tilestore.memory_access import MemoryAccess


class Awaited:
    """The reads that wait for windows which others are computing. Not to be shared without a lock.

    What a read waits for stands with the read alone, so that nothing is left of one that was interrupted.
    """

    def __init__(self) -> None:
        self._waiting: WeakSet[MemoryAccess] = WeakSet()

    def add(self, access: MemoryAccess, windows: Iterable[Index]) -> None:
        """Hand these windows of its tensor to a read as soon as they come."""
        access._awaited.update(windows)
        self._waiting.add(access)

    def hand_over(self, tensor_id: str, rows: Mapping[Index, Row]) -> None:
        """Windows have come: nobody waits for them any more."""
        for access in self._waiting:
            if access._spec.tensor_id == tensor_id:
                for index in access._awaited & rows.keys():
                    access._held[index] = rows[index]
                access._awaited -= rows.keys()

    def discard(self, access: MemoryAccess) -> None:
        """A read waits for nothing any more."""
        self._waiting.discard(access)
