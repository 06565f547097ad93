"""The way of tiles from storage into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

import torch

from infinite_tensor.boxes import Index
from infinite_tensor.tilestore.failures import stored_errors, warn_of_damage
from infinite_tensor.tilestore.inventory import Known
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.partial import DamagedPartialError, PartialTile, TileInProgress

if TYPE_CHECKING:
    from infinite_tensor.tilestore.persistent import PersistentTileStore

Entry: TypeAlias = torch.Tensor | TileInProgress
"""A tile in memory: complete, and never changed, or in progress."""


class TileLoader:
    """Loads tiles, whatever state they are in."""

    def __init__(self) -> None:
        # Tensors of which most tiles were missing when last looked for: of these, partial ones are looked for first,
        # since chunks must be looked for after that in any case.
        self._barren: WeakSet[Record] = WeakSet()

    def load(self, storage: PersistentTileStore, record: Record, tiles: Sequence[Index]) -> dict[Index, Entry]:
        """Tiles from storage; those that are not complete there come in progress."""
        tensor_id = record.spec.tensor_id
        if not tiles:
            return {}
        with stored_errors(storage, "read", tensor_id, tiles):
            chunks = {} if record in self._barren else _chunks(storage, record, tiles)
            absent = [tile for tile in tiles if chunks.get(tile) is None]
            partials: dict[Index, PartialTile | None] = {}
            if absent:
                # A tile of one window is never partial. Asked for none, a backend still tells that the tensor is gone.
                shared = [tile for tile in absent if TileInProgress(record, tile).total > 1]
                partials = dict(zip(shared, storage._read_partials(tensor_id, shared), strict=True))
                # Another process completes a tile by writing its chunk and then deleting its partial, maybe while
                # that is being read: only a chunk that is still absent now was absent then.
                chunks |= _chunks(storage, record, shared if chunks else absent)
        found = sum(chunk is not None for chunk in chunks.values())
        (self._barren.add if 2 * found < len(chunks) else self._barren.discard)(record)
        if not storage._is_known(record):
            # Cleared while this read is in progress: what is there now is not of this tensor.
            return {tile: TileInProgress(record, tile) for tile in tiles}
        loaded: dict[Index, Entry] = {}
        for tile, chunk in chunks.items():
            if chunk is not None:
                loaded[tile] = chunk
                continue
            loaded[tile] = _begun(storage, record, tile, partials.get(tile))
        return loaded


def known_partials(storage: PersistentTileStore, record: Record, tiles: Sequence[Index]) -> dict[Index, Known]:
    """The windows that incomplete tiles hold in storage."""
    with stored_errors(storage, "read", record.spec.tensor_id, tiles):
        parts = storage._read_partials(record.spec.tensor_id, tiles)
    begun = {tile: _begun(storage, record, tile, part) for tile, part in zip(tiles, parts, strict=True)}
    return {tile: entry.known() for tile, entry in begun.items() if not entry.empty}


def _begun(storage: PersistentTileStore, record: Record, tile: Index, part: PartialTile | None) -> TileInProgress:
    begun = TileInProgress(record, tile)
    if part is not None:
        try:
            begun.merge(part)
        except DamagedPartialError as error:
            where = f"tile {tile} of tensor {record.spec.tensor_id!r}"
            warn_of_damage(storage, f"what is stored of {where} has {error}")
    return begun


def _chunks(storage: PersistentTileStore, record: Record, tiles: Sequence[Index]) -> dict[Index, torch.Tensor | None]:
    """The complete tiles in storage, None where there is none that can be one."""
    tensor_id, layout = record.spec.tensor_id, record.layout
    chunks = dict(zip(tiles, storage._read_tiles(tensor_id, tiles), strict=True))
    for tile, chunk in chunks.items():
        if chunk is not None and (chunk.dtype != layout.dtype or chunk.shape != layout.tile_shape):
            found, wanted = f"{chunk.dtype} {tuple(chunk.shape)}", f"{layout.dtype} {layout.tile_shape}"
            warn_of_damage(storage, f"tile {tile} of tensor {tensor_id!r} is {found}, not {wanted}")
            chunks[tile] = None
    return chunks
