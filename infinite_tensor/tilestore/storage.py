"""`Storage`: calls to the backend of a store, for definitions and tiles."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.allocation import Array, as_array
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.log import LOG
from infinite_tensor.support.tables import bytes_of
from infinite_tensor.tilestore.backend import DOCUMENT_METHODS, Backend, offers
from infinite_tensor.tilestore.documents import TENSOR, name_of, sealed
from infinite_tensor.tilestore.inventory import Known
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.messages import one_warning_of_damage, warn_of_damage, warn_of_lost
from infinite_tensor.tilestore.partial import DamagedPartialError, PartialTile, TileInProgress

Entry: TypeAlias = Array | TileInProgress
"""A tile in memory: the pixels of a complete tile (never changed) or a tile in progress."""
Key: TypeAlias = tuple[Record, Index]
"""A tile of a tensor."""

_KEPT = ". Stored data is intact; unstored data is kept in memory; call flush() to try again"
_ADVICE = {
    "store": _KEPT,
    "flush": _KEPT,
    "copy": ". The original and everything copied so far are intact; copy again to continue",
}


class Storage:
    """Calls a backend, and converts exceptions to StoreError.

    The message of a StoreError names the store, the tensor and the tile.

    The backend is the store itself. Parts of a store must not keep the store alive, so this object has only a weak
    reference to the store. Users of the parts keep the store alive, for example through a tensor.

    Attributes
    ----------
    writing : threading.RLock
        Held while tiles are written, and while a tensor or some of its tiles are deleted.
    finds_tiles : bool
        Whether the backend can list all tiles of a tensor, however far apart they are.
    """

    def __init__(self, backend: Backend) -> None:
        self.attach(backend)
        self.finds_tiles = offers(backend, "_find_tiles")
        self._keeps_documents = all(offers(backend, method) for method in DOCUMENT_METHODS)
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # Only one thread at a time may write tiles to a backend: the background writer, or a copy. Deleting a tensor
        # takes the lock too, so a tensor cannot be deleted during a write.
        self.writing = threading.RLock()

    def attach(self, backend: Backend) -> None:
        """Set the weak reference to the backend.

        Called again when the garbage collector may have cleared the reference.
        """
        self._backend = weakref.ref(backend)

    @property
    def backend(self) -> Backend:
        """The backend.

        Raise StoreError while the garbage collector is freeing the store.
        """
        backend = self._backend()
        if backend is None:
            raise StoreError("the store is being freed by the garbage collector; call close() before you drop a store")
        return backend

    def __repr__(self) -> str:
        return str(self._backend())

    @contextmanager
    def asked(
        self, action: str, tensor_id: str | None = None, tiles: Sequence[Index] = (), *, group_id: str = ""
    ) -> Iterator[Backend]:
        """Yield the backend, and turn its exceptions into StoreError.

        The message is for example "could not read tile (0, 1) of tensor 'a'", with "read" as `action`. A StoreError or
        ValidationError of the backend is raised unchanged.
        """
        backend = self.backend
        try:
            yield backend
        except (StoreError, ValidationError):
            raise
        except Exception as error:
            what = f"group {group_id!r}" if group_id else "its backend"
            if tensor_id is not None:
                what = f"tensor {tensor_id!r}"
            if tiles:
                more = f" and {len(tiles) - 1} more" if len(tiles) > 1 else ""
                what = f"tile {tiles[0]}{more} of {what}"
            advice = _ADVICE.get(action, "")
            raise StoreError(f"{backend} could not {action} {what}: {type(error).__name__}: {error}{advice}") from error

    def flush(self) -> None:
        """Make all written data safe against a crash of the process."""
        with self.asked("flush") as backend:
            backend._flush_backend()

    # Definitions.

    def read_definition(self, tensor_id: str, action: str = "read") -> dict[str, Any] | None:
        """Return the stored definition of a tensor, or None.

        The definition is not checked.
        """
        with self.asked(action, tensor_id) as backend:
            return backend._read_definition(tensor_id)

    def create(self, tensor_id: str, definition: dict[str, Any], original: Mapping[str, Any] | None) -> dict[str, Any]:
        """Store the definition of a new tensor.

        Return the definition stored afterwards. If another process was faster, the definition of that process is
        returned. `original` may be the stored definition of another tensor. The new tensor is then encoded like that
        tensor.
        """
        # The incarnation distinguishes the tensor from earlier and later tensors with the same id.
        definition = {**definition, "incarnation": secrets.token_hex(8)}
        with self.asked("register", tensor_id) as backend:
            if original is None:
                backend._write_definition(tensor_id, definition)
            else:
                backend._write_copy(tensor_id, definition, original)
            stored = backend._read_definition(tensor_id)
        if stored is None:
            raise StoreError(f"{self}: tensor {tensor_id!r} was deleted right after it was created; try again")
        return stored

    def replace(self, tensor_id: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Replace a definition by one with more names or metadata, if it is still the `old` one.

        If the backend cannot, issue a MeaningLostWarning.
        """
        if not self._keeps_documents or not offers(self.backend, "_replace_document"):
            warn_of_lost(f"tensor {tensor_id!r} in {self}", ["what was given after it was stored"])
            return
        with self.asked("register", tensor_id) as backend:
            backend._replace_document(name_of(tensor_id), old, sealed(new))

    def holds(self, tensor_id: str) -> bool:
        """Return whether a tensor has a definition, intact or damaged."""
        with self.asked("look for", tensor_id) as backend:
            if self._keeps_documents:
                return backend._documents.holds(tensor_id, TENSOR)
            return backend._read_definition(tensor_id) is not None

    def tensor_ids(self, prefix: str) -> list[str]:
        """Return all stored tensor ids starting with `prefix`."""
        with self.asked("list") as backend:
            by_name = prefix and self._keeps_documents
            found = backend._documents.ids(TENSOR, prefix) if by_name else backend._list_tensors()
        for name in found:
            if not isinstance(name, str):
                raise StoreError(f"{self} has an invalid tensor_id: {name!r:.200}, not a str; the store may be damaged")
        return [tensor_id for tensor_id in found if tensor_id.startswith(prefix)]

    def some_ids(self, most: int) -> tuple[list[str], int]:
        """Return up to `most` tensor ids, and an upper bound for the number of further ids."""
        with self.asked("list") as backend:
            if self._keeps_documents:
                return backend._documents.some_ids(TENSOR, most)
            found = sorted(backend._list_tensors())
        return found[:most], len(found[most:])

    def definitions(self) -> dict[str, dict[str, Any]]:
        """Return the stored definitions of tensors, by id.

        If the backend stores documents, tensors without args are left out, unless they are outputs of an ``f`` with
        several outputs. If the backend cannot list tensors, the result is empty.
        """
        with self.asked("list") as backend:
            if self._keeps_documents:
                return backend._documents.readers()
            listed = backend._list_tensors() if offers(backend, "_list_tensors") else []
            found = {tensor_id: backend._read_definition(tensor_id) for tensor_id in listed}
        return {tensor_id: definition for tensor_id, definition in found.items() if definition is not None}

    # Tiles.

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
        with one_warning_of_damage(), self.asked("read", tensor_id, tiles) as backend:
            found = dict(zip(tiles, backend._read_tiles(tensor_id, tiles), strict=True))
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
        tensor_id = record.spec.tensor_id
        with one_warning_of_damage(), self.asked("read", tensor_id, tiles) as backend:
            found = dict(zip(tiles, backend._read_partials(tensor_id, tiles), strict=True))
        self._log_read("partial", tensor_id, found)
        return found

    def write(
        self,
        tensor_id: str,
        complete: Mapping[Index, torch.Tensor],
        changes: Mapping[Index, PartialTile | None],
        action: str = "store",
    ) -> None:
        """Store complete tiles, then parts of incomplete tiles.

        `changes` maps each incomplete tile to a part to add, or to None to delete the stored partial tile. `action` is
        a verb for error messages, such as "store" or "copy".
        """
        with self.asked(action, tensor_id, [*{**complete, **changes}]) as backend, self.writing:
            if complete:
                backend._write_tiles(tensor_id, complete)
            if changes:
                backend._write_partials(tensor_id, changes)
        self._log_write("complete", tensor_id, complete)
        self._log_write("partial", tensor_id, changes)

    def store(self, _backend: Backend, lock: threading.RLock, jobs: dict[Key, TileInProgress]) -> Sequence[StoreError]:
        """Store the tiles in `jobs`, and return the errors.

        Called on the background thread of the writer. After the call, `jobs` contains only tiles that could not be
        stored. Tiles of records that are not current are removed without storing. `lock` protects the tiles from
        changes. It is not locked during I/O. `_backend` is not used, but this reference keeps the store alive until the
        thread has ended.
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
        self.write(record.spec.tensor_id, complete, changes)
        with lock:
            for tile, part in parts.items():
                if part is not None:
                    tiles[tile].mark_stored(part)
            record.written[0] += len(complete)
            record.written[1] += sum(
                block.nbytes for block in (*complete.values(), *parts.values()) if block is not None
            )

    def encoding(self, tensor_id: str) -> object:
        """Return an identifier for the encoding of tiles; see `Backend._encoding`."""
        with self.asked("look at", tensor_id) as backend:
            return backend._encoding(tensor_id)

    def read_encoded(self, tensor_id: str, tiles: Sequence[Index]) -> dict[Index, bytes | None]:
        """Read complete tiles without decoding.

        Return None for a missing or damaged tile.
        """
        with self.asked("read", tensor_id, tiles) as backend:
            found = dict(zip(tiles, backend._read_encoded(tensor_id, tiles), strict=True))
        self._log_read("encoded", tensor_id, found)
        return found

    def write_encoded(self, tensor_id: str, tiles: Mapping[Index, bytes]) -> None:
        """Store complete tiles, already encoded."""
        with self.asked("copy", tensor_id, list(tiles)) as backend, self.writing:
            backend._write_encoded(tensor_id, tiles)
        self._log_write("encoded", tensor_id, tiles)

    def find(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find the tiles stored in the box ``[low, high)``.

        Return the set of complete tiles, and the set of tiles with a `PartialTile`.
        """
        with self.asked("list", tensor_id) as backend:
            return backend._find_tiles(tensor_id, low, high)

    def those_there(self, tensor_id: str, tiles: Sequence[Index]) -> list[Index]:
        """Return the tiles in `tiles` that are complete in storage."""
        with self.asked("look for", tensor_id) as backend:
            return list(itertools.compress(tiles, backend._has_tiles(tensor_id, tiles)))

    # Log outside of `asked`. Inside, an error of a handler would be taken for an error of the backend.

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
