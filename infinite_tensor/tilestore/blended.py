"""Blended pixels, kept so that windows which many regions read are not blended again for each."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.geometry.window import followed
from infinite_tensor.support.allocation import Array
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.values.spec import TensorSpec

_TILE_BYTES = 2**18
_MOST_BYTES = 2**24
"""More than one large window is not blended at once."""
_FEW_REGIONS = 8


def blended_layout(spec: TensorSpec) -> TileLayout:
    """The tiles in which pixels of a tensor are blended: whole strides, as square as may be, of about 256 KiB."""
    grid, window, shape = spec.grid, spec.grid.window, spec.shape
    tile = [min(size, stride) for size, stride in zip(window.size, window.stride, strict=True)]
    moving = [d for d, k in enumerate(followed(window)) if k is not None and grid.first[k] < grid.last[k]]
    room = _TILE_BYTES / (math.prod(tile) * spec.dtype.itemsize)
    for number, d in enumerate(sorted(moving, key=lambda d: -tile[d])):
        strides = max(1, round(room ** (1 / (len(moving) - number))))
        tile[d] *= strides
        room /= strides
    while math.prod(tile) * spec.dtype.itemsize > _MOST_BYTES:
        largest = tile.index(max(tile))
        tile[largest] = -(-tile[largest] // 2)
    extents = [n if extent is None else min(n, extent) for n, extent in zip(tile, shape, strict=True)]
    return TileLayout(shape, tuple(extents), spec.dtype)


class Blended(NamedTuple):
    """Blended pixels of a box ``[start, stop)``."""

    start: Index
    stop: Index
    pixels: Array


class BlendedForRead:
    """Tiles that one read blends for itself, cut to what its regions reach.

    Windows of a consumer that lie next to each other read much of the same pixels.
    """

    def __init__(self) -> None:
        self.worthwhile = False
        self._bounds: tuple[list[int], list[int]] | None = None
        self._tiles: dict[Index, Blended] = {}
        self._lacking: set[Index] = set()

    def extend(self, starts: IntArray, stops: IntArray) -> None:
        """These regions will be read as well."""
        self.worthwhile |= len(starts) > _FEW_REGIONS
        start, stop = starts[0].tolist(), stops[0].tolist()
        if len(starts) > 1:
            start, stop = starts.min(axis=0).tolist(), stops.max(axis=0).tolist()
        if self._bounds is not None:
            start, stop = list(map(min, start, self._bounds[0])), list(map(max, stop, self._bounds[1]))
        bounds = start, stop
        if bounds != self._bounds:
            # What was cut to the old bounds may be too small now.
            self._bounds, self._tiles = bounds, {}

    def look_again(self) -> None:
        """More windows have come."""
        self._lacking = set()

    def get(self, index: Index, make: Callable[[], Blended | None]) -> Blended | None:
        """A tile, blended now if need be; None where windows are missing for it."""
        tile = self._tiles.get(index)
        if tile is None and index not in self._lacking:
            tile = make()
            if tile is None:
                self._lacking.add(index)
            else:
                self._tiles[index] = tile
        return tile

    def cut(self, start: Index, stop: Index) -> tuple[Index, Index]:
        """The part of a box that regions of this read may reach."""
        assert self._bounds is not None
        return tuple(map(max, start, self._bounds[0])), tuple(map(min, stop, self._bounds[1]))

    def keep(self, start: Sequence[int] | None) -> None:
        """Release what lies before pixel `start` in any dimension; None is all."""
        if start is None:
            self._tiles = {}
        else:
            self._tiles = {
                index: tile for index, tile in self._tiles.items() if all(map(operator.gt, tile.stop, start))
            }
