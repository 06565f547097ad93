"""The tiles of a store in memory.

Contains complete tiles, tiles in progress, and tiles waiting to be stored.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index, inside
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.allocation import Array
from infinite_tensor.support.exit import flush_at_exit
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import wait_for
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.lru import LRU
from infinite_tensor.tilestore.partial import TileInProgress
from infinite_tensor.tilestore.registry import Registry
from infinite_tensor.tilestore.storage import Entry, Key, Storage
from infinite_tensor.tilestore.writer import Writer

_FEW_TENSORS = 64
"""The number of unused tensors with tiles kept in memory, in case the tensors are used again."""


class TileCache:
    """LRU cache of tiles, in front of a background writer and storage.

    Entries are the pixels of complete tiles, never changed, and tiles in progress. A tile in progress is not evicted
    while a read has pinned it, and is stored when it is evicted. Tiles waiting to be stored are in the writer.

    Parameters
    ----------
    storage : Storage
        Where tiles are loaded from and stored.
    registry : Registry
        The tensors in use.
    entries : LRU
        The cache: empty, with its limits.
    flush_interval : float
        Seconds after which tiles in progress are stored. Checked when tiles change.
    owner : callable
        Returns the store, or None if it was freed.
    read_only : bool
        Whether nothing is ever stored, so that evicted tiles are lost. Even if this is False, tiles beyond the
        coordinate limits are never stored.
    in_memory : bool
        Whether nothing is ever in storage.

    Attributes
    ----------
    entries, in_memory
        As given.
    lock : threading.RLock
        Held while tiles are looked up or changed.
    closed : bool
        Whether the store was closed, so that nothing is left to flush.
    """

    def __init__(
        self,
        storage: Storage,
        registry: Registry,
        entries: LRU[Key, Entry],
        flush_interval: float = 0.0,
        owner: Callable[[], object] = lambda: None,
        *,
        read_only: bool = False,
        in_memory: bool = False,
    ) -> None:
        self._storage = storage
        self._registry = registry
        self.entries = entries
        self.flush_interval = flush_interval
        self._owner = owner
        self._stores = not (read_only or in_memory)
        self.in_memory = in_memory
        self._writer: Writer[Key, TileInProgress] = Writer()
        self.closed = False
        self._many_tensors = 2 * _FEW_TENSORS
        self._renew_after_fork()
        self._register()

    def _register(self) -> None:
        renew_in_children(self)
        if self._stores:
            flush_at_exit(self)

    def _renew_after_fork(self) -> None:
        """Keep only complete tiles, in a forked child.

        The parent stores the waiting tiles. Tiles in progress are dropped, because the fork may have come in the middle
        of a change.
        """
        self.lock = threading.RLock()
        self.entries.recount(keep=lambda entry: not isinstance(entry, TileInProgress))
        self._writer.renew()
        # For each tile, the reads with a pin. With weak references, an interrupted read leaves no pins.
        self._pins: dict[Key, set[weakref.ref[object]]] = {}
        # Tiles being loaded, each with a lock held until the end of loading.
        self._loading: dict[Key, threading.Lock] = {}
        self._dirty_since: float | None = None

    def read(self, record: Record, start: Sequence[int], out: Array) -> bool:
        """Fill `out` with the pixels from `start` on, and return True, if all of them are in memory.

        Return False, with `out` undefined, if some are not, or if a write has failed and the error has not been raised
        yet.
        """
        stop = list(map(operator.add, start, out.shape))
        parts = list(record.layout.parts(start, stop))
        with self.lock:
            if self.entries.look((record, parts[0][0])) is None:
                return False
            found = self.entries.get_all([(record, tile) for tile, _, _ in parts])
            for (_, _, to), entry in zip(parts, found, strict=True):
                if entry is None or (isinstance(entry, TileInProgress) and not entry.serve(start, to, out)):
                    return False
        for (_, of, to), entry in zip(parts, found, strict=True):
            if entry is not None and not isinstance(entry, TileInProgress):
                out[to] = entry[of]
        return not self._writer.failed

    def complete_at_once(self, record: Record, tile: Index) -> Array | None:
        """Return a complete tile from memory without waiting, else None.

        Return None if the tile is incomplete or not in memory, if a write has failed and the error has not been raised
        yet, or while another thread uses the cache. Do not call this on the main thread, where a Ctrl-C could come
        before the lock is released.
        """
        if not self.lock.acquire(blocking=False):
            return None
        try:
            entry = self.entries.get((record, tile))
        finally:
            self.lock.release()
        return None if self._writer.failed or isinstance(entry, TileInProgress) else entry

    def held(self, record: Record, low: Sequence[int], high: Sequence[int]) -> dict[Index, Entry]:
        """Return the tiles in memory inside the box ``[low, high)``."""
        with self.lock:
            jobs = self._writer.jobs()
            if math.prod(map(operator.sub, high, low)) <= len(self.entries):
                tiles: Iterable[Index] = itertools.product(*map(range, low, high))
            else:
                keys = itertools.chain(jobs, self.entries)
                tiles = [tile for owner, tile in keys if owner is record and inside(tile, low, high)]
            known = {tile: self.entries.look((record, tile), jobs.get((record, tile))) for tile in tiles}
            return {
                tile: entry if not isinstance(entry, TileInProgress) or entry.pixels is None else entry.pixels
                for tile, entry in known.items()
                if entry is not None
            }

    def limit(self, max_bytes: int | None) -> None:
        """Set the limit in bytes; None is no limit."""
        with self.lock:
            self.entries.max_bytes = max_bytes
            self.entries.evict(self._release)

    def of(self, record: Record | None) -> dict[Index, Entry]:
        """Return the tiles of a tensor in memory that have windows."""
        with self.lock:
            entries = {tile: entry for (owner, tile), entry in self.entries.items() if owner is record}
        return {t: entry for t, entry in entries.items() if not (isinstance(entry, TileInProgress) and entry.empty)}

    def record(self, tensor_id: str) -> Record | None:
        """Return the record of a tensor in use."""
        return self._registry.records.get(tensor_id)

    def look(self, record: Record | None, tiles: Sequence[Index]) -> list[Entry | None]:
        """Return the entries of tiles in memory, which does not count as a use."""
        with self.lock:
            return [None if record is None else self.entries.look((record, tile)) for tile in tiles]

    def pending(self, record: Record) -> int:
        """Count the tiles in memory with unstored windows, for one tensor."""
        with self.lock:
            waiting = {tile for owner, tile in self._writer.jobs() if owner is record}
            begun = {
                tile
                for (owner, tile), entry in self.entries.items()
                if owner is record and isinstance(entry, TileInProgress) and entry.dirty
            }
        return len(waiting | begun)

    def fetch(
        self, record: Record, tiles: Iterable[Index], reader: weakref.ref[object], entries: dict[Index, Entry | None]
    ) -> None:
        """Put tiles from memory or storage into `entries`.

        Incomplete tiles stay pinned until `unpin` is called. If another thread is loading a tile, wait for that thread
        instead of loading the tile again. In memory, a missing tile is None.
        """
        wanted = list(tiles)
        if self.in_memory:
            with self.lock:
                found = self.entries.get_all([(record, tile) for tile in wanted])
                entries.update(zip(wanted, found, strict=True))
                begun = [tile for tile in wanted if isinstance(entries[tile], TileInProgress)]
                entries.update({tile: self._known((record, tile)) for tile in begun})
                self._pin(record, {tile: entries[tile] for tile in begun}, reader)
            return
        while wanted:
            wanted = self._fetch_some(record, wanted, reader, entries)

    def _fetch_some(
        self, record: Record, wanted: Sequence[Index], reader: weakref.ref[object], entries: dict[Index, Entry | None]
    ) -> list[Index]:
        """Put tiles into `entries`, except tiles being loaded by another thread.

        Wait for the other threads, then return the tiles left out.
        """
        loading = threading.Lock()
        with loading:
            with self.lock:
                known = {tile: self._known((record, tile)) for tile in wanted}
                self._pin(record, known, reader)
                entries.update({tile: entry for tile, entry in known.items() if entry is not None})
                unknown = [tile for tile, entry in known.items() if entry is None]
                theirs = {
                    tile: other
                    for tile in unknown
                    if (other := self._loading.get((record, tile))) is not None and other.locked()
                }
                mine = [tile for tile in unknown if tile not in theirs]
                self._loading.update(dict.fromkeys([(record, tile) for tile in mine], loading))
            try:
                loaded = self._storage.load(record, mine)
                if not self._registry.is_known(record):
                    # The tensor was cleared during the read. The loaded tiles may belong to a new tensor.
                    loaded = {tile: TileInProgress(record, tile) for tile in mine}
                with self.lock:
                    found = self._enter(record, loaded)
                    self._pin(record, found, reader)
                    entries.update(found)
                    self.entries.evict(self._release)
            finally:
                for tile in mine:
                    self._loading.pop((record, tile), None)
        for other in set(theirs.values()):
            wait_for(other)
        return list(theirs)

    def _pin(self, record: Record, tiles: Mapping[Index, Entry | None], reader: weakref.ref[object]) -> None:
        for tile, entry in tiles.items():
            if isinstance(entry, TileInProgress):
                self._pins.setdefault((record, tile), set()).add(reader)

    def begin(self, record: Record, tiles: Iterable[Index], reader: weakref.ref[object]) -> dict[Index, Entry]:
        """Return tiles as they are in memory, with a new, pinned tile in progress for each missing tile."""
        with self.lock:
            known = {tile: self._known((record, tile)) for tile in tiles}
            found = {t: TileInProgress(record, t) if entry is None else entry for t, entry in known.items()}
            self._pin(record, found, reader)
            if record.current:
                self._enter(record, found)
            return found

    def put(self, record: Record, tiles: Mapping[Index, Entry]) -> dict[Index, Entry]:
        """Keep tiles in memory, and return those that were already there, which stay."""
        if not record.current:
            return {}
        with self.lock:
            found = self.entries.add(
                {(record, tile): array for tile, array in tiles.items()}, [a.nbytes for a in tiles.values()]
            )
            self.entries.evict(self._release)
        return {tile: entry for (_, tile), entry in found.items()}

    def unpin(self, record: Record, tiles: Iterable[Index], reader: weakref.ref[object]) -> None:
        """Undo the pinning of tiles in progress by `fetch`."""
        with self.lock:
            for tile in tiles:
                key = record, tile
                readers = self._pins.get(key, set())
                readers.discard(reader)
                if not readers:
                    self._pins.pop(key, None)
                if (not record.current or self._lacks_all(key)) and not self._is_pinned(key):
                    self.entries.pop(key)
            self.entries.evict(self._release)

    def _lacks_all(self, key: Key) -> bool:
        """Return whether the cache has this tile, but the tile has no windows yet.

        Such a tile takes no memory, so the limits of the cache would never remove it.
        """
        entry = self.entries.get(key)
        return isinstance(entry, TileInProgress) and entry.empty and entry.total > 0

    def _is_pinned(self, key: Key) -> bool:
        if any(reader() is not None for reader in self._pins.get(key, ())):
            return True
        self._pins.pop(key, None)
        return False

    def changed(self, record: Record, tiles: Iterable[TileInProgress]) -> None:
        """Update the cache after windows were added to `tiles`.

        Complete tiles are queued to be stored. Do nothing if `record` is no longer current.
        """
        if not record.current:
            return
        with self.lock:
            self._enter(record, {entry.tile: entry for entry in tiles})
            self.entries.evict(self._release)
            due = self._dirty_since is not None and time.monotonic() - self._dirty_since > self.flush_interval
        if due:
            self.submit_partials()

    def make_room(self) -> None:
        """Wait while too much data is waiting to be stored.

        The lock must not be held.

        Raises
        ------
        StoreError
            If the tiles that could not be stored take too much memory, and storing them fails again.
        """
        if self._writer.is_empty:
            return
        if self._writer.stuck():
            self._writer.retry(self._write())
            self._writer.drain()
            if self._writer.stuck():
                raise self._writer.failure() or StoreError(f"{self._storage} has too many tiles that cannot be stored")
        self._writer.throttle()

    def submit_partials(self) -> None:
        """Queue all tiles in progress with unstored windows for storing."""
        with self.lock:
            self._submit(
                {key: entry for key, entry in self.entries.items() if isinstance(entry, TileInProgress) and entry.dirty}
            )
            self._dirty_since = None

    def flush(self) -> None:
        """Store all tiles with unstored windows.

        Failed writes are tried again. Raise StoreError if a tile cannot be stored.
        """
        self._writer.retry(self._write())
        self.submit_partials()
        self._writer.drain()
        # Look at the unstored jobs, because another thread may have received the error in the meantime.
        failure = self._writer.unstored()
        if failure is not None:
            self._writer.failure()
            raise failure

    def store_rest(self) -> None:
        """Store all tiles with unstored windows in the background, because the store was dropped.

        No I/O here: the thread of the writer does it, and keeps the store alive until then.
        """
        if not self.closed:
            self.submit_partials()
            # The garbage collector may have cleared weak references to this object.
            self._register()

    def _flush_at_exit(self) -> None:
        if not self.closed and self._owner() is not None:
            self.flush()
            self._storage.flush()

    def failure(self) -> StoreError | None:
        """Return the error of background writes since the last call, or None."""
        return self._writer.failure()

    def forget(self, record: Record) -> None:
        """Drop all tiles of a tensor, stored or not.

        Waits for a write in progress first. The record is no longer current, so windows deposited later by a read in
        progress are not stored.
        """
        self._writer.cancel(lambda key: key[0] is record)
        self._drop(lambda key, _entry: key[0] is record)

    def hand_over(self, old: Record, new: Record, but: BoxUnion) -> set[Index]:
        """Keep the valid tiles of a tensor in memory when some tiles are invalidated.

        Complete, stored tiles are moved from the old record of the tensor to the new one; in memory, also tiles in
        progress. All other tiles are dropped from memory, also tiles waiting to be stored. Waits for a write in
        progress. After this call, no tile of the old record is written.

        Parameters
        ----------
        old, new : Record
            Two records of one tensor. The new one is registered already.
        but : BoxUnion
            The invalidated tiles.

        Returns
        -------
        set of tuple of int
            The invalidated tiles that were in memory.
        """
        # Complete tiles waiting for the writer will not reach storage, and are not moved.
        unstored = {tile for record, tile in self._writer.jobs() if record is old}
        self._writer.cancel(lambda key: key[0] is old)
        with self.lock:
            entries = {key[1]: entry for key, entry in self.entries.items() if key[0] is old}
            self._drop(lambda key, _entry: key[0] is old)
            doomed = {*but.held(list(entries))}
            for tile in {*entries} - doomed - unstored:
                entry = entries[tile]
                if isinstance(entry, TileInProgress):
                    # Reads in progress still change this tile.
                    entry = entry.copied(new) if self.in_memory else None
                if entry is not None:
                    self.entries.put((new, tile), entry, entry.nbytes)
        return doomed

    def drop_stored(self, tensor_id: str | None = None, *, in_progress: bool = False) -> None:
        """Remove stored tiles from memory.

        Flush first: tiles with unstored windows stay in memory, and so do pinned tiles in progress. With `tensor_id`,
        remove only tiles of this tensor. With `in_progress`, remove only incomplete tiles.
        """
        self._drop(
            lambda key, entry: (
                (tensor_id is None or key[0].spec.tensor_id == tensor_id)
                and (isinstance(entry, TileInProgress) or not in_progress)
                and self._can_be_read_back(key, entry)
            )
        )

    def drop_unheld(self) -> None:
        """Remove tiles of unused tensors from memory if many tensors are registered.

        A tile in memory keeps the record of its tensor alive, and a record may be large.
        """
        if self.in_memory or len(self._registry.records) <= self._many_tensors:
            return
        with self.lock:
            latest_first = dict.fromkeys(record for record, _ in reversed(list(self.entries)) if not record.is_held)
        doomed = set(list(latest_first)[_FEW_TENSORS:])
        # Otherwise, a read-only store would keep unstored tiles forever.
        self._drop(
            lambda key, entry: (
                key[0] in doomed
                and (self._can_be_read_back(key, entry) or (not self._stores and not self._is_pinned(key)))
            )
        )
        # The search takes time in proportion to the number of tensors, so wait until there are twice as many.
        latest_first.clear()
        doomed.clear()
        self._many_tensors = 2 * max(_FEW_TENSORS, len(self._registry.records))

    def look_again(self, record: Record, tiles: Iterable[Index]) -> None:
        """Drop incomplete tiles from memory to load them again.

        Other processes may have added windows to the tiles in storage. Tiles with unstored windows and pinned tiles
        stay.
        """
        with self.lock:
            for key in [(record, tile) for tile in tiles]:
                entry = self.entries.get(key)
                if isinstance(entry, TileInProgress) and self._can_be_read_back(key, entry):
                    self.entries.pop(key)

    def _can_be_read_back(self, key: Key, entry: Entry) -> bool:
        if self.in_memory:
            return False
        return not isinstance(entry, TileInProgress) or not (entry.dirty or self._is_pinned(key))

    def drop(self) -> None:
        """Drop all tiles, stored or not."""
        self._writer.cancel(lambda _key: True)
        self._drop(lambda _key, _entry: True)

    def _drop(self, matches: Callable[[Key, Entry], bool]) -> None:
        with self.lock:
            for key, entry in self.entries.items():
                if matches(key, entry):
                    self.entries.pop(key)

    def _known(self, key: Key) -> Entry | None:
        entry = self.entries.get(key)
        if entry is None:
            entry = self._writer.pending(key)
            if isinstance(entry, TileInProgress):
                entry = entry if entry.pixels is None else entry.pixels
                self.entries.put(key, entry, entry.nbytes)
        if isinstance(entry, TileInProgress) and entry.spoilt:
            self.entries.pop(key)
            return None
        return entry

    def _enter(self, record: Record, tiles: Mapping[Index, Entry]) -> dict[Index, Entry]:
        complete: dict[Key, TileInProgress] = {}
        entries = dict(tiles)
        for tile, entry in tiles.items():
            if isinstance(entry, TileInProgress) and (pixels := entry.pixels) is not None:
                complete[record, tile], entries[tile] = entry, pixels
        # Submit first: a complete tile in the cache counts as stored.
        self._submit(complete)
        for tile, entry in entries.items():
            if self._stores and self._dirty_since is None and isinstance(entry, TileInProgress) and entry.dirty:
                self._dirty_since = time.monotonic()
            self.entries.put((record, tile), entry, entry.nbytes)
        return entries

    def _submit(self, jobs: Mapping[Key, TileInProgress]) -> None:
        if not self._stores or not jobs:
            return
        stored = {key: tile for key, tile in jobs.items() if key[0].layout.is_stored(key[1])}
        if stored:
            self._writer.submit(stored, self._write())

    def _write(self) -> Callable[[dict[Key, TileInProgress]], Sequence[StoreError]]:
        """Return the function with which the writer stores tiles.

        The writer's thread holds it until everything is stored, and thereby the store, which the thread itself must not
        free: what is left of a freed store goes to the same writer.
        """
        return partial(self._store, self._owner())

    def _store(self, _owner: object, jobs: dict[Key, TileInProgress]) -> Sequence[StoreError]:
        return self._storage.store(self.lock, jobs)

    def _release(self, key: Key, entry: Entry) -> bool:
        if isinstance(entry, TileInProgress):
            if self._is_pinned(key):
                return False
            if entry.dirty:
                self._submit({key: entry})
        return True
