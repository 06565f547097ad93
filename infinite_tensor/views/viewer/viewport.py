"""Which tiles of which level a part of a plane needs. Numbers only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from infinite_tensor.geometry.window import Shape
from infinite_tensor.views.plane import SIDE, Box, Tile

MOST_TILES = 256
"""A part of a plane that takes more of them is shown by a coarser level."""
_FITS = 512
"""The coarsest level of a finite plane is no longer than this,"""
_COARSEST = 6
"""and that of an unbounded one is this, or the first that is not stored."""


def coarsest(extents: Shape, stored: int) -> int:
    """The level beyond which nobody zooms out, where so many levels are stored."""
    known = [extent for extent in extents if extent is not None]
    whole = max(0, math.ceil(math.log2(max(1, *known) / _FITS))) if known else 0
    return whole if None not in extents else max(whole, _COARSEST, stored + 1)


@dataclass(frozen=True)
class Viewport:
    """A part of a plane, in pixels of level 0, as it is seen on so many pixels of a screen.

    Attributes
    ----------
    top, left, bottom, right : float
        Where its borders are; pixel i reaches from i - 0.5 to i + 0.5.
    width : float
        Pixels of the screen.
    """

    top: float
    left: float
    bottom: float
    right: float
    width: float

    def level(self, most: int) -> int:
        """The level whose pixels are about those of the screen, or a coarser one where that has too many tiles."""
        finest = max(0, round(math.log2(max(self.right - self.left, 1) / max(self.width, 1))))
        for level in range(min(finest, most), most):
            rows, columns = self._spans(SIDE * 2**level)
            if len(rows) * len(columns) <= MOST_TILES:
                return level
        return most

    def _spans(self, side: int) -> tuple[range, range]:
        """Which blocks of so many pixels along each side it shows."""
        rows, columns = (
            range(math.floor((low + 0.5) / side), math.ceil((high + 0.5) / side))
            for low, high in ((self.top, self.bottom), (self.left, self.right))
        )
        return rows, columns

    def tiles(self, level: int, extents: Shape) -> list[Tile]:
        """The tiles that it shows, those nearest to the middle first."""
        side = SIDE * 2**level
        rows, columns = self._spans(side)
        for_all = [Tile(level, row, column) for row in rows for column in columns]
        y, x = (self.top + self.bottom) / 2 / side - 0.5, (self.left + self.right) / 2 / side - 0.5
        found = [tile for tile in for_all if tile.box(extents) is not None]
        return sorted(found, key=lambda tile: ((tile.row - y) ** 2 + (tile.column - x) ** 2, tile))

    def part(self, box: Box, level: int) -> Box:
        """Which pixels of a box of a level it shows, counted from the first one of the box."""
        rows, columns = (
            slice(max(span.start - along.start, 0), max(span.stop - along.start, 0))
            for span, along in zip(self._spans(2**level), box, strict=True)
        )
        return rows, columns


@dataclass(frozen=True)
class Budget:
    """What one look at a plane may compute.

    Attributes
    ----------
    windows, pixels : int
        So many, of level 0.
    """

    windows: int
    pixels: int = 2**25

    def allows(self, tiles: Sequence[Tile], window: int) -> bool:
        """Whether it is enough for some tiles, where a window is of so many pixels; of 0 where there are none."""
        pixels = sum((SIDE * 2**tile.level) ** 2 for tile in tiles)
        return pixels <= self.pixels and (window == 0 or pixels <= self.windows * window)


def runs(tiles: Sequence[Tile]) -> list[list[Tile]]:
    """Tiles of one level in groups, each of which is a full row of neighbours, or several such rows one below another.

    What is read of a group is one box, without anything else in it.
    """
    rows = [
        [tile for _, tile in row]
        for _, row in itertools.groupby(enumerate(sorted(tiles)), lambda at: (at[1].row, at[1].column - at[0]))
    ]
    rows.sort(key=lambda row: (row[0].column, len(row), row[0].row))
    blocks = itertools.groupby(enumerate(rows), lambda at: (at[1][0].column, len(at[1]), at[1][0].row - at[0]))
    return [[tile for _, row in block for tile in row] for _, block in blocks]
