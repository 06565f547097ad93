"""What a store holds, as the engine uses it: `Contents`, and `Access`, one read's view of one tensor."""

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
"""Of so few that read an incomplete tile, each blends what it needs."""


class Tiles(Protocol):
    """Some tiles of a tensor."""

    def __contains__(self, tile: Index, /) -> bool: ...


class Access(ABC):
    """What one read needs of one tensor, held until its last use.

    A read adds the regions it wants, deposits the windows that were missing, and then reads the regions.
    What an access holds it holds by itself, so the limits of the store's cache never get in the way of a
    read that is in progress. Several threads of a read may use it at a time, but for `add`, `keep` and `close`.

    Attributes
    ----------
    keeps_outputs : bool
        Whether the arrays that `deposit` is given must stay as they are. Otherwise they may be used again after it.
    """

    keeps_outputs = True

    @abstractmethod
    def add(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Look up what is stored of regions ``[start, stop)``, and say which windows must be computed.

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
        """Look up what is stored of tiles, and say of which of them no window is missing: those may be read.

        Unlike `add`, lists no windows: nothing is to be computed.
        """

    @abstractmethod
    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Look again for windows that `add` reported: which are still not there.

        Without input or output. What other reads deposit of these from now on is held here too.
        """

    @abstractmethod
    def deposit(self, windows: IntArray, outputs: Array) -> None:
        """Store finished windows.

        Parameters
        ----------
        windows : int64 array of shape (N, ndim)
            Their indices.
        outputs : array of shape (N, *window size)
            The windows, checked; they are the store's from now on.
        """

    @abstractmethod
    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Write the pixels from `start` on into `out`; the region was added and all its windows are there."""

    @abstractmethod
    def keep(self, start: Sequence[int] | None) -> None:
        """Release what lies before pixel `start` in any dimension: no later region begins before it.

        None releases everything. What is released is looked up again when it is added again.
        """

    def confine(self, tiles: Tiles) -> None:  # noqa: B027  (in memory windows are kept, and no tiles)
        """Store windows in these tiles alone, whatever else they touch; nothing has been added yet."""

    @property
    @abstractmethod
    def outdated(self) -> bool:
        """Whether windows of the tensor have been dropped since, so that nothing deposited here is stored any more."""

    @abstractmethod
    def detach(self) -> None:
        """Store nothing of what is deposited here; nothing has been added yet."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; the limits of the cache hold again."""


class Blended(NamedTuple):
    """Blended pixels of a box ``[start, stop)``."""

    start: Index
    stop: Index
    pixels: Array


class BlendedForRead:
    """Tiles that one read blends for itself, cut to what its regions reach.

    Windows of a consumer that lie next to each other read much of the same pixels.
    """

    def __init__(self) -> None:
        self.worthwhile = False
        self._bounds: tuple[list[int], list[int]] | None = None
        self._tiles: dict[Index, Blended] = {}
        self._lacking: set[Index] = set()

    def extend(self, starts: IntArray, stops: IntArray) -> None:
        """These regions will be read as well."""
        self.worthwhile |= len(starts) > _FEW_REGIONS
        start, stop = starts[0].tolist(), stops[0].tolist()
        if len(starts) > 1:
            start, stop = starts.min(axis=0).tolist(), stops.max(axis=0).tolist()
        if self._bounds is not None:
            start, stop = list(map(min, start, self._bounds[0])), list(map(max, stop, self._bounds[1]))
        bounds = start, stop
        if bounds != self._bounds:
            # What was cut to the old bounds may be too small now.
            self._bounds, self._tiles = bounds, {}

    def look_again(self) -> None:
        """More windows have come."""
        self._lacking = set()

    def get(self, index: Index, make: Callable[[], Blended | None]) -> Blended | None:
        """A tile, blended now if need be; None where windows are missing for it."""
        tile = self._tiles.get(index)
        if tile is None and index not in self._lacking:
            tile = make()
            if tile is None:
                self._lacking.add(index)
            else:
                self._tiles[index] = tile
        return tile

    def cut(self, start: Index, stop: Index) -> tuple[Index, Index]:
        """The part of a box that regions of this read may reach."""
        assert self._bounds is not None
        return tuple(map(max, start, self._bounds[0])), tuple(map(min, stop, self._bounds[1]))

    def keep(self, start: Sequence[int] | None) -> None:
        """Release what lies before pixel `start` in any dimension; None is all."""
        if start is None:
            self._tiles = {}
        else:
            self._tiles = {
                index: tile for index, tile in self._tiles.items() if all(map(operator.gt, tile.stop, start))
            }


class Contents(ABC):
    """The windows of the tensors of a store. Users see it as a `TileStore`, of which it is the inside.

    Attributes
    ----------
    lock : threading.RLock
        Held where a tensor is registered, moved or cleared, or a read begins.
    closed : bool
        Whether the store has been closed, and not been opened again.
    read_only : bool
        Whether nothing is ever stored.
    flush_requested : bool
        Whether what is finished is to be stored soon.
    workers : int
        On how many threads a read runs the ``f`` of a tensor of this store, unless the read says.
    """

    workers = 1

    flush_requests: ClassVar[int] = 0
    """How often stores of this process have been asked to flush soon: where it has not changed, none has been."""

    outlives_process: ClassVar[bool] = False
    """Whether another process may find again what is stored, so that it must stay true to its definition."""

    shared = False
    """Whether other processes can open it by its pickle, and store in it at the same time."""

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
        """StoreError if the store has been closed."""
        if self.closed:
            raise StoreError(f"{self} is closed{self._cut_by}; open it again with `with store:`")

    def cut_through(self, error: BaseException) -> None:
        """An exception from outside has ended a call in the middle of a change: what is in memory may be wrong."""
        self.closed = True
        self._cut_by = f", since {error!r} has ended a call in the middle of a change; what is stored is right"

    def check_writable(self, action: str) -> None:
        """ValidationError if the store is read-only."""
        if self.read_only:
            raise ValidationError(f"{self} is read-only: it cannot {action}; open it with mode='r+'")

    def request_flush(self) -> None:
        """Have what is finished stored soon; a signal handler may call this at any moment."""
        self.flush_requested = True
        Contents.flush_requests += 1

    def flush_if_requested(self) -> None:
        """Carry out what `request_flush` has asked for; called where the thread holds nothing of the store."""
        if self.flush_requested:
            self.flush_requested = False
            if not self.closed:
                self.flush()

    # Reads.

    @abstractmethod
    def register(self, spec: TensorSpec) -> TensorSpec:
        """Make a tensor known; returns it with the names of dimensions that are stored.

        Raises
        ------
        ValidationError
            If its id is taken by a tensor with another definition.
        """

    def with_tile_size(self, spec: TensorSpec) -> TensorSpec:
        """`spec` with the tiles that the tensor has here, so that another store object gives it the same."""
        return spec

    @abstractmethod
    def access(self, spec: TensorSpec) -> Access:
        """Begin a read of a tensor; it is registered again if it has been cleared since."""

    @abstractmethod
    def layout(self, spec: TensorSpec) -> TileLayout:
        """How a tensor is cut into tiles."""

    @property
    @abstractmethod
    def cache_limit(self) -> int | None:
        """The most bytes that are kept in memory when no read is in progress; None for no limit."""

    @abstractmethod
    def lend(self, held: threading.Lock, room: int) -> None:
        """While a lock is held, keep no more in memory than now and `room` bytes, and than `cache_limit`."""

    def serve(self, spec: TensorSpec, start: Sequence[int], out: torch.Tensor) -> bool:  # noqa: ARG002
        """Write the pixels from `start` on into `out` if all of them are in memory; whether they are.

        The way of a read that has nothing to plan. Where it returns False, `out` may hold anything.
        """
        return False

    def tile_in_memory(
        self,
        spec: TensorSpec,  # noqa: ARG002  (for stores that keep tiles)
        start: Sequence[int],  # noqa: ARG002
        stop: Sequence[int],  # noqa: ARG002
    ) -> torch.Tensor | None:
        """The pixels ``[start, stop)`` if they are one complete tile in memory: itself, which must not be changed.

        The way of who only looks at the pixels: `serve` copies them. It never waits, so that event loops may ask, but
        not on the main thread. None means that they are to be read.
        """
        return None

    @abstractmethod
    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """Carry what is kept of `spec` over to another device or dtype; all of it or nothing."""

    def refresh(self, tensor_id: str) -> None:  # noqa: B027  (in memory there are no others)
        """Store what is pending, and look incomplete tiles up again when they are next needed: others may store too."""

    @abstractmethod
    def stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize | None:
        """How much is stored of a tensor with this `definition_of`, counted up to about `most` tiles.

        None where a look would be a long one.
        """

    # Fills, and what changes outside.

    @abstractmethod
    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """What is stored of the tiles that hold the pixels ``[start, stop)``, of which there is at least one.

        Reads no pixel of a complete tile.
        """

    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:  # noqa: ARG002
        """Whether all tiles that hold the pixels ``[start, stop)`` are stored; False is a maybe. Reads none of them."""
        return False

    def written(self, tensor_id: str) -> tuple[int, int]:  # noqa: ARG002  (memory is nowhere to write to)
        """How many complete tiles of a tensor this object has stored so far, and all bytes, not compressed."""
        return 0, 0

    @abstractmethod
    def specs_downstream(self) -> list[TensorSpec]:
        """The tensors of the store that are computed from others or beside others, as far as known, and maybe more."""

    def specs_at_hand(self) -> list[TensorSpec]:
        """Those of `specs_downstream` that are had without a request for each."""
        return self.specs_downstream()

    @abstractmethod
    def check_droppable(self, tensor_id: str) -> None:
        """Raise what keeps `drop` from working.

        Raises
        ------
        StoreError
            If the store is closed.
        ValidationError
            If it is read-only.
        NotImplementedError
            If its backend cannot delete tiles.
        """

    @abstractmethod
    def drop(self, spec: TensorSpec, windows: BoxUnion) -> Dropped:
        """Forget windows of a tensor, and everything that has been blended from them.

        Reads in progress may continue with them, and what they deposit of this tensor from now on is not stored. To be
        called with the store `paused`.

        Raises
        ------
        StoreError
            If it cannot be done now. What has not been dropped is there still; drop it again.
        """

    def generation(self, spec: TensorSpec) -> tuple[str, str] | None:  # noqa: ARG002  (memory is of this process)
        """Equal in all processes until the tensor is cleared or windows of it are dropped; None where it cannot be."""
        return None

    def paused(self) -> AbstractContextManager[object]:
        """While it is entered, no read of another thread begins."""
        return self.lock

    # What a `TileStore` is asked by users.

    @abstractmethod
    def tensor_ids(self, prefix: str = "") -> list[str]:
        """Ids of all tensors, which begin with `prefix`, sorted."""

    @abstractmethod
    def holds(self, tensor_id: str) -> bool:
        """Whether there is a tensor of an id. Looks for that one alone."""

    def some_ids(self, most: int) -> tuple[list[str], int]:
        """The first ids of tensors, up to `most`, and how many more there may be; quick, however many there are."""
        found = self.tensor_ids()
        return found[:most], len(found[most:])

    @abstractmethod
    def definition_of(self, tensor_id: str) -> dict[str, Any]:
        """The definition of one tensor as JSON; StoreError if there is none of that id."""

    @abstractmethod
    def info_of(self, tensor_id: str) -> TensorInfo:
        """What is known and stored of one tensor; StoreError if there is none of that id."""

    @abstractmethod
    def digest_of(self, tensor_id: str) -> str | None:
        """What a tensor of the store is, None where that cannot be told."""

    @abstractmethod
    def delete(self, tensor_id: str) -> None:
        """Delete everything of one tensor."""

    @abstractmethod
    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        """What is damaged of all that is stored of a tensor, after a flush; dropped, where it is to be repaired."""

    def collect_garbage(self, older_than: float | None) -> Garbage:  # noqa: ARG002  (there is none in memory)
        """Delete, after a flush, what no definition refers to, and half-computed tiles that are so many seconds old."""
        return Garbage()

    @abstractmethod
    def clear_cache(self, tensor_id: str) -> None:
        """Drop from memory what can be had again, after storing what is pending."""

    # Groups: small definitions that name tensors, apart from the tensors themselves.

    @store_query
    def stored_group(self, group_id: str) -> dict[str, Any] | None:
        """The definition of a group as it is stored, not checked; None where there is none."""
        self.check_open()
        with self.lock:
            return self.read_group(group_id)

    @store_method
    def store_group(self, group_id: str, definition: dict[str, Any]) -> dict[str, Any]:
        """Create a group, unless there is one; the definition that the store holds from then on."""
        self.check_open()
        self.check_writable(f"save group {group_id!r}")
        with self.lock:
            found = self.read_group(group_id)
            if found is None:
                self.write_group(group_id, definition)
                # Another process may have been first; its definition holds.
                found = self.read_group(group_id)
        if found is None:
            raise StoreError(f"{self}: group {group_id!r} was created and is gone again; try once more")
        return found

    @abstractmethod
    def read_group(self, group_id: str) -> dict[str, Any] | None:
        """The definition of a group as it is stored, or None."""

    @abstractmethod
    def write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group; where another process has just created it, leave that one's definition."""

    @abstractmethod
    def delete_group(self, group_id: str) -> None:
        """Delete a group; one that does not exist is no error."""

    @abstractmethod
    def group_ids(self) -> list[str]:
        """Ids of all groups."""

    # Its life.

    def flush(self) -> None:  # noqa: B027  (memory is nowhere to store in)
        """Return when everything finished so far is stored; StoreError if something could not be."""

    def resumed(self) -> None:
        """The store is open again."""
        self.closed, self._cut_by = False, ""

    @abstractmethod
    def close(self, *, discard: bool) -> None:
        """Release memory and files, after a flush, whose failure `discard` ignores. More than once is no error."""
