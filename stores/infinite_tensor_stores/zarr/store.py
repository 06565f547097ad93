"""Tiles in a Zarr store: one group per tensor, one chunk per tile."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from zarr.abc.store import Store
from zarr.storage import LocalStore

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.documents import GROUP, layout_of
from infinite_tensor.tilestore.inventory import Garbage, StoredSize, TensorInfo
from infinite_tensor.tilestore.messages import keeps_no_times, vanished
from infinite_tensor.values.dtypes import stored_dtype
from infinite_tensor_stores.handles import HandleStore
from infinite_tensor_stores.homes import DEFAULT_CONCURRENCY
from infinite_tensor_stores.targets import (
    DEFAULT_TIMEOUT,
    MODES,
    Mode,
    absolute,
    check_concurrency,
    check_mode,
    check_timeout,
    home_of,
    shown,
)
from infinite_tensor_stores.zarr.codec import codecs_of
from infinite_tensor_stores.zarr.layout import (
    DOCUMENT,
    Place,
    array_bytes,
    attributes_in,
    group_document,
    incarnation_of,
    origin_of,
    redefined,
    renamed,
    tensor_document,
    why_no_ome,
)
from infinite_tensor_stores.zarr.root import Root, Sweep, logs_in
from infinite_tensor_stores.zarr.tensor import ZarrTensor


class ZarrTileStore(HandleStore[ZarrTensor]):
    """Keeps tensors in a Zarr store (format 3), with one group per tensor.

    The group contains an array with the complete tiles.

    Any number of processes may read and write the same store at the same time, without locks.

    Parameters
    ----------
    target : str, path or zarr Store
        A path, any fsspec URL (``s3://``, ``gs://``, ``memory://``, ...), or a zarr Store. A relative path is made
        absolute when the store is opened; a later change of the current folder has no effect on it.
    mode : str
        ``a`` opens, and creates a missing store with the first write; ``r+`` opens, ``r`` opens and never writes,
        ``w`` deletes an existing store and creates, ``w-`` creates and fails if anything is there. On a local disk, no
        mode creates a store inside another store. For a URL this is not checked, because it would cost requests.
    tile_size : int or tuple of int, optional
        Extent of a tile, which is a chunk; see `PersistentTileStore`. By default, a stored tensor keeps its tile size.
        A new tensor gets tiles of 1 to 4 MiB in the shape of its windows, such as 512 x 512 of float32.
    storage_options : dict, optional
        Passed to fsspec. Kept in memory only, never shown.
    timeout : float
        Seconds after which a read or write on S3 fails if S3 is down or hangs, retries included. Time-outs and retries
        in `storage_options` take precedence. Other storages, and a zarr Store given as `target`, use their own options.
    concurrency : int
        The number of requests that one read or write has under way at a time, from 1 to 256.
    compressors : zarr codec, sequence of them, "auto" or None
        How new tensors are compressed: one or several Zstandard or Blosc codecs; None does not compress. A CRC-32C
        checksum is always added. Tensors with other codecs are not opened, because decoding damaged data with them
        could take any amount of memory.
    cache_size_bytes : int, str or None
        Limit of the cache of tiles in memory, in bytes or as ``"400MB"``.
    cache_size_tiles : int or None
        Limit of the cache as a number of tiles.
    flush_interval : float
        Seconds after which windows of incomplete tiles are stored; checked whenever windows are added.
    workers : int
        The number of threads on which a read runs ``f``.

    Examples
    --------
    >>> store = ZarrTileStore("memory://example-map", tile_size=64)
    >>> t = InfiniteTensor(
    ...     (None, None), lambda ctx: torch.ones(64, 64), TensorWindow((64, 64)),
    ...     tile_store=store, tensor_id="map",
    ... )
    >>> float(t[-100:100, 0:50].sum())
    10000.0
    >>> store.close()
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Store,
        *,
        mode: Mode = "a",
        tile_size: int | Sequence[int] | None = None,
        storage_options: dict[str, Any] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        compressors: Any = "auto",
        cache_size_bytes: int | str | None = 100 * 2**20,
        cache_size_tiles: int | None = None,
        flush_interval: float = 30.0,
        workers: int = 1,
    ) -> None:
        self.target = absolute(target)
        self.mode = check_mode(mode, MODES)
        self._compressors = compressors
        read_only = mode == "r"
        self._storage_options = storage_options
        self._timeout = check_timeout(timeout)
        self._concurrency = check_concurrency(concurrency)
        self._home = home_of(self.target, storage_options, read_only, self._timeout, self._concurrency)
        self._created: str | None = None
        super().__init__(
            tile_size,
            cache_size_bytes,
            cache_size_tiles,
            flush_interval=flush_interval,
            read_only=read_only,
            workers=workers,
        )
        self._contents.shared = not self._home.in_memory
        self._root = Root(self._home, self._contents.storage)
        self._root.open(self.mode)

    def __str__(self) -> str:
        return f"ZarrTileStore({shown(self.target)!r}, mode={self.mode!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the target and all options, including credentials.

        Pending windows are not pickled.
        """
        own = {
            "storage_options": self._storage_options,
            "timeout": self._timeout,
            "concurrency": self._concurrency,
            "compressors": self._compressors,
        }
        mode: Mode = "r" if self.read_only else "a" if self._root.is_new else "r+"
        return partial(type(self), mode=mode, **own, **self._options()), (self.target,)

    @property
    def address(self) -> str | None:
        """The target without credentials, or None.

        It is None for a zarr Store other than a `LocalStore`.
        """
        addressed = not isinstance(self.target, Store) or isinstance(self.target, LocalStore)
        return shown(self.target) if addressed else None

    def _renew_after_fork(self) -> None:
        super()._renew_after_fork()
        self._created = None
        for handle in self._bound():
            handle.writers.leave()

    def _resume(self) -> None:
        self._root.open("a" if self.mode in ("w", "w-") else self.mode)

    @property
    def _vanished(self) -> bool:
        return not self._root.is_new and self._home.get([DOCUMENT]) == [None]

    @property
    def _is_near(self) -> bool:
        return self._home.is_near

    # Documents: each is in the attributes of a Zarr group. A TensorGroup is a Zarr group without arrays.

    def _read_documents(self, names: Sequence[str]) -> list[dict[str, Any] | ValueError | None]:
        root, *found = self._home.get([DOCUMENT, *map(self._document_path, names)])
        if root is None and not self._root.is_new and (not found or None in found):
            raise vanished(self)
        if root is not None and self._root.is_new:
            # Another process has created the store.
            self._root.open("r+")
        return list(map(_definition_in, found))

    def _create_document(self, name: str, document: dict[str, Any]) -> None:
        self._root.begin()
        if name.startswith(GROUP):
            self._home.create({self._document_path(name): group_document(document)})
            return
        place = Place.of(document)
        self._home.put({f"{place.array}/{DOCUMENT}": array_bytes(document)})
        if self._home.create({self._document_path(name): tensor_document(document)}) == [True]:
            self._created = document["incarnation"]
        else:
            winner = self._read_definition(document["tensor_id"])
            # The creation may have succeeded and then been reported as failed, so compare the incarnations.
            if winner is not None and winner["incarnation"] != document["incarnation"]:
                self._home.delete_folders([place.array])

    def _replace_document(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        place = Place.of(new)
        with self._home.alone_in(name):
            group, array = self._home.get([place.group, f"{place.array}/{DOCUMENT}"])
            if group is None or _definition_in(group) != old:
                return
            # The array first. After a kill in between, the next call finds the names missing in the definition.
            if array is not None:
                self._home.put({f"{place.array}/{DOCUMENT}": renamed(array, new)})
            self._home.put({place.group: redefined(group, new)})

    def _delete_document(self, name: str) -> None:
        # Without the lock, another process clearing the same tensor could delete a tensor created afterwards.
        with self._home.alone_in(name):
            incarnations = self._undefined(name)
        folders = itertools.product(("tiles", "partial"), incarnations - {None})
        self._home.delete_folders(f"{name}/{kind}-{incarnation}" for kind, incarnation in folders)

    def _undefined(self, name: str) -> set[str | None]:
        """Delete the document of a tensor or group.

        Return the incarnations of the tensor. The caller deletes their folders ``tiles-...`` and ``partial-...``.
        """
        key = self._document_path(name)
        (document,) = self._home.get([key])
        if document is None:
            return set()
        try:
            incarnations = {(self._documents.definition_in(name, _definition_in(document)) or {}).get("incarnation")}
        except (ValueError, StoreError):
            # The document is damaged, of a later version, or from another program.
            self._documents.check_ours(name)
            incarnations = {incarnation_of(folder) for folder in self._home.names(name)}
        if self._home.delete_link(name):
            return set()
        # Delete the definition first. After a kill, `gc` can then delete the rest as garbage.
        self._home.delete([key])
        return incarnations

    def _list_documents(self, kind: str) -> list[str]:
        return [name for name in self._home.names("") if name.startswith(kind)]

    def _document_path(self, name: str) -> str:
        return f"{name}/{DOCUMENT}"

    def _is_ours(self, name: str) -> bool:
        return not self._root.is_of_others(name)

    # Tensors.

    def _check_definition(self, definition: Mapping[str, Any]) -> None:
        Place.of(definition)

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        self._write_copy(tensor_id, definition, {})

    def _write_copy(self, tensor_id: str, definition: dict[str, Any], original: Mapping[str, Any]) -> None:
        _, layout = layout_of(definition)
        # Keep the compression of the original, unless `compressors` was given.
        kept = isinstance(self._compressors, str) and "codecs" in original
        codecs = original["codecs"] if kept else codecs_of(stored_dtype(layout.dtype), self._compressors)
        origin = list(origin_of(layout.shape, layout.tile_shape))
        super()._write_definition(tensor_id, {**definition, "origin": origin, "codecs": codecs})

    def _encoding(self, tensor_id: str) -> object:
        handle = self._handle(tensor_id)
        return None if handle is None else handle.encoding

    def _read_encoded(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bytes | None]:
        handle = self._handle(tensor_id)
        return [None] * len(tile_indices) if handle is None else handle.read_encoded(tile_indices)

    def _write_encoded(self, tensor_id: str, tiles: Mapping[Index, bytes]) -> None:
        self._writable_handle(tensor_id).write_encoded(tiles)

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> ZarrTensor:
        handle = super()._bind_tensor(tensor_id, definition)
        # Only at the first binding, because later other writers may exist.
        if definition["incarnation"] == self._created:
            handle.writers.found()
        self._created = None
        return handle

    def _handle_of(self, definition: Mapping[str, Any]) -> ZarrTensor:
        return ZarrTensor(self._home, Place.of(definition), self._contents.storage)

    # Reports about the store.

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:
        # Do not open the tensor, because a codec may be unsupported.
        place = Place.of(definition)
        complete, stored = 0, 0
        for key, chunk in self._home.entries(f"{place.array}/c"):
            if place.tile_of_chunk(key) is not None:
                complete += 1
                stored += chunk.size
        logs = logs_in(self._home, place)
        stored += sum(part.size for log in logs.values() for part in log.values())
        # A complete tile is not partial, even if another process has left a log of it.
        begun = self._home.exist(map(place.chunk, logs)).count(False)
        return TensorInfo(tensor_id, definition, complete, begun, stored, place.array, why_no_ome(definition))

    def _stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize | None:  # noqa: ARG002
        place, home = Place.of(definition), self._home
        if not home.lists_in_pages:
            return None
        folder = f"{place.array}/c"
        if home.lists_details:
            entries = list(itertools.islice(home.entries(folder), most))
            keys, size = [key for key, _ in entries], sum(stored.size for _, stored in entries)
        else:
            keys, size = list(itertools.islice(home.keys(folder), most)), None
        return StoredSize(sum(place.tile_of_chunk(key) is not None for key in keys), size, len(keys) < most)

    def _collect_garbage(self) -> Garbage:
        if self._vanished:
            raise vanished(self)
        return self._swept(Sweep.run)

    def _drop_partials(self, older_than: float) -> Garbage:
        if older_than and not self._home.lists_details:
            raise keeps_no_times(self)
        return self._swept(lambda sweep: sweep.drop_partials(older_than))

    def _swept(self, run: Callable[[Sweep], Garbage]) -> Garbage:
        sweep = Sweep(self._home, self._root, self._documents.find)
        collected = run(sweep)
        for handle in self._bound():
            handle.logs.forget(sweep.logs)
        return collected

    def _close_backend(self) -> None:
        super()._close_backend()
        self._home.disconnect()


def _definition_in(document: bytes | None) -> dict[str, Any] | ValueError | None:
    if document is None:
        return None
    try:
        return attributes_in(document) or ValueError("there is no definition")
    except ValueError as error:
        return error
