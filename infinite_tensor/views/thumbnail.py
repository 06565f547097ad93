"""A small picture of what is stored of a tensor, around the origin or in the middle. It computes nothing.

It asks storage for 16 tiles and 16 MiB of them at most, or for a single tile of up to 64 MiB, and whether those are
there that it does not get.
"""

from __future__ import annotations

import math
import operator
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import Node, node_of
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.html import LINE, element, escaped, note
from infinite_tensor.support.tables import bytes_of
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore.glance import MOST_WINDOWS, Glance
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.views.axes import Axes, standing
from infinite_tensor.views.colours import RAMP, as_colours, as_reals, contrast, ramp, scaled
from infinite_tensor.views.frame import shown
from infinite_tensor.views.png import png

MOST_TILES = 16
_MOST_BYTES = 2**24
_LARGEST_TILE = 2**26
_SIDE = 192
"""Pixels of the longer side on a page."""
_CHECKER = 6
_GREYS = np.array([[128, 128, 128, 48], [128, 128, 128, 96]], np.uint8)
_CHECKERED = "repeating-conic-gradient(rgba(128,128,128,.2) 0 25%,rgba(128,128,128,.4) 0 50%) 0 0/8px 8px"


@dataclass(frozen=True)
class Picture:
    """What is shown of some pixels.

    Attributes
    ----------
    rgba : uint8 array of shape (rows, columns, 4)
        Their colours; a checker where they are missing.
    region : str
        Which pixels, as they are written between brackets.
    bounds : tuple of float or None
        The values of the lowest and the highest colour; None for colours as they are stored.
    missing : bool
        Whether some are missing.
    """

    rgba: npt.NDArray[np.uint8]
    region: str
    bounds: tuple[float, float] | None
    missing: bool


def thumbnail(tensor: InfiniteTensor) -> str:
    """An ``<img>`` with a legend, as HTML, or a line that says why there is none."""
    node = node_of(tensor)
    layout = node.contents.known_layout(node.spec)
    if layout is None:
        return note("The tensor has been cleared, or moved, since it was made.")
    axes = Axes.of(tensor)
    box = _box(tensor, axes, layout)
    if box is None:
        return note(f"No picture: a tile has {bytes_of(layout.tile_bytes)}. t.show(region) draws a part of one.")
    if node.computation.copied:
        glance = _copied(node, *box)
    else:
        if not node.contents.outlives_process:
            box = _narrowed(tensor, axes, *box)
        glance = node.contents.glance(node.spec, *box)
    picture = _picture(tensor, axes, glance, *box)
    where = "in the middle."
    if None in tensor.shape:
        where = "around the origin. t.tile_store.extent(t.tensor_id) tells where there is something."
    lines = [note(f"Nothing is stored {where}") if picture is None else _html(picture)]
    if glance.damaged:
        what = "tile is" if glance.damaged == 1 else "tiles are"
        lines.append(note(f"{glance.damaged} {what} damaged: store.verify({tensor.tensor_id!r}) lists all that are."))
    return element("div", *lines)


def _copied(node: Node, start: Index, stop: Index) -> Glance:
    """The pixels of an array in memory, of which nothing is stored beside it."""
    pixels = torch.empty([b - a for a, b in zip(start, stop, strict=True)], dtype=node.spec.dtype, device="cpu")
    assert node.computation.writer is not None
    node.computation.writer.write(start, pixels)
    return Glance(pixels, np.ones(pixels.shape, dtype=bool))


def _box(tensor: InfiniteTensor, axes: Axes, layout: TileLayout) -> tuple[Index, Index] | None:
    """The pixels to look at, ``[start, stop)``; None where a tile is too large."""
    along = 1 if axes.rows is None else 2
    for tiles in (MOST_TILES if along == 1 else 4, 2, 1):
        start, stop = zip(*(_extent(tensor, axes, layout, d, tiles) for d in range(tensor.ndim)), strict=True)
        low, high = layout.box(start, stop)
        count = math.prod(b - a for a, b in zip(low, high, strict=True))
        if count <= MOST_TILES and count * layout.tile_bytes <= (_LARGEST_TILE if count == 1 else _MOST_BYTES):
            return start, stop
    return None


