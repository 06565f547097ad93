"""`TileStore`, the public interface of every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.support.given import checked_age, checked_count, checked_flag, checked_id
from infinite_tensor.support.interrupts import store_method, store_query
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import Damage, Garbage, TensorInfo, dependants_in, readers_in
from infinite_tensor.tilestore.messages import warn_of_dependants
from infinite_tensor.values.definition import Blend, BlendName
from infinite_tensor.values.reduction import Reduction

if TYPE_CHECKING:
    import os

    from infinite_tensor.filling.progress import Reporting
    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.tensor import InfiniteTensor, SupportsAsTensor
    from infinite_tensor.views.copying import CopyReport


class TileStore:
    """Storage for the windows of tensors.

    A store contains any number of tensors, each under an id. A store object can be used from many threads. A closed
    store raises StoreError. ``with store:`` reopens a closed store, and closes the store at the end of the block.
    """

    # Messages show the store by its str.
    _named_by_str = True

    def __init__(self, contents: Contents, *, workers: int = 1) -> None:
        self._contents = contents
        contents.workers = checked_count("workers", workers)

    @property
    def address(self) -> str | None:
        """The path or URL for `infinite_tensor.open_store`, without credentials.

        None if the store has no path or URL.
        """
        return None

    @property
    def read_only(self) -> bool:
        """Whether the store never writes anything."""
        return self._contents.read_only

    @property
    def closed(self) -> bool:
        """Whether the store has been closed and not reopened."""
        return self._contents.closed

    def _check_open(self) -> None:
        self._contents.check_open()

    # A collection of tensors.

    def __len__(self) -> int:
        """The number of tensors in the store."""
        return len(self.tensor_ids())

    def __bool__(self) -> bool:
        """True, even if the store has no tensors."""
        return True

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of all tensors, sorted."""
        return iter(self.tensor_ids())

    @store_query
    def __contains__(self, tensor_id: object) -> bool:
        """Check whether the store has a tensor with this id, intact or damaged.

        Does not list the other tensors.
        """
        self._check_open()
        try:
            given = checked_id(tensor_id)
        except ValidationError:
            return False
        return self._contents.holds(given)

    def __str__(self) -> str:
        """Return a short name for messages, without a list of tensors."""
        # For a backend with only `__repr__`, use `__repr__`.
        own = type(self).__repr__
        return own(self) if own is not TileStore.__repr__ else f"{type(self).__name__}()"

    def __repr__(self) -> str:
        return str(self)

    # Tensors.

    @store_query
    def tensor_ids(self, prefix: str = "") -> list[str]:
        """Return the ids of all tensors in the store, sorted.

        With a `prefix`, only ids that begin with `prefix` are returned. On remote storage, only the definitions of
        these tensors are read.
        """
        self._check_open()
        return self._contents.tensor_ids("" if prefix == "" else checked_id(prefix, "prefix"))

    @store_query
    def tensor_definition(self, tensor_id: str) -> dict[str, Any]:
        """Return the definition of a tensor as JSON.

        Raise StoreError if the store has no tensor with this id.
        """
        self._check_open()
        return dict(self._contents.stored(tensor_id).fields)

    @store_method
    def tensor_info(self, tensor_id: str) -> TensorInfo:
        """Flush, then return a description of a tensor and its stored tiles.

        Raise StoreError if the store has no tensor with this id.
        """
        self._check_open()
        return self._contents.info_of(tensor_id)

    def extent(self, tensor_id: str) -> tuple[slice, ...] | None:
        """Return the smallest region around all stored tiles of a tensor.

        Complete and partial tiles count. Return None if no tile is stored. The region may also contain tiles that are
        not stored: see `coverage`. Lists the tiles of the tensor.

        Raises
        ------
        StoreError
            If the store has no tensor with this id.
        ValidationError
            If the tensor is unbounded, and the backend cannot list its tiles.

        Examples
        --------
        >>> store = ZarrTileStore("memory://far", tile_size=64)
        >>> t = InfiniteTensor(
        ...     (None,), lambda ctx: torch.ones(64), TensorWindow((64,)),
        ...     tile_store=store, tensor_id="ones",
        ... )
        >>> _ = t[64_000_000_000]
        >>> store.extent("ones")
        (slice(64000000000, 64000000064, None),)
        """
        # Imported here, because tensors import stores.
        from infinite_tensor.opening import extent_of  # noqa: PLC0415

        return extent_of(self.open(tensor_id))

    def open(
        self,
        tensor_id: str,
        f: Callable[..., Any] | None = None,
        args: Sequence[InfiniteTensor | SupportsAsTensor] | None = None,
        *,
        blend: Blend | BlendName | None = None,
        batch_size: int | tuple[int, ...] | None = None,
        device: torch.device | str = "cpu",
        reduce: Reduction | None = None,
        coordinates: bool = False,
    ) -> InfiniteTensor:
        """Reopen a tensor from its id.

        Without `f`, only the stored part can be read. A read that needs missing windows raises TileAccessError.
        Upstream tensors are reopened too, if they have a `tensor_id` and are in this store, unless `args` replaces
        them.

        Parameters
        ----------
        tensor_id : str
            The id of the tensor, one of `tensor_ids`.
        f : callable, optional
            The function to compute missing windows.
        args : sequence of InfiniteTensor or TensorBlob, optional
            The upstream tensors for `f`.
        blend : callable, WeightedMean or str, optional
            The blend. Required for computing windows if the blend is a `WeightedMean` with custom weights, or a
            function other than an elementwise function of torch.
        batch_size, device, coordinates
            As for `InfiniteTensor`.
        reduce : Reduction, optional
            The reduction. Required for computing windows if the reduction uses a custom function.

        Raises
        ------
        StoreError
            If the store has no tensor with this id.
        ValidationError
            If `args` are not the tensors from which the stored tensor was computed.
        """
        # Imported here, because tensors import stores.
        from infinite_tensor.opening import open_tensor  # noqa: PLC0415

        return open_tensor(self, tensor_id, f, args, blend, batch_size, device, reduce, coordinates=coordinates)

    @store_method
    def clear_tensor(self, tensor_id: str, *, dependants: bool = False) -> None:
        """Delete a tensor with all stored data.

        An unknown id is not an error.

        Parameters
        ----------
        tensor_id : str
            The id of the tensor.
        dependants : bool
            Also delete all tensors of this store that are computed from the tensor, directly or indirectly. If False,
            these dependants stay unchanged, and a `DependantsRemainWarning` names the tensors that read the deleted one
            directly. On remote storage, the warning names only tensors in use through this store object. The method
            `dependants` finds all of them.
        """
        contents, dependants = self._contents, checked_flag("dependants", dependants)
        with contents.lock:
            self._check_open()
            contents.check_writable(f"clear tensor {tensor_id!r}")
            digest = contents.digest_of(tensor_id)
            # Delete dependants first. Even after a kill, no dependant then outlives the source.
            for name in self.dependants(tensor_id) if dependants else ():
                contents.delete(name)
            contents.delete(tensor_id)
        remaining = () if dependants else _readers_of(contents, tensor_id, digest)
        if remaining:
            warn_of_dependants(tensor_id, remaining, self)

    @store_query
    def dependants(self, tensor_id: str) -> list[str]:
        """Return the ids of all dependants of a tensor.

        These are the tensors in this store that are computed from the tensor, directly or indirectly.
        ``clear_tensor(tensor_id, dependants=True)`` deletes them too. Each dependant comes before the tensors it is
        computed from.
        """
        contents = self._contents
        with contents.lock:
            self._check_open()
            return dependants_in(contents.specs_downstream(), tensor_id, contents.digest_of(tensor_id))

    @store_method
    def clear_cache(self, tensor_id: str) -> None:
        """Flush, then free the memory of a tensor's cached tiles or windows.

        Later reads load or recompute them.
        """
        self._check_open()
        self._contents.clear_cache(tensor_id)

    @store_method
    def verify(self, tensor_id: str, *, repair: bool = False) -> list[Damage]:
        """Flush, then look for damage in all stored data of a tensor.

        Other processes may use the store meanwhile. If another process has just replaced a damaged tile, a repair may
        delete the new tile. The tile is then computed once more.

        Parameters
        ----------
        tensor_id : str
            The id of the tensor.
        repair : bool
            Delete damaged tiles and damaged parts of partial tiles. Deleted windows are recomputed when needed. A
            damaged definition is left unchanged.

        Returns
        -------
        list of Damage
            The damaged objects; empty if nothing is damaged.

        Raises
        ------
        StoreError
            If the store has no tensor with this id, or cannot be read.
        """
        self._check_open()
        if checked_flag("repair", repair):
            self._contents.check_writable(f"repair tensor {tensor_id!r}")
        return self._contents.verify(tensor_id, repair=repair)

    @store_method
    def gc(self, *, partial: bool = False, older_than: float = 3600.0) -> Garbage:
        """Delete unreferenced data, after a flush.

        Unreferenced data belongs to no tensor. Processes leave such data behind when they are killed, or when they
        clear a tensor. Other processes may read and fill the store meanwhile, but should not create tensors.

        Parameters
        ----------
        partial : bool
            Also delete partial tiles. Deleted windows are recomputed when they are needed again. If a process is adding
            windows to a deleted tile, it starts the log of the tile again.
        older_than : float
            With `partial`, delete only tiles unchanged for this many seconds, by the clocks of the storage and of this
            machine. Must be 0 on storage without recorded times, such as an HDF5 file or zarr's `MemoryStore`.

        Raises
        ------
        ValidationError
            If the store is read-only, or if `older_than` is not 0 and the storage records no times.
        StoreError
            If something cannot be deleted, or if the backend cannot delete partial tiles at all.
        """
        self._check_open()
        self._contents.check_writable("collect garbage")
        age = checked_age(older_than)
        return self._contents.collect_garbage(age if checked_flag("partial", partial) else None)

    # Copies.

    def copy(
        self,
        tensor_id: str,
        other_store: TileStore | str | os.PathLike[str],
        *,
        upstream: bool = False,
        region: object = None,
        overwrite: bool = False,
        progress: Reporting = True,
    ) -> CopyReport:
        """Copy a tensor into another store of any kind.

        The definition and all complete tiles are copied, after a flush of this store, in small groups to save memory.
        Windows of incomplete tiles are computed again in the copy. A store with a `concurrency` option makes up to
        `concurrency` requests at a time. Between two Zarr stores, chunks are copied without decoding. A new tensor in
        the other store is compressed as in this store, unless the other store was opened with `compressors`. In all
        other cases, tiles are decoded and encoded again. The tile size stays the same.

        To continue an interrupted copy, call the method again: only missing tiles are copied. A tile that was damaged
        on the way is found by its checksum, when it is read, or by `other_store.verify`. To work with the copy, build
        the tensor with ``tile_store=other_store``; `f` computes all missing windows.

        Parameters
        ----------
        tensor_id : str
            The tensor. The copy has the same id.
        other_store : TileStore, str or path
            The store to copy to. `open_store` opens a path or an fsspec URL.
        upstream : bool
            Also copy the upstream tensors, direct and indirect, if they have a `tensor_id` and are in this store. The
            report names the upstream tensors left out. A tensor is copied before its readers.
        region : optional
            Copy only tiles touched by this region of the tensor, given as in a read. Upstream tensors are copied whole.
            Required for an unbounded tensor if the backend cannot list its tiles.
        overwrite : bool
            If `other_store` has a different tensor under the same id, delete that tensor, after all arguments and
            definitions have been checked, and before the first tile is copied. After an interruption, it is gone: call
            again to complete the copy.
        progress : bool, "always" or callable
            As for `InfiniteTensor.fill`, except that a `Progress` counts tiles, not windows.

        Returns
        -------
        CopyReport
            A report of what was copied and what was already there. It prints as a table.

        Raises
        ------
        ValidationError
            If `other_store` has a tensor with this id and another definition, and `overwrite` is False; the message
            lists the differences. Also if `other_store` is read-only, a `MemoryTileStore`, or this store itself. In
            these cases nothing is copied.
        StoreError
            If this store has no tensor with this id, if the tensor is cleared or invalidated in either store
            meanwhile, or if something cannot be read or stored. Call the method again to continue.

        Examples
        --------
        >>> store = ZarrTileStore("memory://here", tile_size=64)
        >>> other = ZarrTileStore("memory://there")
        >>> t = InfiniteTensor(
        ...     (None,), lambda ctx: torch.ones(64), TensorWindow((64,)),
        ...     tile_store=store, tensor_id="ones",
        ... )
        >>> float(t[0:128].sum())
        128.0
        >>> store.copy("ones", other).tiles
        2
        >>> float(other.open("ones")[0:128].sum())
        128.0
        """
        # Imported here, because views import stores.
        from infinite_tensor.views.copying import copy_tensor  # noqa: PLC0415

        return copy_tensor(
            self, tensor_id, other_store, upstream=upstream, region=region, overwrite=overwrite, progress=progress
        )

    # Deprecated names of version 0.2.

    def get_or_create(self, tensor_id: object, *args: Any, **options: Any) -> InfiniteTensor:
        """Deprecated: make an `InfiniteTensor` with ``tile_store=`` and ``tensor_id=``."""
        # Imported here, because tensors import stores.
        from infinite_tensor.compat import get_or_create  # noqa: PLC0415

        return get_or_create(self, tensor_id, *args, **options)

    def clear_direct_caches(self) -> None:
        """Deprecated: call ``tensor.clear_cache()`` or `clear_cache`."""
        from infinite_tensor.compat import clear_direct_caches  # noqa: PLC0415

        clear_direct_caches(self)

    def evict_cache_for(self, tensor_id: object, cache_limit: int | None) -> None:
        """Deprecated: call `clear_cache`, which a limit of 0 does."""
        from infinite_tensor.compat import evict_cache_for  # noqa: PLC0415

        evict_cache_for(self, tensor_id, cache_limit)

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
        """Reopen a group and its tensors from the id of the group.

        Parameters
        ----------
        group_id : str
            The id of the group, one of `group_ids`.
        f : mapping, optional
            Maps keys to functions to compute missing windows. For a tensor without a function, only the stored part can
            be read.
        members : mapping, optional
            Maps keys to open tensors. The group uses these tensors instead of opening them again. Each must have the
            stored definition.
        stores : sequence of TileStore, optional
            Other stores to search for tensors of the group. A group does not record the other stores of its tensors.
        device : torch.device or str
            As for `open`.

        Raises
        ------
        StoreError
            If the store has no group with this id, or if a tensor of the group cannot be opened or has been replaced.
        ValidationError
            If an argument is invalid.
        """
        # Imported here, because groups import stores.
        from infinite_tensor.groups.group import open_group  # noqa: PLC0415

        return open_group(self, group_id, f, members, stores, device)

    @store_query
    def group_ids(self) -> list[str]:
        """Return the ids of all groups in the store, sorted."""
        self._check_open()
        return sorted(self._contents.group_ids())

    @store_method
    def clear_group(self, group_id: str) -> None:
        """Delete a group, but not its tensors.

        An unknown id is not an error.
        """
        self._check_open()
        self._contents.check_writable(f"clear group {group_id!r}")
        self._contents.delete_group(group_id)

    # Lifetime.

    @store_method
    def flush(self) -> None:
        """Store all finished windows before returning.

        Raises
        ------
        StoreError
            If something could not be stored. The windows stay in memory, and the next flush tries again.
        """
        self._check_open()
        self._contents.flush()

    def request_flush(self) -> None:
        """Request a flush, and return immediately.

        This method is safe in a signal handler. There, `flush` raises StoreError if the signal has interrupted a call
        of the store. A thread that uses the store carries out the flush, after the current batch of windows or at the
        next read or registration of a tensor. If storing fails, the error is raised in that thread.
        """
        self._contents.request_flush()

    @store_method
    def close(self, *, discard: bool = False) -> None:
        """Flush, then release memory and files.

        Closing twice is not an error.

        Parameters
        ----------
        discard : bool
            Close even if the flush fails, and discard windows that could not be stored. If False, a failed flush raises
            StoreError, and the store stays open.
        """
        self._contents.close(discard=checked_flag("discard", discard))

    def __enter__(self) -> Self:
        with self._contents.lock:
            if self._contents.closed:
                self._contents.resume()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _readers_of(contents: Contents, tensor_id: str, digest: str | None) -> list[str]:
    try:
        return readers_in(contents.specs_at_hand(), tensor_id, digest)
    except StoreError:
        # For example, the whole store has been deleted: there are no tensors to warn about.
        return []


def contents_of(store: TileStore) -> Contents:
    """Return the `Contents` of a store, for use by the engine."""
    return store._contents
