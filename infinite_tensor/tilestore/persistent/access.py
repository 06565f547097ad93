"""Access to the tiles of a persistent store during a read."""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.geometry.points import Index, IntArray, as_tuples, rows_of
from infinite_tensor.support.allocation import Array, as_array
from infinite_tensor.tilestore.contents import Access, Blended, BlendedForRead, Tiles
from infinite_tensor.tilestore.inventory import NOTHING, Known, missing_windows
from infinite_tensor.tilestore.layout import Record, copy_shared
from infinite_tensor.tilestore.partial import TileInProgress
from infinite_tensor.tilestore.persistent.cache import TileCache
from infinite_tensor.tilestore.persistent.storage import Entry


class TileAccess(Access):
    """Tiles of a tensor in a persistent store, as needed by a read.

    Keeps references to complete tiles. Pins tiles in progress, so that they stay in the cache.

    Parameters
    ----------
    check_open : callable
        Raises StoreError if the store has been closed.
    cache : TileCache
        The tiles of the store.
    record : Record
        The tensor.
    """

    keeps_outputs = False

    def __init__(self, check_open: Callable[[], None], cache: TileCache, record: Record) -> None:
        self._check_open = check_open
        self._cache = cache
        self._record = record
        self._tiles: dict[Index, Entry] = {}
        self._taken: Tiles | None = None
        self._fetching = threading.Lock()
        self._reader: weakref.ref[object] = weakref.ref(self)
        self._blended = BlendedForRead()

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Fetch the tiles of the regions; see `Access.add`."""
        self._blended.extend(starts, stops)
        grid, layout = self._record.spec.grid, self._record.layout
        touched = layout.grid.indices(starts, stops)
        self._fetch(touched)
        if not [tile for tile in touched if isinstance(self._tiles[tile], TileInProgress)]:
            return np.empty((0, grid.ndim), dtype=np.int64)
        with self._cache.lock:
            missing = missing_windows(grid, layout, starts, stops, self._known)
        if len(missing):
            self._cache.make_room()
        return missing

    def _known(self, tile: Index) -> Known | None:
        entry = self._tiles[tile]
        if not isinstance(entry, TileInProgress):
            return None
        return NOTHING if entry.empty else entry

    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """Fetch tiles; see `Access.whole`."""
        self._cache.look_again(self._record, [tile for tile in tiles if tile not in self._tiles])
        self._fetch(tiles)
        with self._cache.lock:
            return [tile for tile in tiles if self._is_whole(tile)]

    def _is_whole(self, tile: Index) -> bool:
        known, layout = self._known(tile), self._record.layout
        return known is None or all(
            index in known for index in _box(*self._record.spec.grid.box(layout.start(tile), layout.stop(tile)))
        )

    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Look for windows in the tiles in memory again; see `Access.absent`."""
        low, high = self._tiles_of(windows)
        with self._cache.lock:
            return np.array(
                [
                    any(self._lacks(tile, index) for tile in _box(a, b))
                    for index, a, b in zip(map(tuple, windows.tolist()), low.tolist(), high.tolist(), strict=True)
                ],
                dtype=bool,
            )

    def _lacks(self, tile: Index, window: Index) -> bool:
        entry = self._tiles.get(tile)
        return isinstance(entry, TileInProgress) and window not in entry

    def _tiles_of(self, windows: IntArray) -> tuple[IntArray, IntArray]:
        return self._record.layout.grid.boxes(*self._record.spec.grid.bounds(windows))

    def deposit(self, windows: IntArray, outputs: Array) -> None:
        """Cut windows at tile borders, and blend each piece into a tile."""
        array = as_array(outputs.cpu()) if isinstance(outputs, torch.Tensor) else outputs
        pieces = [piece for begin, end in self._rows_of(windows) for piece in self._pieces(windows, begin, end)]
        if self._taken is not None:
            pieces = [piece for piece in pieces if piece[0] in self._taken]
        self._fetch([tile for tile, _, _ in pieces])
        self._blended.look_again()
        indices = as_tuples(windows)
        with self._cache.lock:
            changed: dict[Index, TileInProgress] = {}
            for tile, begin, end in pieces:
                entry = self._tiles[tile]
                if isinstance(entry, TileInProgress) and not entry.complete:
                    entry.add_row(indices[begin], array[begin:end])
                    changed[tile] = entry
            self._cache.changed(self._record, changed.values())
        self._cache.make_room()

    def _rows_of(self, windows: IntArray) -> Iterable[tuple[int, int]]:
        if self._record.spec.grid.row_dim is None:
            return itertools.pairwise(range(len(windows) + 1))
        return rows_of(windows)

    def _pieces(self, windows: IntArray, begin: int, end: int) -> Iterator[tuple[Index, int, int]]:
        """Find the tiles touched by ``windows[begin:end]``.

        Yield ``(tile, first, last)`` for each tile: only ``windows[first:last]`` touch this tile.
        """
        grid, layout, d = self._record.spec.grid, self._record.layout, self._record.spec.grid.row_dim
        start = grid.window.start(tuple(windows[begin].tolist()))
        stop = list(map(operator.add, grid.window.start(tuple(windows[end - 1].tolist())), grid.window.size))
        for tile in _box(*layout.box(*grid.inside(start, stop))):
            first, last = begin, end
            if d is not None:
                size, stride, tile_size = grid.window.size[d], grid.window.stride[d], layout.tile_shape[d]
                before = tile[d] * tile_size - start[d]
                first = max(begin, begin + (before - size) // stride + 1)
                last = min(end, begin - (-(before + tile_size) // stride))
            if first < last:
                yield tile, first, last

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Copy a region from tiles to `out`."""
        block = out if out.device.type == "cpu" else torch.empty(out.shape, dtype=out.dtype, device="cpu")
        target, layout = as_array(block), self._record.layout
        stop = list(map(operator.add, start, out.shape))
        low, high = layout.box(start, stop)
        for tile in _box(low, high):
            entry = self._tiles[tile]
            pixels = entry.pixels if isinstance(entry, TileInProgress) else as_array(entry)
            if not isinstance(entry, TileInProgress) or pixels is not None:
                copy_shared(pixels, layout.start(tile), target, start)
            elif blended := self._blended_tile(tile, entry):
                copy_shared(blended.pixels, blended.start, target, start)
            else:
                begin, to = layout.part(tile, start, stop)
                with self._cache.lock:
                    entry.read(target[to], begin)
        if block is not out:
            out.copy_(block)

    def _blended_tile(self, tile: Index, entry: TileInProgress) -> Blended | None:
        return self._blended.get(tile, partial(self._blend, tile, entry)) if self._blended.worthwhile else None

    def _blend(self, tile: Index, entry: TileInProgress) -> Blended | None:
        start, stop = self._blended.cut(self._record.layout.start(tile), self._record.layout.stop(tile))
        with self._cache.lock:
            if not all(index in entry for index in _box(*self._record.spec.grid.box(start, stop))):
                return None
            shape = [b - a for a, b in zip(start, stop, strict=True)]
            pixels = as_array(torch.empty(shape, dtype=self._record.spec.dtype, device="cpu"))
            entry.read(pixels, start)
        return Blended(start, stop, pixels)

    def keep(self, start: Sequence[int] | None) -> None:
        """Release the tiles before `start`; see `Access.keep`."""
        layout = self._record.layout
        gone = [
            tile
            for tile in self._tiles
            if start is None or any(end <= begin for end, begin in zip(layout.stop(tile), start, strict=True))
        ]
        self._blended.keep(start)
        pinned = [tile for tile in gone if isinstance(self._tiles.pop(tile), TileInProgress)]
        self._cache.unpin(self._record, pinned, self._reader)

    def confine(self, tiles: Tiles) -> None:
        """Store only the pieces of windows in the given tiles; see `Access.confine`."""
        self._taken = tiles

    @property
    def outdated(self) -> bool:
        """Whether the store has replaced or removed the record of the tensor."""
        return not self._record.current

    def detach(self) -> None:
        """Turn off storing; see `Access.detach`.

        From now on, the read passes a copy of the record to the cache. The copy is not `current`, so the cache stores
        nothing.
        """
        self._record = replace(self._record, current=False)

    def close(self) -> None:
        """Release all tiles."""
        self.keep(None)

    def _fetch(self, tiles: Iterable[Index]) -> None:
        self._check_open()
        with self._fetching:
            wanted = [tile for tile in dict.fromkeys(tiles) if tile not in self._tiles]
            if wanted:
                self._cache.fetch(self._record, wanted, self._reader, self._tiles)
                # If the store was closed meanwhile, stored tiles may have looked missing.
                self._check_open()


def _box(low: Sequence[int], high: Sequence[int]) -> Iterator[Index]:
    return itertools.product(*map(range, low, high))
