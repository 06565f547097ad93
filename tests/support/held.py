"""How much a read holds in memory."""

from __future__ import annotations

from collections.abc import Sequence

from infinite_tensor import MemoryTileStore
from infinite_tensor.tilestore.contents import Access
from infinite_tensor.tilestore.memory.access import MemoryAccess
from infinite_tensor.tilestore.memory.contents import MemoryContents
from infinite_tensor.values.spec import TensorSpec


class _Watched(MemoryContents):
    """Notes how many windows, and how many rows of them, a read holds of some tensor at most."""

    most_windows = most_rows = 0

    def __init__(self, tensor_id: str | None) -> None:
        super().__init__(1, None)
        self._tensor_id = tensor_id

    def access(self, spec: TensorSpec) -> Access:
        watched = self._tensor_id in (None, spec.tensor_id)
        return _WatchedAccess(self, spec) if watched else super().access(spec)


class _WatchedAccess(MemoryAccess):
    def __init__(self, contents: _Watched, spec: TensorSpec) -> None:
        super().__init__(contents.check_open, contents.kept, contents.registered(spec))
        self._contents = contents

    def keep(self, start: Sequence[int] | None) -> None:
        rows = self._held.rows
        self._contents.most_windows = max(self._contents.most_windows, len(rows))
        self._contents.most_rows = max(self._contents.most_rows, len({index[0] for index in rows}))
        super().keep(start)


def watched(tensor_id: str | None = None) -> tuple[MemoryTileStore, _Watched]:
    """A store that keeps next to nothing, and what notes of it what reads hold: of one tensor, or of each."""
    store, contents = MemoryTileStore(), _Watched(tensor_id)
    store._contents = contents
    return store, contents
