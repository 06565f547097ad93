"""What users see of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.support.given import checked_age, checked_count, checked_flag, checked_id
from infinite_tensor.support.interrupts import store_method, store_query
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import (
    MOST_LISTED,
    Damage,
    Garbage,
    TensorInfo,
    dependants_in,
    listing,
    readers_in,
)
from infinite_tensor.tilestore.messages import warn_of_dependants
from infinite_tensor.values.definition import Blend
from infinite_tensor.values.reduction import Reduction

if TYPE_CHECKING:
    import os

    from infinite_tensor.filling.progress import Watcher
    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.tensor import InfiniteTensor, SupportsAsTensor
    from infinite_tensor.views.copying import CopyReport


class TileStore:
    """Keeps the windows of any number of tensors, each under its id.

    One store object may be used from many threads. A closed store raises StoreError; ``with store:``
    opens it again, and closes it at the end.
    """

    # Messages name it by its str.
    _named_by_str = True

    def __init__(self, contents: Contents, *, workers: int = 1) -> None:
        self._contents = contents
        contents.workers = checked_count("workers", workers)

    @property
    def address(self) -> str | None:
        """What `infinite_tensor.open_store` finds it by, without credentials; None where it cannot be found."""
        return None

    @property
    def read_only(self) -> bool:
        """Whether nothing is ever stored."""
        return self._contents.read_only

    @property
    def closed(self) -> bool:
        """Whether it has been closed, and not been opened again."""
        return self._contents.closed

    def _check_open(self) -> None:
        self._contents.check_open()

    # A collection of tensors.

    def __len__(self) -> int:
        """How many tensors it holds."""
        return len(self.tensor_ids())

    def __bool__(self) -> bool:
        """A store without tensors is a store."""
        return True

    def __iter__(self) -> Iterator[str]:
        """The ids of its tensors, sorted."""
        return iter(self.tensor_ids())

    @store_query
    def __contains__(self, tensor_id: object) -> bool:
        """Whether it holds a tensor of this id, intact or not. Looks for that one alone."""
        self._check_open()
        try:
            given = checked_id(tensor_id)
        except ValidationError:
            return False
        return self._contents.holds(given)

    def __str__(self) -> str:
        """What messages call it: short, and without a look at what it holds."""
        # A backend that says so by its repr needs no other name.
        own = type(self).__repr__
        return own(self) if own is not TileStore.__repr__ else f"{type(self).__name__}()"

    def __repr__(self) -> str:
        return f"{self}: {listing(self._some_ids)}"

    def _some_ids(self) -> tuple[Sequence[str], int] | None:
        return None if self.closed else self._contents.some_ids(MOST_LISTED)

    # Tensors.

    @store_query
    def tensor_ids(self, prefix: str = "") -> list[str]:
        """Ids of all tensors in the store, or of those that begin with `prefix`, sorted.

        Of a store that is far away, the definitions of no others are read.
        """
        self._check_open()
        return self._contents.tensor_ids("" if prefix == "" else checked_id(prefix, "prefix"))

    @store_query
    def tensor_definition(self, tensor_id: str) -> dict[str, Any]:
        """The definition of one tensor as JSON; StoreError if there is none of that id."""
        self._check_open()
        return self._contents.definition_of(tensor_id)

    @store_method
    def tensor_info(self, tensor_id: str) -> TensorInfo:
        """What is known and stored of one tensor, after a flush; StoreError if there is none of that id."""
        self._check_open()
        return self._contents.info_of(tensor_id)

    def extent(self, tensor_id: str) -> tuple[slice, ...] | None:
        """The smallest region of a tensor that holds all tiles of which something is stored; None where nothing is.

        Lists the tiles of the tensor. Between those at two far places there may be anything or nothing: ask `coverage`.

        Raises
        ------
        StoreError
            If the store holds no tensor of that id.
        ValidationError
            If the tensor is unbounded, and the backend cannot list its tiles.

        Examples
        --------
        >>> store = ZarrTileStore("memory://far", tile_size=64)
        >>> t = InfiniteTensor(
        ...     (None,), lambda ctx: torch.ones(64), TensorWindow((64,)), tile_store=store, tensor_id="ones"
        ... )
        >>> _ = t[64_000_000_000]
        >>> store.extent("ones")
        (slice(64000000000, 64000000064, None),)
        """
        # Tensors stand on stores.
        from infinite_tensor.opening import extent_of  # noqa: PLC0415

        return extent_of(self.open(tensor_id))

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
            Without it they stay as they are, and a `DependantsRemainWarning` names those that read it. Where a store is
            far away, it names those that somebody has open here; `dependants` asks for all.
        """
        contents, dependants = self._contents, checked_flag("dependants", dependants)
        with contents.lock:
            self._check_open()
            contents.check_writable(f"clear tensor {tensor_id!r}")
            digest = contents.digest_of(tensor_id)
            # What is computed from a tensor goes first: whatever happens to this process, none outlives its source.
            for name in self.dependants(tensor_id) if dependants else ():
                contents.delete(name)
            contents.delete(tensor_id)
        remaining = () if dependants else _readers_of(contents, tensor_id, digest)
        if remaining:
            warn_of_dependants(tensor_id, remaining, self)

    @store_query
    def dependants(self, tensor_id: str) -> list[str]:
        """Ids of the tensors of this store that are computed from one, which ``dependants=True`` deletes with it.

        Each comes before those that it is computed from.
        """
        contents = self._contents
        with contents.lock:
            self._check_open()
            return dependants_in(contents.specs_downstream(), tensor_id, contents.digest_of(tensor_id))

    @store_method
    def clear_cache(self, tensor_id: str) -> None:
        """Drop from memory what can be had again, after storing what is pending."""
        self._check_open()
        self._contents.clear_cache(tensor_id)

    @store_method
    def verify(self, tensor_id: str, *, repair: bool = False) -> list[Damage]:
        """Read everything that is stored of a tensor, after a flush, and list what is damaged.

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
        self._check_open()
        if checked_flag("repair", repair):
            self._contents.check_writable(f"repair tensor {tensor_id!r}")
        return self._contents.verify(tensor_id, repair=repair)

    @store_method
    def gc(self, *, partial: bool = False, older_than: float = 3600.0) -> Garbage:
        """Delete what no tensor of the store refers to: leavings of processes that were killed or cleared a tensor.

        What is pending is stored first.

        Other processes may continue to read and fill the store; none should be creating tensors meanwhile.

        Parameters
        ----------
        partial : bool
            Delete what is stored of tiles that are half computed, too: of these, windows that are needed again are
            computed again. Who is just adding windows to such a tile begins its log anew.
        older_than : float
            Seconds, by the clocks of the storage and of this machine, that nothing has been added to such a tile. Where
            the storage keeps no times, such as an HDF5 file or a `MemoryStore` of zarr, it must be 0.

        Raises
        ------
        ValidationError
            If the store is read-only, or the storage keeps no times, and `older_than` is not 0.
        StoreError
            If something cannot be deleted, or the backend cannot delete half-computed tiles at all.
        """
        self._check_open()
        self._contents.check_writable("collect garbage")
        age = checked_age(older_than)
        return self._contents.collect_garbage(age if checked_flag("partial", partial) else None)

    # Elsewhere, and under another id.

    def copy(
        self,
        tensor_id: str,
        other_store: TileStore | str | os.PathLike[str],
        *,
        upstream: bool = False,
        region: object = None,
        overwrite: bool = False,
        progress: bool | str | Watcher = True,
    ) -> CopyReport:
        """Copy a tensor into another store, of whatever kind: its definition, and all that is stored of it.

        What is pending here is stored first. Complete and incomplete tiles are moved some at a time, so that little
        memory is taken, and many requests are under way at a time where the store says so (`concurrency`). Between two
        Zarr stores chunks are moved as they are; a tensor that is new there is compressed as it is here, unless the
        other store was given `compressors`. Elsewhere tiles are decoded and encoded anew. The tile size stays.

        Each tile is read back and compared, byte by byte, after it was written: a copy that returns is right. Copying
        again moves only what is missing, so that a copy that was interrupted or killed continues; of what was there,
        `other_store.verify` tells whether it is intact. Your script continues with the copy: build the tensor with
        ``tile_store=other_store``, and `f` computes what was not stored.

        Parameters
        ----------
        tensor_id : str
            The tensor. It has the same id there.
        other_store : TileStore, str or path
            Where it is copied to. A path or an fsspec URL is a store as `open_store` opens it.
        upstream : bool
            Copy the tensors that it is computed from too, and those that these are computed from, as far as they have
            a `tensor_id` and live in this store. The report names others. A tensor comes after those that it reads.
        region : optional
            Copy only tiles that this region of the tensor touches, as a read takes it; upstream tensors are copied
            whole. Needed for an unbounded tensor of a backend that cannot list its tiles.
        overwrite : bool
            Delete what `other_store` has under an id, if it is another tensor. Nothing is deleted before all arguments
            and definitions have been checked.
        progress : bool, "always" or callable
            As for `InfiniteTensor.fill`; what a `Progress` counts is tiles, not windows.

        Returns
        -------
        CopyReport
            What was moved, and what was there already; it prints as a table.

        Raises
        ------
        ValidationError
            If `other_store` holds a tensor of that id with another definition, and is not to overwrite it; the message
            lists what differs. If it is read-only, a `MemoryTileStore`, or this store itself. Nothing has been copied
            then.
        StoreError
            If this store holds no tensor of that id, if somebody clears or invalidates the tensor in either
            store meanwhile, or if something cannot be read or stored. Copy again to continue.

        Examples
        --------
        >>> store, other = ZarrTileStore("memory://here", tile_size=64), ZarrTileStore("memory://there")
        >>> t = InfiniteTensor(
        ...     (None,), lambda ctx: torch.ones(64), TensorWindow((64,)), tile_store=store, tensor_id="ones"
        ... )
        >>> float(t[0:128].sum())
        128.0
        >>> store.copy("ones", other).tiles
        2
        >>> float(other.open("ones")[0:128].sum())
        128.0
        """
        # Copies come from any store and go to any.
        from infinite_tensor.views.copying import copy_tensor  # noqa: PLC0415

        return copy_tensor(
            self, tensor_id, other_store, upstream=upstream, region=region, overwrite=overwrite, progress=progress
        )

    # Of version 0.2.

    def get_or_create(self, tensor_id: object, *args: Any, **options: Any) -> InfiniteTensor:
        """Deprecated: make an `InfiniteTensor` with ``tile_store=`` and ``tensor_id=``."""
        # Tensors stand on stores.
        from infinite_tensor.compat import get_or_create  # noqa: PLC0415

        return get_or_create(self, tensor_id, *args, **options)

    def clear_direct_caches(self) -> None:
        """Deprecated: call ``tensor.clear_cache()`` or `clear_cache`."""
        from infinite_tensor.compat import clear_direct_caches  # noqa: PLC0415

        clear_direct_caches(self)

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
        return sorted(self._contents.group_ids())

    @store_method
    def clear_group(self, group_id: str) -> None:
        """Delete a group; its tensors stay. An id that is not known is no error."""
        self._check_open()
        self._contents.check_writable(f"clear group {group_id!r}")
        with self._contents.lock:
            self._contents.delete_group(group_id)

    def _repr_html_(self) -> str:
        # What is seen of a store stands on tensors.
        from infinite_tensor.views.showing import html_of_store  # noqa: PLC0415

        return html_of_store(self)

    # Its life.

    @store_method
    def flush(self) -> None:
        """Return when everything finished so far is stored.

        Raises
        ------
        StoreError
            If something could not be stored. It stays in memory; the next flush tries again.
        """
        self._check_open()
        self._contents.flush()

    def request_flush(self) -> None:
        """Have everything finished so far stored soon; returns at once.

        A signal handler may call this at any moment; `flush` raises StoreError there if the signal has interrupted a
        call. It is carried out by a thread that uses the store: after the batch of windows that is being computed, or
        at the next read or registration of a tensor. An error of storage is raised there.
        """
        self._contents.request_flush()

    @store_method
    def close(self, *, discard: bool = False) -> None:
        """Flush, then release memory and files. Closing twice is no error.

        Parameters
        ----------
        discard : bool
            Give up what cannot be stored. Without it, a store that cannot be flushed raises StoreError and
            stays open.
        """
        self._contents.close(discard=checked_flag("discard", discard))

    def __enter__(self) -> Self:
        with self._contents.lock:
            if self._contents.closed:
                # Which one that a call was cut through in has not done.
                self._contents.close(discard=True)
                self._resume()
                self._contents.resumed()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _resume(self) -> None:
        """Get a closed store ready for use again."""


def _readers_of(contents: Contents, tensor_id: str, digest: str | None) -> list[str]:
    try:
        return readers_in(contents.specs_at_hand(), tensor_id, digest)
    except StoreError:
        # The whole store is gone, say: nobody is left to warn of.
        return []


def contents_of(store: TileStore) -> Contents:
    """What a store holds, as the engine uses it."""
    return store._contents  # noqa: SLF001  (for the engine alone)
