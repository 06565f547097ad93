"""What users see of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.support.arguments import checked_workers
from infinite_tensor.support.interrupts import store_method, store_query
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.dependants import dependants_in, readers_in
from infinite_tensor.tilestore.inventory import Damage, Garbage, TensorInfo
from infinite_tensor.tilestore.messages import warn_of_dependants
from infinite_tensor.values.definition import Blend
from infinite_tensor.values.reduction import Reduction

if TYPE_CHECKING:
    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.tensor import InfiniteTensor, SupportsAsTensor


class TileStore:
    """Keeps the windows of any number of tensors, each under its id.

    One store object may be used from many threads. A closed store raises StoreError; ``with store:``
    opens it again, and closes it at the end.

    Attributes
    ----------
    contents : Contents
        What it holds, as the engine uses it.
    workers : int
        On how many threads a read runs the ``f`` of a tensor of this store, unless the read says.
    """

    shared: bool = False
    """Whether other processes can open it by its pickle, and store in it at the same time."""

    contents: Contents
    workers: int = 1

    def __init__(self, contents: Contents, *, workers: int = 1) -> None:
        self.contents = contents
        self.workers = checked_workers(workers)

    @property
    def address(self) -> str | None:
        """What `infinite_tensor.open_store` finds it by, without credentials; None where it cannot be found."""
        return None

    @property
    def read_only(self) -> bool:
        """Whether nothing is ever stored."""
        return self.contents.read_only

    @property
    def closed(self) -> bool:
        """Whether it has been closed, and not been opened again."""
        return self.contents.closed

    def _check_open(self) -> None:
        self.contents.check_open()

    # Tensors.

    @store_query
    def tensor_ids(self) -> list[str]:
        """Ids of all tensors in the store, sorted."""
        self._check_open()
        return self.contents.tensor_ids()

    @store_query
    def tensor_definition(self, tensor_id: str) -> dict[str, Any]:
        """The definition of one tensor as JSON; StoreError if there is none of that id."""
        self._check_open()
        return self.contents.definition_of(tensor_id)

    def tensor_info(self, tensor_id: str) -> TensorInfo:
        """What is known and stored of one tensor, after a flush; StoreError if there is none of that id."""
        self._check_open()
        return self.contents.info_of(tensor_id)

    def open(
        self,
        tensor_id: str,
        f: Callable[..., Any] | None = None,
        args: Sequence[InfiniteTensor | SupportsAsTensor] | None = None,
        *,
        blend: Blend | str | None = None,
        batch_size: int | tuple[int, ...] | None = None,
        device: torch.device | str = "cpu",
        reduce: Reduction | None = None,
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
        blend : callable, WeightedMean or str, optional
            The blend; needed to compute where it is a function that is none of torch's own elementwise ones, or a
            `WeightedMean` of weights that were given.
        batch_size, device
            As for `InfiniteTensor`.
        reduce : Reduction, optional
            The reduction; needed to compute where its function is one that was given.

        Raises
        ------
        StoreError
            If the store holds no tensor of that id.
        ValidationError
            If `args` are not what the tensor was computed from.
        """
        # Tensors stand on stores.
        from infinite_tensor.opening import open_tensor  # noqa: PLC0415

        return open_tensor(self, tensor_id, f, args, blend, batch_size, device, reduce)

    @store_method
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
        contents = self.contents
        with contents.lock:
            self._check_open()
            contents.check_writable(f"clear tensor {tensor_id!r}")
            digest = contents.digest_of(tensor_id)
            # What is computed from a tensor goes first: whatever happens to this process, none outlives its source.
            for name in dependants_in(contents.specs_downstream(), tensor_id, digest) if dependants else ():
                contents.delete(name)
            contents.delete(tensor_id)
        remaining = () if dependants else _readers_of(contents, tensor_id, digest)
        if remaining:
            warn_of_dependants(tensor_id, remaining, self)

    @store_method
    def clear_cache(self, tensor_id: str) -> None:
        """Drop from memory what can be had again, after storing what is pending."""
        self._check_open()
        self.contents.clear_cache(tensor_id)

    def verify(self, tensor_id: str, *, repair: bool = False) -> list[Damage]:  # noqa: ARG002  (nothing decays in memory)
        """Read everything that is stored of a tensor, and list what is damaged.

        Other processes may continue meanwhile. A damaged tile that one of them has just replaced may be dropped all
        the same by a repair, and is then computed once more.

        Parameters
        ----------
        tensor_id : str
            Its id.
        repair : bool
            Drop tiles and parts of tiles that are damaged, so that they are computed again when they are needed. A
            definition that is damaged stays as it is.

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

    def gc(self) -> Garbage:
        """Delete what no tensor of the store refers to: leavings of processes that were killed or cleared a tensor.

        Other processes may continue to read and fill the store; none should be creating tensors meanwhile.
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
        from infinite_tensor.groups.group import open_group  # noqa: PLC0415

        return open_group(self, group_id, f, members, stores, device)

    @store_query
    def group_ids(self) -> list[str]:
        """Ids of all groups in the store, sorted."""
        self._check_open()
        return sorted(self.contents.group_ids())

    @store_method
    def clear_group(self, group_id: str) -> None:
        """Delete a group; its tensors stay. An id that is not known is no error."""
        self._check_open()
        self.contents.check_writable(f"clear group {group_id!r}")
        with self.contents.lock:
            self.contents.delete_group(group_id)

    def _repr_html_(self) -> str:
        # What is seen of a store stands on tensors.
        from infinite_tensor.views.notebook import html_of_store  # noqa: PLC0415

        return html_of_store(self)

    # Its life.

    def flush(self) -> None:
        """Return when everything finished so far is stored.

        Raises
        ------
        StoreError
            If something could not be stored. It stays in memory; the next flush tries again.
        """
        self._check_open()
        self.contents.flush()

    def request_flush(self) -> None:
        """Have everything finished so far stored soon; returns at once.

        A signal handler may call this at any moment; `flush` raises StoreError there if the signal has interrupted a
        call. It is carried out by a thread that uses the store: after the batch of windows that is being computed, or
        at the next read or registration of a tensor. An error of storage is raised there.
        """
        self.contents.request_flush()

    def close(self, *, discard: bool = False) -> None:
        """Flush, then release memory and files. Closing twice is no error.

        Parameters
        ----------
        discard : bool
            Give up what cannot be stored. Without it, a store that cannot be flushed raises StoreError and
            stays open.
        """
        self.contents.close(discard=discard)

    def __enter__(self) -> Self:
        with self.contents.lock:
            if self.contents.closed:
                self._resume()
                self.contents.resumed()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _resume(self) -> None:
        """Get a closed store ready for use again."""


def _readers_of(contents: Contents, tensor_id: str, digest: str | None) -> list[str]:
    try:
        return readers_in(contents.specs_downstream(), tensor_id, digest)
    except StoreError:
        # The whole store is gone, say: nobody is left to warn of.
        return []
