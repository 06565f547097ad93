"""The way of tiles from storage into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias
from weakref import WeakSet

import torch

from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.failures import warn_of_damage
from infinite_tensor.tilestore.inventory import Known
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.partial import DamagedPartialError, PartialTile, TileInProgress
from infinite_tensor.tilestore.persistent.registry import Registry
from infinite_tensor.tilestore.persistent.storage import Storage

Entry: TypeAlias = torch.Tensor | TileInProgress
"""A tile in memory: complete, and never changed, or in progress."""


class TileLoader:
    """Loads tiles, whatever state they are in."""

    def __init__(self, storage: Storage, registry: Registry) -> None:
        self._storage = storage
        self._registry = registry
        # Tensors of which most tiles were missing when last looked for: of these, partial ones are looked for first,
        # since chunks must be looked for after that in any case.
        self._barren: WeakSet[Record] = WeakSet()

    def load(self, record: Record, tiles: Sequence[Index]) -> dict[Index, Entry]:
        """Tiles from storage; those that are not complete there come in progress."""
        if not tiles:
            return {}
        chunks = {} if record in self._barren else self._storage.read_tiles(record, tiles)
        absent = [tile for tile in tiles if chunks.get(tile) is None]
        partials: dict[Index, PartialTile | None] = {}
        if absent:
            # A tile of one window is never partial. Asked for none, a backend still tells that the tensor is gone.
            shared = [tile for tile in absent if TileInProgress(record, tile).total > 1]
            partials = self._storage.read_partials(record, shared)
            # Another process completes a tile by writing its chunk and then deleting its partial, maybe while
            # that is being read: only a chunk that is still absent now was absent then.
            chunks |= self._storage.read_tiles(record, shared if chunks else absent)
        found = sum(chunk is not None for chunk in chunks.values())
        (self._barren.add if 2 * found < len(chunks) else self._barren.discard)(record)
        if not self._registry.is_known(record):
            # Cleared while this read is in progress: what is there now is not of this tensor.
            return {tile: TileInProgress(record, tile) for tile in tiles}
        return {
            tile: self._begun(record, tile, partials.get(tile)) if chunk is None else chunk
            for tile, chunk in chunks.items()
        }

    def known_partials(self, record: Record, tiles: Sequence[Index]) -> dict[Index, Known]:
        """The windows that incomplete tiles hold in storage."""
        parts = self._storage.read_partials(record, tiles)
        begun = {tile: self._begun(record, tile, part) for tile, part in parts.items()}
        return {tile: entry.known() for tile, entry in begun.items() if not entry.empty}

    def _begun(self, record: Record, tile: Index, part: PartialTile | None) -> TileInProgress:
        begun = TileInProgress(record, tile)
        if part is not None:
            try:
                begun.merge(part)
            except DamagedPartialError as error:
                where = f"tile {tile} of tensor {record.spec.tensor_id!r}"
                warn_of_damage(self._storage, f"what is stored of {where} has {error}")
        return begun
