"""The HDF5 group of one tensor: complete tiles in slots, and logs.

HDF5 cannot store a dataset of 2**52 by 2**52 pixels, and one dataset per tile is slow. So tiles are stored one after
the other in one dataset, each as a chunk (a slot), and a table tells which tile is in which slot:

    <group>/definition      JSON
    <group>/tiles           (slots, *tile)
    <group>/index           int64 (slots, ndim + 1): tile index, then checksum; -1 in an unused slot
    <group>/partial/<i,j#n> uint8: part n of the log of partial tile (i, j)
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.geometry.points import Index, IntArray, as_tuples, inside
from infinite_tensor.tilestore.inventory import Damage
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.documents import largest_part, layout_of
from infinite_tensor.values.dtypes import stored_dtype
from infinite_tensor_stores.files import LARGEST_DOCUMENT
from infinite_tensor_stores.hdf5.members import (
    DEFINITION,
    check_chunks,
    check_own,
    check_size,
    import_h5py,
    put_document,
)

_BATCH_BYTES = 2**20
_UNUSED = -1

_PART = re.compile(r"(?P<tile>-?\d+(,-?\d+)*)#(?P<number>\d{1,6})")


class TileIndex:
    """A mapping from tiles to slots.

    Two sorted arrays take a tenth of the memory of a dictionary.

    Parameters
    ----------
    tiles : int64 array of shape (N, ndim)
        Indices of tiles.
    slots : int64 array of shape (N,)
        The slot of each tile.
    """

    def __init__(self, tiles: IntArray, slots: IntArray) -> None:
        self._keys, self._slots = _sorted(_keys(tiles), slots)

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, tiles: Sequence[Index]) -> IntArray:
        """Return the slot of each tile, or -1."""
        if not tiles or not len(self._slots):
            return np.full(len(tiles), _UNUSED, dtype=np.int64)
        keys = _keys(np.array(tiles, dtype=np.int64))
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._slots[at], _UNUSED)

    def tiles_in(self, slots: Sequence[int]) -> list[Index]:
        """Return the tiles in `slots`."""
        return as_tuples(_tiles(self._keys[np.isin(self._slots, slots)]))

    def tiles_within(self, low: Sequence[int], high: Sequence[int]) -> set[Index]:
        """Return the tiles with a slot in the box ``[low, high)``."""
        rows = _tiles(self._keys)
        return set(as_tuples(rows[((rows >= low) & (rows < high)).all(axis=1)]))

    def put(self, tiles: Sequence[Index], slots: Sequence[int]) -> None:
        """Set the slots of tiles, new or known.

        The slot -1 removes a tile.
        """
        if not tiles:
            return
        there = self.find(tiles) != _UNUSED
        keys, given = _keys(np.array(tiles, dtype=np.int64)), np.array(slots, dtype=np.int64)
        self._slots[np.searchsorted(self._keys, keys[there])] = given[there]
        new, slots_of_new = _sorted(keys[~there], given[~there])
        at = np.searchsorted(self._keys, new)
        # Moving all later entries takes little time compared to writing the pixels.
        self._keys, self._slots = np.insert(self._keys, at, new), np.insert(self._slots, at, slots_of_new)
        if _UNUSED in slots:
            kept = self._slots != _UNUSED
            self._keys, self._slots = self._keys[kept], self._slots[kept]


def _keys(tiles: IntArray) -> npt.NDArray[Any]:
    """Convert each tile to bytes, for sorting and searching.

    The bytes compare like the tuples of indices.
    """
    raw = np.ascontiguousarray(tiles).view(np.uint64) ^ np.uint64(1 << 63)
    return raw.astype(">u8").view(f"S{8 * tiles.shape[1]}").reshape(-1)


def _tiles(keys: npt.NDArray[Any]) -> IntArray:
    """Convert the result of `_keys` back to tiles."""
    raw = np.frombuffer(keys.tobytes(), dtype=">u8").astype(np.uint64) ^ np.uint64(1 << 63)
    return raw.view(np.int64).reshape(len(keys), keys.dtype.itemsize // 8)


def _sorted(keys: npt.NDArray[Any], slots: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
    order = np.argsort(keys)
    return keys[order], slots[order]


class PartLog:
    """The logs of partial tiles.

    Part n of the log of tile (i, j) is the dataset ``i,j#n``.

    Parameters
    ----------
    folder : h5py.Group
        The group with the datasets.
    place : str
        The name of the tensor and its incarnation. The method `place` adds the index of a tile.
    most : int
        The largest allowed size of a part, in bytes.

    After `close`, there are no logs, and writing does nothing. Not safe for threads: the owner holds a lock.
    """

    def __init__(self, folder: Any, place: str, most: int) -> None:
        self._folder = folder
        self._place = place
        self._most = most
        self._ends: dict[Index, int] = {}
        for name in folder:
            found = _PART.fullmatch(name)
            if found is not None:
                tile, number = tuple([int(i) for i in found["tile"].split(",")]), int(found["number"])
                self._ends[tile] = max(self._ends.get(tile, 0), number + 1)

    def close(self) -> None:
        """Close the logs of a tensor being cleared."""
        self._folder, self._ends = None, {}

    def place(self, tile: Index) -> str:
        """Return the unique name of a partial tile.

        The name includes the tensor and the incarnation.
        """
        return f"{self._place}/{','.join(map(str, tile))}"

    def tiles(self) -> list[Index]:
        """Return the tiles with a log."""
        return list(self._ends)

    def read(self, tile: Index) -> list[bytes | Exception]:
        """Return the stored parts of a partial tile.

        A damaged part is an exception.
        """
        return list(map(self._part_in, self._names(tile)))

    def append(self, tile: Index, part: bytes) -> None:
        """Add a part to the log of a partial tile."""
        if self._folder is None:
            return
        # A dropped store of this process may still be adding parts, so take the next free number.
        number = next(n for n in itertools.count(self._ends.get(tile, 0)) if _part(tile, n) not in self._folder)
        self._folder.create_dataset(_part(tile, number), data=np.frombuffer(part, dtype=np.uint8))
        self._ends[tile] = number + 1

    def delete(self, tiles: Iterable[Index]) -> tuple[int, int]:
        """Delete the logs of tiles.

        Return the number of parts and their size. A missing log is not an error.
        """
        parts = size = 0
        for tile in tiles:
            names = self._names(tile)
            size += sum(self._folder[name].id.get_storage_size() for name in names)
            parts += len(names)
            for name in names:
                del self._folder[name]
            # Remove the entry last. After an interrupt, the next call can then finish.
            self._ends.pop(tile, None)
        return parts, size

    def damages(self, tile: Index, *, repair: bool) -> list[Damage]:
        """List the damaged parts in the log of a tile.

        If `repair` is True, the damaged parts are deleted.
        """
        found = []
        for name in self._names(tile):
            reason = self._wrong_with(tile, self._part_in(name))
            if reason is not None:
                found.append(Damage("partial", tile, f"{self._folder.name}/{name}", reason))
                if repair:
                    del self._folder[name]
        return found

    def _wrong_with(self, tile: Index, data: bytes | Exception) -> str | None:
        if isinstance(data, Exception):
            return str(data)
        try:
            PartialTile.from_bytes(data, self.place(tile))
        except ValueError as error:
            return str(error)
        return None

    def size(self) -> int:
        """Return the size of all parts in bytes."""
        # Not `values()`: it holds h5py's lock until it is exhausted, or forever, if a kept error keeps it alive.
        return sum(self._folder[name].id.get_storage_size() for name in list(self._folder))

    def _names(self, tile: Index) -> list[str]:
        if self._folder is None:
            return []
        return [name for number in range(self._ends.get(tile, 0)) if (name := _part(tile, number)) in self._folder]

    def _part_in(self, name: str) -> bytes | Exception:
        try:
            part = self._folder[name]
            check_size(part, self._most)
            return bytes(part[()].tobytes())
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises any exception on a damaged file)
            return error


def _part(tile: Index, number: int) -> str:
    return f"{','.join(map(str, tile))}#{number}"


Block: TypeAlias = npt.NDArray[Any]


class TileSlots:
    """The tiles of one tensor, in an HDF5 group.

    Parameters
    ----------
    group : h5py.Group
        The group, as `create` made it.
    definition : mapping
        The tensor's definition, with its incarnation.

    Raises
    ------
    ValueError
        If the content of the group does not match the definition.

    After `close`, there are no tiles, and writing does nothing. Not safe for threads: the owner holds a lock.
    """

    def __init__(self, group: Any, definition: Mapping[str, Any]) -> None:
        tensor, layout = layout_of(definition)
        self.name = group.name
        self.layout = layout
        self.incarnation = definition["incarnation"]
        self.batch = max(1, _BATCH_BYTES // layout.tile_bytes)
        self._seed = zlib.crc32(self.incarnation.encode())
        check_own(group, ("tiles", "index", "partial"))
        self._data, self._table = _uncached(group, "tiles"), group["index"]
        self._check_datasets(layout)
        rows = self._table[: self._data.shape[0]]
        self._checksums: IntArray = rows[:, -1].copy()
        used = np.flatnonzero(self._checksums != _UNUSED)
        self._index = TileIndex(rows[used, :-1], used)
        self._end = int(used[-1]) + 1 if len(used) else 0
        self._vacant: list[int] = np.setdiff1d(np.arange(self._end), used, assume_unique=True).tolist()
        self._largest_part = largest_part(tensor, layout)
        self.log = PartLog(group["partial"], _place_of(self.name, self.incarnation), self._largest_part)

    def _check_datasets(self, layout: TileLayout) -> None:
        wanted = np.dtype(stored_dtype(layout.dtype)), layout.tile_shape
        if (self._data.dtype, self._data.shape[1:]) != wanted:
            raise ValueError(f"{self._data.name} contains {self._data.dtype} of {self._data.shape[1:]}, not {wanted}")
        if (self._table.dtype, self._table.shape[1:]) != (np.dtype(np.int64), (len(layout.tile_shape) + 1,)):
            raise ValueError(f"{self._table.name} contains {self._table.dtype} of shape {self._table.shape}")
        check_chunks(self._data, layout.tile_bytes)
        # The table grows by doubling, so up to half of it may not be written yet.
        check_size(self._table, LARGEST_DOCUMENT + 2 * self._table.id.get_storage_size())

    @staticmethod
    def create(group: Any, definition: Mapping[str, Any], filters: Mapping[str, Any]) -> None:
        """Create the members of an empty group.

        The definition comes last: without it, the rest is garbage.
        """
        _, layout = layout_of(definition)
        tile, row = layout.tile_shape, len(layout.tile_shape) + 1
        dtype = stored_dtype(layout.dtype)
        group.create_dataset(
            "tiles", shape=(0, *tile), maxshape=(None, *tile), chunks=(1, *tile), dtype=dtype, **filters
        )
        group.create_dataset(
            "index", shape=(0, row), maxshape=(None, row), chunks=(256, row), dtype=np.int64, fillvalue=_UNUSED
        )
        group.create_group("partial")
        put_document(group, DEFINITION, json.dumps(definition, allow_nan=False))

    @property
    def gone(self) -> bool:
        """Whether the tensor has been cleared."""
        return self._data is None

    @property
    def drops(self) -> str:
        """A random text that changes whenever tiles are deleted."""
        return "" if self._table is None else str(self._table.attrs.get("drops", ""))

    def mark_drop(self) -> None:
        """Record a deletion of tiles, by a new random text in `drops`."""
        if self._table is not None:
            self._table.attrs["drops"] = secrets.token_hex(8)

    def close(self) -> None:
        """Close the datasets of a tensor being cleared.

        HDF5 frees the space of a dataset only after that.
        """
        self._data = self._table = None
        self._index = TileIndex(np.empty((0, len(self.layout.tile_shape)), np.int64), np.empty(0, np.int64))
        self.log.close()

    # Partial tiles. The log of a complete tile is garbage, and is not read.

    def read_logs(self, tiles: Sequence[Index]) -> list[list[bytes | Exception]]:
        """Return the stored log parts of each tile.

        A damaged part is an exception. A complete tile has no parts.
        """
        return [[] if done else self.log.read(tile) for tile, done in zip(tiles, self.has(tiles), strict=True)]

    def partial_tiles(self) -> list[Index]:
        """Return the incomplete tiles with a log."""
        logged = self.log.tiles()
        return [tile for tile, done in zip(logged, self.has(logged), strict=True) if not done]

    def prune(self) -> tuple[int, int]:
        """Delete the logs of complete tiles.

        Return the number of deleted parts and their size.

        Call this only after a flush. Otherwise a kill could destroy both the log and the complete tile.
        """
        logged = self.log.tiles()
        return self.log.delete(itertools.compress(logged, self.has(logged)))

    # Complete tiles.

    def read(self, tiles: Sequence[Index]) -> list[Block | Exception | None]:
        """Read the block of each tile.

        Return None for a missing tile, and an exception for a damaged tile.
        """
        if self._data is None:
            return [None] * len(tiles)
        slots = self._index.find(tiles)
        order = np.argsort(slots, kind="stable")
        order = order[np.searchsorted(slots[order], 0) :]
        found: list[Block | Exception | None] = [None] * len(tiles)
        for run in _runs(slots[order]):
            numbers = order[run].tolist()
            for number, block in zip(numbers, self._read_run(int(slots[numbers[0]]), len(numbers)), strict=True):
                found[number] = self._checked(tiles[number], block, self._checksums[slots[number]])
        return found

    def _read_run(self, first: int, length: int) -> list[Block | Exception]:
        try:
            blocks = self._data[first : first + length]
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises any exception on a damaged file)
            if length == 1:
                return [error]
            # Some block is damaged, so read each block separately.
            return [self._read_run(slot, 1)[0] for slot in range(first, first + length)]
        # Copy the blocks, because a tile must not keep neighbouring tiles in memory.
        return [block.copy() for block in blocks] if length > 1 else [blocks[0]]

    def write(self, tiles: Mapping[Index, Block]) -> None:
        """Store each tile in a free slot.

        The old slot of a tile becomes free. A write to the old slot might fail, if it is damaged or was written on a
        full disk.
        """
        if self._data is None:
            return
        indices, blocks = list(tiles), list(tiles.values())
        before = self._index.find(indices)
        reused = self._vacant[: len(tiles)]
        end = self._end + len(tiles) - len(reused)
        slots = np.array([*reused, *range(self._end, end)], dtype=np.int64)
        self._grow(end)
        # The slots count as used even if the write fails. The next attempt then uses others.
        del self._vacant[: len(reused)]
        self._end = end
        checksums = [self._checksum(index, block) for index, block in zip(indices, blocks, strict=True)]
        rows = np.column_stack([np.array(indices, dtype=np.int64), np.array(checksums, dtype=np.int64)])
        order = np.argsort(slots)
        runs = [(int(slots[order[run][0]]), order[run]) for run in _runs(slots[order])]
        # Write pixels before the index rows with references to them.
        for first, run in runs:
            self._data[first : first + len(run)] = np.stack([blocks[number] for number in run.tolist()])
        # Update memory before the rows. After a failed write, the next attempt then frees the written rows.
        self._checksums[slots] = checksums
        self._index.put(indices, slots.tolist())
        for first, run in runs:
            self._table[first : first + len(run)] = rows[run]
        self._free(before[before >= 0])

    def delete(self, tiles: Sequence[Index]) -> None:
        """Free the slots of tiles.

        A tile without a slot is not an error.
        """
        if self._data is None:
            return
        slots = self._index.find(tiles)
        there = np.flatnonzero(slots != _UNUSED)
        self._free(slots[there], [tiles[number] for number in there.tolist()])

    def _free(self, slots: IntArray, tiles: Sequence[Index] = ()) -> None:
        """Free slots, and remove `tiles` from the index.

        An interrupt may leave a slot unused, but never two tiles in one slot.
        """
        slots = np.sort(slots)
        for run in _runs(slots):
            self._table[int(slots[run][0]) : int(slots[run][-1]) + 1] = _UNUSED
        self._index.put(tiles, [_UNUSED] * len(tiles))
        self._checksums[slots] = _UNUSED
        self._vacant.extend({slot for slot in slots.tolist() if slot < self._end} - set(self._vacant))

    def _grow(self, end: int) -> None:
        """Add slots up to `end`, if necessary.

        Unwritten slots take no space in the file.
        """
        if end > len(self._checksums):
            length = max(256, 2 * end)
            self._data.resize(length, axis=0)
            self._table.resize(length, axis=0)
            more = np.full(length - len(self._checksums), _UNUSED, dtype=np.int64)
            self._checksums = np.concatenate([self._checksums, more])

    def _checksum(self, tile: Index, block: Block) -> int:
        """Return one CRC-32 of a block, its tile index and the incarnation.

        If the block of another tile is read by mistake, its checksum does not match.
        """
        return zlib.crc32(
            np.ascontiguousarray(block).data, zlib.crc32(struct.pack(f"<{len(tile)}q", *tile), self._seed)
        )

    # Reports.

    def damages(self, first: int, *, repair: bool) -> list[Damage]:
        """List the damaged tiles in a batch of slots.

        The batch begins with the slot `first`. If `repair` is True, the slots of damaged tiles are freed.
        """
        if self._data is None:
            return []
        stop = min(first + self.batch, self._data.shape[0], self._table.shape[0])
        rows = self._table[first:stop]
        used = np.flatnonzero(rows[:, -1] != _UNUSED)
        found, damaged = [], []
        for run in _runs(used):
            blocks = self._read_run(first + int(used[run][0]), len(used[run]))
            for number, block in zip(used[run].tolist(), blocks, strict=True):
                tile = tuple(rows[number, :-1].tolist())
                checked = self._checked(tile, block, rows[number, -1])
                if isinstance(checked, Exception):
                    found.append(Damage("tile", tile, f"{self.name}/tiles[{first + number}]", str(checked)))
                    damaged.append(first + number)
        if repair and damaged:
            self._drop(damaged)
        return found

    def _checked(self, tile: Index, block: Block | Exception, checksum: int) -> Block | Exception:
        if isinstance(block, Exception) or checksum == self._checksum(tile, block):
            return block
        return ValueError("its checksum does not match")

    def _drop(self, slots: list[int]) -> None:
        self._free(np.array(slots, dtype=np.int64), self._index.tiles_in(slots))

    def has(self, tiles: Sequence[Index]) -> list[bool]:
        """Return for each tile whether it is complete."""
        found: list[bool] = (self._index.find(tiles) >= 0).tolist()
        return found

    def find(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find complete tiles and logs in the box ``[low, high)``.

        Return the set of complete tiles, and the set of tiles with a log.
        """
        logged = {tile for tile in self.log.tiles() if inside(tile, low, high)}
        return self._index.tiles_within(low, high), logged

    def slots(self) -> range:
        """Return the number of the first slot in each batch.

        `damages` checks one batch at a time.
        """
        return range(0, 0 if self._data is None else len(self._checksums), self.batch)

    def describe(self) -> tuple[int, int, int]:
        """Return the numbers of complete and partial tiles, and the stored size."""
        stored = self._data.id.get_storage_size() + self._table.id.get_storage_size() + self.log.size()
        return len(self._index), len(self.partial_tiles()), stored


def _place_of(name: str, incarnation: str) -> str:
    return f"{name}/partial-{incarnation}"


def _uncached(group: Any, name: str) -> Any:
    """Open a dataset without HDF5's own cache of chunks.

    The store has a cache of tiles.
    """
    h5py = import_h5py()
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(1, 0, 1.0)
    return h5py.Dataset(h5py.h5d.open(group.id, name.encode(), access))


def _runs(slots: IntArray) -> Iterator[slice]:
    """Split ascending slots into runs of consecutive slots, given as slices."""
    ends = [*(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
    return (slice(a, b) for a, b in zip([0, *ends], ends, strict=False) if a < b)
