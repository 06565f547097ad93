"""What lies in an HDF5 file: complete tiles in slots of one dataset, partial tiles as a log of small ones.

HDF5 cannot hold a dataset of 2**52 by 2**52 pixels, and a dataset per tile is slow. So tiles lie one behind
the other, each a chunk of its own, and a table beside them tells which tile a slot holds:

    <group>/definition      JSON
    <group>/tiles           (slots, *tile)
    <group>/index           int64 (slots, ndim + 1): tile index, then checksum; -1 in an unused slot
    <group>/partial/<i,j#n> uint8: part n of the log of partial tile (i, j)
"""

from __future__ import annotations

import json
import math
import os
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.definition import dtype_of
from infinite_tensor.errors import StoreError
from infinite_tensor.window import Index, IntArray
from infinite_tensor_stores.hdf5_index import TileIndex

Block: TypeAlias = npt.NDArray[Any]

_BATCH_BYTES = 2**20
_UNUSED = -1


class TensorGroup:
    """The tiles of one tensor in its HDF5 group.

    Parameters
    ----------
    group : h5py.Group
        The group, as `create` made it.
    definition : mapping
        The tensor's definition, with its incarnation.

    After `let_go` it holds nothing, and what is still written to it is dropped. Not safe for threads: the
    owner holds a lock.
    """

    def __init__(self, group: Any, definition: Mapping[str, Any]) -> None:
        self.name = group.name
        self.incarnation = definition["incarnation"]
        self._seed = zlib.crc32(self.incarnation.encode())
        self._tile_shape = tuple(definition["tile_size"])
        ndim = len(self._tile_shape)
        self._data, self._table = _uncached(group, "tiles"), group["index"]
        if self._data.shape[1:] != self._tile_shape or self._table.shape[1:] != (ndim + 1,):
            raise StoreError(f"group {self.name} does not hold tiles of shape {self._tile_shape}; it may be damaged")
        self._log = group["partial"]
        self.dtype = dtype_of(definition["dtype"])
        self.batch = max(1, _BATCH_BYTES // (math.prod(self._tile_shape) * self.dtype.itemsize))
        rows = self._table[: self._data.shape[0]]
        self._checksums: IntArray = rows[:, ndim].copy()
        used = np.flatnonzero(self._checksums != _UNUSED)
        self._index = TileIndex(rows[used, :ndim], used)
        self._end = int(used[-1]) + 1 if len(used) else 0
        self._vacant: list[int] = np.setdiff1d(np.arange(self._end), used, assume_unique=True).tolist()
        self._parts: dict[Index, int] = {}
        for name in self._log:
            tile, number = _parse(name)
            self._parts[tile] = max(self._parts.get(tile, 0), number + 1)
        logged = list(self._parts)
        complete = self._index.find(logged) >= 0
        self._finished = {tile for tile, done in zip(logged, complete.tolist(), strict=True) if done}

    @staticmethod
    def create(group: Any, definition: Mapping[str, Any], dtype: np.dtype[Any], filters: Mapping[str, Any]) -> None:
        """Fill an empty group. The definition comes last: without it the rest is garbage."""
        tile, row = tuple(definition["tile_size"]), len(definition["tile_size"]) + 1
        group.create_dataset(
            "tiles", shape=(0, *tile), maxshape=(None, *tile), chunks=(1, *tile), dtype=dtype, **filters
        )
        group.create_dataset(
            "index", shape=(0, row), maxshape=(None, row), chunks=(256, row), dtype=np.int64, fillvalue=_UNUSED
        )
        group.create_group("partial")
        group.create_dataset("definition", data=np.bytes_(json.dumps(definition, allow_nan=False)))

    def place(self, tile: Index) -> str:
        """What names a partial tile of this tensor, and of no other."""
        return f"{self.name}/partial-{self.incarnation}/{','.join(map(str, tile))}"

    def let_go(self) -> None:
        """Close the datasets of a tensor that is being cleared: HDF5 frees their space only then."""
        self._data = self._table = self._log = None

    # Complete tiles.

    def read(self, tiles: Sequence[Index]) -> list[Block | Exception | None]:
        """The block of each tile, None where there is none, or what is wrong with it."""
        if self._data is None:
            return [None] * len(tiles)
        slots = self._index.find(tiles)
        order = np.argsort(slots, kind="stable")
        order = order[np.searchsorted(slots[order], 0) :]
        found: list[Block | Exception | None] = [None] * len(tiles)
        for run in _runs(slots[order]):
            numbers = order[run].tolist()
            for number, block in zip(numbers, self._read_run(int(slots[numbers[0]]), len(numbers)), strict=True):
                intact = isinstance(block, Exception) or self._checksums[slots[number]] == self._checksum(
                    tiles[number], block
                )
                found[number] = block if intact else ValueError("its checksum does not match")
        return found

    def _read_run(self, first: int, length: int) -> list[Block | Exception]:
        try:
            blocks = self._data[first : first + length]
        except (OSError, RuntimeError) as error:
            if length == 1:
                return [error]
            # One of many is damaged: find out which.
            return [self._read_run(slot, 1)[0] for slot in range(first, first + length)]
        # Copies, so that one tile that is kept does not keep its neighbours in memory.
        return [block.copy() for block in blocks] if length > 1 else [blocks[0]]

    def write(self, tiles: Mapping[Index, Block]) -> None:
        """Store tiles, new ones in slots that are free, others in the slots that they have."""
        if self._data is None:
            return
        indices, blocks = list(tiles), list(tiles.values())
        slots = self._index.find(indices)
        fresh = np.flatnonzero(slots < 0)
        reused = self._vacant[: len(fresh)]
        end = self._end + len(fresh) - len(reused)
        slots[fresh] = [*reused, *range(self._end, end)]
        self._grow(end)
        # Taken even if the write fails: HDF5 may refuse to write again a chunk that met a full disk.
        del self._vacant[: len(reused)]
        self._end = end
        checksums = [self._checksum(index, block) for index, block in zip(indices, blocks, strict=True)]
        rows = np.column_stack([np.array(indices, dtype=np.int64), np.array(checksums, dtype=np.int64)])
        order = np.argsort(slots)
        runs = [(int(slots[order[run][0]]), order[run]) for run in _runs(slots[order])]
        # First what a row of the index promises, then the row.
        for first, run in runs:
            self._data[first : first + len(run)] = np.stack([blocks[number] for number in run.tolist()])
        for first, run in runs:
            self._table[first : first + len(run)] = rows[run]
        self._checksums[slots] = checksums
        self._index.add([indices[number] for number in fresh], slots[fresh].tolist())

    def _grow(self, end: int) -> None:
        """Make room; slots that are not written take no space in the file."""
        if end > len(self._checksums):
            length = max(256, 2 * end)
            self._data.resize(length, axis=0)
            self._table.resize(length, axis=0)
            more = np.full(length - len(self._checksums), _UNUSED, dtype=np.int64)
            self._checksums = np.concatenate([self._checksums, more])

    def _checksum(self, tile: Index, block: Block) -> int:
        """CRC-32 of a tile, its place and the tensor's incarnation: another's pixels never pass for its own."""
        return zlib.crc32(
            np.ascontiguousarray(block).data, zlib.crc32(struct.pack(f"<{len(tile)}q", *tile), self._seed)
        )

    # Partial tiles.

    def read_log(self, tile: Index) -> list[bytes | Exception]:
        """The parts that are stored of a partial tile, or what is wrong with them."""
        if self._log is None or tile in self._finished:
            return []
        parts: list[bytes | Exception] = []
        for number in range(self._parts.get(tile, 0)):
            try:
                parts.append(self._log[_part(tile, number)][()].tobytes())
            except (OSError, RuntimeError, KeyError) as error:
                parts.append(error)
        return parts

    def append(self, tile: Index, part: bytes) -> None:
        """Add a part to the log of a partial tile."""
        if self._log is None:
            return
        if tile in self._finished:
            self._delete(tile)
        # A store of this process that was dropped may still be adding parts: take the next number that is free.
        number = next(n for n in count(self._parts.get(tile, 0)) if _part(tile, n) not in self._log)
        self._log.create_dataset(_part(tile, number), data=np.frombuffer(part, dtype=np.uint8))
        self._parts[tile] = number + 1

    def finish(self, tile: Index) -> None:
        """Delete the log of a partial tile, as `prune` is called next."""
        if tile in self._parts:
            self._finished.add(tile)

    def prune(self) -> None:
        """Delete the logs that are finished, once what took their place is safely in the file.

        Their space is used again at once: a kill would else find neither the log nor the complete tile.
        """
        if self._log is not None:
            for tile in list(self._finished):
                self._delete(tile)

    def _delete(self, tile: Index) -> None:
        for number in range(self._parts.pop(tile)):
            if _part(tile, number) in self._log:
                del self._log[_part(tile, number)]
        self._finished.discard(tile)

    def describe(self) -> tuple[int, int, int]:
        """How many tiles are complete, how many partial, and the bytes that all of it takes."""
        logs = sum(part.id.get_storage_size() for part in self._log.values())
        stored = self._data.id.get_storage_size() + self._table.id.get_storage_size() + logs
        return len(self._index), len(self._parts) - len(self._finished), stored


class SharedFile:
    """An open HDF5 file, shared by all stores of this process that name it: two would write over each other."""

    def __init__(self, h5: Any, writable: bool) -> None:
        self.h5 = h5
        self.writable = writable
        self.lock = threading.RLock()
        self.groups: dict[str, TensorGroup] = {}
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.process = os.getpid()
        self._flushed = time.monotonic()

    def group(self, name: str, definition: Mapping[str, Any]) -> TensorGroup:
        """The tiles of the tensor in group `name`."""
        with self.lock:
            known = self.groups.get(name)
            if known is None or known.incarnation != definition["incarnation"]:
                known = self.groups[name] = TensorGroup(self.h5[name], definition)
            return known

    def delete(self, name: str) -> None:
        """Delete a group, its definition first: without it the rest is garbage."""
        with self.lock:
            if name not in self.h5:
                return
            if "definition" in self.h5[name]:
                del self.h5[name]["definition"]
                self.flush()
            known = self.groups.pop(name, None)
            if known is not None:
                known.let_go()
            del self.h5[name]

    def flush(self, older_than: float = 0.0) -> None:
        """Bring everything into the file, unless that was done less than `older_than` seconds ago."""
        with self.lock:
            if self.process == os.getpid() and time.monotonic() - self._flushed >= older_than:
                self.h5.flush()
                for group in self.groups.values():
                    group.prune()
                self._flushed = time.monotonic()

    def release(self, user: object) -> None:
        """Close the file if nobody else uses it."""
        with self.lock:
            self.users.discard(user)
            if not self.users:
                self.h5.close()


def import_h5py() -> Any:
    """The module h5py, imported when a store is made; ImportError that says how to install it."""
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ImportError('HDF5TileStore needs h5py: pip install "infinite-tensor[hdf5]"') from error


def _uncached(group: Any, name: str) -> Any:
    """A dataset without HDF5's own cache of chunks: the store has one of tiles."""
    h5py = import_h5py()
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(1, 0, 1.0)
    return h5py.Dataset(h5py.h5d.open(group.id, name.encode(), access))


def _runs(slots: IntArray) -> Iterator[slice]:
    """Where ascending slots lie next to each other."""
    ends = [*(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
    return (slice(a, b) for a, b in zip([0, *ends], ends, strict=False) if a < b)


def _part(tile: Index, number: int) -> str:
    return f"{','.join(map(str, tile))}#{number}"


def _parse(name: str) -> tuple[Index, int]:
    tile, _, number = name.partition("#")
    return tuple(int(i) for i in tile.split(",")), int(number)
