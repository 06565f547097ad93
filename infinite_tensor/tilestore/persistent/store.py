"""What is common to stores that outlive the process: registration, tiles in memory, their way to storage.

A tile is missing, then partial, then complete. A complete tile is final: every window that covers it has
been blended in. What differs between storages is in `Backend`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window_sets import BoxUnion, pixels_of, tiles_of
from infinite_tensor.support.arrays import as_array
from infinite_tensor.support.exit import flush_at_exit
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.visits import looking, visited
from infinite_tensor.support.waiting import Mark
from infinite_tensor.tilestore.access import Access
from infinite_tensor.tilestore.conflicts import warn_of_changes
from infinite_tensor.tilestore.failures import stored_errors
from infinite_tensor.tilestore.inventory import Inventory
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.lru import LRU, check_limit
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.access import TileAccess
from infinite_tensor.tilestore.persistent.backend import Backend
from infinite_tensor.tilestore.persistent.cache import TileCache
from infinite_tensor.tilestore.persistent.registry import Registry
from infinite_tensor.tilestore.persistent.storage import Storage
from infinite_tensor.tilestore.persistent.survey import all_complete, inventory_of
from infinite_tensor.tilestore.report import Damage, Dropped, Garbage, TensorInfo
from infinite_tensor.tilestore.store import TileStore
from infinite_tensor.tilestore.stored import FORMAT
from infinite_tensor.values.spec import TensorSpec

_FEW_TILES = 64

__all__ = ["FORMAT", "PartialTile", "PersistentTileStore", "TensorInfo"]


class PersistentTileStore(TileStore, Backend):
    """Base of stores that keep tiles outside of the process: what a backend adds is the methods of `Backend`.

    Parameters
    ----------
    tile_size : int or tuple of int, optional
        Extent of a tile in pixels: an int for every unbounded dimension, one int per unbounded dimension
        (finite ones stay whole), or one int per dimension. A tensor that is stored with another one is a
        ValidationError. Default: 512 for new tensors, what they are stored with for others.
    cache_size_bytes : int or None
        Limit of the cache of tiles in memory, in bytes.
    cache_size_tiles : int or None
        Limit of the cache in tiles.
    flush_interval : float
        Seconds after which windows of incomplete tiles are stored, looked at as windows arrive.
    read_only : bool
        Serve what is stored, compute the rest into memory only.
    workers : int
        On how many threads a read runs ``f``.
    """

    outlives_process = True

    def __init__(
        self,
        tile_size: int | Sequence[int] | None = None,
        cache_size_bytes: int | None = 100 * 2**20,
        cache_size_tiles: int | None = None,
        *,
        flush_interval: float = 30.0,
        read_only: bool = False,
        workers: int = 1,
    ) -> None:
        limits = check_limit("cache_size_bytes", cache_size_bytes), check_limit("cache_size_tiles", cache_size_tiles)
        if isinstance(flush_interval, bool) or not isinstance(flush_interval, int | float) or flush_interval < 0:
            raise ValidationError(f"flush_interval must be a number of seconds from 0, got {flush_interval!r}")
        self._storage = Storage(self)
        self._registry = Registry(self._storage, tile_size, read_only=read_only)
        self._tiles = TileCache(self._storage, self._registry, LRU(*limits), flush_interval, read_only=read_only)
        super().__init__(workers=workers)
        self.read_only = read_only
        flush_at_exit(self)

    @property
    def tile_size(self) -> int | Sequence[int] | None:
        """The tiles that new tensors get, as it was given."""
        return self._registry.tile_size

    # The contract with the engine.

    @visited
    def register(self, spec: TensorSpec) -> None:
        """Find the tensor in storage, or create it there."""
        self.flush_if_requested()
        with self._lock:
            self._check_open()
            record = self._registry.record_of(spec)
            warn_of_changes(spec.tensor_id, record.functions, spec.definition.functions, self)

    def placed(self, spec: TensorSpec) -> TensorSpec:
        """`spec` with the tile size that it was given, here or by this store."""
        with self._lock:
            return replace(spec, tile_size=self._registry.given_tile(spec))

    def access(self, spec: TensorSpec) -> Access:
        """Begin a read of a tensor; raises what a background write has failed with since the last call."""
        self._raise_failure()
        with self._lock:
            return TileAccess(self._check_open, self._registry, self._tiles, self._registry.record_of(spec))

    @property
    def cache_limit(self) -> int | None:
        """`cache_size_bytes`."""
        return self._tiles.entries.max_bytes

    @visited
    def lend(self, mark: Mark, room: int) -> None:
        """While `mark` is under way, keep no more tiles than now and this much, if there is no limit."""
        with self._tiles.lock:
            self._tiles.entries.lend(mark, room)

    def layout(self, spec: TensorSpec) -> TileLayout:
        """The tiles that are stored."""
        with self._lock:
            self._check_open()
            return self._registry.record_of(spec).layout

    def written(self, tensor_id: str) -> tuple[int, int]:
        """What the background writer has stored of a tensor."""
        return self._tiles.written(tensor_id)

    @visited
    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """What is in storage, and what is still on its way there."""
        self._raise_failure()
        with self._lock:
            record = self._registry.record_of(spec)
        return inventory_of(self._storage, self._tiles, record, start, stop)

    @visited
    def unfinished(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> list[Index]:
        """Tiles of which there are parts in storage."""
        return sorted(self._storage.find_partials(spec.tensor_id, *self.layout(spec).box(start, stop)))

    @visited
    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:
        """Whether all tiles of a region are in storage."""
        self._raise_failure()
        with self._lock:
            record = self._registry.record_of(spec)
        return all_complete(self._storage, record, start, stop)

    def serve(self, spec: TensorSpec, start: Sequence[int], out: torch.Tensor) -> bool:
        """Copy a region whose tiles are complete and in memory, where there is no failure to tell of."""
        record = self._registry.records.get(spec.tensor_id)
        if self._closed or record is None or out.device.type != "cpu":
            return False
        if record.spec is not spec and record.spec.definition.digest != spec.definition.digest:
            return False
        layout, stop = record.layout, [a + n for a, n in zip(start, out.shape, strict=True)]
        tiles = self._tiles.complete(record, layout.box(start, stop))
        if tiles is None:
            return False
        layout.copy({tile: as_array(entry) for tile, entry in tiles.items()}, as_array(out), start)
        return True

    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """A device may change, tiles are kept on the CPU; a dtype is part of what is stored."""
        if moved.dtype != spec.dtype:
            raise ValidationError(
                f"{self!r} stores tensor {spec.tensor_id!r} as {spec.dtype}: it cannot become {moved.dtype}. "
                "Make a new tensor with another tensor_id, or clear_tensor this one first"
            )

    @visited
    def refresh(self, tensor_id: str) -> None:
        """Store what is pending, then drop the tensor's incomplete tiles from memory."""
        self._flush_open()
        self._tiles.drop_in_progress(tensor_id)

    @visited
    def clear_cache(self, tensor_id: str) -> None:
        """Store what is pending, then drop the tensor's tiles from memory."""
        self._flush_open()
        self._tiles.drop_stored(tensor_id)

    def clear_tensor(self, tensor_id: str, *, dependants: bool = False) -> None:
        """Delete everything of a tensor, in memory and in storage; see `TileStore.clear_tensor`."""
        self._check_open()
        if self.read_only:
            raise ValidationError(
                f"{self!r} is read-only: it cannot clear tensor {tensor_id!r}; open it with mode='r+'"
            )
        super().clear_tensor(tensor_id, dependants=dependants)

    def _delete(self, tensor_id: str) -> None:
        with self._lock:
            record = self._registry.records.pop(tensor_id, None)
            self._registry.tile_sizes.pop(tensor_id, None)
            if record is not None:
                self._tiles.forget(record)
            with stored_errors(self, "delete", tensor_id):
                self._delete_tensor(tensor_id)

    def _digest_of(self, tensor_id: str) -> str | None:
        return self._registry.digest_of(tensor_id)

    def specs_downstream(self) -> list[TensorSpec]:
        """The tensors that are stored and have args, and all that are registered here."""
        self._check_open()
        return self._registry.specs_downstream()

    def check_droppable(self, tensor_id: str) -> None:
        """Whether tiles can be deleted here."""
        self._check_open()
        if self.read_only:
            raise ValidationError(
                f"{self!r} is read-only: it cannot drop what it holds of tensor {tensor_id!r}; open it with mode='r+'"
            )
        if type(self)._delete_tiles is Backend._delete_tiles:
            self._delete_tiles(tensor_id, [])

    def drop(self, spec: TensorSpec, windows: BoxUnion) -> Dropped:
        """Drop every tile that one of the windows touches, after a flush."""
        self.check_droppable(spec.tensor_id)
        if not windows or self._digest_of(spec.tensor_id) != spec.definition.digest:
            # Cleared, or made anew with another definition: nothing is stored of this one.
            return Dropped()
        record = self._registry.record_of(spec)
        tiles = tiles_of(record.layout.grid, pixels_of(spec.grid.window, windows))
        self._tiles.flush()
        self._raise_failure()
        new = replace(record)
        with self._tiles.lock:
            self._registry.records[spec.tensor_id] = new
        self._tiles.hand_over(record, new, tiles)
        with stored_errors(self, "drop", spec.tensor_id):
            complete, partial = self._find_tiles(spec.tensor_id, *tiles.hull)
            found = tiles.held(list(complete | partial))
            # Where there are few, also what nobody finds any more: parts behind a gap in a log.
            few = tiles.most_points <= _FEW_TILES
            self._delete_tiles(spec.tensor_id, list(tiles.points()) if few else found)
            self._flush_backend()
        return Dropped(tiles=len(found))

    @looking
    def tensor_ids(self) -> list[str]:
        """Ids of all tensors in the store, sorted."""
        self._check_open()
        return self._registry.tensor_ids()

    @looking
    def tensor_definition(self, tensor_id: str) -> dict[str, Any]:
        """The definition of one tensor as it is stored."""
        self._check_open()
        return self._registry.definition_of(tensor_id)

    @visited
    def tensor_info(self, tensor_id: str) -> TensorInfo:
        """What is stored of one tensor, after a flush."""
        self._flush_open()
        definition = self._registry.definition_of(tensor_id)
        with stored_errors(self, "describe", tensor_id):
            if self._read_definition(tensor_id) is None:
                return TensorInfo(tensor_id, definition, 0, 0, 0, "memory")
            return self._describe_tensor(tensor_id, definition)

    @visited
    def verify(self, tensor_id: str, *, repair: bool = False) -> list[Damage]:
        """Read everything that is stored of a tensor, after a flush, and list what is damaged."""
        if repair and self.read_only:
            raise ValidationError(
                f"{self!r} is read-only: it cannot repair tensor {tensor_id!r}; open it with mode='r+'"
            )
        self._flush_open()
        with stored_errors(self, "verify", tensor_id):
            found = self._verify_tensor(tensor_id, repair=repair)
        if repair and found:
            self._tiles.drop_stored(tensor_id)
        return found

    @visited
    def gc(self) -> Garbage:
        """Delete, after a flush, what no tensor of the store refers to."""
        self._check_open()
        if self.read_only:
            raise ValidationError(f"{self!r} is read-only: it cannot collect garbage; open it with mode='r+'")
        self._flush_all()
        with stored_errors(self, "clean", None):
            return self._collect_garbage()

    @visited
    def flush(self) -> None:
        """Return when everything finished so far is stored.

        Raises
        ------
        StoreError
            If something could not be stored. It stays in memory; the next flush tries again.
        """
        self._flush_open()

    def _flush_open(self) -> None:
        self._check_open()
        if not self.read_only:
            self._flush_all()

    def _flush_all(self) -> None:
        self._tiles.flush()
        self._raise_failure()
        with stored_errors(self, "flush", None):
            self._flush_backend()

    @visited
    def close(self, *, discard: bool = False) -> None:
        """Flush, then let go of memory and files. Closing twice is no error."""
        if not self._closed:
            try:
                self._flush_open()
            except StoreError:
                if not discard:
                    raise
        with self._lock:
            self._closed = True
            if not self._released:
                # Where an interrupt keeps it from the end, closing again brings it there.
                if discard:
                    self._tiles.drop()
                self._tiles.drop_stored()
                self._registry.records.clear()
                self._close_backend()
                self._released = True

    def _flush_groups(self) -> None:
        self._flush_backend()

    def _flush_at_exit(self) -> None:
        if not self._closed:
            self.flush()

    def _options(self) -> dict[str, Any]:
        """What a store that is to be like this one is made with."""
        return {
            "tile_size": self.tile_size,
            "cache_size_bytes": self._tiles.entries.max_bytes,
            "cache_size_tiles": self._tiles.entries.max_items,
            "flush_interval": self._tiles.flush_interval,
            "workers": self.workers,
        }

    def _renew_after_fork(self) -> None:
        super()._renew_after_fork()
        self._tiles.renew()

    def __del__(self) -> None:
        # No I/O here: what is pending goes to the writer, whose thread keeps this store alive until it is stored.
        # At the very end of the interpreter there are no modules any more.
        if not getattr(self, "_closed", True) and not self.read_only and sys is not None and not sys.is_finalizing():
            # All of these hold the store weakly, and may have forgotten it by now.
            self._storage.attach(self)
            self._tiles.submit_partials()
            flush_at_exit(self)
            renew_in_children(self)

    def _raise_failure(self) -> None:
        self._check_open()
        failure = self._tiles.failure()
        if failure is not None:
            raise failure
