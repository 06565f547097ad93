"""Who waits for which windows in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from infinite_tensor.boxes import Index
from infinite_tensor.tilestore.rows import Row

if TYPE_CHECKING:
    from infinite_tensor.tilestore.memory_access import MemoryAccess


class Awaited:
    """Windows that others are computing, each with the reads that wait for it. Not to be shared without a lock."""

    def __init__(self) -> None:
        self._accesses: dict[tuple[str, Index], list[MemoryAccess]] = {}

    def add(self, access: MemoryAccess, tensor_id: str, windows: Iterable[Index]) -> None:
        """Hand these windows to a read as soon as they come."""
        for index in windows:
            self._accesses.setdefault((tensor_id, index), []).append(access)
            access._awaited.add((tensor_id, index))

    def hand_over(self, tensor_id: str, rows: Mapping[Index, Row]) -> None:
        """Windows have come: nobody waits for them any more."""
        if self._accesses:
            for index, row in rows.items():
                for access in self._accesses.pop((tensor_id, index), ()):
                    access._held[index] = row

    def discard(self, access: MemoryAccess) -> None:
        """A read waits for nothing any more."""
        for key in access._awaited & self._accesses.keys():
            rest = [other for other in self._accesses[key] if other is not access]
            self._accesses[key] = rest
            if not rest:
                del self._accesses[key]
