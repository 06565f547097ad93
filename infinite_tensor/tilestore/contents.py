"""The engine's interface to a store: `Contents`, and `Access`, one read's view of one tensor."""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.allocation import Array
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import store_method, store_query
from infinite_tensor.tilestore.inventory import Damage, Dropped, Garbage, Inventory, StoredSize, TensorInfo
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.values.spec import TensorSpec

_FEW_REGIONS = 8
"""If a read adds at most this many regions, each region separately blends what it needs of incomplete tiles."""


class Tiles(Protocol):
    """A set of tiles of a tensor."""

    def __contains__(self, tile: Index, /) -> bool: ...


class Access(ABC):
    """One read's view of one tensor. It keeps what the read needs until the read has used it.

    A read adds the regions it wants, deposits the windows that were missing, and then reads the regions.
    An access has its own references to everything it needs, so the limits of the store's cache never affect a read in
    progress. Several threads of a read may use it at the same time, except for `add`, `keep` and `close`.

    Attributes
    ----------
    keeps_outputs : bool
        Whether the access keeps the arrays passed to `deposit`, so that the caller must not change them afterwards.
        If False, the caller may reuse them.
    """

    keeps_outputs = True

    @abstractmethod
    def add(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Look up which windows of regions ``[start, stop)`` are stored, and return the windows that must be computed.

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
        """Look up `tiles`, and return the complete ones. Only these may be read afterwards."""

    @abstractmethod
    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Look again for windows that `add` reported as missing. For each, return whether it is still missing.

        Does no I/O. If other reads deposit some of the windows later, this access gets them too.
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
        """Fill `out` with the pixels from `start` on. First `add` the region and `deposit` its missing windows."""

    @abstractmethod
    def keep(self, start: Sequence[int] | None) -> None:
        """Release all pixels that lie before `start` in any dimension. None releases all pixels.

        To read released pixels again, `add` their region again.
        """

    def confine(self, tiles: Tiles) -> None:  # noqa: B027  (a store in memory keeps windows, not tiles)
        """Store only those parts of windows that are inside the given tiles. Must be called before `add`."""

    @property
    @abstractmethod
    def outdated(self) -> bool:
        """Whether windows of the tensor were dropped after the read began. If so, `deposit` stores nothing."""

    @abstractmethod
    def detach(self) -> None:
        """Store none of the deposited windows. Must be called before `add`."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; the limits of the cache apply again."""


class Blended(NamedTuple):
    """Blended pixels of a box ``[start, stop)``."""

    start: Index
    stop: Index
    pixels: Array


class BlendedForRead:
    """The tiles that one read has blended. They are kept, because several of its regions may need the same tile.

    Each tile is cut to the smallest box around all regions of the read.
    """

    def __init__(self) -> None:
        self.worthwhile = False
        self._bounds: tuple[list[int], list[int]] | None = None
        self._tiles: dict[Index, Blended] = {}
        self._lacking: set[Index] = set()

    def extend(self, starts: IntArray, stops: IntArray) -> None:
        """Extend the bounds so that they include more regions that will be read."""
        self.worthwhile |= len(starts) > _FEW_REGIONS
        start, stop = starts[0].tolist(), stops[0].tolist()
        if len(starts) > 1:
            start, stop = starts.min(axis=0).tolist(), stops.max(axis=0).tolist()
        if self._bounds is not None:
            start, stop = list(map(min, start, self._bounds[0])), list(map(max, stop, self._bounds[1]))
        bounds = start, stop
        if bounds != self._bounds:
            # Tiles that were cut to the old bounds may be too small now.
            self._bounds, self._tiles = bounds, {}

    def look_again(self) -> None:
        """Let `get` try again to make the tiles that lacked windows. Called when more windows have arrived."""
        self._lacking = set()

    def get(self, index: Index, make: Callable[[], Blended | None]) -> Blended | None:
        """Return a tile. If it is not kept yet, `make` blends it. Return None if windows of the tile are missing."""
        tile = self._tiles.get(index)
        if tile is None and index not in self._lacking:
            tile = make()
            if tile is None:
                self._lacking.add(index)
            else:
                self._tiles[index] = tile
        return tile

    def cut(self, start: Index, stop: Index) -> tuple[Index, Index]:
        """The part of a box inside the bounds of this read's regions."""
        assert self._bounds is not None
        return tuple(map(max, start, self._bounds[0])), tuple(map(min, stop, self._bounds[1]))

    def keep(self, start: Sequence[int] | None) -> None:
        """Release tiles that end before pixel `start` in any dimension; None releases all."""
        if start is None:
            self._tiles = {}
        else:
            self._tiles = {
                index: tile for index, tile in self._tiles.items() if all(map(operator.gt, tile.stop, start))
            }


class Contents(ABC):
    """The windows of the tensors of a store: the implementation behind the `TileStore` that users see.

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
    """The number of flushes requested in this process. If it has not changed, no store has to be checked."""

    outlives_process: ClassVar[bool] = False
    """Whether another process may reopen a stored tensor. If so, the tensor must match its stored definition."""

    shared = False
    """Whether other processes can open the store from its pickle and write to it at the same time."""

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
        """Close the store: `error` has interrupted a change, so the state in memory may be inconsistent."""
        self.closed = True
        self._cut_by = f", since {error!r} interrupted a call in the middle of a change; stored data is intact"

    def check_writable(self, action: str) -> None:
        """Raise ValidationError if the store is read-only."""
        if self.read_only:
            raise ValidationError(f"{self} is read-only: it cannot {action}; open it with mode='r+'")

    def request_flush(self) -> None:
        """Request a flush; a signal handler may call this at any moment."""
        self.flush_requested = True
        Contents.flush_requests += 1

    def flush_if_requested(self) -> None:
        """Carry out a requested flush; called when the thread holds no locks of the store."""
        if self.flush_requested:
            self.flush_requested = False
            if not self.closed:
                self.flush()

    # Reads.

    @abstractmethod
    def register(self, spec: TensorSpec) -> TensorSpec:
        """Register a tensor. Return it with the names of its dimensions and the meaning of its pixels as stored.

        Raises
        ------
        ValidationError
            If its id is taken by a tensor with another definition.
        """

    def with_tile_size(self, spec: TensorSpec) -> TensorSpec:
        """Return `spec` with the tile size that the user gave for the tensor, or else for this store.

        Call this before sending `spec` to another process, so that both use the same tile size.
        """
        return spec

    @abstractmethod
    def access(self, spec: TensorSpec) -> Access:
        """Begin a read of a tensor. If it has been cleared since it was registered, register it again."""

    @abstractmethod
    def layout(self, spec: TensorSpec) -> TileLayout:
        """How a tensor is cut into tiles."""

    @property
    @abstractmethod
    def cache_limit(self) -> int | None:
        """The most bytes that stay in memory when no read is in progress; None for no limit."""

    @abstractmethod
    def lend(self, held: threading.Lock, room: int) -> None:
        """Limit the growth of the cache to `room` bytes while `held` is locked. `cache_limit` still applies."""

    def serve(self, spec: TensorSpec, start: Sequence[int], out: torch.Tensor) -> bool:  # noqa: ARG002
        """Fill `out` with the pixels from `start` on if all of them are in memory. Return whether they are.

        This is the fast path for reads that need no plan. If it returns False, the content of `out` is undefined.
        """
        return False

    def tile_in_memory(
        self,
        spec: TensorSpec,  # noqa: ARG002  (for stores that keep tiles)
        start: Sequence[int],  # noqa: ARG002
        stop: Sequence[int],  # noqa: ARG002
    ) -> torch.Tensor | None:
        """Return the pixels ``[start, stop)`` if they are one complete tile in memory, else None.

        The pixels are not copied, so they must not be changed. This method never waits. It must not be called on the
        main thread.
        """
        return None

    @abstractmethod
    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """Convert everything kept of `spec` to another device or dtype; if that fails, nothing is changed."""

    def refresh(self, tensor_id: str) -> None:  # noqa: B027  (memory has no other writers)
        """Flush, then drop incomplete tiles from memory, so that later reads see what other processes add to them."""

    @abstractmethod
    def stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize | None:
        """Return how much is stored of the tensor with this definition, counted up to about `most` tiles.

        Return None if counting would take long.
        """

    # Fills and invalidation.

    @abstractmethod
    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """Return what is stored of the tiles that contain the pixels ``[start, stop)``.

        The region must not be empty. Reads no pixels of complete tiles.
        """

    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:  # noqa: ARG002
        """Whether all tiles that contain the pixels ``[start, stop)`` are stored. Does not read them.

        True is certain; False means that some of them may be missing.
        """
        return False

    def written(self, tensor_id: str) -> tuple[int, int]:  # noqa: ARG002  (memory has no storage)
        """How many complete tiles of a tensor this object has stored, and how many uncompressed bytes in all."""
        return 0, 0

    @abstractmethod
    def specs_downstream(self) -> list[TensorSpec]:
        """All known tensors that have args, or an ``f`` with several outputs. The list may contain more tensors."""

    def specs_at_hand(self) -> list[TensorSpec]:
        """The tensors of `specs_downstream` that can be found without one request per tensor."""
        return self.specs_downstream()

    @abstractmethod
    def check_droppable(self, tensor_id: str) -> None:
        """Raise an error if `drop` cannot work.

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
        """Delete windows of a tensor, and everything that has been blended from them.

        Reads in progress may still use the windows. Whatever they deposit of this tensor from now on is not stored.
        Must be called while the store is `paused`.

        Raises
        ------
        StoreError
            If deleting fails. Some windows may remain; call this again to delete them.
        """

    def generation(self, spec: TensorSpec) -> tuple[str, str] | None:  # noqa: ARG002  (memory is not shared)
        """A value that changes when any process clears the tensor or drops windows of it; None if unknown."""
        return None

    def paused(self) -> AbstractContextManager[object]:
        """A context in which no other thread can begin a read."""
        return self.lock

    # The methods behind those of `TileStore`.

    @abstractmethod
    def tensor_ids(self, prefix: str = "") -> list[str]:
        """All tensor ids that begin with `prefix`, sorted."""

    @abstractmethod
    def holds(self, tensor_id: str) -> bool:
        """Whether the store has a tensor with this id. Does not list other tensors."""

    def some_ids(self, most: int) -> tuple[list[str], int]:
        """The first ids of tensors, up to `most`, and how many more there may be. Fast even for many tensors."""
        found = self.tensor_ids()
        return found[:most], len(found[most:])

    @abstractmethod
    def definition_of(self, tensor_id: str) -> dict[str, Any]:
        """The definition of one tensor as JSON; StoreError if there is no tensor with that id."""

    @abstractmethod
    def info_of(self, tensor_id: str) -> TensorInfo:
        """Describe one tensor and what is stored of it; StoreError if there is no tensor with that id."""

    @abstractmethod
    def digest_of(self, tensor_id: str) -> str | None:
        """The digest of a tensor's definition, or None if it is unknown."""

    @abstractmethod
    def delete(self, tensor_id: str) -> None:
        """Delete everything of one tensor."""

    @abstractmethod
    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        """Flush, then check everything stored of a tensor and list what is damaged; `repair` deletes the damage."""

    def collect_garbage(self, older_than: float | None) -> Garbage:  # noqa: ARG002  (memory has no garbage)
        """Flush, then delete what no definition refers to, and partial tiles older than `older_than` seconds.

        If `older_than` is None, all partial tiles are kept.
        """
        return Garbage()

    @abstractmethod
    def clear_cache(self, tensor_id: str) -> None:
        """Flush, then free the memory of a tensor's cached tiles or windows."""

    # Groups: small definitions that refer to tensors, stored separately from them.

    @store_query
    def stored_group(self, group_id: str) -> dict[str, Any] | None:
        """Return the stored definition of a group without checking it, or None if there is no such group."""
        self.check_open()
        with self.lock:
            return self.read_group(group_id)

    @store_method
    def store_group(self, group_id: str, definition: dict[str, Any]) -> dict[str, Any]:
        """Create a group unless it exists. Return the definition that is stored afterwards."""
        self.check_open()
        self.check_writable(f"save group {group_id!r}")
        with self.lock:
            found = self.read_group(group_id)
            if found is None:
                self.write_group(group_id, definition)
                # If another process was faster, its definition is used.
                found = self.read_group(group_id)
        if found is None:
            raise StoreError(f"{self}: group {group_id!r} was created and is gone again; try once more")
        return found

    @abstractmethod
    def read_group(self, group_id: str) -> dict[str, Any] | None:
        """The stored definition of a group, or None."""

    @abstractmethod
    def write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group. If another process has just created it, keep the existing definition."""

    @abstractmethod
    def delete_group(self, group_id: str) -> None:
        """Delete a group. A missing group is not an error."""

    @abstractmethod
    def group_ids(self) -> list[str]:
        """Ids of all groups."""

    # Lifetime.

    def flush(self) -> None:  # noqa: B027  (memory has no storage)
        """Store all finished windows; StoreError if something could not be stored."""

    def resumed(self) -> None:
        """Called when the store has been reopened."""
        self.closed, self._cut_by = False, ""

    @abstractmethod
    def close(self, *, discard: bool) -> None:
        """Flush, then release memory and files; `discard` ignores a failed flush. Closing twice is not an error."""
