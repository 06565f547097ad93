"""What a page shows of a tensor: which plane, and which tiles of which level a part of it needs. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import Shape

SIDE = 256
"""Pixels along a tile, of whatever level."""
MOST_TILES = 256
"""A part of a plane that takes more of them is shown by a coarser level."""
COLOURS = 3
_FITS = 512
"""The coarsest level of a finite plane is no longer than this,"""
_COARSEST = 6
"""and that of an unbounded one is this, or the first that is not stored."""
_NO_COLOURS = frozenset({"z", "t", "time", "depth"})

Box: TypeAlias = tuple[slice, slice]
"""Rows and columns."""


@dataclass(frozen=True)
class Plane:
    """Two dimensions of a tensor, and where the picture stands along the others.

    Attributes
    ----------
    shape : tuple of int or None
        Of the tensor.
    rows, columns : int
        The two dimensions.
    at : tuple of (int or None)
        A place along each dimension; None along these two, and along the one whose first three entries are colours.
    """

    shape: Shape
    rows: int
    columns: int
    at: tuple[int | None, ...]

    @classmethod
    def of(cls, shape: Shape, dims: Sequence[str]) -> Self:
        """The dimensions y and x, or those that `InfiniteTensor.show` draws, and colours where there may be some."""
        if len(shape) < 2:
            raise ValidationError(f"a view shows two dimensions, and the tensor has shape {shape}; draw it by t.show()")
        rows, columns = len(shape) - 2, len(shape) - 1
        if "y" in dims and "x" in dims:
            rows, columns = dims.index("y"), dims.index("x")
        elif len(shape) == 3 and shape[2] in (1, 3) and shape[0] not in (1, 3):
            rows, columns = 0, 1
        others = [d for d in range(len(shape)) if d not in (rows, columns)]
        colours = next((d for d in others if shape[d] in (3, 4) and dims[d] not in _NO_COLOURS), None)
        return cls(
            shape, rows, columns, tuple([0 if d in others and d != colours else None for d in range(len(shape))])
        )

    @property
    def others(self) -> list[int]:
        """The dimensions beside the two."""
        return [d for d in range(len(self.shape)) if d not in (self.rows, self.columns)]

    @property
    def colours(self) -> int | None:
        """The dimension whose first three entries are red, green and blue."""
        return next((d for d in self.others if self.at[d] is None), None)

    @property
    def extents(self) -> Shape:
        """Rows and columns; None for an unbounded dimension."""
        return self.shape[self.rows], self.shape[self.columns]

    def region(self, box: Box) -> tuple[int | slice, ...]:
        """What to read of the tensor, or of a level of it."""
        region: list[int | slice] = [slice(COLOURS) if place is None else place for place in self.at]
        region[self.rows], region[self.columns] = box
        return tuple(region)

    @property
    def axes(self) -> list[int]:
        """How the axes of what is read are ordered for a picture: rows, columns, colours."""
        kept = [d for d, place in enumerate(self.at) if place is None]
        return [kept.index(d) for d in (self.rows, self.columns, self.colours) if d is not None]


class Tile(NamedTuple):
    """A tile of a level: pixel ``(row * SIDE, column * SIDE)`` of it is the first."""

    level: int
    row: int
    column: int

    def box(self, extents: Shape) -> Box | None:
        """Its pixels, of its level; None where there are none. `extents` are those of level 0."""
        rows, columns = (
            (i * SIDE, i * SIDE + SIDE)
            if extent is None
            else (max(0, i * SIDE), min(i * SIDE + SIDE, -(-extent // 2**self.level)))
            for i, extent in zip((self.row, self.column), extents, strict=True)
        )
        return (slice(*rows), slice(*columns)) if rows[0] < rows[1] and columns[0] < columns[1] else None


def scaled(box: Box, factor: int, extents: Shape) -> Box:
    """The pixels of a finer level that a box stands for; `extents` are those of that level."""
    rows, columns = (
        slice(part.start * factor, part.stop * factor if extent is None else min(part.stop * factor, extent))
        for part, extent in zip(box, extents, strict=True)
    )
    return rows, columns


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
            rows, columns = self._spans(level)
            if len(rows) * len(columns) <= MOST_TILES:
                return level
        return most

    def _spans(self, level: int) -> tuple[range, range]:
        side = SIDE * 2**level
        rows, columns = (
            range(math.floor((low + 0.5) / side), math.ceil((high + 0.5) / side))
            for low, high in ((self.top, self.bottom), (self.left, self.right))
        )
        return rows, columns

    def tiles(self, level: int, extents: Shape) -> list[Tile]:
        """The tiles that it shows, those nearest to the middle first."""
        side = SIDE * 2**level
        rows, columns = self._spans(level)
        for_all = [Tile(level, row, column) for row in rows for column in columns]
        y, x = (self.top + self.bottom) / 2 / side - 0.5, (self.left + self.right) / 2 / side - 0.5
        found = [tile for tile in for_all if tile.box(extents) is not None]
        return sorted(found, key=lambda tile: ((tile.row - y) ** 2 + (tile.column - x) ** 2, tile))


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
    spans: list[tuple[int, int, int]] = []
    for _, row, column in sorted(tiles):
        if spans and spans[-1][0] == row and spans[-1][2] == column:
            spans[-1] = (row, spans[-1][1], column + 1)
        else:
            spans.append((row, column, column + 1))
    groups: dict[tuple[int, int], list[list[int]]] = {}
    for row, first, last in spans:
        rows = groups.setdefault((first, last), [])
        if rows and rows[-1][-1] == row - 1:
            rows[-1].append(row)
        else:
            rows.append([row])
    level = tiles[0].level if tiles else 0
    return [
        [Tile(level, row, column) for row in rows for column in range(*span)]
        for span, some in groups.items()
        for rows in some
    ]
