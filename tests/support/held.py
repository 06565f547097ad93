"""How much a read holds in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from infinite_tensor import MemoryTileStore
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.access import Access
from infinite_tensor.tilestore.memory import MemoryContents
from infinite_tensor.tilestore.partial import TileInProgress
from infinite_tensor.values.spec import TensorSpec


class _Watched(MemoryContents):
    """Notes how many windows, and how many rows of them, a read holds of some tensor at most."""

    most_windows = most_rows = 0

    def __init__(self, tensor_id: str | None, tile_size: int) -> None:
        super().__init__(1, None, tile_size)
        self._tensor_id = tensor_id

    def access(self, spec: TensorSpec) -> Access:
        watched = self._tensor_id in (None, spec.tensor_id)
        return _WatchedAccess(self, spec) if watched else super().access(spec)


class _WatchedAccess(Access):
    def __init__(self, contents: _Watched, spec: TensorSpec) -> None:
        super().__init__(contents.check_open, contents.tiles, contents.registry.record_of(spec))
        self._contents = contents

    def keep(self, start: Sequence[int] | None) -> None:
        held = {index for tile in self._tiles for index in self._windows_in(tile)}
        self._contents.most_windows = max(self._contents.most_windows, len(held))
        self._contents.most_rows = max(self._contents.most_rows, len({index[0] for index in held}))
        super().keep(start)

    def _windows_in(self, tile: Index) -> Iterable[Index]:
        entry = self._tiles[tile]
        if entry is None or isinstance(entry, TileInProgress):
            return () if entry is None else entry.known()
        grid, layout = self._record.spec.grid, self._record.layout
        return itertools.product(*map(range, *grid.box(layout.start(tile), layout.stop(tile))))


def watched(tensor_id: str | None = None, *, tile_size: int) -> tuple[MemoryTileStore, _Watched]:
    """A store that keeps next to nothing, and what notes of it what reads hold: of one tensor, or of each."""
    store, contents = MemoryTileStore(), _Watched(tensor_id, tile_size)
    store._contents = contents
    return store, contents
