"""`Storage`: calls to the backend of a store, for definitions and tiles."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.allocation import Array, as_array
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.log import LOG
from infinite_tensor.support.tables import bytes_of
from infinite_tensor.tilestore.backend import Backend
from infinite_tensor.tilestore.definitions import Documents
from infinite_tensor.tilestore.inventory import Known
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.messages import one_warning_of_damage, warn_of_damage
from infinite_tensor.tilestore.partial import DamagedPartialError, PartialTile, TileInProgress

T = TypeVar("T")

Entry: TypeAlias = Array | TileInProgress
"""A tile in memory: the pixels of a complete tile (never changed) or a tile in progress."""
Key: TypeAlias = tuple[Record, Index]
"""A tile of a tensor."""

_FEW_TILES = 64


class Storage:
    """Calls a backend, and converts exceptions to StoreError.

    The message of a StoreError names the store, the tensor and the tile.

    Attributes
    ----------
    backend : Backend
        Reads and writes definitions.
    documents : Documents
        The definitions in the backend.
    writing : threading.RLock
        Held while tiles are written, and while a tensor or some of its tiles are deleted.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.documents = Documents(backend)
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # Only one thread at a time may write tiles to a backend: the background writer, or a copy. Deleting a tensor
        # takes the lock too, so a tensor cannot be deleted during a write.
        self.writing = threading.RLock()

    def __repr__(self) -> str:
        return str(self.backend)

    def flush(self) -> None:
        """Make all written data safe against a crash of the process."""
        self.backend.ask(self.backend.flush, to="flush")

    def delete(self, name: str, what: str) -> None:
        """Delete a document and its data."""
        with self.writing:
            self.backend.ask(self.backend.delete_document, name, to="delete", what=what)

    # Tiles.

    def _ask(self, record: Record, method: Callable[[Any], T], tiles: Collection[Index], to: str) -> T:
        return self.backend.ask(method, tiles, to=to, what=f"tensor {record.spec.tensor_id!r}", tiles=tiles)

    def load(self, record: Record, tiles: Sequence[Index]) -> dict[Index, Entry]:
        """Load tiles from storage.

        A tile that is not complete in storage becomes a tile in progress.
        """
        if not tiles:
            return {}
        # If most tiles were missing last time, begin with partial tiles. Chunks must be looked up afterwards anyway.
        chunks = {} if record.is_sparse else self.read_tiles(record, tiles)
        begun = {tile: TileInProgress(record, tile) for tile in tiles if chunks.get(tile) is None}
        partials: dict[Index, PartialTile | None] = {}
        if begun:
            # A tile of a single window is never partial. Even without tiles, a backend reports a cleared tensor.
            shared = [tile for tile, entry in begun.items() if entry.total > 1]
            partials = self.read_partials(record, shared)
            # Another process completes a tile by writing the chunk, then deleting the log. The log may have been
            # incomplete when read. Look for chunks again: if a chunk is still absent, the log was complete.
            chunks |= self.read_tiles(record, shared if chunks else list(begun))
        record.is_sparse = 2 * sum(chunk is not None for chunk in chunks.values()) < len(chunks)
        return {
            tile: self._merged(record, begun[tile], partials.get(tile)) if chunk is None else as_array(chunk)
            for tile, chunk in chunks.items()
        }

    def known_partials(self, record: Record, tiles: Sequence[Index]) -> dict[Index, Known]:
        """Map each incomplete tile to the indices of its stored windows.

        Tiles without stored windows are left out.
        """
        parts = self.read_partials(record, tiles)
        begun = [self._merged(record, TileInProgress(record, tile), part) for tile, part in parts.items()]
        return {entry.tile: entry.known() for entry in begun if not entry.empty}

    def _merged(self, record: Record, begun: TileInProgress, part: PartialTile | None) -> TileInProgress:
        if part is not None:
            try:
                begun.merge(part)
            except DamagedPartialError as error:
                where = f"tile {begun.tile} of tensor {record.spec.tensor_id!r}"
                warn_of_damage(self, f"the partial {where} is damaged: {error}")
        return begun

    def read_tiles(self, record: Record, tiles: Sequence[Index]) -> dict[Index, torch.Tensor | None]:
        """Read complete tiles.

        Return None for a missing tile, and for a tile with the wrong dtype or shape.
        """
        tensor_id, layout = record.spec.tensor_id, record.layout
        with one_warning_of_damage():
            blocks = self._ask(record, record.handle.read_tiles, tiles, "read")
        found = dict(zip(tiles, blocks, strict=True))
        self._log_read("complete", tensor_id, found)
        for tile, block in found.items():
            if block is not None and (block.dtype != layout.dtype or block.shape != layout.tile_shape):
                given, wanted = f"{block.dtype} {tuple(block.shape)}", f"{layout.dtype} {layout.tile_shape}"
                warn_of_damage(self, f"tile {tile} of tensor {tensor_id!r} is {given}, not {wanted}")
                found[tile] = None
        return found

    def read_partials(self, record: Record, tiles: Sequence[Index]) -> dict[Index, PartialTile | None]:
        """Read partial tiles.

        Return None for a tile without stored parts.
        """
        with one_warning_of_damage():
            parts = self._ask(record, record.handle.read_partials, tiles, "read")
        found = dict(zip(tiles, parts, strict=True))
        self._log_read("partial", record.spec.tensor_id, found)
        return found

    def write(
        self,
        record: Record,
        complete: Mapping[Index, torch.Tensor],
        changes: Mapping[Index, PartialTile | None],
        to: str = "store",
    ) -> None:
        """Store complete tiles, then parts of incomplete tiles.

        `changes` maps each incomplete tile to a part to add, or to None to delete the stored partial tile. `to` is
        a verb for error messages, such as "store" or "copy".
        """
        with self.writing:
            if complete:
                self._ask(record, record.handle.write_tiles, complete, to)
            if changes:
                self._ask(record, record.handle.write_partials, changes, to)
        self._log_write("complete", record.spec.tensor_id, complete)
        self._log_write("partial", record.spec.tensor_id, changes)

    def store(self, lock: threading.RLock, jobs: dict[Key, TileInProgress]) -> Sequence[StoreError]:
        """Store the tiles in `jobs`, and return the errors.

        Called on the background thread of the writer. After the call, `jobs` contains only tiles that could not be
        stored. Tiles of records that are not current are removed without storing. `lock` protects the tiles from
        changes. It is not locked during I/O.
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
                    # The storage cannot be reached: waiting for the other tensors to fail too would only take time.
                    break
        return failures

    def _store_tensor(self, lock: threading.RLock, record: Record, tiles: Mapping[Index, TileInProgress]) -> None:
        with lock:
            complete = {tile: job.finished() for tile, job in tiles.items() if job.complete}
            parts = {tile: job.unstored() for tile, job in tiles.items() if tile not in complete}
        changes: dict[Index, PartialTile | None] = {tile: part for tile, part in parts.items() if part}
        changes.update((tile, None) for tile in complete if tiles[tile].logged)
        self.write(record, complete, changes)
        with lock:
            for tile, part in parts.items():
                if part is not None:
                    tiles[tile].mark_stored(part)
            record.written[0] += len(complete)
            record.written[1] += sum(
                block.nbytes for block in (*complete.values(), *parts.values()) if block is not None
            )

    def read_encoded(self, record: Record, tiles: Sequence[Index]) -> dict[Index, bytes | None]:
        """Read complete tiles without decoding.

        Return None for a missing or damaged tile.
        """
        found = dict(zip(tiles, self._ask(record, record.handle.read_encoded, tiles, "read"), strict=True))
        self._log_read("encoded", record.spec.tensor_id, found)
        return found

    def write_encoded(self, record: Record, tiles: Mapping[Index, bytes]) -> None:
        """Store complete tiles, already encoded."""
        with self.writing:
            self._ask(record, record.handle.write_encoded, tiles, "copy")
        self._log_write("encoded", record.spec.tensor_id, tiles)

    def find(self, record: Record, tiles: Sequence[Index]) -> list[Index]:
        """Return the tiles in `tiles` that are complete in storage."""
        return list(itertools.compress(tiles, self._ask(record, record.handle.find, tiles, "look for")))

    def find_in(self, record: Record, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find the tiles stored in the box ``[low, high)``.

        Return the set of complete tiles, and the set of tiles with a `PartialTile`.
        """
        return self.backend.ask(record.handle.find_in, low, high, to="list", what=f"tensor {record.spec.tensor_id!r}")

    def drop(self, record: Record, tiles: BoxUnion) -> list[Index]:
        """Delete all data of tiles, and return those of which something was stored."""
        what, handle = f"tensor {record.spec.tensor_id!r}", record.handle
        with self.writing:
            complete, partial = self.find_in(record, *tiles.hull)
            found = tiles.held(list(complete | partial))
            # If there are few tiles, delete all of them: the backend does not find log parts behind a gap.
            few = tiles.most_points <= _FEW_TILES
            self.backend.ask(handle.delete_tiles, list(tiles.points()) if few else found, to="drop", what=what)
            self.backend.ask(self.backend.flush, to="drop", what=what)
        return found

    # Log outside of `ask`. Inside, an error of a handler would be taken for an error of the backend.

    def _log_read(self, kind: str, tensor_id: str, found: Mapping[Index, object]) -> None:
        if LOG.isEnabledFor(logging.DEBUG) and found:
            there = sum(tile is not None for tile in found.values())
            # Pass only the name, because a handler keeping records must not keep the store alive.
            LOG.debug("read tiles of tensor %r from %s: %d of %d %s", tensor_id, str(self), there, len(found), kind)

    def _log_write(
        self, kind: str, tensor_id: str, tiles: Mapping[Index, torch.Tensor | PartialTile | bytes | None]
    ) -> None:
        if LOG.isEnabledFor(logging.DEBUG):
            stored = [tile for tile in tiles.values() if tile is not None]
            sizes = [len(tile) if isinstance(tile, bytes) else tile.nbytes for tile in stored]
            if sizes:
                told = len(sizes), kind, bytes_of(sum(sizes))
                LOG.debug("wrote tiles of tensor %r to %s: %d %s, %s", tensor_id, str(self), *told)
