"""Access to the tiles of a tensor during a read."""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.geometry.points import Index, IntArray, as_tuples, rows_of
from infinite_tensor.support.allocation import Array, as_array, copied
from infinite_tensor.tilestore.cache import TileCache
from infinite_tensor.tilestore.inventory import NOTHING, Known, missing_windows
from infinite_tensor.tilestore.layout import Record, copy_shared
from infinite_tensor.tilestore.partial import TileInProgress
from infinite_tensor.tilestore.storage import Entry

_FEW_REGIONS = 8
"""If each call of `Access.add` has at most this many regions, each region blends incomplete tiles separately."""


class Tiles(Protocol):
    """The tiles given to `Access.confine`, tested by ``index in tiles``."""

    def __contains__(self, tile: Index, /) -> bool: ...


class Access:
    """Tiles of a tensor, as needed by a read.

    The read adds regions, deposits the missing windows, and then reads the regions. An access has its own references
    to complete tiles, and pins tiles in progress, so the limits of the store's cache never affect a read in progress.
    Several threads of a read may use an access at the same time, except for `add`, `keep` and `close`.

    Parameters
    ----------
    check_open : callable
        Raises StoreError if the store has been closed.
    cache : TileCache
        The tiles of the store.
    record : Record
        The tensor.

    Attributes
    ----------
    keeps_outputs : bool
        Whether the access keeps the arrays passed to `deposit`, so that the caller must not change them afterwards.
        If False, the caller may reuse them.
    """

    def __init__(self, check_open: Callable[[], None], cache: TileCache, record: Record) -> None:
        self._check_open = check_open
        self._cache = cache
        self._record = record
        # None is a tile without any window.
        self._tiles: dict[Index, Entry | None] = {}
        self._taken: Tiles | None = None
        self._fetching = threading.Lock()
        self._reader: weakref.ref[object] = weakref.ref(self)
        self._blended = BlendedForRead()
        self._takes_windows = cache.in_memory and record.takes_windows
        self.keeps_outputs = self._takes_windows and not cache.entries.limited

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Add regions to the read, fetch their tiles, and return the missing windows.

        Parameters
        ----------
        starts, stops : int64 array of shape (N, ndim)
            The regions in pixels.

        Returns
        -------
        int64 array of shape (M, ndim)
            Indices of the windows that are not stored, in lexicographic order.
        """
        self._blended.extend(starts, stops)
        grid, layout = self._record.spec.grid, self._record.layout
        touched = layout.grid.indices(starts, stops)
        self._fetch(touched)
        held = [self._tiles[tile] for tile in touched]
        if all(entry is None for entry in held):
            missing = grid.windows(starts, stops)
        elif any(entry is None or isinstance(entry, TileInProgress) for entry in held):
            with self._cache.lock:
                missing = missing_windows(grid, layout, starts, stops, self._known)
        else:
            return np.empty((0, grid.ndim), dtype=np.int64)
        if len(missing):
            self._cache.make_room()
        return missing

    def _known(self, tile: Index) -> Known | None:
        entry = self._tiles[tile]
        if entry is None:
            return NOTHING
        if not isinstance(entry, TileInProgress):
            return None
        return NOTHING if entry.empty else entry

    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """Return the complete tiles in `tiles`.

        Only the pixels of these tiles can then be read without a call of `add`.
        """
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
        """Return a mask of the windows still missing, out of windows returned by `add`.

        Windows deposited by other reads become part of this access, also if they are deposited after this call. Does no
        I/O.
        """
        grid = self._record.spec.grid
        places, owner = grid.places(windows)
        low, high = self._record.layout.grid.boxes(*grid.bounds(places))
        boxes = [list(_box(a, b)) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        with self._cache.lock:
            # Other reads share their windows through tiles in progress.
            self._begin(tile for box in boxes for tile in box)
            lacking = [
                any(self._lacks(tile, index) for tile in box)
                for index, box in zip(as_tuples(places), boxes, strict=True)
            ]
        found = np.array(lacking, dtype=bool)
        return found if owner is None else np.bincount(owner[found], minlength=len(windows)) > 0

    def _lacks(self, tile: Index, window: Index) -> bool:
        entry = self._tiles.get(tile)
        return isinstance(entry, TileInProgress) and window not in entry

    def _begin(self, tiles: Iterable[Index]) -> None:
        """Replace missing tiles by tiles in progress; the lock of the cache is held."""
        missing = [tile for tile in tiles if self._tiles.get(tile, ()) is None]
        if missing:
            self._tiles.update(self._cache.begin(self._record, missing, self._reader))

    def deposit(self, windows: IntArray, outputs: Array) -> None:
        """Store finished windows: cut them at tile borders, and blend each piece into a tile.

        Parameters
        ----------
        windows : int64 array of shape (N, ndim)
            The indices of the windows.
        outputs : array of shape (N, *window size)
            The windows, already checked; see `keeps_outputs`.
        """
        self._check_open()
        if isinstance(outputs, torch.Tensor):
            outputs = as_array(outputs.to(self._record.device))
        windows, owner = self._record.spec.grid.places(windows)
        if owner is not None:
            outputs = outputs[owner]
        if self._takes_windows:
            windows, outputs = self._deposit_whole(windows, outputs)
        self._blended.look_again()
        pieces = [piece for begin, end in self._rows_of(windows) for piece in self._pieces(windows, begin, end)]
        if self._taken is not None:
            pieces = [piece for piece in pieces if piece[0] in self._taken]
        if pieces:
            self._add(pieces, as_tuples(windows), outputs)
        self._cache.make_room()

    def _deposit_whole(self, windows: IntArray, outputs: Array) -> tuple[IntArray, Array]:
        """Store the windows that are whole tiles, and return the others."""
        layout, wanted = self._record.layout, self._taken
        tiles = self._record.tiles_of(windows)
        whole = {
            tile: output if self.keeps_outputs else copied(output)
            for tile, output in zip(tiles, outputs, strict=True)
            if self._tiles.get(tile) is None and layout.is_inside(tile) and (wanted is None or tile in wanted)
        }
        known = self._cache.put(self._record, whole)
        self._tiles.update(whole)
        self._tiles.update(known)
        if len(whole) == len(tiles) and not known:
            return windows[:0], outputs[:0]
        others = [number for number, tile in enumerate(tiles) if tile in known or tile not in whole]
        return windows[others], outputs[others]

    def _add(self, pieces: Sequence[tuple[Index, int, int]], indices: Sequence[Index], outputs: Array) -> None:
        self._fetch([tile for tile, _, _ in pieces])
        with self._cache.lock:
            self._begin([tile for tile, _, _ in pieces])
            changed: dict[Index, TileInProgress] = {}
            for tile, begin, end in pieces:
                entry = self._tiles[tile]
                if isinstance(entry, TileInProgress) and not entry.complete:
                    entry.add_row(indices[begin], outputs[begin:end])
                    changed[tile] = entry
            self._cache.changed(self._record, changed.values())

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
        """Fill `out` with the pixels of a region.

        The region begins at pixel `start`, and has the shape of `out`. Call `add` for the region first, and `deposit`
        for the missing windows.
        """
        record, device = self._record, self._record.device
        block = out if out.device == device else torch.empty(out.shape, dtype=out.dtype, device=device)
        target = as_array(block)
        for tile, of, to in record.layout.parts(start, list(map(operator.add, start, out.shape))):
            entry = self._tiles[tile]
            pixels = entry.pixels if isinstance(entry, TileInProgress) else entry
            if pixels is not None:
                target[to] = pixels[of]
                continue
            # No window touches a tile that is still missing.
            entry = entry or TileInProgress(record, tile)
            if blended := self._blended_tile(tile, entry):
                copy_shared(blended.pixels, blended.start, target, start)
            else:
                with self._cache.lock:
                    entry.read(target[to], [a + part.start for a, part in zip(start, to, strict=True)])
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
            pixels = as_array(torch.empty(shape, dtype=self._record.spec.dtype, device=self._record.device))
            entry.read(pixels, start)
        return Blended(start, stop, pixels)

    def keep(self, start: Sequence[int] | None) -> None:
        """Release pixels no longer needed by the read.

        Pixels at or after `start` in every dimension stay. With ``start=(100, 50)``, pixel ``(120, 60)`` stays, and
        pixel ``(120, 40)`` is released. If `start` is None, all pixels are released. To read released pixels again,
        `add` the region again.
        """
        before, stop, self._tiles = self._tiles, self._record.layout.stop, {}
        if start is not None:
            self._tiles = {tile: entry for tile, entry in before.items() if all(map(operator.gt, stop(tile), start))}
        self._blended.keep(start)
        pinned = [t for t, entry in before.items() if isinstance(entry, TileInProgress) and t not in self._tiles]
        self._cache.unpin(self._record, pinned, self._reader)

    def confine(self, tiles: Tiles) -> None:
        """Store only the parts of windows inside `tiles`.

        Must be called before `add`.
        """
        self._taken = tiles

    @property
    def outdated(self) -> bool:
        """Whether windows of the tensor were dropped after the read began.

        If so, `deposit` stores nothing.
        """
        return not self._record.current

    def detach(self) -> None:
        """Turn off storing: deposited windows are used by this read only.

        Must be called before `add`.
        """
        # The cache stores nothing of a record that is not `current`.
        self._record = replace(self._record, current=False)

    def close(self) -> None:
        """Release everything.

        The limits of the cache apply again.
        """
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


class Blended(NamedTuple):
    """Blended pixels of a box ``[start, stop)``."""

    start: Index
    stop: Index
    pixels: Array


class BlendedForRead:
    """Blended tiles, kept during a read.

    Several regions of the read may need the same tile. Each tile is cut to the smallest box around all regions.
    """

    def __init__(self) -> None:
        self.worthwhile = False
        self._bounds: tuple[list[int], list[int]] | None = None
        self._tiles: dict[Index, Blended] = {}
        self._lacking: set[Index] = set()

    def extend(self, starts: IntArray, stops: IntArray) -> None:
        """Extend the bounds to include more regions."""
        self.worthwhile |= len(starts) > _FEW_REGIONS
        start, stop = starts[0].tolist(), stops[0].tolist()
        if len(starts) > 1:
            start, stop = starts.min(axis=0).tolist(), stops.max(axis=0).tolist()
        if self._bounds is not None:
            start, stop = list(map(min, start, self._bounds[0])), list(map(max, stop, self._bounds[1]))
        bounds = start, stop
        if bounds != self._bounds:
            # Tiles cut to the old bounds may be too small now.
            self._bounds, self._tiles = bounds, {}

    def look_again(self) -> None:
        """Forget which tiles had missing windows.

        Called when more windows have arrived. Until this call, `get` returns None for these tiles at once.
        """
        self._lacking = set()

    def get(self, index: Index, make: Callable[[], Blended | None]) -> Blended | None:
        """Return a blended tile.

        If the tile is not kept yet, `make` blends the tile. None means that windows of the tile are missing. For such a
        tile, `make` is not called again until `look_again`.
        """
        tile = self._tiles.get(index)
        if tile is None and index not in self._lacking:
            tile = make()
            if tile is None:
                self._lacking.add(index)
            else:
                self._tiles[index] = tile
        return tile

    def cut(self, start: Index, stop: Index) -> tuple[Index, Index]:
        """Clip the box ``[start, stop)`` to the smallest box around all regions."""
        assert self._bounds is not None
        return tuple(map(max, start, self._bounds[0])), tuple(map(min, stop, self._bounds[1]))

    def keep(self, start: Sequence[int] | None) -> None:
        """Release tiles without pixels at or after `start`; see `Access.keep`.

        If `start` is None, all tiles are released.
        """
        if start is None:
            self._tiles = {}
        else:
            self._tiles = {
                index: tile for index, tile in self._tiles.items() if all(map(operator.gt, tile.stop, start))
            }
