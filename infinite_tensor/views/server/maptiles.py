"""Map tiles: squares of 256 pixels of a tensor or of one of its levels, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from PIL import Image

from infinite_tensor.engine.chain import node_of
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import parse
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.frame import shown, shown_dtype, shown_if_stored
from infinite_tensor.views.labels import COLOURS, MOST_LABELS, are_labels
from infinite_tensor.views.showing import channels_of

SIDE = 256
_SAMPLES = 8
"""Of so many stored tiles the range of colours is taken."""
_MOST_TILES = 64
"""So many stored tiles of a finer level are looked at for one map tile."""
_HATCH, _CLEAR = 254, 255
"""Places in the palette: of the stripes over what is missing, and of what is transparent."""
_GREY = (128, 128, 128, 160)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Plane:
    """Which pixels of a tensor are drawn: two dimensions, three channels perhaps, and one entry of all others.

    Attributes
    ----------
    rows, columns : int
        The numbers of the dimensions.
    channels : int or None
        That of the channels.
    at : tuple of int
        The entry of each dimension; 0 of those that are drawn.
    """

    rows: int
    columns: int
    channels: int | None
    at: Index

    @classmethod
    def of(cls, tensor: InfiniteTensor, at: Sequence[int] = ()) -> Self | None:
        """The last two dimensions that are none of channels; None where there are no two.

        `at` has the entries of all others, in their order; 0 by default.
        """
        channels = channels_of([0 if extent is None else extent for extent in tensor.shape])
        kept = [d for d in range(tensor.ndim) if d != channels]
        if len(kept) < 2 or len(at) > len(kept) - 2:
            return None
        entries = dict(zip(kept[:-2], at, strict=False))
        return cls(kept[-2], kept[-1], channels, tuple([entries.get(d, 0) for d in range(tensor.ndim)]))

    def coarsened(self, levels: Sequence[InfiniteTensor]) -> bool:
        """Whether levels have half as many rows and columns as the one before, and the same channels."""
        factors = [getattr(level.f, "factor", ()) for level in levels]
        return all(
            each[self.rows] == each[self.columns] == 2 and (self.channels is None or each[self.channels] == 1)
            for each in factors
        )

    def region(self, tensor: InfiniteTensor, factor: Sequence[int], row: int, column: int, step: int = 1) -> Any:
        """The pixels of a map tile that a level has; None where it has none.

        Parameters
        ----------
        tensor : InfiniteTensor
            The level.
        factor : sequence of int
            Pixels of the tensor below along one of the level, per dimension.
        row, column : int
            Numbers of the map tile.
        step : int
            How many pixels of the level stand for one of the map tile.
        """
        found: list[Any] = [entry // n for entry, n in zip(self.at, factor, strict=True)]
        for d, number in ((self.rows, row), (self.columns, column)):
            low, stop, extent = number * SIDE * step, (number + 1) * SIDE * step, tensor.shape[d]
            if extent is not None:
                low, stop = max(low, 0), min(stop, extent)
            if low >= stop:
                return None
            found[d] = slice(low, stop, step)
        if self.channels is not None:
            found[self.channels] = slice(None)
        return tuple(found)

    def image(self, values: Array) -> Array:
        """Pixels of a region in rows, with three channels last."""
        if np.iscomplexobj(values):
            values = np.abs(values)
        if self.channels is None:
            return values
        values = np.moveaxis(values, 0 if self.channels < self.rows else -1, -1)
        return values[..., 0] if values.shape[-1] == 1 else values


def stored_image(
    levels: Sequence[InfiniteTensor], factors: Sequence[Index], plane: Plane, row: int, column: int
) -> tuple[Array, Array]:
    """What is stored of a map tile of the last of some levels, and where it is missing.

    What one level lacks is taken from the next finer one: the first of the pixels below it.
    """
    values = missing = None
    for k in reversed(range(len(levels))):
        level, step = levels[k], 2 ** (len(levels) - 1 - k)
        region = plane.region(level, factors[k], row, column, step)
        selection = parse(region, level.shape)
        if values is not None and _tiles_of(level, selection.size) > _MOST_TILES:
            break
        found, lacks = map(plane.image, shown_if_stored(level, selection))
        lacks = np.logical_or.reduce(lacks, axis=-1) if lacks.ndim == 3 else lacks
        if values is None or missing is None:
            values, missing = found, lacks
        else:
            values[missing] = found[missing]
            missing = missing & lacks
        if not missing.any():
            break
    assert values is not None
    assert missing is not None
    return values, missing


def _tiles_of(level: InfiniteTensor, size: Sequence[int]) -> int:
    tile = node_of(level).contents.layout(node_of(level).spec).tile_shape
    return int(np.prod([-(-extent // n) for extent, n in zip(size, tile, strict=True)]))


def samples(tensor: InfiniteTensor, plane: Plane, *, compute: bool) -> list[Array]:
    """Pixels by which colours are chosen: of some stored tiles, or of the middle, where that may be computed."""
    node = node_of(tensor)
    layout = node.contents.layout(node.spec)
    tiles = sorted(node.contents.inventory(node.spec, *layout.pixels).complete)
    some = tiles[:: max(1, len(tiles) // _SAMPLES)][:_SAMPLES]
    if some:
        return [shown(tensor.stored_only()[tuple(map(slice, layout.start(i), layout.stop(i)))]) for i in some]
    if not compute:
        return [np.zeros(0, shown_dtype(tensor.dtype))]
    row, column = ((tensor.shape[d] or 0) // 2 // SIDE for d in (plane.rows, plane.columns))
    return [shown(tensor[plane.region(tensor, (1,) * tensor.ndim, row, column)])]


@dataclass(frozen=True)
class Colours:
    """How pixels become colours, the same way in all map tiles of a tensor.

    Attributes
    ----------
    kind : str
        ``"rgb"`` for three channels, ``"labels"``, or ``"range"``.
    low, high : float
        The ends of the range.
    """

    kind: str
    low: float
    high: float

    @classmethod
    def of(cls, parts: Sequence[Array], low: float | None, high: float | None, *, rgb: bool) -> Self:
        """Those that fit some pixels; an end of the range that is given is that."""
        kind = parts[0].dtype.kind
        if not rgb and low is None and high is None and all(map(are_labels, parts)):
            return cls("labels", 0, 1)
        if parts[0].dtype == np.uint8 or kind == "b" or (rgb and kind == "f"):
            found = (0.0, 255.0 if parts[0].dtype == np.uint8 else 1.0)
        else:
            sizes = [np.abs(each) if kind == "c" else each for each in parts]
            finite = [each[np.isfinite(each)] for each in sizes]
            ends = [(float(each.min()), float(each.max())) for each in finite if each.size] or [(0.0, 1.0)]
            found = (min(end[0] for end in ends), max(end[1] for end in ends))
        return cls("rgb" if rgb else "range", found[0] if low is None else low, found[1] if high is None else high)

    def png(self, values: Array, missing: Array | None = None) -> bytes:
        """A map tile.

        Parameters
        ----------
        values : numpy.ndarray
            Pixels of it, in rows; fewer than it has at the end of a tensor.
        missing : numpy.ndarray of bool, optional
            Which of them are not known, in a map tile that is not complete: it is striped there, and has a dotted edge.
        """
        place = tuple(map(slice, values.shape[:2]))
        known = np.ones(values.shape[:2], bool) if missing is None else ~missing
        marked = np.zeros((SIDE, SIDE), bool)
        if missing is not None:
            stripes = np.add.outer(np.arange(SIDE), np.arange(SIDE)) % 8 < 2
            marked[place] = missing & stripes[place]
            marked[0, ::4] = marked[::4, 0] = True
        draw = self._rgb if self.kind == "rgb" else self._flat
        image, written = draw(values, known, place, marked), io.BytesIO()
        image.save(written, "png", compress_level=1)
        return written.getvalue()

    def _scaled(self, values: Array, most: int) -> Array:
        """Whole numbers from 0 to `most` over the range; NaN is 0."""
        if self.kind == "labels":
            return (values % MOST_LABELS).astype(np.uint8)
        if values.dtype == np.uint8 and (self.low, self.high, most) == (0, 255, 255):
            return values
        span = self.high - self.low or 1.0
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = np.clip((values.astype(np.float64) - self.low) / span, 0, 1) * most
        return np.nan_to_num(np.rint(scaled)).astype(np.uint8)

    def _flat(self, values: Array, known: Array, place: Any, marked: Array) -> Image.Image:
        """With a palette: viridis over the range, or colours of labels."""
        drawn = np.full((SIDE, SIDE), _CLEAR, np.uint8)
        drawn[place] = np.where(known & ~np.isnan(values), self._scaled(values, _HATCH - 1), _CLEAR)
        drawn[marked] = _HATCH
        palette = np.zeros((256, 4), np.uint8)
        if self.kind == "labels":
            palette[:MOST_LABELS, :3], palette[:MOST_LABELS, 3] = np.frombuffer(COLOURS, np.uint8).reshape(-1, 3), 255
        else:
            palette[:_HATCH] = mpl.colormaps["viridis"](np.linspace(0, 1, _HATCH), bytes=True)
        palette[_HATCH] = _GREY
        image = Image.fromarray(drawn)
        image.putpalette(palette[:, :3].tobytes())
        image.info["transparency"] = palette[:, 3].tobytes()
        return image

    def _rgb(self, values: Array, known: Array, place: Any, marked: Array) -> Image.Image:
        drawn = np.zeros((SIDE, SIDE, 4), np.uint8)
        drawn[place] = np.dstack([self._scaled(values, 255), np.where(known, 255, 0).astype(np.uint8)])
        drawn[marked] = _GREY
        return Image.fromarray(drawn)
