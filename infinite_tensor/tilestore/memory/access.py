"""Access to the windows of a memory store during a read."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.geometry.points import UNBOUNDED, Index, IntArray, as_tuples, rows_of
from infinite_tensor.support.allocation import Array, as_array, copied
from infinite_tensor.tilestore.contents import Access, Blended, BlendedForRead
from infinite_tensor.tilestore.layout import copy_shared
from infinite_tensor.tilestore.memory.windows import Held, KeptWindows, Row, fold_rows, rows_in
from infinite_tensor.values.spec import TensorSpec

_LOOKED_UP = 2**10
"""The number of windows to look up at once. Usually all windows of a tile are missing, or none."""


class MemoryAccess(Access):
    """Windows of a tensor in memory, as needed by a read.

    The read keeps these windows until their last use, even if the cache drops them.

    Parameters
    ----------
    check_open : callable
        Raises StoreError if the store has been closed.
    kept : KeptWindows
        The windows of the store.
    spec : TensorSpec
        The registered spec of the tensor.
    """

    def __init__(self, check_open: Callable[[], None], kept: KeptWindows, spec: TensorSpec) -> None:
        self._check_open = check_open
        self._kept = kept
        self._spec = spec
        self._layout = layout = kept.layout(spec)
        self._overlaps = not spec.grid.overlap_free
        self._tile_pixels = math.prod(layout.tile_shape)
        self._small_windows = 4 * math.prod(spec.grid.window.size) <= self._tile_pixels
        self._held = Held(spec)
        self._blended = BlendedForRead()

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Look up the windows of the regions; see `Access.add`."""
        self._check_open()
        self._blended.extend(starts, stops)
        points, held = self._spec.grid.points(starts, stops), self._held.rows
        needed = as_tuples(points)
        if held:
            needed = [index for index in needed if index not in held]
        found = self._kept.take(self._spec, needed)
        if len(needed) == len(points) and not found:
            return points
        held.update(found)
        missing = [index for index in needed if index not in found]
        return np.array(missing, dtype=np.int64).reshape(len(missing), self._spec.grid.ndim)

    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """Look up the windows of tiles; see `Access.whole`."""
        self._check_open()
        return [tile for tile in tiles if self._take_whole(tile)]

    def _take_whole(self, tile: Index) -> bool:
        box = self._spec.grid.box(self._layout.start(tile), self._layout.stop(tile))
        windows = itertools.product(*map(range, *box))
        taken: dict[Index, Row] = {}
        while some := list(itertools.islice(windows, _LOOKED_UP)):
            needed = [index for index in some if index not in self._held.rows]
            found = self._kept.take(self._spec, needed)
            if len(found) < len(needed):
                return False
            taken.update(found)
        self._held.rows.update(taken)
        return True

    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Look in the cache again; see `Access.absent`."""
        self._check_open()
        indices, held = as_tuples(windows), self._held
        self._kept.take_or_await(self._spec, held, [index for index in indices if index not in held.rows])
        return np.array([index not in held.rows for index in indices], dtype=bool)

    def deposit(self, windows: IntArray, outputs: Array) -> None:
        """Keep windows, for this read and in the cache."""
        indices = as_tuples(windows)
        rows: dict[Index, Row] = {}
        for begin, end in rows_of(windows):
            rows.update(dict.fromkeys(indices[begin:end], Row(indices[begin], outputs[begin:end])))
        self._held.rows.update(rows)
        self._blended.look_again()
        self._check_open()
        self._kept.put(self._spec, rows)

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Blend the windows of a region into `out`.

        Pixels blended before are copied.
        """
        target, stop = as_array(out), list(map(operator.add, start, out.shape))
        if out.numel() >= self._tile_pixels:
            self._fold(target, start)
            if self._overlaps and self._kept.has_room(self._layout.tile_bytes):
                self._remember(target, start, stop)
        elif self._overlaps or (self._small_windows and self._blended.worthwhile):
            for index in itertools.product(*map(range, *self._layout.box(start, stop))):
                tile = self._blended.get(index, partial(self._tile, index))
                if tile is None:
                    low, to = self._layout.part(index, start, stop)
                    self._fold(target[to], low)
                else:
                    copy_shared(tile.pixels, tile.start, target, start)
        else:
            self._fold(target, start)

    def keep(self, start: Sequence[int] | None) -> None:
        """Release windows ending before pixel `start`; see `Access.keep`."""
        if start is None:
            self._held.rows = {}
            self._blended.keep(None)
            return
        low, high = self._spec.grid.box(start, [UNBOUNDED] * len(start))
        if low == high:
            self._held.rows = {}
        self._held.rows = {index: row for index, row in self._held.rows.items() if all(map(operator.le, low, index))}
        self._blended.keep(start)

    @property
    def outdated(self) -> bool:
        """Whether the store has replaced or removed the spec of this read."""
        return not self._kept.is_current(self._spec)

    def detach(self) -> None:
        """Turn off storing; see `Access.detach`.

        From now on, the read passes an unregistered copy of the spec to the cache, so the cache ignores the windows.
        """
        self._spec = replace(self._spec)
        self._held = Held(self._spec)

    def close(self) -> None:
        """Release all windows."""
        self.keep(None)
        if self._held.awaited:
            self._kept.await_no_more(self._held)

    def _fold(self, target: Array, start: Sequence[int]) -> None:
        stop = list(map(operator.add, start, target.shape))
        rows = rows_in(self._spec.grid.box(start, stop), self._held.rows.get)
        assert rows is not None
        fold_rows(self._spec, rows, target, start)

    def _tile(self, index: Index) -> Blended | None:
        start, stop = self._layout.start(index), self._layout.stop(index)
        pixels = self._kept.tile(self._spec, index)
        if pixels is not None:
            return Blended(start, stop, pixels)
        whole = self._blend(start, stop)
        if whole is None:
            return self._blend(*self._blended.cut(start, stop))
        if self._overlaps:
            self._kept.keep_tile(self._spec, index, whole.pixels)
        return whole

    def _blend(self, start: Index, stop: Index) -> Blended | None:
        rows = self._rows(start, stop)
        if rows is None:
            return None
        shape = [b - a for a, b in zip(start, stop, strict=True)]
        pixels = as_array(torch.empty(shape, dtype=self._spec.dtype, device=self._spec.device))
        fold_rows(self._spec, rows, pixels, start)
        return Blended(start, stop, pixels)

    def _rows(self, start: Index, stop: Index) -> list[tuple[Index, Array]] | None:
        box, held = self._spec.grid.box(start, stop), self._held.rows
        unknown = [index for index in itertools.product(*map(range, *box)) if index not in held]
        found = self._kept.take(self._spec, unknown)
        if len(found) < len(unknown):
            return None
        return rows_in(box, lambda index: held.get(index) or found.get(index))

    def _remember(self, pixels: Array, start: Sequence[int], stop: Sequence[int]) -> None:
        """Cache the tiles that lie entirely inside a blended region."""
        for tile in itertools.product(*map(range, *self._layout.box(start, stop))):
            low, to = self._layout.part(tile, start, stop)
            block = pixels[to]
            whole = [b - a for a, b in zip(low, self._layout.stop(tile), strict=True)]
            if tuple(low) == self._layout.start(tile) and list(block.shape) == whole:
                self._kept.keep_tile(self._spec, tile, copied(block))