def _narrowed(tensor: InfiniteTensor, axes: Axes, start: Index, stop: Index) -> tuple[Index, Index]:
    """The middle of a box, as much of it as few enough windows cover: in memory, each of them is looked up."""
    while math.prod(map(operator.sub, *reversed(node_of(tensor).spec.grid.box(start, stop)))) > MOST_WINDOWS:
        narrower = [
            (a + (b - a) // 4, b - (b - a) // 4) if axes.spans(d) else (a, b)
            for d, (a, b) in enumerate(zip(start, stop, strict=True))
        ]
        if narrower == list(zip(start, stop, strict=True)):
            break
        start, stop = zip(*narrower, strict=True)
    return start, stop


def _extent(tensor: InfiniteTensor, axes: Axes, layout: TileLayout, d: int, tiles: int) -> tuple[int, int]:
    extent, size = tensor.shape[d], layout.tile_shape[d]
    if not axes.spans(d):
        first = 0 if d == axes.channels else standing(extent)
        return first, first + (3 if d == axes.channels and axes.is_colour(tensor) else 1)
    if extent is None:
        return -(tiles // 2) * size, (tiles - tiles // 2) * size
    first = max(0, (-(-extent // size) - tiles) // 2) * size
    return first, min(extent, first + tiles * size)


def _picture(tensor: InfiniteTensor, axes: Axes, glance: Glance, start: Index, stop: Index) -> Picture | None:
    order = [d for d in (axes.rows, axes.columns, axes.channels) if d is not None]
    others = tuple(d for d in range(tensor.ndim) if d not in order)
    known = _arranged(torch.from_numpy(glance.known), order, others, axes).all(-1).numpy()
    cuts = _around(known)
    if cuts is None:
        return None
    pixels = shown(_arranged(glance.pixels, order, others, axes)[cuts])
    known = known[cuts]
    values = pixels[known]
    bounds = None
    rgba = np.empty((*known.shape, 4), np.uint8)
    if pixels.shape[-1] > 1:
        colours = as_colours(values)
        rgba[known, :3] = np.nan_to_num(colours * 255).round()
        rgba[known, 3] = np.where(np.isnan(colours).any(-1), 0, 255)
    else:
        reals = as_reals(values[:, 0])
        bounds = contrast(reals)
        rgba[known] = ramp(scaled(reals, *bounds))
    rgba[~known] = _checker(known.shape)[~known]
    whole = {axes.rows: cuts[0], axes.columns: cuts[1]}
    region = ", ".join(
        f"{start[d] + whole[d].start}:{start[d] + whole[d].stop}"
        if d in whole
        else (f"{start[d]}:{stop[d]}" if stop[d] - start[d] > 1 else str(start[d]))
        for d in range(tensor.ndim)
    )
    return Picture(rgba, region, bounds, not bool(known.all()))


def _arranged(block: torch.Tensor, order: Sequence[int], others: Sequence[int], axes: Axes) -> torch.Tensor:
    """A block as (rows, columns, channels)."""
    block = block.permute(*others, *order).reshape([block.shape[d] for d in order])
    if axes.rows is None:
        block = block[None]
    if axes.columns is None:
        block = block[:, None]
    return block[..., None] if axes.channels is None else block


def _around(known: npt.NDArray[np.bool_]) -> tuple[slice, slice] | None:
    """What is known with a margin, thinned out to what a page shows; None where nothing is."""
    ends = []
    for d in range(2):
        there = np.flatnonzero(known.any(axis=1 - d))
        if not there.size:
            return None
        low, high = int(there[0]), int(there[-1]) + 1
        margin = 1 + (high - low) // 16
        ends.append((max(0, low - margin), min(known.shape[d], high + margin)))
    step = max(1, -(-max(b - a for a, b in ends) // _SIDE))
    return slice(*ends[0], step), slice(*ends[1], step)


def _checker(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    field = max(1, max(shape) * _CHECKER // _SIDE)
    y, x = np.indices(shape) // field
    found: npt.NDArray[np.uint8] = _GREYS[(y + x) % 2]
    return found


def _html(picture: Picture) -> str:
    rows, columns, _ = picture.rgba.shape
    scale = _SIDE / max(rows, columns)
    width, height = max(1, round(columns * scale)), max(24, round(rows * scale))
    opaque = bool((picture.rgba[..., 3] == 255).all())
    data = b64encode(png(picture.rgba[..., : 3 if opaque else 4])).decode()
    style = f"width:{width}px;height:{height}px;max-width:none;image-rendering:pixelated;border:1px solid {LINE};"
    # The address is no text, which would be cut.
    image = (
        f'<img src="data:image/png;base64,{data}" width="{width}" height="{height}" '
        f'alt="{escaped("what is stored of [" + picture.region + "]")}" style="{style}display:block;margin:0;">'
    )
    legend = [element("div", escaped(f"[{picture.region}]"), style="opacity:.65;")]
    if picture.bounds is not None:
        swatch = f"display:inline-block;width:72px;height:8px;background:linear-gradient(90deg,{','.join(RAMP)});"
        low, high = (f"{bound:.4g}" for bound in picture.bounds)
        bar = element("span", style=f"{swatch}margin:0 5px;")
        legend.append(element("div", low, bar, high))
    if picture.missing:
        swatch = f"display:inline-block;width:16px;height:8px;background:{_CHECKERED};margin-right:5px;"
        legend.append(element("div", element("span", style=swatch), "missing"))
    return element("div", image, *legend, style="padding:4px 10px;font-size:11px;")
