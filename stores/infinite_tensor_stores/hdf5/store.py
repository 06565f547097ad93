"""Tiles in one HDF5 file: a group per tensor, each tile a slot of one dataset."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.failures import cleared_elsewhere, remade_elsewhere, warn_of_damage
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.report import Damage, Garbage, TensorInfo
from infinite_tensor_stores.binding import BindingStore
from infinite_tensor_stores.documents import name_of
from infinite_tensor_stores.dtypes import from_stored, to_stored
from infinite_tensor_stores.hdf5.documents import (
    check_there,
    clear_group,
    definitions_in,
    is_defined,
    list_groups,
    list_tensors,
    read_definition,
    read_group,
    write_definition,
    write_group,
)
from infinite_tensor_stores.hdf5.file import SharedFile, reserve
from infinite_tensor_stores.hdf5.root import let_go, open_file, reopen_file
from infinite_tensor_stores.hdf5.slots import DEFINITION, TileSlots, definition_in, file_in_memory
from infinite_tensor_stores.targets import absolute, check_mode, local_path, shown


def tiles_in(file: SharedFile, name: str) -> TileSlots | Damage:
    """The tiles of a tensor, or what keeps from getting at them."""
    with file.lock:
        group = file.h5[name]
        try:
            definition = definition_in(group)
            if definition is None:
                raise ValueError("it is gone")
        except ValueError as error:
            return Damage("definition", None, f"{group.name}/{DEFINITION}", str(error))
        try:
            return file.group(name, definition)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises what it pleases on a damaged file)
            return Damage("array", None, f"/{name}/tiles", str(error))


def damages(file: SharedFile, group: TileSlots, *, repair: bool) -> Iterator[Damage]:
    """What is damaged of the tiles; the lock is held for one batch at a time, so that reads take turns."""
    for first in group.slots():
        with file.lock:
            found = group.damages(first, repair=repair)
        yield from found
    for tile in group.log.tiles():
        with file.lock:
            found = group.log.damages(tile, repair=repair)
        yield from found


class HDF5TileStore(BindingStore[TileSlots]):
    """Keeps tensors in one HDF5 file.

    One process at a time: HDF5 locks the file. Within a process, stores that name the same file share it, and
    the last one that is closed closes it. What is in the file after `flush` or `close` stays; what came later
    may be lost when the process is killed, and a kill in the middle of a write can harm the file, which
    `ZarrTileStore` is safe from. A process that is forked from one with an open store can read, but not write.

    Parameters
    ----------
    filepath : str or path
        The file, also as a ``file://`` URL. A relative path is taken from the folder that is current now, and stays
        the place that it is.
    mode : str
        ``a`` opens or creates, ``r+`` opens, ``r`` opens and never writes, ``w`` deletes the store that is in the
        file and creates one, ``w-`` creates and fails where something is. ``a``, ``r+`` and ``w`` also make a store
        of an HDF5 file of somebody else's, whose attributes, groups and datasets stay.
    compression : str, int or None
        How new tensors are compressed, as h5py names it, after their bytes are shuffled; None stores tiles as they
        are.
    compression_opts : object
        The setting of `compression`, as h5py takes it.
    tile_size : int or tuple of int, optional
        Extent of a tile, which is a chunk; see `PersistentTileStore`. Default: 512 for new tensors, what they are
        stored with for others.
    cache_size_bytes : int or None
        Limit of the cache of tiles in memory, in bytes.
    cache_size_tiles : int or None
        Limit of the cache in tiles.
    flush_interval : float
        Seconds after which windows of incomplete tiles are stored, looked at as windows arrive. As often, looked
        at as something is stored, the file is brought up to date as by `flush`.
    workers : int
        On how many threads a read runs ``f``.

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
    ...     (None, None), lambda ctx: torch.ones(64, 64), TensorWindow((64, 64)), tile_store=store, tensor_id="map"
    ... )
    >>> float(t[-100:100, 0:50].sum())
    10000.0
    >>> store.close()
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        mode: str = "a",
        compression: Any = "gzip",
        compression_opts: Any = 4,
        tile_size: int | Sequence[int] | None = None,
        cache_size_bytes: int | None = 100 * 2**20,
        cache_size_tiles: int | None = None,
        *,
        flush_interval: float = 30.0,
        workers: int = 1,
    ) -> None:
        if not isinstance(filepath, str | os.PathLike):
            raise ValidationError(f"filepath must be a path or a file:// URL, got {filepath!r}")
        self.filepath = absolute(filepath)
        self.mode = check_mode(mode)
        self._path = local_path(os.fspath(self.filepath))
        self._filters = self._checked_filters(compression, compression_opts)
        self._bound = {}
        self._file: SharedFile | None = None
        super().__init__(
            tile_size,
            cache_size_bytes,
            cache_size_tiles,
            flush_interval=flush_interval,
            read_only=mode == "r",
            workers=workers,
        )
        self._file = open_file(self._path, self.mode, self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference: the path and the options. Another process opens the file once this one has closed it."""
        compression = self._filters.get("compression"), self._filters.get("compression_opts")
        mode = "r" if self.read_only else "r+"
        return partial(type(self), **self._options()), (self.filepath, mode, *compression)

    @property
    def address(self) -> str:
        """The path of the file."""
        return shown(self.filepath)

    def __repr__(self) -> str:
        return f"HDF5TileStore({shown(self.filepath)!r}, mode={self.mode!r})"

    def _checked_filters(self, compression: Any, options: Any) -> dict[str, Any]:
        # Shuffled bytes of pixels compress in two thirds of the time, and to less.
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
        self._file = reopen_file(self._path, "r" if self.read_only else "r+", self)

    def _opened_file(self) -> SharedFile:
        if self._file is None:
            raise StoreError(f"{self!r} is closed; open it again with `with store:`")
        return self._file

    def _flush_backend(self) -> None:
        if self._file is not None:
            self._file.flush()

    def _close_backend(self) -> None:
        self._bound.clear()
        if self._file is not None:
            let_go(self._file, self)
            self._file = None

    # Definitions.

    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        file = self._opened_file()
        with file.lock:
            return read_definition(file, tensor_id, self)

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        file = self._writable()
        with file.lock:
            write_definition(file, tensor_id, definition, self._filters)

    def _binding(self, tensor_id: str, definition: Mapping[str, Any]) -> TileSlots:
        return self._opened_file().group(name_of(tensor_id), definition)

    def _bound_to(self, tensor_id: str) -> TileSlots | None:
        self._opened_file()
        return super()._bound_to(tensor_id)

    def _delete_tensor(self, tensor_id: str) -> None:
        self._bound.pop(tensor_id, None)
        self._writable().delete(name_of(tensor_id))

    # Groups of tensors.

    def _read_group(self, group_id: str) -> dict[str, Any] | None:
        file = self._opened_file()
        with file.lock:
            check_there(file, self)
            return read_group(file.h5, group_id, self)

    def _write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        file = self._writable()
        with file.lock:
            write_group(file.h5, group_id, definition)

    def _delete_group(self, group_id: str) -> None:
        file = self._writable()
        with file.lock:
            clear_group(file.h5, group_id)

    def _list_groups(self) -> list[str]:
        file = self._opened_file()
        with file.lock:
            check_there(file, self)
            return list_groups(file.h5, self)

    # Tiles. The lock is held for one batch at a time, so that reads and background writes take turns.

    def _read_bound_tiles(
        self, tensor_id: str, bound: TileSlots, tile_indices: Sequence[Index]
    ) -> list[torch.Tensor | None]:
        file = self._opened_file()
        tiles: list[torch.Tensor | None] = [None] * len(tile_indices)
        for begin in range(0, len(tile_indices), bound.batch):
            batch = tile_indices[begin : begin + bound.batch]
            with file.lock:
                blocks = bound.read(batch)
            for number, block in enumerate(blocks, begin):
                if isinstance(block, Exception):
                    warn_of_damage(self, f"tile {tile_indices[number]} of tensor {tensor_id!r} is damaged ({block})")
                elif block is not None:
                    tiles[number] = from_stored(block, bound.layout.dtype)
        return tiles

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        file, group = self._writable(), self._bound[tensor_id]
        indices = list(tiles)
        for begin in range(0, len(indices), group.batch):
            batch = indices[begin : begin + group.batch]
            with file.lock:
                self._check_bound(tensor_id, group)
                reserve(file.h5, len(batch) * group.layout.tile_bytes)
                group.write({tile: to_stored(tiles[tile]) for tile in batch})
        file.flush(older_than=self._flush_interval)

    def _read_bound_partials(
        self, tensor_id: str, bound: TileSlots, tile_indices: Sequence[Index]
    ) -> list[PartialTile | None]:
        with self._opened_file().lock:
            self._check_bound(tensor_id, bound)
            logs = [bound.log.read(tile) for tile in tile_indices]
        found = zip(tile_indices, logs, strict=True)
        return [PartialTile.merged(self._parts_in(bound.log.place(tile), log)) for tile, log in found]

    def _parts_in(self, place: str, log: Sequence[bytes | Exception]) -> list[PartialTile]:
        parts = []
        for number, data in enumerate(log):
            if isinstance(data, Exception):
                warn_of_damage(self, f"part {number} of partial tile {place} is damaged ({data})")
                continue
            try:
                parts.append(PartialTile.from_bytes(data, place))
            except ValueError as error:
                warn_of_damage(self, f"part {number}: {error}")
        return parts

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        file, group = self._writable(), self._bound[tensor_id]
        for tile, part in partials.items():
            with file.lock:
                self._check_bound(tensor_id, group)
                if part is None:
                    group.log.finish([tile])
                else:
                    data = part.to_bytes(group.log.place(tile))
                    reserve(file.h5, len(data))
                    group.log.append(tile, data)
        file.flush(older_than=self._flush_interval)

    def _delete_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> None:
        file, group = self._writable(), self._bound[tensor_id]
        with file.lock:
            self._check_bound(tensor_id, group)
            group.log.delete(tile_indices)
            group.delete(tile_indices)

    def _has_bound_tiles(self, bound: TileSlots, tile_indices: Sequence[Index]) -> list[bool]:
        with self._opened_file().lock:
            return bound.has(tile_indices)

    def _find_bound_tiles(
        self, bound: TileSlots, low: Sequence[int], high: Sequence[int]
    ) -> tuple[set[Index], set[Index]]:
        with self._opened_file().lock:
            return bound.find(low, high)

    def _check_bound(self, tensor_id: str, bound: TileSlots) -> None:
        """StoreError if another store has cleared the tensor, or the file has vanished. The file's lock is held."""
        file = self._opened_file()
        if self._bound.get(tensor_id) is not bound:
            # Cleared here, in the meantime: the caller knows.
            return
        if file.vanished:
            raise remade_elsewhere(self, tensor_id) if self._path.exists() else cleared_elsewhere(self, tensor_id)
        if bound.gone:
            raise (remade_elsewhere if is_defined(file, tensor_id) else cleared_elsewhere)(self, tensor_id)

    def _writable(self) -> SharedFile:
        file = self._opened_file()
        if file.process != os.getpid():
            raise StoreError(
                f"{self!r} was opened before this process was forked: two processes that write harm the file"
            )
        return file

    # What can be told of the store.

    def _list_tensors(self) -> list[str]:
        file = self._opened_file()
        with file.lock:
            return list_tensors(file, self)

    def _read_definitions(self) -> dict[str, dict[str, Any]]:
        file = self._opened_file()
        with file.lock:
            return definitions_in(file, self)

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:
        file, name = self._opened_file(), name_of(tensor_id)
        with file.lock:
            complete, partial, stored = file.group(name, definition).describe()
        return TensorInfo(tensor_id, definition, complete, partial, stored, f"/{name}/tiles")

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        file, name = (self._writable if repair else self._opened_file)(), name_of(tensor_id)
        with file.lock:
            check_there(file, self)
            if repair:
                reserve(file.h5, 0)
            known = is_defined(file, tensor_id)
        if not known:
            self.tensor_definition(tensor_id)
            return []
        group = tiles_in(file, name)
        if isinstance(group, TileSlots):
            return list(damages(file, group, repair=repair))
        if repair and group.kind == "array":
            # Without its datasets no tile of it is left.
            self.contents.delete(tensor_id)
        return [group]

    def _collect_garbage(self) -> Garbage:
        file = self._writable()
        with file.lock:
            check_there(file, self)
            return file.collect_garbage()
