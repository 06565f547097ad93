"""Planes: two dimensions of a tensor, drawn in square tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window import Shape
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.coarse import Coarsening
from infinite_tensor.values.definition import channels_of
from infinite_tensor.views.colours import magnitudes
from infinite_tensor.views.frame import as_numpy, stored_as_numpy

SIDE = 256
"""Pixels along each side of a tile, in any level."""
COLOURS = 3
_NO_COLOURS = frozenset({"z", "t", "time", "depth"})

Box: TypeAlias = tuple[slice, slice]
"""Rows and columns."""


@dataclass(frozen=True)
class Plane:
    """Two dimensions of a tensor, with a fixed index along all other dimensions.

    Attributes
    ----------
    shape : tuple of int or None
        The shape of the tensor.
    rows, columns : int
        The two dimensions.
    at : tuple of (int or None)
        The index along each dimension of the tensor. None for rows, columns and the dimension of colours.
    """

    shape: Shape
    rows: int
    columns: int
    at: tuple[int | None, ...]

    @classmethod
    def of(cls, shape: Shape, dims: Sequence[str]) -> Self:
        """Choose rows, columns and colours among the dimensions of a tensor.

        Rows and columns are the dimensions called y and x, or else the last two dimensions besides channels. Of three
        dimensions, one with a name for channels contains them, or else the first or the last, with an extent of 1 or 3.
        Another dimension with 3 or 4 entries contains colours, unless it is called z, t, time or depth.
        """
        if len(shape) < 2:
            raise ValidationError(
                f"a picture needs two dimensions, but the tensor has shape {shape}; draw it with t.show()"
            )
        channels = None
        if len(shape) == 3:
            channels = next(iter([*channels_of(dims), *(d for d in (0, 2) if shape[d] in (1, 3))]), None)
        rows, columns = [d for d in range(len(shape)) if d != channels][-2:]
        if "y" in dims and "x" in dims:
            rows, columns = dims.index("y"), dims.index("x")
        others = [d for d in range(len(shape)) if d not in (rows, columns)]
        colours = next((d for d in others if shape[d] in (3, 4) and dims[d] not in _NO_COLOURS), None)
        return cls(
            shape, rows, columns, tuple([0 if d in others and d != colours else None for d in range(len(shape))])
        )

    @property
    def others(self) -> list[int]:
        """The dimensions besides rows and columns."""
        return [d for d in range(len(self.shape)) if d not in (self.rows, self.columns)]

    @property
    def colours(self) -> int | None:
        """The dimension of colours, or None.

        Its first three entries are red, green and blue.
        """
        return next((d for d in self.others if self.at[d] is None), None)

    @property
    def extents(self) -> Shape:
        """The number of rows and of columns, None if unbounded."""
        return self.extents_in(self.shape)

    def extents_in(self, shape: Shape) -> Shape:
        """Return the number of rows and of columns of a level, None if unbounded."""
        return shape[self.rows], shape[self.columns]

    def placed(self, places: Sequence[int]) -> Plane:
        """Return a copy of the plane with new indices.

        `places` has the indices along the dimensions besides rows, columns and colours, in order. Dimensions without an
        entry keep their index.
        """
        free = [d for d in self.others if d != self.colours]
        if len(places) > len(free):
            raise ValidationError(
                f"the tensor has {len(free)} dimensions besides rows, columns and colours, but {len(places)} indices "
                "are given"
            )
        given = dict(zip(free, places, strict=False))
        for d, place in given.items():
            extent = self.shape[d]
            if extent is not None and not 0 <= place < extent:
                raise ValidationError(f"the index along dimension {d} must be from 0 to {extent - 1}, got {place}")
        return replace(self, at=tuple([given.get(d, place) for d, place in enumerate(self.at)]))

    def pyramid(
        self, tensor: InfiniteTensor, levels: Sequence[InfiniteTensor]
    ) -> tuple[list[InfiniteTensor], list[Index]]:
        """Return the resolutions for drawing: the tensor and `levels`, and the scale of each.

        A scale such as ``(1, 4, 4)`` is the size of one pixel of a level, in pixels of the tensor. Each level must have
        half the rows and columns of the level before, and all colours. Otherwise return only the tensor and its scale.
        """
        made = [cast("Coarsening", level.f) for level in levels]
        halved = all(
            each.scale[self.rows] == each.scale[self.columns] == 2**k
            and (self.colours is None or each.scale[self.colours] == 1)
            for k, each in enumerate(made, 1)
        )
        base = (1,) * len(self.shape)
        return ([tensor, *levels], [base, *(each.scale for each in made)]) if halved else ([tensor], [base])

    def region(self, box: Box, scale: Sequence[int]) -> tuple[int | slice, ...]:
        """Return the index for reading the rows and columns `box` of a level.

        `scale` is the scale of the level.
        """
        region = [slice(COLOURS) if place is None else place // n for place, n in zip(self.at, scale, strict=True)]
        region[self.rows], region[self.columns] = box
        return tuple(region)

    def read(
        self, tensor: InfiniteTensor, region: object, *, compute: bool
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the pixels of a region as rows, columns and colours, and a mask of those that are missing.

        Without `compute`, pixels that are not stored are missing.
        """
        values, missing = read(tensor, region, compute=compute)
        return self.image(values), self.image(missing)

    def image(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Arrange the pixels of a region as rows, columns and colours."""
        kept = [d for d, place in enumerate(self.at) if place is None]
        axes = [kept.index(d) for d in (self.rows, self.columns, self.colours) if d is not None]
        return pixels.transpose(axes)


class Tile(NamedTuple):
    """A tile of a level.

    The first pixel of the tile is at ``(row * SIDE, column * SIDE)`` in the level.
    """

    level: int
    row: int
    column: int

    def box(self, extents: Shape) -> Box | None:
        """Return the rows and columns of the tile in its level.

        `extents` are the extents of level 0. Return None if the tile contains no pixels.
        """
        rows, columns = (
            (i * SIDE, i * SIDE + SIDE)
            if extent is None
            else (max(0, i * SIDE), min(i * SIDE + SIDE, -(-extent // 2**self.level)))
            for i, extent in zip((self.row, self.column), extents, strict=True)
        )
        return (slice(*rows), slice(*columns)) if rows[0] < rows[1] and columns[0] < columns[1] else None


def read(tensor: InfiniteTensor, region: object, *, compute: bool) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the pixels of a region to draw, and a mask of those that are missing.

    Complex numbers become absolute values. Without `compute`, pixels that are not stored are missing.
    """
    values: npt.NDArray[Any]
    if compute:
        values = as_numpy(tensor[region])
        missing = np.zeros(values.shape, bool)
    else:
        values, missing = stored_as_numpy(tensor, region)
    return magnitudes(values), missing


def finer(box: Box, factor: int, extents: Shape) -> Box:
    """Convert a box to pixels of a finer level.

    Each pixel of the box covers `factor` x `factor` pixels of the finer level. `extents` are the extents of the finer
    level.
    """
    rows, columns = (
        slice(part.start * factor, part.stop * factor if extent is None else min(part.stop * factor, extent))
        for part, extent in zip(box, extents, strict=True)
    )
    return rows, columns
