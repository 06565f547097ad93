"""The interface between the engine and a store: `Contents` and `Access`."""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.geometry.window_sets import BoxUnion, all_windows
from infinite_tensor.support.allocation import Array
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import store_method, store_query
from infinite_tensor.tilestore.inventory import Damage, Dropped, Garbage, Inventory, StoredSize, TensorInfo
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.values.spec import TensorSpec

_FEW_REGIONS = 8
"""If each call of `Access.add` has at most this many regions, each region blends incomplete tiles separately."""


class Tiles(Protocol):
    """The tiles given to `Access.confine`, tested by ``index in tiles``."""

    def __contains__(self, tile: Index, /) -> bool: ...


class Access(ABC):
    """View of a tensor for a single read.

    The read adds regions, deposits the missing windows, and then reads the regions. An access has its own references
    to all tiles and windows in use, so the limits of the store's cache never affect a read in progress. Several threads
    of a read may use an access at the same time, except for `add`, `keep` and `close`.

    Attributes
    ----------
    keeps_outputs : bool
        Whether the access keeps the arrays passed to `deposit`, so that the caller must not change them afterwards.
        If False, the caller may reuse them.
    """

    keeps_outputs = True

    @abstractmethod
    def add(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Add regions to the read, and return the missing windows.

        Parameters
        ----------
        starts, stops : int64 array of shape (N, ndim)
            The regions in pixels.

        Returns
        -------
        int64 array of shape (M, ndim)
            Indices of the windows that are not stored, in lexicographic order.
        """

    @abstractmethod
    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """Return the complete tiles in `tiles`.

        Only the pixels of these tiles can then be read without a call of `add`.
        """

    @abstractmethod
    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Return a mask of the windows still missing, out of windows returned by `add`.

        Windows deposited by other reads become part of this access, also if they are deposited after this call. Does no
        I/O.
        """

    @abstractmethod
    def deposit(self, windows: IntArray, outputs: Array) -> None:
        """Store finished windows.

        Parameters
        ----------
        windows : int64 array of shape (N, ndim)
            The indices of the windows.
        outputs : array of shape (N, *window size)
            The windows, already checked; see `keeps_outputs`.
        """

    @abstractmethod
    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels of a region.

        The region begins at pixel `start`, and has the shape of `out`. Call `add` for the region first, and `deposit`
        for the missing windows.
        """

    @abstractmethod
    def keep(self, start: Sequence[int] | None) -> None:
        """Release pixels no longer needed by the read.

        Pixels at or after `start` in every dimension stay. With ``start=(100, 50)``, pixel ``(120, 60)`` stays, and
        pixel ``(120, 40)`` is released. If `start` is None, all pixels are released. To read released pixels again,
        `add` the region again.
        """

    def confine(self, tiles: Tiles) -> None:  # noqa: B027  (a store in memory keeps windows, not tiles)
        """Store only the parts of windows inside `tiles`.

        Must be called before `add`.
        """

    @property
    @abstractmethod
    def outdated(self) -> bool:
        """Whether windows of the tensor were dropped after the read began.

        If so, `deposit` stores nothing.
        """

    @abstractmethod
    def detach(self) -> None:
        """Turn off storing: deposited windows are used by this read only.

        Must be called before `add`.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything.

        The limits of the cache apply again.
        """


class Blended(NamedTuple):
    """Blended pixels of a box ``[start, stop)``."""

    start: Index
    stop: Index
    pixels: Array


class BlendedForRead:
    """Blended tiles, kept during a read.

    Several regions of the read may need the same tile. Each tile is cut to the smallest box around all regions.
    """

    def __init__(self) -> None:
        self.worthwhile = False
        self._bounds: tuple[list[int], list[int]] | None = None
        self._tiles: dict[Index, Blended] = {}
        self._lacking: set[Index] = set()

    def extend(self, starts: IntArray, stops: IntArray) -> None:
        """Extend the bounds to include more regions."""
        self.worthwhile |= len(starts) > _FEW_REGIONS
        start, stop = starts[0].tolist(), stops[0].tolist()
        if len(starts) > 1:
            start, stop = starts.min(axis=0).tolist(), stops.max(axis=0).tolist()
        if self._bounds is not None:
            start, stop = list(map(min, start, self._bounds[0])), list(map(max, stop, self._bounds[1]))
        bounds = start, stop
        if bounds != self._bounds:
            # Tiles cut to the old bounds may be too small now.
            self._bounds, self._tiles = bounds, {}

    def look_again(self) -> None:
        """Forget which tiles had missing windows.

        Called when more windows have arrived. Until this call, `get` returns None for these tiles at once.
        """
        self._lacking = set()

    def get(self, index: Index, make: Callable[[], Blended | None]) -> Blended | None:
        """Return a blended tile.

        If the tile is not kept yet, `make` blends the tile. None means that windows of the tile are missing. For such a
        tile, `make` is not called again until `look_again`.
        """
        tile = self._tiles.get(index)
        if tile is None and index not in self._lacking:
            tile = make()
            if tile is None:
                self._lacking.add(index)
            else:
                self._tiles[index] = tile
        return tile

    def cut(self, start: Index, stop: Index) -> tuple[Index, Index]:
        """Clip the box ``[start, stop)`` to the smallest box around all regions."""
        assert self._bounds is not None
        return tuple(map(max, start, self._bounds[0])), tuple(map(min, stop, self._bounds[1]))

    def keep(self, start: Sequence[int] | None) -> None:
        """Release tiles without pixels at or after `start`; see `Access.keep`.

        If `start` is None, all tiles are released.
        """
        if start is None:
            self._tiles = {}
        else:
            self._tiles = {
                index: tile for index, tile in self._tiles.items() if all(map(operator.gt, tile.stop, start))
            }


class Contents(ABC):
    """Implementation of a store, behind the public `TileStore`.

    Attributes
    ----------
    lock : threading.RLock
        Held while a tensor is registered, moved or cleared, and while a read begins.
    closed : bool
        Whether the store has been closed and not reopened.
    read_only : bool
        Whether nothing is ever stored.
    flush_requested : bool
        Whether a flush was requested and not carried out yet.
    workers : int
        The number of threads on which a read runs the ``f`` of a tensor of this store, unless the read sets another
        number.
    """

    workers = 1

    flush_requests: ClassVar[int] = 0
    """The number of flush requests in this process. While unchanged, no store has to be checked."""

    outlives_process: ClassVar[bool] = False
    """Whether another process may reopen a stored tensor. If so, the tensor must match its stored definition."""

    shared = False
    """Whether several processes can unpickle the store and write at the same time."""

    def __init__(self, *, read_only: bool = False) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self._cut_by = ""
        self.read_only = read_only
        self.flush_requested = False
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self.lock = threading.RLock()

    def check_open(self) -> None:
        """Raise StoreError if the store has been closed."""
        if self.closed:
            raise StoreError(f"{self} is closed{self._cut_by}; open it again with `with store:`")

    def cut_through(self, error: BaseException) -> None:
        """Handle an interrupt in the middle of a change, such as a Ctrl-C.

        The state in memory may be inconsistent, so the store is closed. Later calls raise an error that names `error`.
        """
        self.closed = True
        self._cut_by = f" after {error!r} in the middle of a change (stored data is intact)"

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

    # Reads.

    @abstractmethod
    def register(self, spec: TensorSpec) -> TensorSpec:
        """Register a tensor, and return the spec for reads.

        In the result, dimension names and pixel metadata not given in `spec` are taken from the stored definition.

        Raises
        ------
        ValidationError
            If a tensor with another definition has the same id.
        """

    def with_tile_size(self, spec: TensorSpec) -> TensorSpec:
        """Return `spec` with the tile size given by the user.

        A tile size given for the tensor comes before the tile size of the store. Call this method before `spec` is sent
        to another process, so that both processes use the same tile size.
        """
        return spec

    @abstractmethod
    def access(self, spec: TensorSpec) -> Access:
        """Begin a read of a tensor.

        A tensor cleared since its registration is registered again.
        """

    @abstractmethod
    def layout(self, spec: TensorSpec) -> TileLayout:
        """Return the layout of the tiles of a tensor."""

    @property
    @abstractmethod
    def cache_limit(self) -> int | None:
        """Size limit of the cache between reads, in bytes.

        None is no limit.
        """

    @abstractmethod
    def lend(self, held: threading.Lock, room: int) -> None:
        """Limit the growth of the cache to `room` bytes while `held` is locked.

        A fill, for example, keeps `held` locked until its end. `cache_limit` still applies.
        """

    def serve(self, spec: TensorSpec, start: Sequence[int], out: torch.Tensor) -> bool:  # noqa: ARG002
        """Try to fill `out` from memory, and return True on success.

        `start` is the first pixel. False means that some pixels are not in memory, or that the store cannot copy them
        at once. The content of `out` is undefined then. A read tries this fast path first, before looking for missing
        windows.
        """
        return False

    def tile_in_memory(
        self,
        spec: TensorSpec,  # noqa: ARG002  (for stores that keep tiles)
        start: Sequence[int],  # noqa: ARG002
        stop: Sequence[int],  # noqa: ARG002
    ) -> torch.Tensor | None:
        """Return a complete tile from memory, without a copy.

        Return None unless the region ``[start, stop)`` is exactly one tile, complete and in memory. The pixels must not
        be changed. This method never waits. It must not be called on the main thread.
        """
        return None

    @abstractmethod
    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """Convert the stored data of a tensor to another device or dtype.

        If the conversion fails, nothing is changed.
        """

    def refresh(self, tensor_id: str) -> None:  # noqa: B027  (memory has no other writers)
        """Flush, then drop incomplete tiles from memory.

        Later reads then see windows stored by other processes.
        """

    @abstractmethod
    def stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize | None:
        """Count the stored tiles of a tensor.

        The count may stop after `most` tiles. Return None if counting would take long.
        """

    # Fills and invalidation.

    @abstractmethod
    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """Return the inventory of the tiles of a region.

        The region must not be empty. No pixels of complete tiles are read.
        """

    def stored_tiles(self, spec: TensorSpec) -> Collection[Index]:
        """Flush, then return all tiles of a tensor in storage, complete or partial.

        For a store in memory, return the tiles in memory.
        """
        found = self.inventory(spec, *self.layout(spec).pixels)
        return {*found.complete, *found.partial}

    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:  # noqa: ARG002
        """Check whether all tiles of a region are stored, without reading tiles.

        True is certain. False means that some tiles may be missing.
        """
        return False

    def written(self, tensor_id: str) -> tuple[int, int]:  # noqa: ARG002  (memory has no storage)
        """Return how much the reads and fills of this store object have written to storage for a tensor.

        The result is the number of complete tiles, and the number of bytes before compression, including bytes of
        incomplete tiles. A fill reports how much these numbers have grown.
        """
        return 0, 0

    @abstractmethod
    def specs_downstream(self) -> list[TensorSpec]:
        """Return the specs for finding the dependants of a tensor.

        The result includes all known tensors with args, and all known outputs of an ``f`` with several outputs. It may
        also include other tensors.
        """

    def specs_at_hand(self) -> list[TensorSpec]:
        """Return the specs for finding dependants, without network requests.

        On remote storage, tensors not used through this store object are left out.
        """
        return self.specs_downstream()

    @abstractmethod
    def check_droppable(self, tensor_id: str) -> None:
        """Raise an error unless `drop` can delete windows.

        Raises
        ------
        StoreError
            If the store is closed.
        ValidationError
            If the store is read-only.
        NotImplementedError
            If the backend of the store cannot delete tiles.
        """

    @abstractmethod
    def drop(self, spec: TensorSpec, windows: BoxUnion) -> Dropped:
        """Delete windows of a tensor, and all tiles blended from the windows.

        Reads in progress may still use the windows. From now on, windows of this tensor that these reads deposit are
        not stored. Must be called while the store is `paused`.

        Raises
        ------
        StoreError
            If deleting fails. Some windows may remain then. Call the method again to delete them.
        """

    def forget(self, spec: TensorSpec) -> None:
        """Drop all windows of a tensor from memory, because another process has dropped some.

        The next read looks in storage again. Reads in progress may still use the windows, and store nothing. Must be
        called while the store is `paused`.
        """
        self.drop(spec, all_windows(spec.grid))

    def generation(self, spec: TensorSpec) -> tuple[str, str] | None:  # noqa: ARG002  (memory is not shared)
        """Return two strings for the state of the stored pixels.

        Compare the strings with the result of an earlier call. If they are equal, no process has cleared the tensor or
        called `drop` for it in between. Windows may have been added. `verify` and `collect_garbage` may have deleted
        tiles. Return None if the state is unknown.
        """
        return None

    def paused(self) -> AbstractContextManager[object]:
        """Return a context manager to keep other threads from beginning a read."""
        return self.lock

    # The methods behind those of `TileStore`.

    @abstractmethod
    def tensor_ids(self, prefix: str = "") -> list[str]:
        """Return all tensor ids starting with `prefix`, sorted."""

    @abstractmethod
    def holds(self, tensor_id: str) -> bool:
        """Check whether the store has a tensor with this id.

        Does not list other tensors.
        """

    def some_ids(self, most: int) -> tuple[list[str], int]:
        """Return up to `most` tensor ids, and an upper bound for the number of further ids.

        Fast even for many tensors.
        """
        found = self.tensor_ids()
        return found[:most], len(found[most:])

    @abstractmethod
    def definition_of(self, tensor_id: str) -> dict[str, Any]:
        """Return the definition of a tensor as JSON.

        Raise StoreError if there is no tensor with this id.
        """

    @abstractmethod
    def info_of(self, tensor_id: str) -> TensorInfo:
        """Return a description of a tensor and its stored tiles.

        Raise StoreError if there is no tensor with this id.
        """

    @abstractmethod
    def digest_of(self, tensor_id: str) -> str | None:
        """Return the digest of a definition, or None if unknown."""

    @abstractmethod
    def delete(self, tensor_id: str) -> None:
        """Delete a tensor with all stored data."""

    @abstractmethod
    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        """Flush, then list the damaged objects of a tensor.

        `repair` removes the damage, but leaves a damaged definition unchanged.
        """

    def collect_garbage(self, older_than: float | None) -> Garbage:  # noqa: ARG002  (memory has no garbage)
        """Flush, then delete unreferenced data and old partial tiles.

        Partial tiles are deleted if they are older than `older_than` seconds. If `older_than` is None, all partial
        tiles are kept.
        """
        return Garbage()

    @abstractmethod
    def clear_cache(self, tensor_id: str) -> None:
        """Flush, then free the memory of a tensor's cached tiles or windows."""

    # Groups: small definitions with references to tensors, stored separately.

    @store_query
    def stored_group(self, group_id: str) -> dict[str, Any] | None:
        """Return the stored definition of a group, unchecked.

        Return None if there is no such group.
        """
        self.check_open()
        with self.lock:
            return self.read_group(group_id)

    @store_method
    def store_group(self, group_id: str, definition: dict[str, Any]) -> dict[str, Any]:
        """Create a group, unless the id exists, and return the stored definition."""
        self.check_open()
        self.check_writable(f"save group {group_id!r}")
        with self.lock:
            found = self.read_group(group_id)
            if found is None:
                self.write_group(group_id, definition)
                # If another process was faster, its definition is used.
                found = self.read_group(group_id)
        if found is None:
            raise StoreError(f"{self}: group {group_id!r} was deleted right after it was created; try again")
        return found

    @abstractmethod
    def read_group(self, group_id: str) -> dict[str, Any] | None:
        """Return the stored definition of a group, or None."""

    @abstractmethod
    def write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group.

        If another process has just created the group, keep the existing definition.
        """

    @abstractmethod
    def delete_group(self, group_id: str) -> None:
        """Delete a group.

        A missing group is not an error.
        """

    @abstractmethod
    def group_ids(self) -> list[str]:
        """Return the ids of all groups."""

    # Lifetime.

    def flush(self) -> None:  # noqa: B027  (memory has no storage)
        """Store all finished windows.

        Raise StoreError if something could not be stored.
        """

    def resumed(self) -> None:
        """Mark the store as open again."""
        self.closed, self._cut_by = False, ""

    @abstractmethod
    def close(self, *, discard: bool) -> None:
        """Flush, then release memory and files.

        `discard` ignores a failed flush. Closing twice is not an error.
        """
