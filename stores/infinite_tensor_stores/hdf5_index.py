"""Which slot of an HDF5 dataset holds which tile, in little memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.window import Index, IntArray

_MERGE_ABOVE = 4096


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
        return len(self._slots) + len(self._newest)

    def find(self, tiles: Sequence[Index]) -> IntArray:
        """The slot of each tile, or -1."""
        slots = np.array([self._newest.get(tile, -1) for tile in tiles], dtype=np.int64)
        rest = np.flatnonzero(slots < 0)
        if len(rest) and len(self._slots):
            keys = _keys(np.array([tiles[number] for number in rest.tolist()], dtype=np.int64))
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            slots[rest] = np.where(self._keys[at] == keys, self._slots[at], -1)
        return slots

    def add(self, tiles: Sequence[Index], slots: Sequence[int]) -> None:
        """Enter tiles that are not there."""
        self._newest.update(zip(tiles, slots, strict=True))
        if len(self._newest) > max(_MERGE_ABOVE, len(self._slots) // 16):
            keys = _keys(np.array(list(self._newest), dtype=np.int64))
            newest = np.fromiter(self._newest.values(), dtype=np.int64)
            self._keys, self._slots = _sorted(np.concatenate([self._keys, keys]), np.concatenate([self._slots, newest]))
            self._newest = {}


def _keys(tiles: IntArray) -> npt.NDArray[Any]:
    """One bytes value per row that sorts as the row does, exact for every int64."""
    raw = np.ascontiguousarray(tiles).view(np.uint64) ^ np.uint64(1 << 63)
    return raw.astype(">u8").view(f"S{8 * tiles.shape[1]}").reshape(-1)


def _sorted(keys: npt.NDArray[Any], slots: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
    order = np.argsort(keys)
    return keys[order], slots[order]
