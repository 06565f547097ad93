"""`Mask`: the pixels to fill, and the tiles selected by a mask."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import Node, chain_of
from infinite_tensor.engine.lifetimes import Regions
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import LARGEST, Index
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.support.given import as_index, members, number, quoted
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.values.arrays import check_unmasked
from infinite_tensor.values.definition import label_of

BoolArray: TypeAlias = npt.NDArray[np.bool_]

_PIECE = 2**22
"""The maximum number of mask pixels read at once. A single tile may need more."""
_ROUND = 2**16
"""Floats are read as fractions up to this denominator: the float 1/3 means exactly a third."""


class Mask:
    """The pixels to fill, for the argument ``where`` of `fill`.

    A mask has its own scale and origin. A tile is computed if a non-zero pixel of the mask lies over the part of the
    tile in the filled region. Such a tile is computed as a whole, so the mask never changes the value of a pixel.

    Parameters
    ----------
    values : torch.Tensor, numpy array, InfiniteTensor or callable
        The mask; non-zero pixels are wanted. Any object with a `shape` and slicing works, such as a zarr array or a
        memmap. Only the parts over the region are read, piece by piece. An `InfiniteTensor` computes these parts, even
        for a plan. A callable ``values(pixels) -> bool`` is called once per tile: `pixels` is a tuple of slices in
        pixels of the mask, one per dimension of the mask. The callable returns whether any of these pixels is wanted,
        or an array with one entry per pixel.
    scale : int, float, Fraction, or tuple of these
        The size of one pixel of the mask, in pixels of the tensor: one number for all dimensions, or one for each. For
        example, 32 for a mask drawn on an image that is 32 times smaller.
    origin : int, float, Fraction, or tuple of these
        The tensor pixel at which the first pixel of the mask begins.
    dims : tuple of (int or str), optional
        For each dimension of the mask, the number or name of the corresponding dimension of the tensor or group. Along
        all other dimensions the mask is constant: ``Mask(lambda pixels: True, dims=())`` selects all of a region.
        Default: the last dimensions; for a callable, all. A dimension of a group can be given by name if no tensor has
        another name for it.

    Raises
    ------
    ValidationError
        If an argument is invalid.

    Examples
    --------
    >>> t = InfiniteTensor(
    ...     (None, None), lambda ctx: torch.ones(256, 256), TensorWindow((256, 256))
    ... )
    >>> right = Mask([[0, 1], [0, 1]], scale=256)
    >>> report = t.fill(sl[0:512, 0:512], where=right, progress=False)
    >>> report.windows, report.skipped
    (2, 2)
    """

    def __init__(
        self, values: Any, scale: object = 1, origin: object = 0, dims: Sequence[int | str] | None = None
    ) -> None:
        self.values: Any = _array(values) if isinstance(values, list | tuple) else values
        if not _is_sliced(self.values) and not callable(self.values):
            raise ValidationError(
                f"a mask must be a tensor, an array, an InfiniteTensor or a callable, got {quoted(values)}; an array "
                "needs at least one dimension"
            )
        _check_dense(self.values)
        self.dims = None if dims is None else members(dims)
        if self.dims is None is not dims:
            raise ValidationError(
                f"dims of a mask must be a tuple of numbers or names of dimensions, got {quoted(dims)}"
            )
        self.scale = _fractions("scale", scale)
        self.origin = _fractions("origin", origin)
        if any(entry <= 0 for entry in (self.scale if isinstance(self.scale, tuple) else [self.scale])):
            raise ValidationError(f"scale must be positive, got {quoted(scale)}")


def placed(where: object, names: Sequence[str], region: Selection) -> PlacedMask | None:
    """Place the mask of a fill on a region.

    `where` is the argument of the fill, and `names` are the dimension names of the tensor or group. Return None if
    `where` is None.

    Raises
    ------
    ValidationError
        If `where` is not a mask, if its dimensions do not fit, or if it does not cover the region.
    """
    if where is None:
        return None
    ndim = len(names)
    mask = where if isinstance(where, Mask) else Mask(where)
    sliced = _is_sliced(mask.values)
    count = len(mask.values.shape) if sliced else ndim if mask.dims is None else len(mask.dims)
    dims: Sequence[int | str] = range(ndim - count, ndim) if mask.dims is None else mask.dims
    numbers = [names.index(d) if isinstance(d, str) and names.count(d) == 1 else as_index(d) for d in dims]
    own = tuple([d % ndim for d in numbers if d is not None and -ndim <= d < ndim])
    if not len(own) == len(numbers) == count == len(set(own)):
        has = f"shape {tuple(mask.values.shape)}" if sliced else f"{len(numbers)} dimensions"
        named = "" if mask.dims is None else f", and dims={quoted(mask.dims)}"
        raise ValidationError(
            "dims of a mask must list one dimension of the tensor for each dimension of the mask, without repetition, "
            f"by number or as one of {tuple(names)}; the mask has {has}{named}"
        )
    lies = []
    for name, given in (("scale", mask.scale), ("origin", mask.origin)):
        lies.append(given if isinstance(given, tuple) else (given,) * count)
        if len(lies[-1]) != count:
            raise ValidationError(
                f"{name} of a mask must have one entry per dimension of the mask ({count}), got {len(lies[-1])}"
            )
    scale, origin = lies
    over = [_over(region.start[d], region.stop[d], a, b) for d, a, b in zip(own, scale, origin, strict=True)]
    if sliced and 0 not in region.shape:
        for d, extent, a, b, (first, last) in zip(own, mask.values.shape, scale, origin, over, strict=True):
            if extent is not None and (first < 0 or last > extent):
                raise ValidationError(
                    f"the mask does not cover the region: along dimension {label_of(d, names[d])} the {extent} pixels "
                    f"of the mask cover {float(b):.10g}:{float(b + extent * a):.10g}, but the region is "
                    f"{region.start[d]}:{region.stop[d]}; give a larger mask, another scale or origin, or a smaller "
                    "region"
                )
    return PlacedMask(mask.values, own, scale, origin, tuple(over))


@dataclass(frozen=True)
class PlacedMask:
    """A mask placed on a tensor.

    Attributes
    ----------
    values : array or callable
        The values of the `Mask`.
    dims : tuple of int
        For each dimension of the mask, the corresponding dimension of the tensor.
    scale, origin : tuple of Fraction
        For each dimension of the mask: the size of one of its pixels in pixels of the tensor, and the tensor pixel at
        which the mask begins.
    over : tuple of (int, int)
        For each dimension of the mask, the pixels ``[first, last)`` that lie over the filled region.
    """

    values: Any
    dims: Index
    scale: tuple[Fraction, ...]
    origin: tuple[Fraction, ...]
    over: _Ranges

    def on_member(self, dims: Sequence[int], scale: Sequence[Fraction]) -> PlacedMask:
        """Place the mask of a group on a tensor of the group.

        Dimension `d` of the group is dimension ``dims[d]`` of the tensor. Along this dimension, a pixel of the group
        measures ``scale[d]`` pixels of the tensor.
        """
        factors = [scale[d] for d in self.dims]
        return PlacedMask(
            self.values,
            tuple(dims[d] for d in self.dims),
            tuple(a * b for a, b in zip(self.scale, factors, strict=True)),
            tuple(a * b for a, b in zip(self.origin, factors, strict=True)),
            self.over,
        )

    def tiles(self, layout: TileLayout, start: Index, stop: Index) -> WantedTiles:
        """Return the wanted tiles over the pixels ``[start, stop)``.

        There must be at least one pixel.
        """
        low, high = layout.box(start, stop)
        ranges = []
        for axis, d in enumerate(self.dims):
            size = layout.tile_shape[d]
            tiles = [(max(i * size, start[d]), min((i + 1) * size, stop[d])) for i in range(low[d], high[d])]
            pixels = [_over(a, b, self.scale[axis], self.origin[axis]) for a, b in tiles]
            first, last = self.over[axis]
            ranges.append([(max(a, first), min(b, last)) for a, b in pixels])
        any_in = _any_in_slices if _is_sliced(self.values) else _any_by_call
        wanted, order = any_in(self.values, ranges), sorted(range(len(self.dims)), key=self.dims.__getitem__)
        counts = [b - a for a, b in zip(low, high, strict=True)]
        wanted = wanted.transpose(order).reshape([n if d in self.dims else 1 for d, n in enumerate(counts)])
        return WantedTiles(layout, tuple(low), np.broadcast_to(wanted, counts))

    def pixels(self, pixels: Sequence[range]) -> BoolArray:
        """Return a bool array, True for wanted pixels.

        `pixels` contains a range for each dimension of the tensor. No range may be empty. Along a dimension that is not
        in `dims`, the array has length 1. A callable mask is called once, for all of `pixels`. If the callable returns
        a single bool, this bool is the only entry of the array.
        """
        along = [
            [_over(i, i + 1, scale, origin) for i in pixels[d]]
            for d, scale, origin in zip(self.dims, self.scale, self.origin, strict=True)
        ]
        values = self.values
        if not _is_sliced(values):
            asked = tuple([slice(over[0][0], over[-1][1]) for over in along])
            values = _truth(values(asked))
            if values.shape != tuple([each.stop - each.start for each in asked]):
                return np.full([1] * len(pixels), values.any())
            along = [
                [(first - each.start, last - each.start) for first, last in over]
                for over, each in zip(along, asked, strict=True)
            ]
        wanted, order = _any_in_slices(values, along), sorted(range(len(self.dims)), key=self.dims.__getitem__)
        return wanted.transpose(order).reshape([len(n) if d in self.dims else 1 for d, n in enumerate(pixels)])


@dataclass(frozen=True)
class WantedTiles:
    """A box of wanted and unwanted tiles.

    Attributes
    ----------
    layout : TileLayout
        The tiles of the tensor.
    low : tuple of int
        The first tile of the box.
    wanted : bool array
        One entry per tile.
    """

    layout: TileLayout
    low: Index
    wanted: BoolArray

    @classmethod
    def all_of(cls, layout: TileLayout, start: Index, stop: Index) -> WantedTiles:
        """Return all tiles over the pixels ``[start, stop)``, as wanted tiles."""
        low, high = layout.box(start, stop)
        return cls(layout, tuple(low), np.broadcast_to(np.True_, [b - a for a, b in zip(low, high, strict=True)]))

    def __contains__(self, tile: Index) -> bool:
        """Whether the fill stores windows in this tile."""
        place = tuple([i - a for i, a in zip(tile, self.low, strict=True)])
        inside = all(0 <= i < n for i, n in zip(place, self.wanted.shape, strict=True))
        return inside and bool(self.wanted[place])

    @property
    def count(self) -> int:
        """The number of wanted tiles."""
        return int(np.count_nonzero(self.wanted))

    def within(self, start: Sequence[int], stop: Sequence[int]) -> WantedTiles:
        """Return only the tiles over the pixels ``[start, stop)``."""
        low, high = self.layout.box(start, stop)
        inside = tuple(slice(a - first, b - first) for a, b, first in zip(low, high, self.low, strict=True))
        return WantedTiles(self.layout, tuple(low), self.wanted[inside])

    def regions(self, start: Sequence[int], stop: Sequence[int]) -> Regions:
        """Cut the wanted part of ``[start, stop)`` into regions.

        Return the starts and stops of the regions. No tile lies in two regions. If all tiles are wanted, there is one
        region.
        """
        here = self.within(start, stop)
        wanted, low = here.wanted, here.low
        if wanted.all():
            return np.array([start], dtype=np.int64), np.array([stop], dtype=np.int64)
        # One region for each run of wanted tiles along the longest dimension.
        along = int(np.argmax(wanted.shape))
        order = [*(d for d in range(wanted.ndim) if d != along), along]
        steps = np.diff(wanted.transpose(order).astype(np.int8), prepend=0, append=0)
        first, last = np.argwhere(steps > 0), np.argwhere(steps < 0)
        last[:, :-1] += 1
        # Restore the order of the dimensions.
        places, size = np.argsort(order), np.array(self.layout.tile_shape, dtype=np.int64)
        starts, stops = ((side[:, places] + low) * size for side in (first, last))
        return np.maximum(starts, start), np.minimum(stops, stop)


class WantedPixels:
    """Regions to fill in a shard on a cluster, and the tiles touched by them."""

    def __init__(self, layout: TileLayout, regions: Regions) -> None:
        self._regions = regions
        self._tiles = set(layout.grid.indices(*regions))

    def __contains__(self, tile: Index) -> bool:
        """Whether the fill stores windows in this tile."""
        return tile in self._tiles

    @property
    def count(self) -> int:
        """The number of tiles."""
        return len(self._tiles)

    def regions(self, start: Sequence[int], stop: Sequence[int]) -> Regions:
        """Clip the regions to the pixels ``[start, stop)``."""
        return clipped(self._regions, start, stop)


Wanted: TypeAlias = WantedTiles | WantedPixels
"""The pixels to fill, and the tiles for storing the windows over the pixels."""


def clipped(regions: Regions, start: Sequence[int], stop: Sequence[int]) -> Regions:
    """Clip regions to the pixels ``[start, stop)``.

    Regions without such pixels are left out.
    """
    starts, stops = np.maximum(regions[0], start), np.minimum(regions[1], stop)
    kept = (starts < stops).all(axis=1)
    return starts[kept], stops[kept]


@dataclass(frozen=True)
class Target:
    """Pixels of a tensor to fill.

    Attributes
    ----------
    node : Node
        The tensor.
    start, stop : tuple of int
        The first pixel, and the pixel after the last, per dimension.
    wanted : Wanted or None
        The part to fill, for a mask or a shard. Pixels of windows outside of the tiles of this part are not stored.
        None to fill all pixels, and to store whole windows.
    is_level : bool
        Whether the tensor is a level of a pyramid. If so, the pixels read by its windows are filled earlier or at the
        same time.
    """

    node: Node
    start: Index
    stop: Index
    wanted: Wanted | None = None
    is_level: bool = False

    @property
    def chain(self) -> list[Node]:
        """The tensors computed or read by the fill, sources first."""
        if self.is_level:
            return [*(upstream.node for upstream in self.node.computation.inputs), self.node]
        return chain_of([self.node])

    def regions(self, start: Sequence[int], stop: Sequence[int]) -> Regions:
        """Cut the wanted part of ``[start, stop)`` into regions.

        Return the starts and stops of the regions.
        """
        if self.wanted is None:
            return np.array([start], dtype=np.int64), np.array([stop], dtype=np.int64)
        return self.wanted.regions(start, stop)

    @property
    def all_regions(self) -> Regions:
        """All wanted pixels, as starts and stops of regions."""
        return self.regions(self.start, self.stop)

    @property
    def is_whole(self) -> bool:
        """Whether all tiles are wanted."""
        return self.tile_count == self.box_count

    @property
    def tile_count(self) -> int:
        """The number of wanted tiles."""
        return self.box_count if self.wanted is None else self.wanted.count

    @property
    def box_count(self) -> int:
        """The number of wanted and unwanted tiles."""
        low, high = self.node.contents.layout(self.node.spec).box(self.start, self.stop)
        return math.prod(b - a for a, b in zip(low, high, strict=True))


@dataclass(frozen=True)
class WritableTiles:
    """The tiles of one tensor to store in a fill.

    Pixels of windows outside of these tiles are discarded.
    """

    parts: tuple[Wanted, ...]

    def __contains__(self, tile: Index) -> bool:
        return any(tile in part for part in self.parts)


def writable_tiles(filled: Sequence[Target], targets: Sequence[Target]) -> dict[Node, WritableTiles]:
    """Return the tiles that a pass may store, for tensors with a mask or cut into shards.

    For each tensor, these are the tiles selected in any of the passes. Tensors without a limit are left out: those
    filled as a whole, and those also read in the pass to compute a tensor that is not a level of a pyramid.

    Parameters
    ----------
    filled : sequence of Target
        The targets of one pass.
    targets : sequence of Target
        The targets of all passes.
    """
    others = [target.node for target in filled if not target.is_level]
    read = {each.node for node in chain_of(others) for each in node.computation.inputs}
    parts: dict[Node, list[Wanted | None]] = {target.node: [] for target in filled if target.node not in read}
    for target in targets:
        if target.node in parts:
            parts[target.node].append(target.wanted)
    return {node: WritableTiles(tuple(filter(None, own))) for node, own in parts.items() if None not in own}


_Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Sorted ranges ``[first, last)`` of mask pixels along a dimension. Neighbours may share a pixel."""


