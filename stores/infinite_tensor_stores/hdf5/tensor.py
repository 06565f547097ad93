"""`HDF5Tensor`: the HDF5 group of one tensor, with a dataset for each tile."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from h5py import h5d, h5p, h5s, h5t

from infinite_tensor.geometry.points import Index, inside
from infinite_tensor.tilestore.backend import TensorHandle
from infinite_tensor.tilestore.documents import name_of
from infinite_tensor.tilestore.inventory import Damage
from infinite_tensor.tilestore.messages import cleared_elsewhere, remade_elsewhere
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.dtypes import from_stored, stored_dtype, to_stored
from infinite_tensor_stores.hdf5 import members
from infinite_tensor_stores.hdf5.file import ROOT, SharedFile

Block: TypeAlias = npt.NDArray[Any]


class HDF5Tensor(TensorHandle):
    """One incarnation of a tensor in an HDF5 file.

    The group of the tensor contains

        definition    JSON
        <i,j>         complete tile (i, j): a dataset of one chunk, with HDF5's filters and checksum
        <i,j>.part<n> uint8: part n of the log of partial tile (i, j)

    Nothing of this is kept in memory: tiles are found by name.

    Parameters
    ----------
    file : SharedFile
        The file that contains the tensor.
    stored : StoredTensor
        The definition of the tensor.
    filters : h5py.h5p.PropDCID
        How tiles are compressed.
    owner : object
        The backend; messages show its str.
    flush_interval : float
        Seconds after which written data is flushed to the file.

    Raises
    ------
    OSError
        If the tensor in the file has another definition.
    """

    def __init__(
        self, file: SharedFile, stored: StoredTensor, filters: Any, owner: object, flush_interval: float
    ) -> None:
        layout, name = stored.layout, name_of(stored.tensor_id)
        super().__init__(stored.tensor_id, layout, owner)
        self._file, self._flush_interval = file, flush_interval
        self._most = stored.largest_part
        self._dtype = np.dtype(stored_dtype(layout.dtype))
        self._type = h5t.py_create(self._dtype, logical=True)
        self._space = h5s.create_simple(layout.tile_shape)
        self._created = self._known = filters.copy()
        self._created.set_chunk(layout.tile_shape)
        # No cache of chunks, because the store has a cache of tiles.
        self._access = h5p.create(h5p.DATASET_ACCESS)
        self._access.set_chunk_cache(1, 0, 1.0)
        with file.opened(owner):
            self._group = file.group(name)
            found = members.document_in(self._group)
        if not isinstance(found, dict) or found.get("incarnation") != stored.incarnation:
            raise OSError("the tensor has just been cleared elsewhere; try again")
        self._path = f"/{ROOT}/{name}"
        self._place = f"{self._path}/{stored.incarnation}"

    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """Read complete tiles."""
        found = []
        for tile in tiles:
            # One lock for each tile, so that reads and background writes take turns.
            with self._file.opened(self.owner):
                block = self._read(_name(tile))
            intact = self.intact(tile, block)
            found.append(None if intact is None else from_stored(intact, self.layout.dtype))
        return found

    def _read(self, name: str) -> Block | Exception | None:
        """Read the block of a tile, or return None for a missing tile, and an exception for a damaged one."""
        try:
            return None if self._is_gone or not members.has(self._group, name) else self._block(name)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises any exception on a damaged file)
            return error

    def _block(self, name: str) -> Block:
        data = h5d.open(self._group.id, name.encode(), self._access)
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
        data.read(h5s.ALL, h5s.ALL, block, self._type)
        return block

    def write_tiles(self, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles."""
        for tile, values in tiles.items():
            with self._changing(self.layout.tile_bytes):
                data = h5d.create(self._group.id, None, self._type, self._space, self._created, dapl=self._access)
                data.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(to_stored(values)), self._type)
                members.put(self._group, _name(tile), data)
        self._file.flush(older_than=self._flush_interval)

    def read_partials(self, tiles: Sequence[Index]) -> list[PartialTile | None]:
        """Read the merged logs of partial tiles.

        Return None for a tile without a log, and for a complete tile.
        """
        with self._file.opened(self.owner):
            if not self.released:
                self._check_there()
            logs = [(name, self._log(name)) for name in map(_name, tiles)]
        return [PartialTile.from_log(log, f"{self._place}/{name}", self.owner) for name, log in logs]

    def _log(self, tile: str) -> list[bytes | Exception]:
        """Return the parts of the log of an incomplete tile. A damaged part is an exception."""
        log: list[bytes | Exception] = []
        is_read = not self._is_gone and not members.has(self._group, tile)
        for part in members.parts_of(self._group, tile) if is_read else ():
            try:
                log.append(members.content(self._group, part, self._most))
            except ValueError as error:
                log.append(error)
        return log

    def write_partials(self, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add a part to the log of each tile.

        If `partials` maps a tile to None, the log of this tile is deleted. That waits for the next flush if the tile is
        complete, because only then is the tile safe in the file.
        """
        for tile, part in partials.items():
            name = _name(tile)
            data = None if part is None else part.to_bytes(f"{self._place}/{name}")
            with self._changing(None if data is None else len(data)):
                parts = members.parts_of(self._group, name)
                if data is not None:
                    members.put_bytes(self._group, f"{name}.part{len(parts)}", data)
                elif members.has(self._group, name):
                    self._file.ended.append((self._group, name))
                else:
                    members.delete(self._group, parts)
        self._file.flush(older_than=self._flush_interval)

    def delete_tiles(self, tiles: Sequence[Index]) -> None:
        """Delete the data of tiles, complete or partial."""
        with self._changing(0):
            self._group.attrs["drops"] = secrets.token_hex(8)
            for name in map(_name, tiles):
                complete = [name] if members.has(self._group, name) else []
                members.delete(self._group, complete + members.parts_of(self._group, name))

    def generation(self) -> str:
        """Return a text that changes whenever tiles are deleted."""
        with self._file.opened(self.owner):
            return "" if self._is_gone else str(self._group.attrs.get("drops", ""))

    def find(self, tiles: Sequence[Index]) -> list[bool]:
        """Return for each tile whether it is complete."""
        with self._file.opened(self.owner):
            return [not self._is_gone and members.has(self._group, _name(tile)) for tile in tiles]

    def find_in(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find complete tiles and logs in a box of tiles.

        Return the set of complete tiles, and the set of tiles with a log.
        """
        with self._file.opened(self.owner):
            if self._is_gone:
                return set(), set()
            if math.prod(b - a for a, b in zip(low, high, strict=True)) <= len(self._group):
                box = list(itertools.product(*map(range, low, high)))
                begun = {tile for tile in box if members.parts_of(self._group, _name(tile))}
                return {tile for tile in box if members.has(self._group, _name(tile))}, begun
            found = members.tiles_in(self._group)
        complete, begun = (
            {tile for tile in map(_tile, names) if len(tile) == len(low) and inside(tile, low, high)} for names in found
        )
        return complete, begun

    def damages(self, *, repair: bool) -> Iterator[Damage]:
        """Check the tiles and the logs, and iterate over the damages.

        If `repair` is True, damaged tiles are deleted, and an empty part takes the place of a damaged one: parts after
        a gap would never be found.
        """
        with self._file.opened(self.owner):
            tiles, begun = map(sorted, members.tiles_in(self._group))
            listed = [(tile, tile) for tile in tiles]
            listed += [(tile, part) for tile in begun for part in members.parts_of(self._group, tile)]
        for tile, name in listed:
            is_tile = name == tile
            with self._changing(0) if repair else self._file.opened(self.owner):
                found = self._read(name) if is_tile else self._wrong_part(tile, name)
                if repair and isinstance(found, Exception):
                    if is_tile:
                        del self._group[name]
                    else:
                        members.put_bytes(self._group, name, PartialTile().to_bytes(f"{self._place}/{tile}"))
            if isinstance(found, Exception):
                yield Damage("tile" if is_tile else "partial", _tile(tile), f"{self._path}/{name}", str(found))

    def _wrong_part(self, tile: str, name: str) -> Exception | None:
        try:
            if members.has(self._group, name):
                PartialTile.from_bytes(members.content(self._group, name, self._most), f"{self._place}/{tile}")
        except ValueError as error:
            return error
        return None

    @property
    def _is_gone(self) -> bool:
        """Whether the tensor has been cleared, which closes its group."""
        return not self._group

    @contextmanager
    def _changing(self, nbytes: int | None) -> Iterator[None]:
        """Hold the lock of the file during a change, as in `SharedFile.changing`."""
        with self._file.changing(self.owner, nbytes):
            self._check_there()
            yield

    def _check_there(self) -> None:
        """Raise StoreError if the tensor was cleared elsewhere."""
        if self._file.vanished:
            replaced = self._file.path.exists()
        elif self._is_gone:
            replaced = members.document_in(members.group_at(self._file.root, name_of(self.tensor_id))) is not None
        else:
            return
        raise (remade_elsewhere if replaced else cleared_elsewhere)(self.owner, self.tensor_id)


def _name(tile: Index) -> str:
    return ",".join(map(str, tile))


def _tile(name: str) -> Index:
    return tuple(map(int, name.split(",")))
