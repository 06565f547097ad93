"""Tiles in a Zarr store: one group per tensor, one chunk per tile."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zarr.abc.store import Store
from zarr.storage import LocalStore

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.tilestore.backend import Backend
from infinite_tensor.tilestore.definitions import Documents
from infinite_tensor.tilestore.documents import GROUP, Document, intact, name_of, sealed
from infinite_tensor.tilestore.inventory import Garbage, TensorInfo
from infinite_tensor.tilestore.messages import keeps_no_times, vanished
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.dtypes import stored_dtype
from infinite_tensor_stores.homes import DEFAULT_CONCURRENCY, Home
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
    ArrayPlace,
    array_bytes,
    attributes_in,
    checked_origin,
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


class ZarrTileStore(PersistentTileStore):
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
        if self._home.read_only and not read_only:
            raise ValidationError(f"{shown(self.target)!r} is read-only, got mode={mode!r}; give mode='r'")
        self._backend = ZarrBackend(self._home, self.mode, compressors, str(self))
        super().__init__(
            tile_size,
            cache_size_bytes,
            cache_size_tiles,
            flush_interval=flush_interval,
            read_only=read_only,
            workers=workers,
            backend=self._backend,
        )
        self._contents.shared = not self._home.in_memory
        self._backend.root.open(self.mode)

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
        mode: Mode = "r" if self.read_only else "a" if self._backend.root.is_new else "r+"
        return partial(type(self), mode=mode, **own, **self._options()), (self.target,)

    @property
    def address(self) -> str | None:
        """The target without credentials, or None.

        It is None for a zarr Store other than a `LocalStore`.
        """
        addressed = not isinstance(self.target, Store) or isinstance(self.target, LocalStore)
        return shown(self.target) if addressed else None


class ZarrBackend(Backend):
    """Tensors in a home of objects, one Zarr group for each.

    Parameters
    ----------
    home : Home
        The objects of the store.
    mode : str
        One of `MODES`.
    compressors : zarr codec, sequence of them, "auto" or None
        How new tensors are compressed.
    name : str
        The name of the store, for messages.
    """

    def __init__(self, home: Home, mode: str, compressors: Any, name: str) -> None:
        self.root = Root(home, name)
        self._home, self._mode, self._compressors, self._name = home, mode, compressors, name
        self._created: str | None = None
        renew_in_children(self)

    def __str__(self) -> str:
        return self._name

    def _renew_after_fork(self) -> None:
        self._created = None

    @property
    def vanished(self) -> bool:
        """Whether the whole store was deleted after opening."""
        return not self.root.is_new and self._home.get([DOCUMENT]) == [None]

    @property
    def is_near(self) -> bool:
        """See `Backend`."""
        return self._home.is_near

    # Documents: each is in the attributes of a Zarr group. A TensorGroup is a Zarr group without arrays.

    def read_documents(self, names: Sequence[str]) -> list[Document]:
        """See `Backend`."""
        root, *found = self._home.get([DOCUMENT, *map(self.document_path, names)])
        if root is None and not self.root.is_new and (not found or None in found):
            raise vanished(self)
        if root is not None and self.root.is_new:
            # Another process has created the store.
            self.root.open("r+")
        return list(map(_definition_in, found))

    def create_document(self, name: str, document: dict[str, Any]) -> None:
        """See `Backend`."""
        self.root.begin()
        if name.startswith(GROUP):
            self._home.create({self.document_path(name): group_document(document)})
        else:
            self._create(ArrayPlace(StoredTensor.from_json(document)))

    def create(self, definition: dict[str, Any], original: Mapping[str, Any] | None) -> None:
        """See `Backend`."""
        stored = StoredTensor.from_json(definition)
        # Keep the compression of the original, unless `compressors` was given.
        if original is not None and isinstance(self._compressors, str) and "codecs" in original:
            codecs = original["codecs"]
        else:
            codecs = codecs_of(stored_dtype(stored.layout.dtype), self._compressors)
        origin = list(origin_of(stored.layout.shape, stored.layout.tile_shape))
        self.root.begin()
        self._create(ArrayPlace(replace(stored, fields=sealed({**definition, "origin": origin, "codecs": codecs}))))

    def _create(self, place: ArrayPlace) -> None:
        stored = place.stored
        self._home.put({f"{place.array}/{DOCUMENT}": array_bytes(stored)})
        if self._home.create({place.group: tensor_document(stored)}) == [True]:
            self._created = stored.incarnation
            return
        (winner,) = self.read_documents([name_of(stored.tensor_id)])
        # The creation may have succeeded and then been reported as failed, so compare the incarnations.
        if isinstance(winner, dict) and winner.get("incarnation") != stored.incarnation:
            self._home.delete_folders([place.array])

    def replace_document(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """See `Backend`."""
        place = ArrayPlace(StoredTensor.from_json(new))
        with self._home.alone_in(name):
            group, array = self._home.get([place.group, f"{place.array}/{DOCUMENT}"])
            if group is None or _definition_in(group) != old:
                return
            # The array first. After a kill in between, the next call finds the names missing in the definition.
            if array is not None:
                self._home.put({f"{place.array}/{DOCUMENT}": renamed(array, place.stored)})
            self._home.put({place.group: redefined(group, place.stored)})

    def delete_document(self, name: str) -> None:
        """See `Backend`."""
        # Without the lock, another process clearing the same tensor could delete a tensor created afterwards.
        with self._home.alone_in(name):
            incarnations = self._undefined(name)
        folders = itertools.product(("tiles", "partial"), incarnations - {None})
        self._home.delete_folders(f"{name}/{kind}-{incarnation}" for kind, incarnation in folders)

    def _undefined(self, name: str) -> set[str | None]:
        """Delete the document of a tensor or group.

        Return the incarnations of the tensor. The caller deletes their folders ``tiles-...`` and ``partial-...``.
        """
        key, documents = self.document_path(name), Documents(self)
        (document,) = self._home.get([key])
        if document is None:
            return set()
        try:
            incarnations: set[str | None] = set()
            if name.startswith(GROUP):
                intact(_definition_in(document), name)
            elif stored := documents.tensor_in(name, _definition_in(document)):
                incarnations = {stored.incarnation}
        except (ValueError, StoreError):
            # The document is damaged, of a later version, or from another program.
            documents.check_ours(name)
            incarnations = {incarnation_of(folder) for folder in self._home.names(name)}
        if self._home.delete_link(name):
            return set()
        # Delete the definition first. After a kill, `gc` can then delete the rest as garbage.
        self._home.delete([key])
        return incarnations

    def list_documents(self, kind: str) -> list[str]:
        """See `Backend`."""
        return [name for name in self._home.names("") if name.startswith(kind)]

    def document_path(self, name: str) -> str:
        """See `Backend`."""
        return f"{name}/{DOCUMENT}"

    def is_ours(self, name: str) -> bool:
        """See `Backend`."""
        return not self.root.is_of_others(name)

    # Tensors.

    def check(self, stored: StoredTensor) -> None:
        """See `Backend`."""
        checked_origin(stored)

    def tensor(self, stored: StoredTensor) -> ZarrTensor:
        """See `Backend`."""
        tensor = ZarrTensor(self._home, ArrayPlace(stored), self)
        # Only the first time, because later other writers may exist.
        if stored.incarnation == self._created:
            tensor.writers.found()
            self._created = None
        return tensor

    # Reports about the store.

    def describe(self, stored: StoredTensor) -> TensorInfo:
        """See `Backend`."""
        # Do not open the tensor, because a codec may be unsupported.
        place = ArrayPlace(stored)
        complete, size = 0, 0
        for key, chunk in self._home.entries(f"{place.array}/c"):
            if place.tile_of_chunk(key) is not None:
                complete += 1
                size += chunk.size
        logs = logs_in(self._home, place)
        size += sum(part.size for log in logs.values() for part in log.values())
        # A complete tile is not partial, even if another process has left a log of it.
        begun = self._home.exist(map(place.chunk, logs)).count(False)
        fields, reason = dict(stored.fields), why_no_ome(stored.definition)
        return TensorInfo(stored.tensor_id, fields, complete, begun, size, place.array, reason)

    def collect_garbage(self) -> Garbage:
        """See `Backend`."""
        if self.vanished:
            raise vanished(self)
        return Sweep(self._home, self.root, Documents(self).find).run()

    def drop_partials(self, older_than: float) -> Garbage:
        """See `Backend`."""
        if older_than and not self._home.lists_details:
            raise keeps_no_times(self)
        return Sweep(self._home, self.root, Documents(self).find).drop_partials(older_than)

    def close(self) -> None:
        """See `Backend`."""
        self._home.disconnect()

    def resume(self) -> None:
        """See `Backend`."""
        self.root.open("a" if self._mode in ("w", "w-") else self._mode)


def _definition_in(document: bytes | None) -> Document:
    if document is None:
        return None
    try:
        return attributes_in(document) or ValueError("there is no definition")
    except ValueError as error:
        return error
