"""Which slot of an HDF5 dataset holds which tile, in little memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.geometry.points import Index, IntArray, as_tuples, inside

_MERGE_ABOVE = 4096
_ABSENT = -1
_UNKNOWN = -2


class TileIndex:
    """Which slot holds which tile.

    Most of it is two sorted arrays, which take a tenth of a dictionary's memory; the newest entries wait in
    a dictionary, so that one more costs no move of all the others.

    Parameters
    ----------
    tiles : int64 array of shape (N, ndim)
        Indices of tiles.
    slots : int64 array of shape (N,)
        The slot of each.
    """

    def __init__(self, tiles: IntArray, slots: IntArray) -> None:
        self._newest: dict[Index, int] = {}
        self._keys, self._slots = _sorted(_keys(tiles), slots)

    def __len__(self) -> int:
        if self._newest:
            self._merge()
        return len(self._slots)

    def find(self, tiles: Sequence[Index]) -> IntArray:
        """The slot of each tile, or -1."""
        slots = np.array([self._newest.get(tile, _UNKNOWN) for tile in tiles], dtype=np.int64)
        rest = np.flatnonzero(slots == _UNKNOWN)
        if not len(self._slots):
            slots[rest] = _ABSENT
        elif len(rest):
            keys = _keys(np.array([tiles[number] for number in rest.tolist()], dtype=np.int64))
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            slots[rest] = np.where(self._keys[at] == keys, self._slots[at], _ABSENT)
        return slots

    def tiles_in(self, slots: Sequence[int]) -> list[Index]:
        """The tiles that these slots hold."""
        wanted = set(slots)
        found = [tile for tile, slot in self._newest.items() if slot in wanted]
        rows = _tiles(self._keys[np.isin(self._slots, slots)]).tolist()
        return found + [tile for tile in map(tuple, rows) if tile not in self._newest]

    def tiles_within(self, low: Sequence[int], high: Sequence[int]) -> set[Index]:
        """The tiles of a box ``[low, high)`` that have a slot."""
        rows = _tiles(self._keys)
        within = ((rows >= low) & (rows < high)).all(axis=1)
        found = set(as_tuples(rows[within])) - self._newest.keys()
        newest = [tile for tile, slot in self._newest.items() if slot != _ABSENT]
        return found | {tile for tile in newest if inside(tile, low, high)}

    def put(self, tiles: Sequence[Index], slots: Sequence[int]) -> None:
        """Enter tiles, or give other slots to those that are there; -1 takes a tile out."""
        self._newest.update(zip(tiles, slots, strict=True))
        if len(self._newest) > max(_MERGE_ABOVE, len(self._slots) // 16):
            self._merge()

    def _merge(self) -> None:
        """Bring the newest entries into the sorted arrays."""
        keys = _keys(np.array(list(self._newest), dtype=np.int64))
        slots = np.fromiter(self._newest.values(), dtype=np.int64)
        kept = ~np.isin(self._keys, keys)
        there = slots != _ABSENT
        merged = np.concatenate([self._keys[kept], keys[there]]), np.concatenate([self._slots[kept], slots[there]])
        self._keys, self._slots = _sorted(*merged)
        self._newest = {}


def _keys(tiles: IntArray) -> npt.NDArray[Any]:
    """One bytes value per row that sorts as the row does, exact for every int64."""
    raw = np.ascontiguousarray(tiles).view(np.uint64) ^ np.uint64(1 << 63)
    return raw.astype(">u8").view(f"S{8 * tiles.shape[1]}").reshape(-1)


def _tiles(keys: npt.NDArray[Any]) -> IntArray:
    """The rows that `_keys` made these of."""
    raw = np.frombuffer(keys.tobytes(), dtype=">u8").astype(np.uint64) ^ np.uint64(1 << 63)
    return raw.view(np.int64).reshape(len(keys), keys.dtype.itemsize // 8)


def _sorted(keys: npt.NDArray[Any], slots: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
    order = np.argsort(keys)
    return keys[order], slots[order]
