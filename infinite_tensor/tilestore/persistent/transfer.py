"""The way of tiles from storage into memory, and back."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from weakref import WeakSet

import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.inventory import Known
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.messages import warn_of_damage
from infinite_tensor.tilestore.partial import DamagedPartialError, PartialTile, TileInProgress
from infinite_tensor.tilestore.persistent.backend import Backend
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
        begun = {tile: TileInProgress(record, tile) for tile in tiles if chunks.get(tile) is None}
        partials: dict[Index, PartialTile | None] = {}
        if begun:
            # A tile of one window is never partial. Asked for none, a backend still tells that the tensor is gone.
            shared = [tile for tile, entry in begun.items() if entry.total > 1]
            partials = self._storage.read_partials(record, shared)
            # Another process completes a tile by writing its chunk and then deleting its partial, maybe while
            # that is being read: only a chunk that is still absent now was absent then.
            chunks |= self._storage.read_tiles(record, shared if chunks else list(begun))
        found = len([chunk for chunk in chunks.values() if chunk is not None])
        (self._barren.add if 2 * found < len(chunks) else self._barren.discard)(record)
        if not self._registry.is_known(record):
            # Cleared while this read is in progress: what is there now is not of this tensor.
            return {tile: TileInProgress(record, tile) for tile in tiles}
        return {
            tile: self._merged(record, begun[tile], partials.get(tile)) if chunk is None else chunk
            for tile, chunk in chunks.items()
        }

    def known_partials(self, record: Record, tiles: Sequence[Index]) -> dict[Index, Known]:
        """The windows that incomplete tiles hold in storage."""
        parts = self._storage.read_partials(record, tiles)
        begun = [self._merged(record, TileInProgress(record, tile), part) for tile, part in parts.items()]
        return {entry.tile: entry.known() for entry in begun if not entry.empty}

    def _merged(self, record: Record, begun: TileInProgress, part: PartialTile | None) -> TileInProgress:
        """A tile with what is stored of it, unless that is damaged."""
        if part is not None:
            try:
                begun.merge(part)
            except DamagedPartialError as error:
                where = f"tile {begun.tile} of tensor {record.spec.tensor_id!r}"
                warn_of_damage(self._storage, f"what is stored of {where} has {error}")
        return begun


Key: TypeAlias = tuple[Record, Index]
"""A tile of a tensor."""


class TileStorer:
    """Stores tiles in progress, complete or not, and counts what it has stored."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def store(
        self,
        _backend: Backend,
        lock: threading.RLock,
        jobs: dict[Key, TileInProgress],
    ) -> Sequence[StoreError]:
        """Store tiles of any tensors; a tensor that cannot be stored holds up no other. Runs on the writer's thread.

        What is stored, or need not be any more, is taken out of `jobs`. The lock is held while tiles in progress are
        looked at, not while they are on their way. Who holds this call with its backend keeps the store alive.
        """
        by_record: dict[Record, dict[Index, TileInProgress]] = {}
        for (record, tile), job in jobs.items():
            by_record.setdefault(record, {})[tile] = job
        failures = []
        for record, tiles in by_record.items():
            try:
                if record.current:
                    self._store_tensor(lock, record, tiles)
                for tile in tiles:
                    del jobs[record, tile]
            except StoreError as error:
                failures.append(error)
                if isinstance(error.__cause__, TimeoutError | ConnectionError):
                    # Nothing gets through: the other tensors would only take longer to fail as well.
                    break
        return failures

    def _store_tensor(self, lock: threading.RLock, record: Record, tiles: Mapping[Index, TileInProgress]) -> None:
        with lock:
            complete = {tile: job.finished() for tile, job in tiles.items() if job.complete}
            parts = {tile: job.unstored() for tile, job in tiles.items() if tile not in complete}
        changes: dict[Index, PartialTile | None] = {tile: part for tile, part in parts.items() if part}
        changes.update((tile, None) for tile in complete if tiles[tile].logged)
        self._storage.write(record.spec.tensor_id, complete, changes)
        with lock:
            for tile, part in parts.items():
                if part is not None:
                    tiles[tile].mark_stored(part)
            record.written[0] += len(complete)
            record.written[1] += sum(
                block.nbytes for block in (*complete.values(), *parts.values()) if block is not None
            )
