"""What pictures show of a tensor of any number of dimensions: two of them, of it and of its levels, in square tiles."""

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
from infinite_tensor.values.coarse import Coarsening, scales

SIDE = 256
"""Pixels along a tile, of whatever level."""
COLOURS = 3
_NO_COLOURS = frozenset({"z", "t", "time", "depth"})

Box: TypeAlias = tuple[slice, slice]
"""Rows and columns."""


def channels_of(shape: Shape) -> int | None:
    """Which of three dimensions is one of channels: the first or last one, of an extent of 1 or 3."""
    return next((d for d in (0, 2) if len(shape) == 3 and shape[d] in (1, 3)), None)


@dataclass(frozen=True)
class Plane:
    """Two dimensions of a tensor, and where a picture stands along the others.

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
        """The dimensions y and x, or the last two that are none of channels, and colours where there may be some."""
        if len(shape) < 2:
            raise ValidationError(
                f"a picture shows two dimensions, and the tensor has shape {shape}; draw it by t.show()"
            )
        channels = channels_of(shape)
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
        """The dimensions beside the two."""
        return [d for d in range(len(self.shape)) if d not in (self.rows, self.columns)]

    @property
    def colours(self) -> int | None:
        """The dimension whose first three entries are red, green and blue."""
        return next((d for d in self.others if self.at[d] is None), None)

    @property
    def extents(self) -> Shape:
        """Rows and columns; None for an unbounded dimension."""
        return self.extents_in(self.shape)

    def extents_in(self, shape: Shape) -> Shape:
        """Rows and columns of a level of this shape."""
        return shape[self.rows], shape[self.columns]

    def placed(self, places: Sequence[int]) -> Plane:
        """The plane at other places along the dimensions that are neither drawn nor colours, the first ones."""
        free = [d for d in self.others if d != self.colours]
        if len(places) > len(free):
            raise ValidationError(f"a place is given along {len(free)} other dimensions, and not along {len(places)}")
        given = dict(zip(free, places, strict=False))
        for d, place in given.items():
            extent = self.shape[d]
            if extent is not None and not 0 <= place < extent:
                raise ValidationError(f"dimension {d} has the places 0 to {extent - 1}, and not {place}")
        return replace(self, at=tuple([given.get(d, place) for d, place in enumerate(self.at)]))

    def pyramid(
        self, tensor: InfiniteTensor, levels: Sequence[InfiniteTensor]
    ) -> tuple[list[InfiniteTensor], list[Index]]:
        """The tensor and its levels, and how many of its pixels one of each is, per dimension.

        There are no levels where they do not halve rows and columns, and keep colours.
        """
        made = [cast("Coarsening", level.f) for level in levels]
        halved = all(
            each.factor[self.rows] == each.factor[self.columns] == 2
            and (self.colours is None or each.factor[self.colours] == 1)
            for each in made
        )
        base = (1,) * len(self.shape)
        return ([tensor, *levels], [base, *scales(made)]) if halved else ([tensor], [base])

    def region(self, box: Box, scale: Sequence[int]) -> tuple[int | slice, ...]:
        """What to read of a level, one pixel of which is so many of the tensor along each dimension."""
        region = [slice(COLOURS) if place is None else place // n for place, n in zip(self.at, scale, strict=True)]
        region[self.rows], region[self.columns] = box
        return tuple(region)

    def image(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What was read of a region as rows and columns, and colours last; of complex numbers how large they are."""
        kept = [d for d, place in enumerate(self.at) if place is None]
        axes = [kept.index(d) for d in (self.rows, self.columns, self.colours) if d is not None]
        return (np.abs(pixels) if np.iscomplexobj(pixels) else pixels).transpose(axes)


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


def finer(box: Box, factor: int, extents: Shape) -> Box:
    """The pixels of a finer level that a box stands for; `extents` are those of that level."""
    rows, columns = (
        slice(part.start * factor, part.stop * factor if extent is None else min(part.stop * factor, extent))
        for part, extent in zip(box, extents, strict=True)
    )
    return rows, columns
