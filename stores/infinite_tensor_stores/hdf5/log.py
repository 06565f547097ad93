"""The partial tiles of one tensor in an HDF5 file: a log of parts per tile, each part a small dataset."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from typing import Any

import numpy as np

from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.report import Damage

_PART = re.compile(r"(?P<tile>-?\d+(,-?\d+)*)#(?P<number>\d{1,6})")


class PartLog:
    """Part n of the log of partial tile (i, j) is the dataset ``i,j#n``.

    Parameters
    ----------
    folder : h5py.Group
        The group that holds the datasets.
    place : str
        What names this tensor and its incarnation, and so, with the tile behind it, a partial tile.

    After `close` it holds nothing, and what is still written to it is dropped. Not safe for threads: the
    owner holds a lock.
    """

    def __init__(self, folder: Any, place: str) -> None:
        self._folder = folder
        self._place = place
        self._ends: dict[Index, int] = {}
        self._finished: set[Index] = set()
        for name in folder:
            found = _PART.fullmatch(name)
            if found is not None:
                tile, number = tuple([int(i) for i in found["tile"].split(",")]), int(found["number"])
                self._ends[tile] = max(self._ends.get(tile, 0), number + 1)

    def __len__(self) -> int:
        return len(self._ends) - len(self._finished)

    def close(self) -> None:
        """Forget the group of a tensor that is being cleared."""
        self._folder, self._ends, self._finished = None, {}, set()

    def place(self, tile: Index) -> str:
        """What names a partial tile of this tensor, and of no other."""
        return f"{self._place}/{','.join(map(str, tile))}"

    def tiles(self) -> list[Index]:
        """The tiles that have a log, also those whose log is finished."""
        return list(self._ends)

    def read(self, tile: Index) -> list[bytes | Exception]:
        """The parts that are stored of a partial tile, or what is wrong with them."""
        return [] if tile in self._finished else [data for _, data in self._parts(tile)]

    def append(self, tile: Index, part: bytes) -> None:
        """Add a part to the log of a partial tile."""
        if self._folder is None:
            return
        if tile in self._finished:
            self._delete(tile)
        # A store of this process that was dropped may still be adding parts: take the next number that is free.
        number = next(n for n in count(self._ends.get(tile, 0)) if _part(tile, n) not in self._folder)
        self._folder.create_dataset(_part(tile, number), data=np.frombuffer(part, dtype=np.uint8))
        self._ends[tile] = number + 1

    def finish(self, tiles: Iterable[Index]) -> None:
        """Delete the logs of tiles that are complete, as `prune` is called next."""
        self._finished.update(tile for tile in tiles if tile in self._ends)

    def delete(self, tiles: Iterable[Index]) -> None:
        """Delete the logs of tiles, whether or not these are complete; one that has none is no error."""
        for tile in tiles:
            if tile in self._ends:
                self._delete(tile)

    def prune(self) -> tuple[int, int]:
        """Delete the logs that are finished, once what took their place is safely in the file.

        Their space is used again at once: a kill would else find neither the log nor the complete tile.
        Returns how many parts were deleted, and the bytes that they took.
        """
        deleted = [self._delete(tile) for tile in list(self._finished)]
        return sum(parts for parts, _ in deleted), sum(size for _, size in deleted)

    def damages(self, tile: Index, *, repair: bool) -> list[Damage]:
        """Which parts of the log of a tile are damaged; deleted, where they are to be repaired."""
        found = []
        for name, data in self._parts(tile):
            reason = self._wrong_with(tile, data)
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
        """The bytes that all parts take."""
        # Not `values()`: it holds h5py's lock until it is exhausted, for ever where an error that is kept keeps it.
        return sum(self._folder[name].id.get_storage_size() for name in list(self._folder))

    def _parts(self, tile: Index) -> list[tuple[str, bytes | Exception]]:
        if self._folder is None:
            return []
        names = [_part(tile, number) for number in range(self._ends.get(tile, 0))]
        return [(name, self._part_in(name)) for name in names if name in self._folder]

    def _part_in(self, name: str) -> bytes | Exception:
        try:
            found = self._folder[name][()]
            return bytes(found.tobytes())
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises what it pleases on a damaged file)
            return error

    def _delete(self, tile: Index) -> tuple[int, int]:
        deleted, size = 0, 0
        # Forgotten last: what is interrupted goes on at the next call.
        for number in range(self._ends.get(tile, 0)):
            if self._folder is not None and _part(tile, number) in self._folder:
                size += self._folder[_part(tile, number)].id.get_storage_size()
                del self._folder[_part(tile, number)]
                deleted += 1
        self._ends.pop(tile, None)
        self._finished.discard(tile)
        return deleted, size


def _part(tile: Index, number: int) -> str:
    return f"{','.join(map(str, tile))}#{number}"
