"""The tiles of a tensor."""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import COORDINATE_LIMIT, Index, IntArray
from infinite_tensor.geometry.window import Shape, TensorWindow, WindowGrid, followed, whole_strides
from infinite_tensor.support.allocation import Array
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.given import as_index, quoted
from infinite_tensor.values.functions import Functions
from infinite_tensor.values.reduction import Reduction, gathered_shape
from infinite_tensor.values.spec import TensorSpec

if TYPE_CHECKING:
    from infinite_tensor.tilestore.backend import TensorHandle


def tile_shape_of(shape: Shape, tile_size: object) -> Index:
    """Return the shape of a tile in pixels.

    Parameters
    ----------
    shape : tuple of (int or None)
        Shape of the tensor.
    tile_size : int or tuple of int
        The size given by the user: one int for all unbounded dimensions (for all dimensions, if none is unbounded), one
        int per unbounded dimension, or one int per dimension. A tile spans each finite dimension without a given size,
        and is never longer than a finite dimension.

    Raises
    ------
    ValidationError
        If `tile_size` has another form, or contains a number below 1.
    """
    sizes = sizes_of("tile_size", tile_size, shape)
    return tuple([sizes[d] if n is None else min(sizes.get(d, n), n) for d, n in enumerate(shape)])


def sizes_of(name: str, given: object, shape: Shape) -> dict[int, int]:
    """Return the size given for each dimension, as a dict.

    A `given` of 64 for shape ``(None, None, 3)`` becomes ``{0: 64, 1: 64}``: dimensions without a size are left out.
    `given` has the form of `tile_size` in `tile_shape_of`. `name` is the name of the argument for error messages.
    """
    unbounded = [d for d, extent in enumerate(shape) if extent is None] or list(range(len(shape)))
    single = as_index(given)
    if single is not None:
        sizes = dict.fromkeys(unbounded, single)
    elif isinstance(given, tuple | list) and len(given) in (len(unbounded), len(shape)):
        dims: Sequence[int] = range(len(shape)) if len(given) == len(shape) else unbounded
        sizes = {d: as_index(size) or 0 for d, size in zip(dims, given, strict=True)}
    else:
        some = f"one int per unbounded dimension ({len(unbounded)}) or " if len(unbounded) < len(shape) else ""
        raise ValidationError(
            f"{name} must be an int, or {some}one int per dimension ({len(shape)}) of shape {shape}, got "
            f"{quoted(given)}"
        )
    if min(sizes.values()) < 1:
        raise ValidationError(f"{name} must contain positive ints only, got {quoted(given)}")
    return sizes


_LEAST_TILE_BYTES = 2**20
"""The least bytes of a default tile, unless the tensor is smaller."""
_MOST_TILE_BYTES = 2**22
_GATHERED_TILE_SIZE = 128
_GATHERED_TILE_BYTES = 2**22
"""Limits for the growth of default tiles with a reduction: pixels per dimension, and bytes of the gathered windows."""
LARGEST_TILE_BYTES = 2**31 - 1
"""The buffer limit of common compressors."""


def usual_tile(spec: TensorSpec) -> Index:
    """Return the default tile shape of a new tensor.

    A tile has all channels, and about the same number of windows along each dimension.
    """
    window, follows = spec.grid.window, followed(spec.grid.window)
    along = zip(follows, window.size, window.stride, strict=True)
    strides = [size if k is None else min(size, stride) for k, size, stride in along]
    if spec.reduction is not None:
        return tile_of(spec, _gathered_tile(spec, strides))
    ends = [math.inf if extent is None else extent for extent in spec.shape]
    # Begin with all channels, and with every dimension spanned by a window.
    tile = [min(n, end) if k is None or n >= end else 1 for k, n, end in zip(follows, window.size, ends, strict=True)]
    if math.prod(tile) * spec.dtype.itemsize > _MOST_TILE_BYTES:
        tile = [1] * len(tile)
    while growing := [d for d, end in enumerate(ends) if tile[d] < end]:
        d = min(growing, key=lambda d: (tile[d] / strides[d], -d))
        grown = min(2 * tile[d], ends[d])
        nbytes = math.prod(tile) * spec.dtype.itemsize
        is_narrow = any(tile[other] * strides[d] >= 2 * tile[d] * strides[other] for other in growing)
        if nbytes >= _LEAST_TILE_BYTES and not (is_narrow and nbytes * grown <= _MOST_TILE_BYTES * tile[d]):
            break
        tile[d] = grown
    return tile_of(spec, tile)


