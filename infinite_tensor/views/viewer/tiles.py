"""What tiles show: pixels that are stored, pixels that are computed, and coarse pixels of either."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import StoreError, TileAccessError, ValidationError
from infinite_tensor.pipelines.pyramid import stored_levels
from infinite_tensor.support.functions import RegionWriter
from infinite_tensor.support.stopping import Stopped, end_if_unwanted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.coarse import Blocks, coarse
from infinite_tensor.views.colours import Array, are_labels, range_of
from infinite_tensor.views.frame import shown, shown_dtype, shown_if_stored
from infinite_tensor.views.plane import COLOURS, Box, Plane, Tile, finer
from infinite_tensor.views.viewer.viewport import runs

Pair: TypeAlias = tuple[Array, Array]

_MOST_READ = 1024
"""Pixels along a block that is read at once of what a coarse tile stands for."""


@dataclass(frozen=True, eq=False)
class Picture:
    """What a tile shows.

    Attributes
    ----------
    tile : Tile
    values : array of float, shape (rows, columns) or (rows, columns, 3)
        NaN where nothing is known.
    state : str
        "stored", "computed", "partial" where pixels are missing that are not to be computed, or "failed".
    error : str
        Why it failed.
    """

    tile: Tile
    values: Array
    state: str
    error: str = ""

    @cached_property
    def range(self) -> tuple[float, float] | None:
        """The smallest and the largest value; None where there are none."""
        return range_of([self.values])

    def range_in(self, part: Box) -> tuple[float, float] | None:
        """That of a part of it."""
        values = self.values[part]
        return self.range if values.size == self.values.size else range_of([values])


class Tiles:
    """The tiles of a tensor. What makes them raises Stopped where `stopping` says that nobody wants them any more.

    Parameters
    ----------
    tensor : InfiniteTensor

    Attributes
    ----------
    levels : list of InfiniteTensor
        The tensor, and the levels of it that its store holds.
    labels : bool
        Whether all values so far are numbers of classes, as `InfiniteTensor.show` has them.
    """

    def __init__(self, tensor: InfiniteTensor) -> None:
        self.levels, self._scales = Plane.of(tensor.shape, tensor.dims).pyramid(tensor, stored_levels(tensor))
        self._copied = node_of(tensor).computation.copied
        self.computable = self._copied or tensor.f is not None
        self._failed: dict[tuple[Plane, Tile], Picture] = {}
        dtype = shown_dtype(tensor.dtype)
        # Which holds all values, and NaN; of integers of 64 bits about so many digits as there are.
        single = dtype.itemsize <= 2 or dtype in (np.float32, np.complex64)
        self._dtype = np.dtype(np.float32 if single else np.float64)
        self.labels = dtype.kind in "iu"

    def window(self, plane: Plane) -> int:
        """Pixels of a plane for each window that is computed; 0 where ``f`` needs no windows."""
        if isinstance(self.levels[0].f, RegionWriter):
            return 0
        stride = self.levels[0].output_window.stride
        return stride[plane.rows] * stride[plane.columns]

    def stored(self, plane: Plane, tiles: Sequence[Tile]) -> Iterator[list[Picture]]:
        """What is stored of tiles of one level.

        Of a level that is there, a box of neighbours is one read; of another one, each tile is made of finer pixels.
        """
        level = tiles[0].level if tiles else 0
        groups = runs(tiles) if level < len(self.levels) else [[tile] for tile in tiles]
        for group in groups:
            boxes = [_box(plane, tile) for tile in group]
            (top, left), (bottom, right) = boxes[0], boxes[-1]
            box = slice(top.start, bottom.stop), slice(left.start, right.stop)
            values, missing = self._coarse(plane, box, level, min(level, len(self.levels) - 1), self._stored)
            found = []
            for tile, own in zip(group, boxes, strict=True):
                part = tuple([slice(by.start - of.start, by.stop - of.start) for by, of in zip(own, box, strict=True)])
                # A copy: all of the box is not kept for one of its tiles.
                state = "partial" if missing[part].any() else "stored"
                found.append(Picture(tile, values[part].copy(), state))
            yield found

    def filled(self, plane: Plane, picture: Picture) -> Picture:
        """A tile of which not all is stored, with coarse pixels of what is stored of finer levels in its gaps."""
        tile, values = picture.tile, picture.values
        for level in range(min(tile.level, len(self.levels) - 1) - 1, -1, -1):
            gaps = np.isnan(values)
            if not gaps.any():
                break
            values = np.where(gaps, self._coarse(plane, _box(plane, tile), tile.level, level, self._stored)[0], values)
        return Picture(tile, values, picture.state)

    def computed(self, plane: Plane, tile: Tile) -> Picture:
        """A tile, of which what is not stored is computed; an error of that is what it shows, from then on."""
        if (plane, tile) in self._failed:
            return self._failed[plane, tile]
        level = min(tile.level, len(self.levels) - 1)
        try:
            values, _ = self._coarse(plane, _box(plane, tile), tile.level, level, self._read)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001  (code of the user raises what it pleases)
            rows, columns = _box(plane, tile)
            shape = [part.stop - part.start for part in (rows, columns)] + [COLOURS] * (plane.colours is not None)
            nothing = np.full(shape, np.nan, self._dtype)
            if isinstance(error, TileAccessError):
                return Picture(tile, nothing, "partial")
            return self._failed.setdefault(
                (plane, tile), Picture(tile, nothing, "failed", f"{type(error).__name__}: {error}")
            )
        return Picture(tile, values, "computed")

    def _coarse(self, plane: Plane, box: Box, level: int, base: int, read: Callable[[int, Plane, Box], Pair]) -> Pair:
        """The pixels of a box of a level, made of those of level `base`, and which may be missing."""
        factor = 2 ** (level - base)
        if factor == 1:
            return read(base, plane, box)
        extents = plane.extents_in(self.levels[base].shape)
        rows, columns = box
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        values = np.full((*shape, COLOURS) if plane.colours is not None else shape, np.nan, self._dtype)
        missing = np.ones(values.shape, bool)
        step = max(1, _MOST_READ // factor)
        for top, left in itertools.product(range(0, shape[0], step), range(0, shape[1], step)):
            part = (slice(top, min(top + step, shape[0])), slice(left, min(left + step, shape[1])))
            block = tuple(slice(own.start + by.start, own.start + by.stop) for own, by in zip(box, part, strict=True))
            fine, lacks = read(base, plane, finer((block[0], block[1]), factor, extents))
            if not lacks.all():
                values[part] = self._halved(fine, level - base)
                missing[part] = lacks.any()
        return values, missing

    def _halved(self, values: Array, times: int) -> Array:
        """Pixels half as many along each side, so many times: means, or labels that there are most often."""
        pixels, nodata = torch.from_numpy(values), None
        if self.labels:
            pixels, nodata = torch.where(pixels.isnan(), -1, pixels).long(), torch.tensor(-1)
        along = [Blocks(2), Blocks(2), Blocks(1)][: pixels.ndim]
        for _ in range(times):
            pixels = coarse(pixels, along, "mode" if self.labels else "mean", nodata)
        halved = pixels.numpy().astype(self._dtype)
        if self.labels:
            halved[halved < 0] = np.nan
        return halved

    def _read(self, level: int, plane: Plane, box: Box) -> Pair:
        end_if_unwanted()
        pixels = shown(self.levels[level][plane.region(box, self._scales[level])])
        return self._shown(plane, pixels, np.zeros(pixels.shape, bool))

    def _stored(self, level: int, plane: Plane, box: Box) -> Pair:
        if self._copied and level == 0:
            return self._read(level, plane, box)
        end_if_unwanted()
        return self._shown(plane, *shown_if_stored(self.levels[level], plane.region(box, self._scales[level])))

    def _shown(self, plane: Plane, pixels: Array, missing: Array) -> Pair:
        """Pixels as a picture has them, NaN where they are missing; and where that is."""
        values, missing = plane.image(pixels), plane.image(missing)
        if missing.all():
            return np.full(values.shape, np.nan, self._dtype), missing
        self.labels = self.labels and are_labels(values[~missing] if missing.any() else values)
        found = values.astype(self._dtype)
        found[missing] = np.nan
        return found, missing


def _box(plane: Plane, tile: Tile) -> Box:
    box = tile.box(plane.extents)
    assert box is not None
    return box


def stored_near(tensor: InfiniteTensor, plane: Plane) -> tuple[float, float]:
    """The middle of the stored tile that is nearest to pixel 0 of an unbounded plane, or 0 where nobody knows one."""
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
