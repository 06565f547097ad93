"""Pictures of the tiles of a tensor, for the viewer and for map tiles.

The pixels are stored or computed, or made from finer pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.geometry.regions import parse
from infinite_tensor.pipelines.pyramid import holds_labels, stored_levels
from infinite_tensor.pipelines.rasters import RasterReader
from infinite_tensor.pipelines.sources import is_source
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.functions import RegionWriter
from infinite_tensor.support.stopping import end_if_unwanted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.coarse import AxisBlocks, Coarsening, coarse
from infinite_tensor.values.meaning import nodata_of
from infinite_tensor.views.colours import Array, Labels, magnitudes, range_of
from infinite_tensor.views.frame import as_numpy, numpy_dtype
from infinite_tensor.views.plane import COLOURS, Box, Plane, Tile, finer

Pair: TypeAlias = tuple[Array, Array]
Reading: TypeAlias = Callable[[int, Plane, Box], Pair]

_MOST_READ = 1024
"""Maximum side of a block of finer pixels to read at once for a coarser tile."""
_MOST_TILES = 1024
"""Maximum number of stored tiles of a finer level to read for the gaps of a tile."""


@dataclass(frozen=True, eq=False)
class Picture:
    """The pixels shown in a tile.

    Attributes
    ----------
    tile : Tile
    values : array of float, shape (rows, columns) or (rows, columns, 3)
        NaN where pixels are missing.
    missing : array of bool, shape (rows, columns)
        Which pixels are missing.
    state : str
        "stored", "computed", "partial" if pixels are missing and will not be computed, or "failed".
    error : str
        The reason if it failed.
    """

    tile: Tile
    values: Array
    missing: Array
    state: str
    error: str = ""

    @classmethod
    def failed(cls, plane: Plane, tile: Tile, error: BaseException, state: str = "failed") -> Self:
        """Return a picture without pixels, with an error."""
        shape = [part.stop - part.start for part in _box(plane, tile)]
        values = np.full(shape + [COLOURS] * (plane.colours is not None), np.nan)
        return cls(tile, values, np.ones(shape, bool), state, f"{type(error).__name__}: {error}")

    @cached_property
    def range(self) -> tuple[float, float] | None:
        """The smallest and the largest value, or None if all are missing."""
        return range_of([self.values])

    def range_in(self, part: Box) -> tuple[float, float] | None:
        """Return the smallest and the largest value in a part of the tile, or None if all are missing."""
        values = self.values[part]
        return self.range if values.size == self.values.size else range_of([values])


class Painter:
    """Painter of the tiles of a tensor.

    Inside ``with stopping(stop)``, its methods raise Stopped once ``stop()`` is True.

    Parameters
    ----------
    tensor : InfiniteTensor
    levels : list of InfiniteTensor, optional
        The levels of its pyramid. Default: those that are stored.

    Attributes
    ----------
    levels : list of InfiniteTensor
        The tensor, and its levels.
    labels : bool
        Whether all values so far are labels, as `InfiniteTensor.show` defines them.
    colours : Labels
        Their colours and names.
    """

    def __init__(self, tensor: InfiniteTensor, levels: Sequence[InfiniteTensor] | None = None) -> None:
        levels = stored_levels(tensor) if levels is None else levels
        self.levels, self.scales = Plane.of(tensor.shape, tensor.dims).pyramid(tensor, levels)
        self._copied = node_of(tensor).computation.copied
        self._is_source = is_source(tensor)
        self._code = nodata_of(node_of(tensor).spec.definition)
        dtype = numpy_dtype(tensor.dtype)
        # A dtype with NaN and exact values, except for large 64-bit integers.
        single = dtype.itemsize <= 2 or dtype in (np.float32, np.complex64)
        self._dtype = np.dtype(np.float32 if single else np.float64)
        self.colours = Labels.of(node_of(tensor).spec.definition.meaning)
        self.labels = dtype.kind in "iu" or self.colours.is_given
        self._holds_labels = holds_labels(tensor)

    def window(self, plane: Plane) -> int:
        """Return the number of pixels per window in a plane.

        It is the stride of rows times the stride of columns. Return 0 if ``f`` is a `RegionWriter`, because it needs no
        windows.
        """
        if isinstance(self.levels[0].f, RegionWriter):
            return 0
        stride = self.levels[0].output_window.stride
        return stride[plane.rows] * stride[plane.columns]

    def scale(self, plane: Plane, tiles: Sequence[Tile]) -> int:
        """Return how many pixels of the tensor one pixel that is computed for `tiles` stands for.

        It is 1, unless levels are computed from coarser sources. All tiles must have the same level.
        """
        known = self.levels[: tiles[0].level + 1] if tiles else []
        for below, level in reversed([*itertools.pairwise(known)]):
            if level.args[0].tensor_id != below.tensor_id:
                assert isinstance(level.f, Coarsening)
                return level.f.scale[plane.rows] * level.f.scale[plane.columns]
        return 1

    def stored(self, plane: Plane, tiles: Sequence[Tile]) -> Iterator[list[Picture]]:
        """Yield the stored pixels of tiles, in groups.

        All tiles must have the same level. If the level is stored, neighbouring tiles form a group and are read as one
        box. Otherwise each tile is a group, made from pixels of the coarsest stored level.
        """
        level = tiles[0].level if tiles else 0
        groups = runs(tiles) if level < len(self.levels) else [[tile] for tile in tiles]
        for group in groups:
            boxes = [_box(plane, tile) for tile in group]
            (top, left), (bottom, right) = boxes[0], boxes[-1]
            box = slice(top.start, bottom.stop), slice(left.start, right.stop)
            values, missing = self._made(plane, box, level, min(level, len(self.levels) - 1))
            found = []
            for tile, own in zip(group, boxes, strict=True):
                part = _inside(own, box)
                # A copy, since a view would keep the whole box in memory.
                lacks = _any_colour(missing[part])
                found.append(Picture(tile, values[part].copy(), lacks, "partial" if lacks.any() else "stored"))
            yield found

    def filled(self, plane: Plane, picture: Picture) -> Picture:
        """Replace missing pixels of a tile by stored pixels of finer levels.

        If the tensor is a source, return every n-th of its pixels instead.
        """
        tile, values = picture.tile, picture.values
        if self._is_source:
            values = self._thinned(plane, tile)
            return Picture(tile, values, np.zeros(values.shape[:2], bool), "stored")
        box, top = _box(plane, tile), min(tile.level, len(self.levels) - 1)
        for level in range(top - 1, -1, -1):
            gaps = np.isnan(values)
            if not gaps.any() or self._tiles_in(plane, box, tile.level, level).shape[1] > _MOST_TILES:
                break
            values = np.where(gaps, self._made(plane, box, tile.level, level)[0], values)
        return Picture(tile, values, picture.missing & _any_colour(np.isnan(values)), picture.state)

    def computed(self, plane: Plane, tile: Tile) -> Picture:
        """Compute the missing pixels of a tile.

        Raise what ``f`` raises, and TileAccessError if pixels are neither stored nor computable.
        """
        level = min(tile.level, len(self.levels) - 1)
        values, missing = self._made(plane, _box(plane, tile), tile.level, level, compute=True)
        return Picture(tile, values, _any_colour(missing), "computed")

    def paint(self, plane: Plane, tile: Tile, *, compute: bool) -> Picture:
        """Compute a tile, or else paint what is stored of it in its level and in finer ones."""
        if compute:
            return self.computed(plane, tile)
        ((picture,),) = self.stored(plane, [tile])
        return self.filled(plane, picture) if picture.state == "partial" else picture

    def _made(self, plane: Plane, box: Box, level: int, base: int, *, compute: bool = False) -> Pair:
        """Make the pixels of a box of `level` by halving the finer level `base` repeatedly.

        Return the pixels, and a mask of missing pixels. With `compute`, missing pixels of `base` are computed.
        """
        everywhere = compute or (self._copied and base == 0)
        read = partial(self._read, compute=everywhere)
        tiles = None if everywhere or level == base else self._tiles_in(plane, box, level, base)
        while True:
            labels = self.labels
            found = self._coarse(plane, box, level, base, read, tiles)
            # If pixels turn out not to be labels, make them again.
            if self.labels == labels:
                return found

    def _coarse(self, plane: Plane, box: Box, level: int, base: int, read: Reading, tiles: IntArray | None) -> Pair:
        """Make the pixels of a box of `level` by halving the finer level `base` repeatedly.

        A large box is made part by part. The function `read` reads pixels of `base`. `tiles` are the tiles of `base` to
        read; the pixels of all others are missing. None reads all tiles.
        """
        if level == base:
            return read(base, plane, box)
        extents, shape = plane.extents_in(self.levels[base].shape), [part.stop - part.start for part in box]
        values = np.full((*shape, COLOURS) if plane.colours is not None else shape, np.nan, self._dtype)
        missing = np.ones(values.shape, bool)
        if tiles is not None:
            rows, columns = finer(box, 2 ** (level - base), extents)
            starts, stops = tiles
            touched = (starts < (rows.stop, columns.stop)) & (stops > (rows.start, columns.start))
            tiles = tiles[:, touched.all(axis=1)]
            if not tiles.size:
                return values, missing
        # Split a box too large to read at once. Split a single large pixel into pixels of the next finer level.
        size = max(shape) * 2 ** (level - base)
        below = base if size <= _MOST_READ else level - 1
        if below == base or max(shape) == 1:
            times = level - below
            ends = tuple([None if n is None else -(-n // 2 ** (below - base)) for n in extents])
            pixels, lacks = self._coarse(plane, finer(box, 2**times, ends), below, base, read, tiles)
            return self._halved(plane, pixels, times), np.full(values.shape, lacks.any())
        for parts in itertools.product(*[_halves(part) for part in box]):
            own = parts[0], parts[1]
            place = _inside(own, box)
            values[place], missing[place] = self._coarse(plane, own, level, base, read, tiles)
        return values, missing

    def _tiles_in(self, plane: Plane, box: Box, level: int, base: int) -> IntArray:
        """Return the stored and partial tiles of `base` below a box of `level`.

        The result has shape (2, N, 2): the first row and column of each tile, and the row and column after the last.
        """
        tensor, node = self.levels[base], node_of(self.levels[base])
        fine = finer(box, 2 ** (level - base), plane.extents_in(tensor.shape))
        region = parse(plane.region(fine, self.scales[base]), tensor.shape)
        found = node.contents.inventory(node.spec, region.start, region.stop)
        indices = np.array([*found.complete, *found.partial], dtype=np.int64).reshape(-1, tensor.ndim)
        sides = node.contents.layout(node.spec).tile_shape
        return np.stack([indices * sides, (indices + 1) * sides])[:, :, [plane.rows, plane.columns]]

    def _halved(self, plane: Plane, values: Array, times: int) -> Array:
        """Halve the number of rows and columns, `times` times.

        Four pixels become their mean, or their most frequent label. NaN and nodata are left out.
        """
        labels = self.labels or self._holds_labels
        pixels, nodata = torch.from_numpy(np.where(values == self._nodata(plane), np.nan, values)), None
        if labels:
            pixels, nodata = torch.where(pixels.isnan(), -1, pixels).long(), torch.tensor(-1, device="cpu")
        along = [AxisBlocks(2), AxisBlocks(2), AxisBlocks(1)][: pixels.ndim]
        for _ in range(times):
            pixels = coarse(pixels, along, "mode" if labels else "mean", nodata)
        halved = pixels.numpy().astype(self._dtype)
        if labels:
            halved[halved < 0] = np.nan
        return halved

    def _thinned(self, plane: Plane, tile: Tile) -> Array:
        tensor, step = self.levels[0], 2**tile.level
        fine = finer(_box(plane, tile), step, plane.extents_in(tensor.shape))
        rows, columns = (slice(part.start, part.stop, step) for part in fine)
        region = plane.region((rows, columns), self.scales[0])
        end_if_unwanted()
        reader: Any = getattr(tensor.f, "reader", None)
        is_raster = isinstance(reader, RasterReader)
        if not is_raster:
            return self._as_floats(*plane.read(tensor, region, compute=True))[0]
        values = magnitudes(plane.image(as_numpy(reader.every(region[0], rows, columns))))
        return self._as_floats(values, np.zeros(values.shape, bool))[0]

    def _nodata(self, plane: Plane) -> Array:
        """Return the nodata value of a plane, or an array with a value per colour.

        NaN means that there is no nodata value.
        """
        code = self._code
        if code is None or code.along in (plane.rows, plane.columns):
            return np.array(np.nan)
        if code.along is None:
            return np.array(code.value, self._dtype)
        values = np.array([np.nan if each is None else each for each in code.value], self._dtype)
        place = plane.at[code.along]
        return values[:COLOURS] if place is None else values[place]

    def _read(self, level: int, plane: Plane, box: Box, *, compute: bool) -> Pair:
        end_if_unwanted()
        return self._as_floats(*plane.read(self.levels[level], plane.region(box, self.scales[level]), compute=compute))

    def _as_floats(self, values: Array, missing: Array) -> Pair:
        """Return values as floats with NaN for missing pixels, and a mask of missing pixels."""
        if missing.all():
            return np.full(values.shape, np.nan, self._dtype), missing
        self.labels = self.labels and self.colours.fit(values[~missing] if missing.any() else values)
        found = values.astype(self._dtype)
        found[missing] = np.nan
        return found, missing


def _any_colour(mask: Array) -> Array:
    """Return a mask of the pixels that are True in any colour."""
    return np.asarray(mask.any(-1)) if mask.ndim == 3 else mask


def _halves(part: slice) -> list[slice]:
    middle = (part.start + part.stop) // 2
    return [slice(a, b) for a, b in ((part.start, middle), (middle, part.stop)) if a < b]


def _inside(part: Box, box: Box) -> Box:
    """Return a part of a box, relative to the first pixel of the box."""
    rows, columns = (slice(own.start - of.start, own.stop - of.start) for own, of in zip(part, box, strict=True))
    return rows, columns


def _box(plane: Plane, tile: Tile) -> Box:
    box = tile.box(plane.extents)
    assert box is not None
    return box


def stored_near(tensor: InfiniteTensor, plane: Plane) -> tuple[float, float]:
    """Return the middle of the stored tile nearest to pixel (0, 0).

    Return (0, 0) if that pixel is stored, or if no stored tile is known.
    """
    node = node_of(tensor)
    near = [0 if place is None else place for place in plane.at]
    if tensor.coverage(tuple([slice(place, place + 1) for place in near]), "stored").any():
        return 0.0, 0.0
    try:
        layout = node.contents.layout(node.spec)
        found = node.contents.inventory(node.spec, *layout.pixels)
    except (StoreError, ValidationError):
        return 0.0, 0.0
    size = layout.tile_shape[plane.rows], layout.tile_shape[plane.columns]
    middles = [
        ((tile[plane.rows] + 0.5) * size[0], (tile[plane.columns] + 0.5) * size[1])
        for tile in (*found.complete, *found.partial)
    ]
    return min(middles, key=lambda at: (math.hypot(*at), at), default=(0.0, 0.0))


def runs(tiles: Sequence[Tile]) -> list[list[Tile]]:
    """Group tiles of one level into rectangles without gaps.

    Each group can be read as one box.
    """
    rows = [
        [tile for _, tile in row]
        for _, row in itertools.groupby(enumerate(sorted(tiles)), lambda at: (at[1].row, at[1].column - at[0]))
    ]
    rows.sort(key=lambda row: (row[0].column, len(row), row[0].row))
    blocks = itertools.groupby(enumerate(rows), lambda at: (at[1][0].column, len(at[1]), at[1][0].row - at[0]))
    return [[tile for _, row in block for tile in row] for _, block in blocks]
