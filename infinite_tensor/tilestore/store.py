"""The contract between the engine and a store."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.visits import looking, visited
from infinite_tensor.support.waiting import Mark
from infinite_tensor.tilestore.access import Access
from infinite_tensor.tilestore.conflicts import warn_of_dependants
from infinite_tensor.tilestore.dependants import dependants_in, readers_in
from infinite_tensor.tilestore.failures import stored_errors
from infinite_tensor.tilestore.group_backend import GroupBackend
from infinite_tensor.tilestore.inventory import Inventory
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.report import Damage, Dropped, Garbage, TensorInfo
from infinite_tensor.values.checks import checked_workers
from infinite_tensor.values.definition import Blend
from infinite_tensor.values.spec import TensorSpec

if TYPE_CHECKING:
    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.tensor import InfiniteTensor, SupportsAsTensor


class TileStore(GroupBackend, ABC):
    """Keeps the windows of any number of tensors, each under its id.

    One store object may be used from many threads. A closed store raises StoreError; ``with store:``
    opens it again, and closes it at the end.
    """

    outlives_process: ClassVar[bool] = False
    """Whether another process may find again what is stored, so that it must stay true to its definition."""

    shared: bool = False
    """Whether other processes can open it by its pickle, and store in it at the same time."""

    workers: int = 1
    """On how many threads a read runs the ``f`` of a tensor of this store, unless the read says."""

    read_only: bool = False
    """Whether nothing is ever stored."""

    @property
    def address(self) -> str | None:
        """What `infinite_tensor.open_store` finds it by, without credentials; None where it cannot be found."""
        return None

    def __init__(self, *, workers: int = 1) -> None:
        super().__init__()
        self.workers = checked_workers(workers)
        self._lock = threading.RLock()
        self._closed = self._released = False
        self._flush_requested = False
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.RLock()

    @abstractmethod
    def register(self, spec: TensorSpec) -> None:
        """Make a tensor known.

        Raises
        ------
        ValidationError
            If its id is taken by a tensor with another definition.
        """

    def placed(self, spec: TensorSpec) -> TensorSpec:
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
    def lend(self, mark: Mark, room: int) -> None:
        """While `mark` is under way, a store without a limit keeps no more in memory than now and `room` bytes."""

    def serve(self, spec: TensorSpec, start: Sequence[int], out: torch.Tensor) -> bool:  # noqa: ARG002
        """Write the pixels from `start` on into `out` if all of them are in memory; whether they are.

        The way of a read that has nothing to plan. Where it returns False, `out` may hold anything.
        """
        return False

    @abstractmethod
    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """Carry what is kept of `spec` over to another device or dtype; all of it or nothing."""

    def refresh(self, tensor_id: str) -> None:
        """Store what is pending, and look incomplete tiles up again when they are next needed: others may store too."""

    @abstractmethod
    def clear_cache(self, tensor_id: str) -> None:
        """Drop from memory what can be had again, after storing what is pending."""

    @visited
    def clear_tensor(self, tensor_id: str, *, dependants: bool = False) -> None:
        """Delete everything of a tensor. An id that is not known is no error.

        Parameters
        ----------
        tensor_id : str
            Its id.
        dependants : bool
            Delete the tensors of this store that are computed from it too, and those that are computed from these.
            Without it they stay as they are, and a `DependantsRemainWarning` names those that read it.
        """
        with self._lock:
            self._check_open()
            digest = self._digest_of(tensor_id)
            # What is computed from a tensor goes first: whatever happens to this process, none outlives its source.
            for name in dependants_in(self.specs_downstream(), tensor_id, digest) if dependants else ():
                self._delete(name)
            self._delete(tensor_id)
        remaining = () if dependants else self._readers_of(tensor_id, digest)
        if remaining:
            warn_of_dependants(tensor_id, remaining, self)

    @abstractmethod
    def _digest_of(self, tensor_id: str) -> str | None:
        """What a tensor of the store is, None where that cannot be told."""

    def _readers_of(self, tensor_id: str, digest: str | None) -> list[str]:
        try:
            return readers_in(self.specs_downstream(), tensor_id, digest)
        except StoreError:
            # The whole store is gone, say: nobody is left to warn of.
            return []

    @abstractmethod
    def _delete(self, tensor_id: str) -> None:
        """Delete everything of one tensor."""

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

        Reads in progress may go on with them, and what they deposit of this tensor from now on is not stored. To be
        called with the store `paused`.

        Raises
        ------
        StoreError
            If it cannot be done now. What has not been dropped is there still; drop it again.
        """

    def paused(self) -> AbstractContextManager[object]:
        """While it is entered, no read of another thread begins."""
        return self._lock

    def flush(self) -> None:
        """Return when everything finished so far is stored."""
        self._check_open()

    def request_flush(self) -> None:
        """Have everything finished so far stored soon; returns at once.

        A signal handler may call this at any moment; `flush` raises StoreError there if the signal has interrupted a
        call. It is carried out by a thread that uses the store: after the batch of windows that is being computed, or
        at the next read or registration of a tensor. An error of storage is raised there.
        """
        self._flush_requested = True

    def flush_if_requested(self) -> None:
        """Carry out what `request_flush` has asked for; called where the thread holds nothing of the store."""
        if self._flush_requested:
            self._flush_requested = False
            if not self._closed and not self.read_only:
                self._flush_all()

    def _flush_all(self) -> None:
        """Store everything finished so far, of a store that is open and not read-only."""

    @abstractmethod
    def close(self, *, discard: bool = False) -> None:
        """Flush, then let go of memory and files. Closing twice is no error.

        Parameters
        ----------
        discard : bool
            Give up what cannot be stored. Without it, a store that cannot be flushed raises StoreError and
            stays open.
        """

    def open(
        self,
        tensor_id: str,
        f: Callable[..., Any] | None = None,
        args: Sequence[InfiniteTensor | SupportsAsTensor] | None = None,
        *,
        blend: Blend | None = None,
        batch_size: int | tuple[int, ...] | None = None,
        device: torch.device | str = "cpu",
    ) -> InfiniteTensor:
        """Reopen a tensor from its id alone.

        Without `f` the stored part is readable; a read that needs more raises TileAccessError. Upstream
        tensors that were given ids and live in this store are reopened with it; `args` replaces them.

        Parameters
        ----------
        tensor_id : str
            Its id, one of `tensor_ids`.
        f : callable, optional
            Computes the windows that are missing.
        args : sequence of InfiniteTensor or TensorBlob, optional
            The upstream tensors that `f` is given.
        blend : callable, optional
            The blend; needed to compute where it is none of torch's own elementwise functions.
        batch_size, device
            As for `InfiniteTensor`.

        Raises
        ------
        StoreError
            If the store holds no tensor of that id.
        ValidationError
            If `args` are not what the tensor was computed from.
        """
        # Tensors stand on stores.
        from infinite_tensor.opening import open_tensor  # noqa: PLC0415

        return open_tensor(self, tensor_id, f, args, blend, batch_size, device)

    # What is stored.

    @abstractmethod
    def tensor_ids(self) -> list[str]:
        """Ids of all tensors in the store, sorted."""

    @abstractmethod
    def tensor_definition(self, tensor_id: str) -> dict[str, Any]:
        """The definition of one tensor as JSON; StoreError if there is none of that id."""

    @abstractmethod
    def tensor_info(self, tensor_id: str) -> TensorInfo:
        """What is known and stored of one tensor; StoreError if there is none of that id."""

    def verify(self, tensor_id: str, *, repair: bool = False) -> list[Damage]:  # noqa: ARG002  (nothing decays in memory)
        """Read everything that is stored of a tensor, and list what is damaged.

        Other processes may go on meanwhile. A damaged tile that one of them has just replaced may be dropped all
        the same by a repair, and is then computed once more.

        Parameters
        ----------
        tensor_id : str
            Its id.
        repair : bool
            Drop what is damaged, so that it is computed again when it is needed; mend what can be mended.

        Returns
        -------
        list of Damage
            Empty where everything is as it was written.

        Raises
        ------
        StoreError
            If the store holds no tensor of that id, or cannot be read.
        """
        self.tensor_definition(tensor_id)
        return []

    @abstractmethod
    def specs_downstream(self) -> list[TensorSpec]:
        """The tensors of the store that are computed from others or beside others, as far as known, and maybe more."""

    def written(self, tensor_id: str) -> tuple[int, int]:  # noqa: ARG002  (memory is nowhere to write to)
        """How many complete tiles of a tensor this object has stored so far, and all bytes, not compressed."""
        return 0, 0

    @abstractmethod
    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """What is stored of the tiles that hold the pixels ``[start, stop)``, of which there is at least one.

        Reads no pixel of a complete tile.
        """

    def unfinished(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> list[Index]:  # noqa: ARG002
        """Tiles of a region of which parts are stored, in lexicographic order; some may be complete by now."""
        return []

    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:  # noqa: ARG002
        """Whether all tiles that hold the pixels ``[start, stop)`` are stored; False is a maybe. Reads none of them."""
        return False

    def gc(self) -> Garbage:
        """Delete what no tensor of the store refers to: leavings of processes that were killed or cleared a tensor.

        Other processes may go on reading and filling the store; none should be creating tensors meanwhile.
        """
        self._check_open()
        return Garbage()

    # Groups.

    def open_group(
        self,
        group_id: str,
        f: Mapping[Any, Callable[..., Any]] | None = None,
        *,
        members: Mapping[Any, InfiniteTensor] | None = None,
        stores: Sequence[Any] = (),
        device: torch.device | str = "cpu",
    ) -> TensorGroup:
        """Reopen a group from its id, with its tensors, from theirs.

        Parameters
        ----------
        group_id : str
            Its id, one of `group_ids`.
        f : mapping, optional
            From keys to the functions that compute what is missing. A tensor without one is readable as far as it is
            stored.
        members : mapping, optional
            From keys to tensors that take the place of those that would be opened. They must be the same ones.
        stores : sequence of TileStore, optional
            Where else tensors of the group are looked for. A group names no stores but its own.
        device : torch.device or str
            As for `open`.

        Raises
        ------
        StoreError
            If the store holds no group of that id, or a tensor cannot be opened, or is another one by now.
        ValidationError
            If an argument does not fit.
        """
        # Groups are made of tensors, which stand on stores.
        from infinite_tensor.groups.opening import open_group  # noqa: PLC0415

        return open_group(self, group_id, f, members, stores, device)

    @looking
    def group_ids(self) -> list[str]:
        """Ids of all groups in the store, sorted."""
        self._check_open()
        with stored_errors(self, "list", None):
            return sorted(self._list_groups())

    @visited
    def clear_group(self, group_id: str) -> None:
        """Delete a group; its tensors stay. An id that is not known is no error."""
        self._check_open()
        if self.read_only:
            raise ValidationError(f"{self!r} is read-only: it cannot clear group {group_id!r}; open it with mode='r+'")
        with self._lock, stored_errors(self, "delete", None, group_id=group_id):
            self._delete_group(group_id)
            self._flush_groups()

    @looking
    def stored_group(self, group_id: str) -> dict[str, Any] | None:
        """The definition of a group as it is stored, not checked; None where there is none."""
        self._check_open()
        with self._lock, stored_errors(self, "read", None, group_id=group_id):
            return self._read_group(group_id)

    @visited
    def store_group(self, group_id: str, definition: dict[str, Any]) -> dict[str, Any]:
        """Create a group, unless there is one; the definition that the store holds from then on."""
        self._check_open()
        if self.read_only:
            raise ValidationError(f"{self!r} is read-only: it cannot save group {group_id!r}; open it with mode='r+'")
        with self._lock, stored_errors(self, "save", None, group_id=group_id):
            found = self._read_group(group_id)
            if found is None:
                self._write_group(group_id, definition)
                self._flush_groups()
                # Another process may have been first; its definition holds.
                found = self._read_group(group_id)
        if found is None:
            raise StoreError(f"{self!r}: group {group_id!r} was created and is gone again; try once more")
        return found

    def _flush_groups(self) -> None:
        """Bring what was written of groups to where a crash of the process cannot harm it."""

    # Open or closed.

    @property
    def closed(self) -> bool:
        """Whether it has been closed, and not been opened again."""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self!r} is closed; open it again with `with store:`")

    def __enter__(self) -> Self:
        with self._lock:
            if self._closed:
                self._resume()
                self._closed = self._released = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _resume(self) -> None:
        """Get a closed store ready for use again."""
