"""The contract between the engine and a store."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from infinite_tensor.boxset import BoxSet
from infinite_tensor.compat import OldSpelling
from infinite_tensor.definition import Blend
from infinite_tensor.errors import StoreError
from infinite_tensor.forking import renew_in_children
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore.access import Access
from infinite_tensor.tilestore.conflicts import warn_of_dependants
from infinite_tensor.tilestore.dependants import dependants_in, readers_in
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.report import Dropped
from infinite_tensor.tilestore.stored_groups import StoredGroups
from infinite_tensor.validate import checked_workers
from infinite_tensor.visits import visited
from infinite_tensor.waiting import Mark

if TYPE_CHECKING:
    from infinite_tensor.tensor import InfiniteTensor, SupportsAsTensor


class TileStore(StoredGroups, OldSpelling, ABC):
    """Keeps the windows of any number of tensors, each under its id.

    One store object may be used from many threads. A closed store raises StoreError; ``with store:``
    opens it again, and closes it at the end.
    """

    outlives_process: ClassVar[bool] = False
    """Whether another process may find again what is stored, so that it must stay true to its definition."""

    shared: bool = False
    """Whether other processes can open it by its pickle, and store in it at the same time."""

    opener: ClassVar[Callable[..., InfiniteTensor]]
    """Set by `infinite_tensor.reopen`, which stands above the stores and builds on them."""

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
    def drop(self, spec: TensorSpec, windows: BoxSet) -> Dropped:
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
        return TileStore.opener(self, tensor_id, f, args, blend, batch_size, device)

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
