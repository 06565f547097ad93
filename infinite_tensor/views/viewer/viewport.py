"""The choice of level and tiles for a part of a plane.

No pixels are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infinite_tensor.geometry.window import Shape
from infinite_tensor.views.plane import SIDE, Box, Tile

MOST_TILES = 256
"""Maximum number of tiles on the screen. Larger views show a coarser level."""
_FITS = 512
"""Maximum number of pixels along a side of the coarsest level, in a finite plane."""
_COARSEST = 6
"""Coarsest level of an unbounded plane, or the level after the last stored level if coarser."""


def coarsest(extents: Shape, stored: int) -> int:
    """Return the coarsest level to zoom out to. `stored` is the number of stored levels."""
    known = [extent for extent in extents if extent is not None]
    whole = max(0, math.ceil(math.log2(max(1, *known) / _FITS))) if known else 0
    return whole if None not in extents else max(whole, _COARSEST, stored + 1)


@dataclass(frozen=True)
class Viewport:
    """The visible part of a plane, in pixels of level 0.

    Attributes
    ----------
    top, left, bottom, right : float
        The borders; pixel i reaches from i - 0.5 to i + 0.5.
    width : float
        The width on the screen, in screen pixels.
    """

    top: float
    left: float
    bottom: float
    right: float
    width: float

    def level(self, most: int) -> int:
        """Return the level with pixels about as large as screen pixels.

        If too many of its tiles are visible, return a coarser level. No level above `most` is returned.
        """
        finest = max(0, round(math.log2(max(self.right - self.left, 1) / max(self.width, 1))))
        for level in range(min(finest, most), most):
            rows, columns = self._spans(SIDE * 2**level)
            if len(rows) * len(columns) <= MOST_TILES:
                return level
        return most

    def _spans(self, side: int) -> tuple[range, range]:
        """Return the visible rows and columns of blocks of `side` x `side` pixels."""
        rows, columns = (
            range(math.floor((low + 0.5) / side), math.ceil((high + 0.5) / side))
            for low, high in ((self.top, self.bottom), (self.left, self.right))
        )
        return rows, columns

    def tiles(self, level: int, extents: Shape) -> list[Tile]:
        """Return the visible tiles, nearest to the middle first."""
        side = SIDE * 2**level
        rows, columns = self._spans(side)
        for_all = [Tile(level, row, column) for row in rows for column in columns]
        y, x = (self.top + self.bottom) / 2 / side - 0.5, (self.left + self.right) / 2 / side - 0.5
        found = [tile for tile in for_all if tile.box(extents) is not None]
        return sorted(found, key=lambda tile: ((tile.row - y) ** 2 + (tile.column - x) ** 2, tile))

    def part(self, box: Box, level: int) -> Box:
        """Return the visible part of a box, relative to the first pixel of the box."""
        rows, columns = (
            slice(max(span.start - along.start, 0), max(span.stop - along.start, 0))
            for span, along in zip(self._spans(2**level), box, strict=True)
        )
        return rows, columns


@dataclass(frozen=True)
class Budget:
    """Limits on what may be computed to show the visible part of a tensor.

    Attributes
    ----------
    windows : int
        The largest number of windows.
    pixels : int
        The largest number of pixels of level 0, or of the coarser tensor from which levels are computed.
    """

    windows: int
    pixels: int = 2**25

    def allows(self, tiles: Sequence[Tile], window: int, scale: int = 1) -> bool:
        """Whether the computation of some tiles stays within the limits.

        `window` is the number of pixels per window. If it is 0, only the limit on pixels applies. `scale` is the number
        of pixels of level 0 for one that is computed.
        """
        pixels = sum((SIDE * 2**tile.level) ** 2 for tile in tiles) // scale
        return pixels <= self.pixels and (window == 0 or pixels <= self.windows * window)