def _over(start: int, stop: int, scale: Fraction, origin: Fraction) -> tuple[int, int]:
    """Return the range of mask pixels over the tensor pixels ``[start, stop)``."""
    # (start - p / q) / (n / m), in integers for speed: masks call this for each pixel.
    (n, m), (p, q) = scale.as_integer_ratio(), origin.as_integer_ratio()
    return (start * q - p) * m // (q * n), -((p - stop * q) * m // (q * n))


def _any_in_slices(values: Any, ranges: Sequence[_Ranges]) -> BoolArray:
    """Check which boxes of the mask contain a wanted pixel.

    ``ranges[d]`` lists ranges of mask pixels along dimension `d`. Each combination of ranges is a box. Return a bool
    array with an entry for each box.
    """
    longest = max(
        (d for d, of_d in enumerate(ranges) if len(of_d) > 1),
        key=lambda d: ranges[d][-1][1] - ranges[d][0][0],
        default=None,
    )
    if longest is not None and math.prod(of_d[-1][1] - of_d[0][0] for of_d in ranges) > _PIECE:
        half = len(ranges[longest]) // 2
        halves = (ranges[longest][:half], ranges[longest][half:])
        parts = [_any_in_slices(values, [*ranges[:longest], part, *ranges[longest + 1 :]]) for part in halves]
        return np.concatenate(parts, axis=longest)
    pixels = tuple(slice(of_d[0][0], of_d[-1][1]) for of_d in ranges)
    wanted = _truth(values[pixels])
    if wanted.shape != (shape := tuple(pixel.stop - pixel.start for pixel in pixels)):
        raise ValidationError(f"the mask must return shape {shape} for {pixels}, got {wanted.shape}")
    for d, of_d in enumerate(ranges):
        before = np.zeros([n + (axis == d) for axis, n in enumerate(wanted.shape)], dtype=np.int64)
        np.cumsum(wanted, axis=d, out=before[(slice(None),) * d + (slice(1, None),)])
        first, last = (np.array(side, dtype=np.int64) - of_d[0][0] for side in zip(*of_d, strict=True))
        wanted = before.take(last, axis=d) > before.take(first, axis=d)
    return wanted


