"""`HDF5TileStore`: tensors in one HDF5 file, with one group per tensor and one dataset per tile."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.tilestore.backend import Backend
from infinite_tensor.tilestore.documents import GROUP, TENSOR, Document, name_of
from infinite_tensor.tilestore.inventory import Garbage, TensorInfo
from infinite_tensor.tilestore.messages import keeps_no_times, vanished
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor_stores.hdf5 import members
from infinite_tensor_stores.hdf5.file import ROOT, SharedFile, check_place, leave_file, open_file
from infinite_tensor_stores.hdf5.tensor import HDF5Tensor
from infinite_tensor_stores.targets import MODES, Mode, absolute, check_mode, local_path, shown


class HDF5TileStore(PersistentTileStore):
    """Keeps tensors in one HDF5 file.

    Only one process can open the file at a time, because HDF5 locks it. Within a process, stores of the same file share
    it, and the last store that is closed closes the file. After `flush` or `close` the data is safe in the file. Later
    data may be lost if the process is killed. A kill in the middle of a flush can damage the whole file; this cannot
    happen with `ZarrTileStore`. A process that was forked while a store was open can read from it but not write.

    Parameters
    ----------
    filepath : str or path
        The file, as a path or a ``file://`` URL. A relative path is made absolute when the store is opened; a later
        change of the current folder has no effect on it.
    mode : str
        ``a`` opens, and creates a missing file with the first write; ``r+`` opens, ``r`` opens and never writes, ``w``
        deletes the store in the file and creates a new one, ``w-`` creates and fails if anything is there. ``a``,
        ``r+`` and ``w`` also add a store to an HDF5 file of another program, whose attributes, groups and datasets stay
        unchanged.
    compression : str, int or None
        How tiles are compressed, with the names of h5py; bytes are shuffled first. None stores tiles uncompressed.
    compression_opts : object
        The options of `compression`, as in h5py.
    tile_size : int or tuple of int, optional
        Extent of a tile, which is a chunk; see `PersistentTileStore`. By default, a stored tensor keeps its tile size.
        A new tensor gets tiles of 1 to 4 MiB in the shape of its windows, such as 512 x 512 of float32.
    cache_size_bytes : int, str or None
        Limit of the cache of tiles in memory, in bytes or as ``"400MB"``.
    cache_size_tiles : int or None
        Limit of the cache as a number of tiles.
    flush_interval : float
        Seconds after which windows of incomplete tiles are stored; checked whenever windows are added. The file is
        flushed at the same interval; checked whenever something is stored.
    workers : int
        The number of threads on which a read runs ``f``.

    Raises
    ------
    ImportError
        If h5py is not installed.
    StoreError
        If the file cannot be opened.

    Examples
    --------
    >>> store = HDF5TileStore("map.h5", mode="w", tile_size=64)
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
        filepath: str | os.PathLike[str],
        mode: Mode = "a",
        compression: Any = "gzip",
        compression_opts: Any = 4,
        tile_size: int | Sequence[int] | None = None,
        cache_size_bytes: int | str | None = 100 * 2**20,
        cache_size_tiles: int | None = None,
        *,
        flush_interval: float = 30.0,
        workers: int = 1,
    ) -> None:
        if not isinstance(filepath, str | os.PathLike):
            raise ValidationError(f"filepath must be a path or a file:// URL, got {filepath!r}")
        self.filepath = absolute(filepath)
        self.mode = check_mode(mode, MODES)
        path = local_path(os.fspath(self.filepath))
        self._compression = compression, compression_opts
        filters = _filters(compression, compression_opts)
        self._backend = HDF5Backend(path, self.mode, filters, flush_interval, str(self))
        super().__init__(
            tile_size,
            cache_size_bytes,
            cache_size_tiles,
            flush_interval=flush_interval,
            read_only=mode == "r",
            workers=workers,
            backend=self._backend,
        )
        self._backend.open()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the options.

        Another process can open the file once this process has closed it.
        """
        own = dict(zip(("compression", "compression_opts"), self._compression, strict=True))
        mode: Mode = "r" if self.read_only else "a" if self._backend.is_new else "r+"
        return partial(type(self), mode=mode, **own, **self._options()), (self.filepath,)

    @property
    def address(self) -> str:
        """The path of the file."""
        return shown(self.filepath)

    def __str__(self) -> str:
        return f"HDF5TileStore({shown(self.filepath)!r}, mode={self.mode!r})"


class HDF5Backend(Backend):
    """Tensors in an HDF5 file.

    Parameters
    ----------
    path : Path
        The file.
    mode : str
        One of `MODES`.
    filters : h5py.h5p.PropDCID
        How tiles are compressed.
    flush_interval : float
        Seconds after which written data is flushed to the file.
    name : str
        The name of the store, for messages.

    Attributes
    ----------
    is_new : bool
        Whether the file is created by the first write.
    """

    def __init__(self, path: Path, mode: str, filters: Any, flush_interval: float, name: str) -> None:
        self._path, self._mode, self._filters, self._flush_interval = path, mode, filters, flush_interval
        self._name = name
        self._file: SharedFile | None = None
        self.is_new = False

    def __str__(self) -> str:
        return self._name

    def open(self) -> None:
        """Open the file, or create it. Mode "a" creates nothing yet: `_writable` does, before the first write."""
        self.is_new = self._mode == "a" and not os.path.lexists(self._path)
        if self.is_new:
            check_place(self._path, self)
        else:
            self._open(self._mode)

    def _open(self, mode: str) -> None:
        self._file = open_file(self._path, mode, self, writable=self._mode != "r")

    def resume(self) -> None:
        """See `Backend`."""
        if not self.is_new:
            self._open("r")

    def _opened_file(self) -> SharedFile:
        if self._file is None:
            raise StoreError(f"{self} is closed; open it again with `with store:`")
        return self._file

    def _writable(self) -> SharedFile:
        if self.is_new:
            self._open("a")
            self.is_new = False
        return self._opened_file()

    @property
    def vanished(self) -> bool:
        """Whether the whole store was deleted after opening."""
        return not self.is_new and self._opened_file().vanished

    def _existing(self) -> SharedFile | None:
        """Return the file, or None if neither this store nor another has created it."""
        return self._writable() if not self.is_new or os.path.lexists(self._path) else None

    def _found(self) -> SharedFile | None:
        """Return the file as `_existing` does, but raise StoreError if it has vanished."""
        file = self._existing()
        if file is not None and file.vanished:
            raise vanished(self)
        return file

    def flush(self) -> None:
        """See `Backend`."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """See `Backend`."""
        if self._file is not None:
            leave_file(self._file, self)
            self._file = None

    # Documents are datasets. Each tensor and each TensorGroup has an HDF5 group.

    def read_documents(self, names: Sequence[str]) -> list[Document]:
        """See `Backend`."""
        if (file := self._found()) is None:
            return [None] * len(names)
        with file.opened(self) as root:
            return [members.document_in(members.group_at(root, name)) for name in names]

    def create_document(self, name: str, document: dict[str, Any]) -> None:
        """See `Backend`."""
        data = _as_text(document)
        file = self._writable()
        with file.changing(self, data.nbytes) as root:
            if members.document_in(members.group_at(root, name)) is None:
                # There may be remains of a tensor whose deletion was interrupted.
                file.delete(name)
                group = root.create_group(None)
                group[members.DEFINITION] = data
                root[name] = group

    def replace_document(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """See `Backend`."""
        data = _as_text(new)
        file = self._writable()
        with file.changing(self, data.nbytes) as root:
            group = members.group_at(root, name)
            if members.document_in(group) == old:
                members.put(group, members.DEFINITION, group.create_dataset(None, data=data).id)
                # Later data may be written where the old definition was.
                file.flush()

    def delete_document(self, name: str) -> None:
        """See `Backend`."""
        if (file := self._existing()) is not None:
            with file.changing(self, None):
                file.delete(name)

    def list_documents(self, kind: str) -> list[str]:
        """See `Backend`."""
        if (file := self._found()) is None:
            return []
        with file.opened(self) as root:
            return members.names_in(root, kind)

    def document_path(self, name: str) -> str:
        """See `Backend`."""
        return f"/{ROOT}/{name}/{members.DEFINITION}"

    # Tensors.

    def tensor(self, stored: StoredTensor) -> HDF5Tensor:
        """See `Backend`."""
        return HDF5Tensor(self._opened_file(), stored, self._filters, self, self._flush_interval)

    # Reports about the store.

    def describe(self, stored: StoredTensor) -> TensorInfo:
        """See `Backend`."""
        with self._opened_file().opened(self) as root:
            group = root[name_of(stored.tensor_id)]
            tiles, begun = members.tiles_in(group)
            sizes = members.sizes(group, [name for name in members.names_in(group) if name != members.DEFINITION])
            counts = len(tiles), len(begun - tiles), sum(sizes)
            return TensorInfo(stored.tensor_id, dict(stored.fields), *counts, group.name)

    def collect_garbage(self) -> Garbage:
        """See `Backend`."""
        return self._swept(complete=True)

    def drop_partials(self, older_than: float) -> Garbage:
        """See `Backend`."""
        if older_than:
            raise keeps_no_times(self)
        return self._swept(complete=False)

    def _swept(self, *, complete: bool) -> Garbage:
        """Delete groups without a definition and the logs of complete tiles, or the logs of incomplete tiles."""
        collected = Garbage()
        if (file := self._found()) is None:
            return collected
        with file.changing(self) as root:
            file.flush()
            for name in members.names_in(root, (TENSOR, GROUP)):
                group = members.group_at(root, name)
                if group is None:
                    continue
                if members.has(group, members.DEFINITION):
                    collected += members.prune(group, complete=complete)
                elif complete:
                    collected += Garbage(len(found := members.sizes(group, members.names_in(group))), sum(found))
                    file.delete(name)
            file.flush()
        return collected


def _filters(compression: Any, options: Any) -> Any:
    """Return the HDF5 properties of a tile. Raise ValidationError if h5py does not know the compression."""
    filters = {} if compression is None else {"compression": compression, "shuffle": True}
    if isinstance(compression, str | int) and compression not in ("lzf", *range(10)):
        filters["compression_opts"] = options
    try:
        with members.file_in_memory() as scratch:
            return scratch.create_dataset(
                "tile", shape=(1,), chunks=(1,), dtype="u1", fletcher32=True, **filters
            ).id.get_create_plist()
    except (ValueError, TypeError) as error:
        raise ValidationError(f"compression {compression!r} with {options!r} does not work: {error}") from error


def _as_text(document: dict[str, Any]) -> Any:
    return np.array(json.dumps(document, allow_nan=False).encode())
