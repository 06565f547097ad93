"""`HDF5Tensor`: the HDF5 group of one tensor, with a dataset for each tile."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.geometry.points import Index, inside
from infinite_tensor.tilestore.inventory import Damage
from infinite_tensor.tilestore.messages import cleared_elsewhere, remade_elsewhere
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.documents import largest_part, layout_of, name_of
from infinite_tensor.values.dtypes import stored_dtype, to_stored
from infinite_tensor_stores.handles import TensorHandle
from infinite_tensor_stores.hdf5 import members
from infinite_tensor_stores.hdf5.file import SharedFile

Block: TypeAlias = npt.NDArray[Any]

_BATCH_BYTES = 2**20
_PART = r"\d{1,9}"


class HDF5Tensor(TensorHandle):
    """One incarnation of a tensor in an HDF5 file.

    The group of the tensor contains

        definition        JSON
        tiles/<i,j>       complete tile (i, j): a dataset of one chunk, with HDF5's filters and checksum
        partial/<i,j>/<n> uint8: part n of the log of partial tile (i, j)

    Nothing of this is kept in memory: tiles are found by name.

    Parameters
    ----------
    file : SharedFile
        The file that contains the tensor.
    definition : mapping
        The definition of the tensor.
    filters : h5py.h5p.PropDCID
        How tiles are compressed.
    owner : object
        The store; messages show its str.
    flush_interval : float
        Seconds after which written data is flushed to the file.

    Raises
    ------
    OSError
        If the tensor in the file has another definition.
    ValueError
        If members of the group are missing, or are links.
    """

    def __init__(
        self, file: SharedFile, definition: Mapping[str, Any], filters: Any, owner: object, flush_interval: float
    ) -> None:
        tensor, layout = layout_of(definition)
        super().__init__(definition["tensor_id"], layout, owner)
        self._file, self._flush_interval, self._h5py = file, flush_interval, members.import_h5py()
        self._most = largest_part(tensor, layout)
        self._dtype = np.dtype(stored_dtype(layout.dtype))
        self._type = self._h5py.h5t.py_create(self._dtype, logical=True)
        self._space = self._h5py.h5s.create_simple(layout.tile_shape)
        self._created = self._known = filters.copy()
        self._created.set_chunk(layout.tile_shape)
        # No cache of chunks, because the store has a cache of tiles.
        self._access = self._h5py.h5p.create(self._h5py.h5p.DATASET_ACCESS)
        self._access.set_chunk_cache(1, 0, 1.0)
        with file.opened(owner) as root:
            self._group = members.group_at(root, name_of(self.tensor_id))
            stored = members.document_in(self._group)
            if not isinstance(stored, dict) or stored.get("incarnation") != definition["incarnation"]:
                raise OSError("the tensor has just been cleared elsewhere; try again")
            for name in (members.TILES, members.LOGS):
                if members.group_at(self._group, name) is None:
                    raise ValueError(f"{self._group.name}/{name} is missing, or is not an HDF5 group of its own")
        self._place = f"{self._group.name}/{definition['incarnation']}"

    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """Read complete tiles."""
        found: list[torch.Tensor | None] = []
        for batch in self._batches(tiles):
            with self._file.opened(self.owner):
                blocks = [self._read(_tile_path(tile)) for tile in batch]
            found += map(self.tile_from, batch, blocks)
        return found

    def _batches(self, tiles: Sequence[Index]) -> Iterator[Sequence[Index]]:
        """Split tiles into batches of about 1 MiB, so that reads and background writes take turns."""
        length = max(1, _BATCH_BYTES // self.layout.tile_bytes)
        return (tiles[begin : begin + length] for begin in range(0, len(tiles), length))

    def _read(self, name: str) -> Block | Exception | None:
        """Read the block of a tile, or return None for a missing tile, and an exception for a damaged one."""
        try:
            return self._block(name) if members.has(self._group, name) else None
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises any exception on a damaged file)
            return None if self._is_gone else error

    def _block(self, name: str) -> Block:
        data = self._h5py.h5d.open(self._group.id, name.encode(), self._access)
        if data.shape != self.layout.tile_shape or data.dtype != self._dtype:
            raise ValueError(f"{data.dtype} of shape {data.shape}, not {self._dtype} of {self.layout.tile_shape}")
        created = data.get_create_plist()
        if not created.equal(self._known):
            members.check_size(data, self.layout.tile_bytes)
            self._known = created
        if not data.get_storage_size():
            # HDF5 would return zeros.
            raise ValueError("its chunk is missing")
        block = np.empty(self.layout.tile_shape, self._dtype)
        everything = self._h5py.h5s.ALL
        data.read(everything, everything, block, self._type)
        return block

    def write_tiles(self, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles."""
        everything = self._h5py.h5s.ALL
        for batch in self._batches(list(tiles)):
            with self._changing(len(batch) * self.layout.tile_bytes, len(batch)):
                for tile in batch:
                    new = None, self._type, self._space, self._created
                    data = self._h5py.h5d.create(self._group.id, *new, dapl=self._access)
                    data.write(everything, everything, np.ascontiguousarray(to_stored(tiles[tile])), self._type)
                    members.put(self._group, _tile_path(tile), data)
        self._file.flush(older_than=self._flush_interval)

    def read_partials(self, tiles: Sequence[Index]) -> list[PartialTile | None]:
        """Read the merged logs of partial tiles.

        Return None for a tile without a log, and for a complete tile.
        """
        with self._file.opened(self.owner):
            if not self.released:
                self._check_there()
            elif self._is_gone:
                return [None] * len(tiles)
            logs = [self._log(tile) for tile in tiles]
        return [self.partial_from(self._place_of(tile), log) for tile, log in zip(tiles, logs, strict=True)]

    def _parts(self, path: str) -> list[str]:
        """Return the paths of the parts of a log, in the order of writing."""
        log = members.group_at(self._group, path)
        if log is None:
            # What is not an HDF5 group cannot be read, and so is a damaged part.
            return [path] if members.has(self._group, path) else []
        return [f"{path}/{name}" for name in sorted(members.names_in(log, _PART), key=int)]

    def _log(self, tile: Index) -> list[bytes | Exception]:
        """Return the parts of the log of an incomplete tile. A damaged part is an exception."""
        log: list[bytes | Exception] = []
        for path in [] if members.has(self._group, _tile_path(tile)) else self._parts(_log_path(tile)):
            try:
                log.append(members.content(self._group, path, self._most))
            except ValueError as error:
                log.append(error)
        return log

    def write_partials(self, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add a part to the log of each tile.

        If `partials` maps a tile to None, the log of this tile is deleted. That waits for the next flush if the tile is
        complete, because only then is the tile safe in the file.
        """
        for tile, part in partials.items():
            path = _log_path(tile)
            data = None if part is None else np.frombuffer(part.to_bytes(self._place_of(tile)), np.uint8)
            with self._changing(None if data is None else data.nbytes):
                if data is not None:
                    log, parts = self._group.require_group(path), self._parts(path)
                    number = int(parts[-1].rpartition("/")[2]) + 1 if parts else 0
                    members.put(log, str(number), log.create_dataset(None, data=data).id)
                elif members.has(self._group, _tile_path(tile)):
                    own = name_of(self.tensor_id)
                    self._file.ended.add((f"{own}/{path}", f"{own}/{_tile_path(tile)}"))
                elif members.has(self._group, path):
                    del self._group[path]
        self._file.flush(older_than=self._flush_interval)

    def delete_tiles(self, tiles: Sequence[Index]) -> None:
        """Delete the data of tiles, complete or partial."""
        with self._changing(0):
            self._group.attrs["drops"] = secrets.token_hex(8)
            for path in [*map(_log_path, tiles), *map(_tile_path, tiles)]:
                if members.has(self._group, path):
                    del self._group[path]

    def generation(self) -> str:
        """Return a text that changes whenever tiles are deleted."""
        with self._file.opened(self.owner):
            return str(self._group.attrs.get("drops", ""))

    def has_tiles(self, tiles: Sequence[Index]) -> list[bool]:
        """Return for each tile whether it is complete."""
        with self._file.opened(self.owner):
            return [not self._is_gone and members.has(self._group, _tile_path(tile)) for tile in tiles]

    def find_tiles(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find complete tiles and logs in a box of tiles.

        Return the set of complete tiles, and the set of tiles with a log.
        """
        with self._file.opened(self.owner):
            return self._within(members.TILES, low, high), self._within(members.LOGS, low, high)

    def _within(self, folder: str, low: Sequence[int], high: Sequence[int]) -> set[Index]:
        if self._is_gone:
            return set()
        group = self._group[folder]
        if math.prod(b - a for a, b in zip(low, high, strict=True)) <= len(group):
            return {tile for tile in itertools.product(*map(range, low, high)) if members.has(group, _name(tile))}
        found = map(_tile, members.names_in(group, members.TILE))
        return {tile for tile in found if len(tile) == len(low) and inside(tile, low, high)}

    def damages(self, *, repair: bool) -> Iterator[Damage]:
        """Check the tiles and the logs, and iterate over the damages.

        If `repair` is True, damaged data is deleted.
        """
        with self._file.opened(self.owner):
            tiles, logs = (members.names_in(self._group[each], members.TILE) for each in (members.TILES, members.LOGS))
            listed = [(name, f"{members.TILES}/{name}") for name in tiles]
            listed += [(name, path) for name in logs for path in self._parts(f"{members.LOGS}/{name}")]
        for name, path in listed:
            with self._changing(0) if repair else self._file.opened(self.owner):
                reason = self._wrong_with(_tile(name), path)
                if reason is not None and repair:
                    del self._group[path]
            if reason is not None:
                kind: Literal["tile", "partial"] = "tile" if path.startswith(members.TILES) else "partial"
                yield Damage(kind, _tile(name), f"{self._group.name}/{path}", str(reason))

    def _wrong_with(self, tile: Index, path: str) -> Exception | None:
        if path.startswith(members.TILES):
            block = self._read(path)
            return block if isinstance(block, Exception) else None
        try:
            if members.has(self._group, path):
                PartialTile.from_bytes(members.content(self._group, path, self._most), self._place_of(tile))
        except ValueError as error:
            return error
        return None

    def _place_of(self, tile: Index) -> str:
        return f"{self._place}/{_name(tile)}"

    @property
    def _is_gone(self) -> bool:
        """Whether the tensor has been cleared: its group exists as long as it is open, but no link leads to it."""
        return not self._h5py.h5o.get_info(self._group.id).rc

    @contextmanager
    def _changing(self, nbytes: int | None, count: int = 1) -> Iterator[None]:
        """Hold the lock of the file during changes, as in `SharedFile.changing`."""
        with self._file.changing(self.owner, nbytes, count):
            self._check_there()
            yield

    def _check_there(self) -> None:
        """Raise StoreError if the tensor was cleared elsewhere."""
        if self._file.vanished:
            replaced = Path(self._file.h5.filename).exists()
        elif self._is_gone:
            replaced = members.document_in(members.group_at(self._file.root, name_of(self.tensor_id))) is not None
        else:
            return
        raise (remade_elsewhere if replaced else cleared_elsewhere)(self.owner, self.tensor_id)


def _name(tile: Index) -> str:
    return ",".join(map(str, tile))


def _tile_path(tile: Index) -> str:
    return f"{members.TILES}/{_name(tile)}"


def _log_path(tile: Index) -> str:
    return f"{members.LOGS}/{_name(tile)}"


def _tile(name: str) -> Index:
    return tuple(map(int, name.split(",")))
