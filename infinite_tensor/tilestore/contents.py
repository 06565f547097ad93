"""`Contents`, the engine's interface to a store.

A tile is first missing, then partial, then complete. A complete tile is final: all windows on the tile have been
blended in. `Backend` contains the differences between storages. In memory, nothing is in storage.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window_sets import BoxUnion, pixels_of, windows_over
from infinite_tensor.support.allocation import as_array, as_tensor
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import store_method, store_query
from infinite_tensor.tilestore.access import Access
from infinite_tensor.tilestore.cache import TileCache
from infinite_tensor.tilestore.documents import GROUP, name_of
from infinite_tensor.tilestore.inventory import Damage, Garbage, Inventory, Known, TensorInfo
from infinite_tensor.tilestore.layout import Record, TileLayout
from infinite_tensor.tilestore.messages import changed_meanwhile, check_functions, lacking
from infinite_tensor.tilestore.partial import TileInProgress
from infinite_tensor.tilestore.registry import Registry
from infinite_tensor.tilestore.storage import Storage
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.definition import same
from infinite_tensor.values.spec import TensorSpec

_TILES_AT_ONCE = 64


class Contents:
    """Implementation of a store, behind the public `TileStore`: tiles in memory and in storage.

    Parameters
    ----------
    storage : Storage
        Where tiles are stored.
    registry : Registry
        The tensors in use.
    tiles : TileCache
        Tiles in memory, including tiles waiting to be stored.
    read_only : bool
        If True, stored tiles are read, and computed tiles stay in memory only.

    Attributes
    ----------
    storage, registry, tiles, read_only
        As given.
    lock : threading.RLock
        Held while a tensor is registered, moved or cleared, and while a read begins.
    closed : bool
        Whether the store has been closed and not reopened.
    flush_requested : bool
        Whether a flush was requested and not carried out yet.
    workers : int
        The number of threads on which a read runs the ``f`` of a tensor of this store, unless the read sets another
        number.
    """

    workers = 1

    flush_requests: ClassVar[int] = 0
    """The number of flush requests in this process. While unchanged, no store has to be checked."""

    outlives_process: ClassVar[bool] = True
    """Whether another process may reopen a stored tensor. If so, the tensor must match its stored definition."""

    shared = False
    """Whether several processes can unpickle the store and write at the same time."""

    def __init__(self, storage: Storage, registry: Registry, tiles: TileCache, *, read_only: bool = False) -> None:
        self.storage = storage
        self.registry = registry
        self.tiles = tiles
        self._released = False
        self.lock = threading.RLock()
        self.closed = False
        self.read_only = read_only
        self.flush_requested = False
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self.lock = threading.RLock()

    def check_open(self) -> None:
        """Raise StoreError if the store has been closed."""
        if self.closed:
            raise StoreError(f"{self} is closed; open it again with `with store:`")

    def check_writable(self, action: str) -> None:
        """Raise ValidationError if the store is read-only."""
        if self.read_only:
            raise ValidationError(f"{self} is read-only: it cannot {action}; open it with mode='r+'")

    def request_flush(self) -> None:
        """Request a flush.

        A signal handler may call this method at any moment.
        """
        self.flush_requested = True
        Contents.flush_requests += 1

    def flush_if_requested(self) -> None:
        """Carry out a requested flush.

        Called when the thread holds no locks of the store.
        """
        if self.flush_requested:
            self.flush_requested = False
            if not self.closed:
                self.flush()

    def __repr__(self) -> str:
        return repr(self.storage)

    def resume(self) -> None:
        """Open a closed store again, and release files at the next `close`."""
        # An interrupted `close` may not have released memory and files.
        self.close(discard=True)
        self.storage.backend.resume()
        self.closed = self._released = self.tiles.closed = False

    @store_method
    def register(self, spec: TensorSpec) -> TensorSpec:
        """Find a tensor in storage, or create a new tensor."""
        self.flush_if_requested()
        with self.lock:
            self.check_open()
            record = self.registry.record_of(spec)
            self.tiles.drop_unheld()
            if record.functions is not spec.definition.functions:
                check_functions(spec.tensor_id, record.functions, spec.definition.functions, self)
            self.registry.amend(record, spec.definition)
            return spec.beside(record.spec.definition)

    @store_method
    def describe(self, spec: TensorSpec) -> TensorSpec:
        """Give a tensor the dimension names and the meaning of `spec`, in place of those that it has."""
        self.check_writable("describe a tensor in")
        with self.lock:
            self.check_open()
            self.registry.describe(self.registry.record_of(spec), spec.definition)
        return spec

    def with_tile_size(self, spec: TensorSpec) -> TensorSpec:
        """Return `spec` with the tile size given for the tensor or the store.

        The tile size is None if none was given.
        """
        with self.lock:
            return replace(spec, tile_size=self.registry.given_tile(spec))

    def access(self, spec: TensorSpec) -> Access:
        """Begin a read of a tensor.

        If background writes have failed, raise their error once.
        """
        self.raise_failure()
        with self.lock:
            return Access(self.check_open, self.tiles, self.registry.record_of(spec))

    @property
    def cache_limit(self) -> int | None:
        """The limit of the cache in bytes; see `cache_size_bytes`."""
        return self.tiles.entries.max_bytes

    @store_method
    def lend(self, held: threading.Lock, room: int) -> None:
        """Limit the growth of the cache of tiles."""
        with self.tiles.lock:
            self.tiles.entries.lend(held, room)

    def layout(self, spec: TensorSpec) -> TileLayout:
        """Return the layout of the stored tiles of a tensor."""
        with self.lock:
            self.check_open()
            return self.registry.look_up(spec).layout

    def written(self, tensor_id: str) -> tuple[int, int]:
        """Return the number of tiles and bytes stored by the background writer."""
        record = self.registry.records.get(tensor_id)
        return (0, 0) if record is None else (record.written[0], record.written[1])

    @store_method
    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """Find the complete tiles and known windows in a region.

        Tiles in memory are included, even if not stored yet.
        """
        self.raise_failure()
        with self.lock:
            record = self.registry.look_up(spec)
        low, high = record.layout.box(start, stop)
        # Look in memory first: a tile may leave memory for storage between the two looks, and would be missed.
        held = self.tiles.held(record, low, high)
        complete, partial = set[Index](), set[Index]()
        if not self.tiles.in_memory:
            complete, partial = self.storage.find_in(record, low, high)
        known: dict[Index, Known] = {}
        for tile, entry in held.items():
            if not isinstance(entry, TileInProgress):
                complete.add(tile)
            elif not entry.empty:
                known[tile] = entry
        unread = sorted(partial - complete - known.keys())
        for begin in range(0, len(unread), _TILES_AT_ONCE):
            known |= self.storage.known_partials(record, unread[begin : begin + _TILES_AT_ONCE])
        return Inventory(record.layout, frozenset(complete), {t: w for t, w in known.items() if t not in complete})

    @store_method
    def stored_tiles(self, spec: TensorSpec) -> set[Index]:
        """Flush, then list the tiles of a tensor."""
        self.flush()
        with self.lock:
            record = self.registry.look_up(spec)
        complete, partial = self.storage.find_in(record, *record.layout.box(*record.layout.pixels))
        return complete | partial

    @store_method
    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:
        """Return whether all tiles of a region are in storage."""
        self.raise_failure()
        with self.lock:
            record = self.registry.record_of(spec)
        tiles, most = itertools.product(*map(range, *record.layout.box(start, stop))), 1
        # If tiles are missing, usually the first is. So ask for the first alone.
        while some := list(itertools.islice(tiles, most)):
            most = _TILES_AT_ONCE
            if len(self.storage.find(record, some)) < len(some):
                return False
        return True

    def serve(self, spec: TensorSpec, start: Sequence[int], out: torch.Tensor) -> bool:
        """Copy a region to `out` if all tiles are complete and in memory.

        Return whether the region was copied.
        """
        record = self._record_in_memory(spec)
        if record is None or out.device != record.device:
            return False
        return self.tiles.read(record, start, as_array(out))

    def tile_in_memory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> torch.Tensor | None:
        """Return the pixels ``[start, stop)`` as a complete tile in memory.

        Return None if the region is not exactly one tile, or if the tile cannot be returned at once.
        """
        record = self._record_in_memory(spec)
        if record is None or self.flush_requested:
            return None
        low, high = record.layout.box(start, stop)
        tile = tuple(low)
        if [i + 1 for i in low] != high or record.layout.start(tile) != tuple(start):
            return None
        found = self.tiles.complete_at_once(record, tile)
        return as_tensor(found) if found is not None and found.shape == tuple(map(operator.sub, stop, start)) else None

    def _record_in_memory(self, spec: TensorSpec) -> Record | None:
        record = self.registry.records.get(spec.tensor_id)
        if self.closed or record is None:
            return None
        alike = record.spec is spec or same(record.spec.definition, spec.definition)
        return record if alike else None

    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """Refuse a change of dtype.

        Raise ValidationError, because a change of dtype would change the stored pixels. Do nothing for a change of
        device.
        """
        if moved.dtype != spec.dtype:
            raise ValidationError(
                f"{self} stores tensor {spec.tensor_id!r} as {spec.dtype}, so it cannot be moved to {moved.dtype}. "
                "Make a new tensor with another tensor_id, or first delete this one with "
                f"clear_tensor({spec.tensor_id!r})"
            )

    @store_method
    def refresh(self, tensor_id: str) -> None:
        """Flush, then drop the incomplete tiles of a tensor from memory."""
        self.check_open()
        self.flush()
        self.tiles.drop_stored(tensor_id, in_progress=True)

    def specs_downstream(self) -> list[TensorSpec]:
        """Return the specs for finding dependants; see `Registry.specs_downstream`."""
        self.check_open()
        return self.registry.specs_downstream()

    def specs_at_hand(self) -> list[TensorSpec]:
        """Return the specs for finding dependants, without network requests.

        On remote storage, only tensors registered through this store object are included.
        """
        if self.storage.backend.is_near:
            return self.specs_downstream()
        return [record.spec for record in self.registry.known()]

    def check_droppable(self, tensor_id: str) -> None:
        """Check that tiles can be deleted."""
        self.check_open()
        self.check_writable(f"drop stored pixels of tensor {tensor_id!r}")
        if "_delete_tiles" in self.storage.backend.lacks:
            raise lacking(self.storage, "_delete_tiles")

    def drop(self, spec: TensorSpec, windows: BoxUnion) -> int:
        """Flush, then delete every tile touched by the windows."""
        self.check_droppable(spec.tensor_id)
        if not windows or self.digest_of(spec.tensor_id) != spec.definition.digest:
            # The tensor was cleared, or recreated with another definition. Nothing of the old tensor is stored.
            return 0
        record = self.registry.record_of(spec)
        tiles = windows_over(record.layout.grid, pixels_of(spec.grid, windows))
        self.tiles.flush()
        self.raise_failure()
        new = replace(record)
        with self.tiles.lock:
            self.registry.replace(record, new, spec)
        held = self.tiles.hand_over(record, new, tiles)
        return len(held.union(self.storage.drop(record, tiles)))

    def forget(self, spec: TensorSpec) -> None:
        """Drop all tiles of a tensor from memory, because another process has dropped some.

        The next read looks in storage again. Reads in progress may still use the windows, and store nothing. Must be
        called while the store is `paused`.
        """
        record = self.registry.forget(spec.tensor_id)
        if record is not None:
            self.tiles.forget(record)

    def collect_garbage(self, older_than: float | None) -> Garbage:
        """Flush, then delete data without a definition.

        Also delete partial tiles older than `older_than` seconds, unless `older_than` is None.
        """
        self.flush()
        backend, ask = self.storage.backend, partial(self.storage.backend.ask, to="clean")
        collected = ask(backend.collect_garbage)
        if older_than is not None:
            with self.storage.writing:
                collected += ask(backend.drop_partials, older_than)
            # Drop partial tiles in memory too. Reads then look in storage again.
            for record in self.registry.known():
                self.tiles.drop_stored(record.spec.tensor_id, in_progress=True)
        return collected

    def generation(self, spec: TensorSpec) -> tuple[str, str] | None:
        """Return two strings for the state of the stored pixels.

        The first string, the incarnation, changes when the tensor is recreated. The second string, the generation,
        changes when tiles are dropped. Return None if the tensor is not stored, if the backend keeps no
        generation, or if the store is closed.
        """
        if self.closed:
            return None
        stored, record = self.storage.documents.tensor(spec.tensor_id), self.registry.records.get(spec.tensor_id)
        if stored is None or record is None:
            return None
        drops = self.storage.backend.ask(record.handle.generation, to="read", what=f"tensor {spec.tensor_id!r}")
        return None if drops is None else (stored.incarnation, drops)

    def paused(self) -> AbstractContextManager[object]:
        """Return a context manager to keep other threads from beginning a read."""
        return self.lock

    def tensor_ids(self, prefix: str = "") -> list[str]:
        """Return all stored or registered tensor ids starting with `prefix`, sorted."""
        return self.registry.tensor_ids(prefix)

    def holds(self, tensor_id: str) -> bool:
        """Return whether a tensor is stored or registered.

        The stored definition may be damaged.
        """
        return tensor_id in self.registry.records or self.storage.documents.holds(tensor_id)

    def stored(self, tensor_id: str) -> StoredTensor:
        """Return the stored definition of a tensor."""
        self.check_open()
        return self.registry.stored(tensor_id)

    @store_query
    def open(self, tensor_id: str) -> tuple[StoredTensor, Record]:
        """Return the stored definition of a tensor, and its record; see `Registry.open`."""
        with self.lock:
            self.check_open()
            return self.registry.open(tensor_id)

    def info_of(self, tensor_id: str) -> TensorInfo:
        """Flush, then describe a tensor and its stored data."""
        self.flush()
        stored = self.storage.documents.tensor(tensor_id)
        if stored is not None:
            backend = self.storage.backend
            return backend.ask(backend.describe, stored, to="describe", what=f"tensor {tensor_id!r}")
        stored = self.registry.stored(tensor_id)
        held = self.tiles.of(self.registry.records.get(tensor_id)).values()
        partial = [tile for tile in held if isinstance(tile, TileInProgress)]
        nbytes = sum(tile.nbytes for tile in held)
        fields = dict(stored.fields)
        return TensorInfo(tensor_id, fields, len(held) - len(partial), len(partial), nbytes, "memory")

    def digest_of(self, tensor_id: str) -> str | None:
        """Return the digest of a tensor's definition, or None if unknown."""
        return self.registry.digest_of(tensor_id)

    def delete(self, tensor_id: str) -> None:
        """Delete all data of a tensor, in memory and in storage."""
        with self.lock:
            record = self.registry.forget(tensor_id)
            self.registry.tile_sizes.pop(tensor_id, None)
            if record is not None:
                self.tiles.forget(record)
            self.storage.delete(name_of(tensor_id), f"tensor {tensor_id!r}")

    def check_current(self, record: Record) -> None:
        """Check that the store is open and `record` is current.

        Raise StoreError if the store is closed, or if the tensor was cleared or invalidated.
        """
        self.check_open()
        if not record.current:
            raise changed_meanwhile(self, record.spec.tensor_id)

    @contextmanager
    def storing(self, record: Record) -> Iterator[Storage]:
        """Open a context for writing tiles of a tensor to storage.

        No other thread writes tiles in the meantime. Raise the errors of `check_current`.
        """
        with self.storage.writing:
            self.check_current(record)
            yield self.storage

    def check_there(self, record: Record) -> None:
        """Check that the tensor of `record` is current and still in storage.

        Raise the errors of `check_current`. Also raise StoreError if another process has cleared the tensor.
        """
        self.check_current(record)
        # A handle raises the error even if it is asked for no tiles.
        self.storage.read_partials(record, [])

    def clear_cache(self, tensor_id: str) -> None:
        """Flush, then drop the tiles of a tensor from memory."""
        self.flush()
        self.tiles.drop_stored(tensor_id)

    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        """Flush, then check all stored data of a tensor, and list damaged data.

        If `repair` is True, delete the damaged data.
        """
        self.flush()
        found = self.storage.documents.verify(tensor_id, repair=repair)
        if found is None:
            # Raises StoreError, unless a read-only store has registered an unstored tensor.
            self.registry.stored(tensor_id)
        elif repair and found:
            self.tiles.drop_stored(tensor_id)
        return found or []

    # Groups: small definitions with references to tensors, stored separately.

    @store_query
    def stored_group(self, group_id: str) -> dict[str, Any] | None:
        """Return the stored definition of a group, unchecked.

        Return None if there is no such group.
        """
        self.check_open()
        with self.lock:
            return self.storage.documents.group(group_id)

    @store_method
    def store_group(self, group_id: str, definition: dict[str, Any]) -> dict[str, Any]:
        """Create a group, unless the id exists, and return the stored definition."""
        self.check_open()
        self.check_writable(f"save group {group_id!r}")
        with self.lock:
            found = self.storage.documents.group(group_id)
            if found is None:
                self.storage.documents.create_group(group_id, definition)
                # If another process was faster, its definition is used.
                found = self.storage.documents.group(group_id)
        if found is None:
            raise StoreError(f"{self}: group {group_id!r} was deleted right after it was created; try again")
        return found

    def delete_group(self, group_id: str) -> None:
        """Delete a group."""
        with self.lock:
            self.storage.delete(name_of(group_id, GROUP), f"group {group_id!r}")
            self.storage.flush()

    def group_ids(self) -> list[str]:
        """Return the ids of all groups."""
        return self.storage.documents.ids(GROUP)

    def flush(self) -> None:
        """Store all finished windows.

        Raise StoreError if windows cannot be stored. The windows stay in memory.
        """
        if not self.read_only:
            self.tiles.flush()
            self.raise_failure()
            self.storage.flush()

    def close(self, *, discard: bool) -> None:
        """Flush, then release memory and files.

        If `discard` is True, windows are lost if they cannot be stored. Closing twice is not an error.
        """
        if not self.closed:
            try:
                self.flush()
            except StoreError:
                if not discard:
                    raise
        with self.lock:
            if not self._released:
                if discard or self.closed:
                    self.tiles.drop()
                self.closed = self.tiles.closed = True
                self.tiles.drop_stored()
                for record in self.registry.known():
                    self.registry.forget(record.spec.tensor_id)
                self.storage.backend.close()
                self._released = True

    def raise_failure(self) -> None:
        """Raise the error of failed background writes, once.

        Raise StoreError if the store is closed.
        """
        self.check_open()
        failure = self.tiles.failure()
        if failure is not None:
            raise failure