_LEAST_KEPT_BYTES = 2**12
_ROW_BYTES = 2**14
_BLENDED_BYTES = 2**18
_MOST_BLENDED_BYTES = 2**24
_LONGER = 4
"""Tiles of overlapping windows are longer along a row of windows, because rows are blended at once."""


def tile_in_memory(spec: TensorSpec) -> Index:
    """Return the default tile shape of a tensor in memory.

    Where windows lie side by side, a tile is a window, or a row of small windows. Where they overlap, a tile has whole
    strides.
    """
    grid, size = spec.grid, spec.gathered_bytes
    tile = [min(size, stride) for size, stride in zip(grid.window.size, grid.window.stride, strict=True)]
    nbytes, d = math.prod(tile) * size, grid.row_dim
    if d in grid.moving:
        if not grid.overlap_free:
            tile[d] *= _LONGER
        elif nbytes < _LEAST_KEPT_BYTES:
            tile[d] *= max(1, int(_ROW_BYTES // nbytes))
    if not grid.overlap_free:
        tile = whole_strides(grid, tile, _BLENDED_BYTES / size, _MOST_BLENDED_BYTES / size)
    return tile_of(spec, tile)


def _gathered_tile(spec: TensorSpec, strides: Sequence[int]) -> list[int]:
    sizes = [*strides]
    for d in reversed(range(len(sizes))):
        room = int(_GATHERED_TILE_BYTES / (math.prod(tile_of(spec, sizes)) * spec.gathered_bytes))
        sizes[d] *= max(1, min(room, _GATHERED_TILE_SIZE // sizes[d]))
    return sizes


def tile_of(spec: TensorSpec, size: object) -> Index:
    """Return the tile shape of a tensor for the tile size `size`.

    If the tensor has a reduction, a tile has all output channels.
    """
    tile, reduction = tile_shape_of(spec.shape, size), spec.reduction
    return tile if reduction is None or reduction.out_channels is None else (reduction.out_channels, *tile[1:])


@dataclass(eq=False)
class Record:
    """A tensor registered with a store.

    A persistent store has only a weak reference to a record. Specs of the tensor, reads, and tiles in memory keep the
    record alive.

    Attributes
    ----------
    spec : TensorSpec
        The tensor as stored. Unlike other specs, this spec does not keep the record alive. If the tensor was opened
        without its functions, and the functions are given later, a new spec replaces this one.
    layout : TileLayout
        The tiles of the tensor.
    functions : Functions
        The functions that computed what is stored.
    handle : TensorHandle
        The tensor in storage.
    device : torch.device
        The device of the tiles in memory.
    written : list of int
        The number of complete tiles stored by the background writer of this store object, and the size in bytes of
        everything the writer has stored for the tensor, before compression.
    current : bool
        Whether deposited windows may be stored: False once the tensor was cleared or invalidated.
    is_sparse : bool
        Whether most tiles were missing at the last look into storage.
    """

    spec: TensorSpec
    layout: TileLayout
    functions: Functions
    handle: TensorHandle
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    written: list[int] = field(default_factory=lambda: [0, 0])
    current: bool = True
    is_sparse: bool = False
    _holder: weakref.ref[Holder] | None = field(default=None, init=False)

    @property
    def is_held(self) -> bool:
        """Whether a spec of the tensor is in use."""
        return self._holder is not None and self._holder() is not None

    def holder(self) -> Holder:
        """Return the `Holder` of this record.

        The record stays alive while a spec refers to the holder.
        """
        holder = None if self._holder is None else self._holder()
        if holder is None:
            holder = Holder(self)
            self._holder = weakref.ref(holder)
        return holder

    @cached_property
    def takes_windows(self) -> bool:
        """Whether every window is a tile, pixel by pixel, except at the ends of finite dimensions."""
        grid, followed_once = self.spec.grid, {k for k, *_ in self.spec.grid.dimensions if k is not None}
        return (
            self.spec.reduction is None
            and self.spec.blender.copies
            and len(followed_once) == sum(k is not None for k, *_ in grid.dimensions)
            and all(
                size == tile and offset % size == 0 and (stride == size if k is not None else offset == 0)
                for (k, size, stride, offset, _), tile in zip(grid.dimensions, self.layout.tile_shape, strict=True)
            )
        )

    def tiles_of(self, windows: IntArray) -> list[Index]:
        """Return the tile of each window, if `takes_windows`."""
        columns, none = windows.T.tolist(), [0] * len(windows)
        moved = [(k, offset // size) for k, size, _, offset, _ in self.spec.grid.dimensions]
        return list(
            zip(
                *[none if k is None else columns[k] if not by else [i + by for i in columns[k]] for k, by in moved],
                strict=True,
            )
        )

    @cached_property
    def gathered(self) -> TileLayout:
        """Layout of the tiles for blended windows, before the reduction.

        See `gathered_layout`. Without a reduction, this is `layout`.
        """
        return self.layout if self.spec.reduction is None else gathered_layout(self.spec.reduction, self.layout)


class Holder:
    """Keeps a record alive while specs of the tensor are in use.

    Each spec has a reference to the holder, and the holder has a reference to the record. The record has only a weak
    reference to the holder. When this reference is dead, no spec is in use.
    """

    def __init__(self, record: Record) -> None:
        self._record = record


class TileLayout:
    """The tiles of a tensor.

    Tile ``i`` covers ``[i*size, (i+1)*size)`` in each dimension. The last tile of a finite dimension may reach past the
    end of the dimension. Raise ValidationError if a tile has more than `largest` bytes.
    """

    def __init__(
        self, shape: Shape, tile_shape: Index, dtype: torch.dtype, largest: float = LARGEST_TILE_BYTES
    ) -> None:
        self.shape = shape
        self.tile_shape = tile_shape
        self.dtype = dtype
        self.largest = largest
        self.tile_bytes = math.prod(tile_shape) * dtype.itemsize
        if self.tile_bytes > largest:
            raise ValidationError(
                f"a tile of shape {tile_shape} and {dtype} would have {self.tile_bytes} bytes, but at most {largest} "
                "are allowed; give a smaller tile_size, or one int per dimension to tile finite dimensions too"
            )
        self.grid = WindowGrid(TensorWindow(tile_shape), (None,) * len(shape))
        self._ends = [(d, extent // tile_shape[d]) for d, extent in enumerate(shape) if extent is not None]

    @property
    def pixels(self) -> tuple[list[int], list[int]]:
        """The bounds of the tensor: the first pixel, and the end (exclusive).

        Along an unbounded dimension, the bounds are ``-COORDINATE_LIMIT`` and ``COORDINATE_LIMIT``.
        """
        start = [-COORDINATE_LIMIT if extent is None else 0 for extent in self.shape]
        return start, [COORDINATE_LIMIT if extent is None else extent for extent in self.shape]

    def start(self, tile: Index) -> Index:
        """Return the first pixel of a tile."""
        return tuple(map(operator.mul, tile, self.tile_shape))

    def stop(self, tile: Index) -> Index:
        """Return the end of a tile, cut at the end of the tensor."""
        return tuple(
            [
                (i + 1) * n if extent is None else min((i + 1) * n, extent)
                for i, n, extent in zip(tile, self.tile_shape, self.shape, strict=True)
            ]
        )

    def is_stored(self, tile: Index) -> bool:
        """Check whether a tile may be stored.

        Tiles entirely beyond ``-COORDINATE_LIMIT`` or ``COORDINATE_LIMIT`` are never stored.
        """
        return all(
            extent is not None or -COORDINATE_LIMIT - n < i * n < COORDINATE_LIMIT
            for i, n, extent in zip(tile, self.tile_shape, self.shape, strict=True)
        )

    def is_inside(self, tile: Index) -> bool:
        """Whether a tile lies inside the tensor, also at its end."""
        return not self._ends or all(tile[d] < end for d, end in self._ends)

    def parts(
        self, start: Sequence[int], stop: Sequence[int]
    ) -> Iterable[tuple[Index, tuple[slice, ...], tuple[slice, ...]]]:
        """Cut the region ``[start, stop)`` at tile borders.

        Return for each tile its index, the slices of the part inside the tile, and the slices inside the region.
        """
        tiles: list[range] = []
        sources: list[list[slice]] = []
        targets: list[list[slice]] = []
        for n, a, b in zip(self.tile_shape, start, stop, strict=True):
            tiles.append(range(a // n, -(-b // n)))
            sources.append([])
            targets.append([])
            for i in tiles[-1]:
                low, high = max(i * n, a), min(i * n + n, b)
                sources[-1].append(slice(low - i * n, high - i * n))
                targets[-1].append(slice(low - a, high - a))
        return zip(itertools.product(*tiles), itertools.product(*sources), itertools.product(*targets), strict=True)

    def box(self, start: Sequence[int], stop: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the tiles touched by a region, as a box ``[low, high)`` of tile indices.

        For tiles of 100 pixels, the pixels ``[150, 320)`` touch the tiles ``[1, 4)``. The region must not be empty.
        """
        low = list(map(operator.floordiv, start, self.tile_shape))
        return low, [-(-b // n) for b, n in zip(stop, self.tile_shape, strict=True)]

    def whole(self, start: Sequence[int], stop: Sequence[int]) -> tuple[Index, Index]:
        """Extend a region to whole tiles, and return its bounds in pixels."""
        low, high = self.box(start, stop)
        return self.start(tuple(low)), self.stop(tuple([i - 1 for i in high]))


def layout_of(
    shape: Shape,
    tile: Index,
    dtype: torch.dtype,
    reduction: Reduction | None,
    largest: float = LARGEST_TILE_BYTES,
) -> TileLayout:
    """Return the layout of a tensor, after a check of the tile size.

    Raise ValidationError if tiles are too large, or do not fit the reduction.
    """
    layout = TileLayout(shape, tile, dtype, largest)
    if reduction is not None:
        if reduction.out_channels not in (None, tile[0]):
            raise ValidationError(
                f"a tile must contain all {reduction.out_channels} output channels of the reduction, got a tile of "
                f"shape {tile}; give a tile_size of {reduction.out_channels} along the first dimension"
            )
        gathered_layout(reduction, layout)
    return layout


def gathered_layout(reduction: Reduction, layout: TileLayout) -> TileLayout:
    """Return the layout of the tiles before a reduction.

    Such a tile has all values returned by ``f`` for each pixel, for example a score for every class. `reduction` turns
    them into the values in a tile of `layout`, for example the class with the highest score.
    """
    shape, tile = (gathered_shape(reduction, extents) for extents in (layout.shape, layout.tile_shape))
    return TileLayout(shape, tuple([n for n in tile if n is not None]), reduction.dtype, layout.largest)


def copy_shared(source: Array, source_start: Sequence[int], target: Array, target_start: Sequence[int]) -> None:
    """Copy the overlap of two blocks from `source` to `target`.

    `source_start` and `target_start` are the first pixels of the blocks.
    """
    to, of = [], []
    for a, n, b, m in zip(source_start, source.shape, target_start, target.shape, strict=True):
        begin = a - b
        low, high = max(begin, 0), min(begin + n, m)
        to.append(slice(low, high))
        of.append(slice(low - begin, high - begin))
    target[tuple(to)] = source[tuple(of)]