def _any_by_call(values: Callable[..., Any], ranges: Sequence[_Ranges]) -> BoolArray:
    asked = (tuple(itertools.starmap(slice, pixels)) for pixels in itertools.product(*ranges))
    answers = [bool(_truth(values(pixels)).any()) for pixels in asked]
    return np.array(answers, dtype=bool).reshape([len(of_d) for of_d in ranges])


def _is_sliced(values: Any) -> bool:
    return hasattr(type(values), "__getitem__") and len(getattr(values, "shape", ())) > 0


def _fractions(name: str, given: object) -> Fraction | tuple[Fraction, ...]:
    entries = members(given)
    if entries is None:
        return _fraction(name, given, given)
    return tuple([_fraction(name, given, entry) for entry in entries])


def _fraction(name: str, given: object, entry: object) -> Fraction:
    plain: Any = entry if isinstance(entry, Fraction) else number(entry)
    try:
        exact = Fraction(plain)
        if abs(exact) > LARGEST:
            raise OverflowError
    except (TypeError, ValueError, OverflowError) as error:
        raise ValidationError(
            f"{name} of a mask must be a finite number of pixels up to 2**53, or a tuple with one such number per "
            f"dimension, got {quoted(given)}"
        ) from error
    # The float 1/3 is not exactly a third, but the user means a third.
    near = exact.limit_denominator(_ROUND)
    return near if isinstance(plain, float) and float(near) == plain else exact


def _truth(values: Any) -> BoolArray:
    if isinstance(values, torch.Tensor):
        _check_dense(values)
        return (values != 0).numpy(force=True)
    array = _array(values)
    if array.dtype.kind not in "biufc":
        raise ValidationError(f"a mask must contain bools or numbers, got {quoted(values)}")
    wanted: BoolArray = array != 0
    return wanted


def _check_dense(values: object) -> None:
    if isinstance(values, torch.Tensor) and (values.layout is not torch.strided or values.is_meta):
        raise ValidationError(
            f"a mask must be a dense tensor with values, got layout {values.layout} on {values.device}; give "
            "t.to_dense() for a sparse tensor"
        )


def _array(values: Any) -> npt.NDArray[Any]:
    check_unmasked(values, "an array of wanted pixels has")
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValidationError(f"a mask must contain bools or numbers, got {quoted(values)}: {error!s:.200}") from error
