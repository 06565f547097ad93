"""Map tiles: squares of 256 x 256 pixels as PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import matplotlib as mpl
import numpy as np
from PIL import Image

from infinite_tensor.engine.chain import node_of
from infinite_tensor.geometry.regions import parse
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.colours import (
    Array,
    Labels,
    full_range,
    magnitudes,
    range_of,
    rgba,
    scaled,
)
from infinite_tensor.views.frame import numpy_dtype, stored_as_numpy
from infinite_tensor.views.plane import SIDE, Plane, Tile

_SAMPLES = 8
"""Number of stored tiles to sample for the range of colours."""
_HATCH, _CLEAR = 254, 255
"""Palette entries for stripes over missing pixels, and for transparent pixels."""
_GREY = (128, 128, 128, 160)


def tiles_of(level: InfiniteTensor, region: Any) -> int:
    """Return the number of tiles intersecting a region."""
    tile = node_of(level).contents.layout(node_of(level).spec).tile_shape
    found = parse(region, level.shape)
    return math.prod([(b - 1) // n - a // n + 1 for a, b, n in zip(found.start, found.stop, tile, strict=True)])


def samples(tensor: InfiniteTensor, plane: Plane, read: Callable[[Any], Array | None]) -> list[Array]:
    """Return some pixels for choosing colours.

    They are the pixels of a few stored tiles. If no tile is stored, call ``read(region)`` for smaller and smaller
    regions until it returns pixels instead of None.
    """
    node = node_of(tensor)
    layout = node.contents.layout(node.spec)
    found = node.contents.inventory(node.spec, *layout.pixels)
    tiles = sorted(found.complete or found.partial)
    some = tiles[:: max(1, len(tiles) // _SAMPLES)][:_SAMPLES]
    if some:
        parts = [stored_as_numpy(tensor, tuple(map(slice, layout.start(i), layout.stop(i)))) for i in some]
        return [values[~missing] for values, missing in parts]
    middle = Tile(0, *((extent or 0) // 2 // SIDE for extent in plane.extents)).box(plane.extents)
    assert middle is not None
    for side in (SIDE, SIDE // 4, SIDE // 16, 1):
        rows, columns = (slice(part.start, min(part.stop, part.start + side)) for part in middle)
        region = plane.region((rows, columns), (1,) * tensor.ndim)
        if (pixels := read(region)) is not None:
            return [pixels]
    return [np.zeros(0, numpy_dtype(tensor.dtype))]


@dataclass(frozen=True)
class Colours:
    """The colours of all map tiles of a tensor.

    Attributes
    ----------
    kind : str
        ``"rgb"`` for three channels, ``"labels"``, or ``"range"``.
    ends : pair of float
        The ends of the range; for labels, the smallest and the largest label seen.
    labels : Labels
        The colours of labels.
    """

    kind: str
    ends: tuple[float, float]
    labels: Labels

    @classmethod
    def of(cls, parts: Sequence[Array], low: float | None, high: float | None, labels: Labels, *, rgb: bool) -> Self:
        """Choose colours for some pixels.

        `low` and `high` are the ends of the range, or None to choose them by the pixels.
        """
        if not rgb and low is None and high is None and all(map(labels.fit, parts)):
            return cls("labels", range_of(parts) or (0, 1), labels)
        found = full_range(parts[0].dtype, rgb=rgb) or range_of(map(magnitudes, parts)) or (0, 1)
        ends = found[0] if low is None else low, found[1] if high is None else high
        return cls("rgb" if rgb else "range", ends, labels)

    def png(self, values: Array, missing: Array, size: tuple[int, ...] = (SIDE, SIDE)) -> bytes:
        """Return a picture as PNG, by default a map tile.

        Parameters
        ----------
        values : numpy.ndarray
            The pixels in rows and columns; fewer than a whole tile at the end of a tensor. NaN is transparent.
        missing : numpy.ndarray of bool
            A mask of the missing pixels. If there are any, they are striped, and the tile gets a dotted edge.
        size : tuple of int
            Rows and columns of the picture.
        """
        place = tuple(map(slice, values.shape[:2]))
        pixels, nothing, hatch = (
            (rgba(values, self.ends), 0, _GREY) if self.kind == "rgb" else (self._places(values), _CLEAR, _HATCH)
        )
        drawn = np.full((*size, *pixels.shape[2:]), nothing, np.uint8)
        drawn[place] = pixels
        if missing.any():
            stripes = np.add.outer(*map(np.arange, size)) % 8 < 2
            drawn[place][missing & stripes[place]] = hatch
            drawn[0, ::4] = drawn[::4, 0] = hatch
        image, written = Image.fromarray(drawn), io.BytesIO()
        if self.kind != "rgb":
            palette = self._palette()
            image.putpalette(palette[:, :3].tobytes())
            image.info["transparency"] = palette[:, 3].tobytes()
        image.save(written, "png", compress_level=1)
        return written.getvalue()

    def _places(self, values: Array) -> Array:
        if self.kind == "labels":
            known = (values >= 0) & (values < min(len(self.labels.colours), _HATCH))
            return np.where(known, np.nan_to_num(values), _CLEAR).astype(np.uint8)
        return np.where(np.isnan(values), _CLEAR, scaled(values, self.ends, _HATCH - 1)).astype(np.uint8)

    def _palette(self) -> Array:
        palette = np.zeros((256, 4), np.uint8)
        if self.kind == "labels":
            colours = self.labels.colours[:_HATCH]
            palette[: len(colours)] = np.insert(colours, 3, 255, axis=1)
        else:
            palette[:_HATCH] = mpl.colormaps["viridis"](np.linspace(0, 1, _HATCH), bytes=True)
        palette[_HATCH] = _GREY
        return palette
