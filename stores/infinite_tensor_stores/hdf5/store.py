"""Tiles in one HDF5 file: one group per tensor, one slot per tile.

All stores of the process that have the same file open share its slots, under one lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.inventory import Damage, Garbage, StoredSize, TensorInfo
from infinite_tensor.tilestore.messages import cleared_elsewhere, keeps_no_times, remade_elsewhere, vanished
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.documents import TENSOR, name_of
from infinite_tensor.values.dtypes import to_stored
from infinite_tensor_stores.handles import HandleStore, TensorHandle
from infinite_tensor_stores.hdf5.file import SharedFile, check_place, leave_file, open_file, reopen_file, reserve
from infinite_tensor_stores.hdf5.members import (
    DEFINITION,
    FOLDER,
    delete_group,
    document_at,
    file_in_memory,
    groups_in,
    is_defined,
    names_in,
    put_document,
    read_document,
    replace_definition,
    tensor_at,
)
from infinite_tensor_stores.hdf5.slots import TileSlots
from infinite_tensor_stores.targets import MODES, Mode, absolute, check_mode, local_path, shown


class HDF5Tensor(TensorHandle):
    """One incarnation of a tensor in an HDF5 file.

    A tensor that is cleared and created again gets a new object. The lock of the file is held for one batch at a time,
    so that reads and background writes take turns.

    Parameters
    ----------
    file : SharedFile
        The file that contains the tensor.
    slots : TileSlots
        The content of the tensor's HDF5 group.
    tensor_id : str
        The id of the tensor.
    owner : object
        The store; messages show its str.
    flush_interval : float
        Seconds after which written data is flushed to the file.
    """

    def __init__(
        self, file: SharedFile, slots: TileSlots, tensor_id: str, owner: object, flush_interval: float
    ) -> None:
        super().__init__(tensor_id, slots.layout, owner)
        self._file = file
        self.slots = slots
        self._flush_interval = flush_interval

    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """Read complete tiles."""
        found: list[torch.Tensor | None] = []
        for batch in self._batches(tiles):
            with self._file.opened(self.owner):
                blocks = self.slots.read(batch)
            found += map(self.tile_from, batch, blocks)
        return found

    def write_tiles(self, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles."""
        for batch in self._batches(list(tiles)):
            with self._changing(len(batch) * self.layout.tile_bytes):
                self.slots.write({tile: to_stored(tiles[tile]) for tile in batch})
        self._file.flush(older_than=self._flush_interval)

    def read_partials(self, tiles: Sequence[Index]) -> list[PartialTile | None]:
        """Read the merged logs of partial tiles.

        Return None for a tile without a log.
        """
        with self._file.opened(self.owner):
            self._check_there()
            parts = self.slots.read_logs(tiles)
        return list(map(self.partial_from, map(self.slots.log.place, tiles), parts))

    def write_partials(self, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add a part to the log of each tile.

        If `partials` maps a tile to None, the log of this tile is deleted. That may wait until the next flush.
        """
        log = self.slots.log
        for tile, part in partials.items():
            if part is None:
                with self._changing():
                    self._file.finish(self.slots, tile)
            else:
                data = part.to_bytes(log.place(tile))
                with self._changing(len(data)):
                    log.append(tile, data)
        self._file.flush(older_than=self._flush_interval)

    def delete_tiles(self, tiles: Sequence[Index]) -> None:
        """Delete the logs of tiles, and free the slots."""
        with self._changing(0):
            self.slots.mark_drop()
            self.slots.log.delete(tiles)
            self.slots.delete(tiles)

    def generation(self) -> str:
        """Return a text that changes whenever tiles are deleted."""
        with self._file.opened(self.owner):
            return self.slots.drops

    def has_tiles(self, tiles: Sequence[Index]) -> list[bool]:
        """Return for each tile whether it has a slot."""
        with self._file.opened(self.owner):
            return self.slots.has(tiles)

    def find_tiles(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find complete tiles and logs in a box of tiles.

        Return the set of tiles with a slot, and the set of tiles with a log.
        """
        with self._file.opened(self.owner):
            return self.slots.find(low, high)

    def damages(self, *, repair: bool) -> Iterator[Damage]:
        """Check the tiles and the logs, and iterate over the damages.

        If `repair` is True, damaged data is deleted.
        """
        with self._file.opened(self.owner):
            starts, logged = self.slots.slots(), self.slots.log.tiles()
        batches = [
            *(partial(self.slots.damages, first, repair=repair) for first in starts),
            *(partial(self.slots.log.damages, tile, repair=repair) for tile in logged),
        ]
        for look in batches:
            with self._file.opened(self.owner) as h5:
                if repair:
                    reserve(h5, 0)
                found = look()
            yield from found

    def _batches(self, tiles: Sequence[Index]) -> Iterator[Sequence[Index]]:
        length = self.slots.batch
        return (tiles[begin : begin + length] for begin in range(0, len(tiles), length))

    @contextmanager
    def _changing(self, nbytes: int | None = None) -> Iterator[None]:
        """Hold the lock of the file during a change, with disk space for `nbytes` bytes of data.

        Raise OSError if the disk is full. If `nbytes` is None, the space is not checked, so that logs can be deleted
        on a full disk. Raise StoreError if the tensor has been cleared.
        """
        self._file.check_process(self.owner)
        with self._file.opened(self.owner) as h5:
            self._check_there()
            if nbytes is not None:
                reserve(h5, nbytes)
            yield

    def _check_there(self) -> None:
        """Check that the tensor still exists.

        The caller holds the lock of the file.
        """
        if self.released:
            # This store itself has cleared the tensor, or was closed.
            return
        if self._file.vanished:
            replaced = Path(self._file.h5.filename).exists()
        elif self.slots.gone:
            replaced = is_defined(self._file.h5, self.slots.name.removeprefix("/"))
        else:
            return
        raise (remade_elsewhere if replaced else cleared_elsewhere)(self.owner, self.tensor_id)


class HDF5TileStore(HandleStore[HDF5Tensor]):
    """Keeps tensors in one HDF5 file.

    Only one process can open the file at a time, because HDF5 locks it. Within a process, stores of the same file share
    it, and the last store that is closed closes the file. After `flush` or `close` the data is safe in the file. Later
    data may be lost if the process is killed. A kill in the middle of a write can damage the whole file; this cannot
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
        How new tensors are compressed, with the names of h5py; bytes are shuffled first. None stores tiles
        uncompressed.
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
        self._path = local_path(os.fspath(self.filepath))
        self._filters = self._checked_filters(compression, compression_opts)
        self._file: SharedFile | None = None
        super().__init__(
            tile_size,
            cache_size_bytes,
            cache_size_tiles,
            flush_interval=flush_interval,
            read_only=mode == "r",
            workers=workers,
        )
        # Mode "a" creates nothing yet: `_writable` does, before the first write.
        self._is_new = self.mode == "a" and not os.path.lexists(self._path)
        if self._is_new:
            check_place(self._path, self)
        else:
            self._file = open_file(self._path, self.mode, self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the options.

        Another process can open the file once this process has closed it.
        """
        own: dict[str, Any] = {name: self._filters.get(name) for name in ("compression", "compression_opts")}
        mode: Mode = "r" if self.read_only else "a" if self._is_new else "r+"
        return partial(type(self), mode=mode, **own, **self._options()), (self.filepath,)

    @property
    def address(self) -> str:
        """The path of the file."""
        return shown(self.filepath)

    def __str__(self) -> str:
        return f"HDF5TileStore({shown(self.filepath)!r}, mode={self.mode!r})"

    def _checked_filters(self, compression: Any, options: Any) -> dict[str, Any]:
        # Shuffling makes the compression of pixels a third faster, and its result smaller.
        filters = {} if compression is None else {"compression": compression, "shuffle": True}
        if isinstance(compression, str | int) and compression not in ("lzf", *range(10)):
            filters["compression_opts"] = options
        try:
            with file_in_memory() as scratch:
                scratch.create_dataset("tiles", shape=(1,), chunks=(1,), dtype="u1", **filters)
        except (ValueError, TypeError) as error:
            raise ValidationError(f"compression {compression!r} with {options!r} does not work: {error}") from error
        return filters

    # The file.

    def _resume(self) -> None:
        if not self._is_new:
            self._file = reopen_file(self._path, "r" if self.read_only else "r+", self)

    def _opened_file(self) -> SharedFile:
        if self._file is None:
            raise StoreError(f"{self} is closed; open it again with `with store:`")
        return self._file

    def _writable(self) -> SharedFile:
        if self._is_new:
            self._file, self._is_new = open_file(self._path, "a", self), False
        file = self._opened_file()
        file.check_process(self)
        return file

    @property
    def _vanished(self) -> bool:
        return not self._is_new and self._opened_file().vanished

    def _is_begun(self) -> bool:
        """Return whether the file has been created, by this store or another."""
        if self._is_new and os.path.lexists(self._path):
            self._writable()
        return not self._is_new

    def _file_there(self) -> SharedFile:
        if self._vanished:
            raise vanished(self)
        return self._opened_file()

    def _flush_backend(self) -> None:
        if self._file is not None:
            self._file.flush()

    def _close_backend(self) -> None:
        super()._close_backend()
        if self._file is not None:
            leave_file(self._file, self)
            self._file = None

    # Documents are datasets. Each tensor has a separate HDF5 group, and all TensorGroups share an HDF5 group.

    def _read_documents(self, names: Sequence[str]) -> list[dict[str, Any] | ValueError | None]:
        if not self._is_begun():
            return [None] * len(names)
        file = self._file_there()
        with file.opened(self) as h5:
            return [read_document(h5, name) for name in names]

    def _create_document(self, name: str, document: dict[str, Any]) -> None:
        file = self._writable()
        with file.lock:
            if name.startswith(TENSOR):
                if not is_defined(file.h5, name):
                    reserve(file.h5, 0)
                    file.delete(name)
                    TileSlots.create(file.h5.create_group(name), document, self._filters)
            elif document_at(file.h5, name) is None:
                data = json.dumps(document, allow_nan=False)
                reserve(file.h5, len(data))
                put_document(file.h5.require_group(FOLDER), name, data)

    def _replace_document(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        file = self._writable()
        with file.lock:
            if read_document(file.h5, name) == old:
                data = json.dumps(new, allow_nan=False)
                reserve(file.h5, len(data))
                replace_definition(file.h5[name], data)

    def _delete_document(self, name: str) -> None:
        if not self._is_begun():
            return
        file = self._writable()
        with file.lock:
            if name.startswith(TENSOR):
                file.delete(name)
            elif document_at(file.h5, name) is not None:
                delete_group(file.h5, name)

    def _list_documents(self, kind: str) -> list[str]:
        if not self._is_begun():
            return []
        file = self._file_there()
        with file.opened(self) as h5:
            names = names_in(h5) if kind == TENSOR else groups_in(h5)
        return [name for name in names if name.startswith(kind)]

    def _document_path(self, name: str) -> str:
        return f"/{name}/{DEFINITION}" if name.startswith(TENSOR) else f"/{FOLDER}/{name}"

    def _is_ours(self, name: str) -> bool:
        if not self._is_begun():
            return True
        file = self._opened_file()
        with file.opened(self) as h5:
            return not name.startswith(TENSOR) or tensor_at(h5, name) is not None

    # Tensors.

    def _handle_of(self, definition: Mapping[str, Any]) -> HDF5Tensor:
        file, tensor_id = self._opened_file(), definition["tensor_id"]
        slots = file.group(name_of(tensor_id), definition)
        return HDF5Tensor(file, slots, tensor_id, self._contents.storage, self._flush_interval)

    def _bind_again(self, tensor_id: str, bound: object) -> None:
        super()._bind_again(tensor_id, bound)
        if self._file is not None and isinstance(bound, HDF5Tensor):
            self._file.remember(name_of(tensor_id), bound.slots)

    # Reports about the store.

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:
        file, name = self._opened_file(), name_of(tensor_id)
        with file.lock:
            complete, partial, stored = file.group(name, definition).describe()
        return TensorInfo(tensor_id, definition, complete, partial, stored, f"/{name}/tiles")

    def _stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize:  # noqa: ARG002
        info = self._describe_tensor(tensor_id, definition)
        return StoredSize(info.tiles_complete, info.bytes_stored)

    def _damages(self, definition: Mapping[str, Any], *, repair: bool) -> list[Damage]:
        if repair:
            self._writable()
        try:
            handle = self._handle_of(definition)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises any exception on a damaged file)
            if repair:
                # Without its datasets, no tile of the tensor can be read.
                self._contents.delete(definition["tensor_id"])
            return [Damage("array", None, f"/{name_of(definition['tensor_id'])}/tiles", str(error))]
        return list(handle.damages(repair=repair))

    def _collect_garbage(self) -> Garbage:
        if not self._is_begun():
            return Garbage()
        self._writable()
        return self._file_there().collect_garbage()

    def _drop_partials(self, older_than: float) -> Garbage:
        if older_than:
            raise keeps_no_times(self)
        if not self._is_begun():
            return Garbage()
        self._writable()
        return self._file_there().drop_partials()
