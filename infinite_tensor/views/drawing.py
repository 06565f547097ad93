"""Regions drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.support.arguments import checked_flag
from infinite_tensor.support.given import as_index, members, quoted
from infinite_tensor.support.tables import count_of
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.axes import Axes, standing
from infinite_tensor.views.colours import as_colours, as_reals
from infinite_tensor.views.frame import shown

if TYPE_CHECKING:
    import matplotlib.axes

HALF = 256
"""Pixels on each side of 0 that are drawn of an unbounded dimension."""
_MOST_PIXELS = 2**24
_BLANK = "0.85"
"""The grey of pixels that are not stored."""


@dataclass(frozen=True)
class _View:
    """What is read and drawn.

    Attributes
    ----------
    axes : Axes
        The dimensions of the picture, without those that the region leaves out.
    boxes : list of Selection
        What is read: a channel each.
    """

    axes: Axes
    boxes: list[Selection]

    def extent(self, d: int) -> tuple[float, float]:
        """From where to where pixels reach along a dimension: each is in the middle of what stands for it."""
        first, step = self.boxes[0].start[d], self.boxes[0].steps[d]
        return first - step / 2, first + step * self.boxes[0].size[d] - step / 2


@dataclass(frozen=True)
class _Picture:
    """What has been read of a view.

    Attributes
    ----------
    view : _View
        What it is.
    dims : tuple of str
        Names of the dimensions of the tensor.
    pixels : array
        (rows, columns, channels). What extends along one dimension is one row.
    known : bool array or None
        Which of these are known, of the same shape; None for all.
    """

    view: _View
    dims: Sequence[str]
    pixels: npt.NDArray[Any]
    known: npt.NDArray[np.bool_] | None

    @property
    def channels(self) -> int:
        """How many it has."""
        return int(self.pixels.shape[-1])

    def channel(self, number: int) -> npt.NDArray[Any]:
        """Real numbers that a channel is drawn as; NaN for what is not known."""
        values: npt.NDArray[Any] = as_reals(self.pixels[..., number])
        return values if self.known is None else np.where(self.known[..., number], values, np.nan)


def draw(
    tensor: InfiniteTensor,
    region: object,
    *,
    ax: matplotlib.axes.Axes | None,
    channel: object,
    cmap: Any,
    compute: object,
    **options: Any,
) -> matplotlib.axes.Axes:
    """Draw a region; see `InfiniteTensor.show`."""
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ImportError("t.show draws with matplotlib; pip install matplotlib") from error
    computed = checked_flag("compute", compute)
    view = _view(tensor, region, channel)
    picture = _Picture(view, tensor.dims, *_pixels(tensor, view, computed=computed))
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    if view.axes.rows is None:
        _draw_line(ax, picture, options)
    else:
        _draw_image(ax, picture, {"cmap": cmap, **options})
    ax.set_title(_title(tensor, view))
    return ax


def _view(tensor: InfiniteTensor, region: object, channel: object) -> _View:
    selection = _selection(tensor, region)
    axes = Axes.of(tensor)
    channels = _channels(tensor, axes, selection, channel)
    others = [d for d in range(tensor.ndim) if d != axes.channels and d not in selection.squeezed]
    extending = [d for d in others if selection.shape[d] > 1]
    if len(extending) > 2 or not others:
        names = ", ".join(repr(tensor.dims[d]) for d in extending)
        raise ValidationError(
            f"a picture extends along one or two dimensions beside channels, and the region along {len(extending)}"
            f"{': ' * bool(names)}{names}; give slices for two and ints for the others, such as sl[0, 0:512, 0:512]"
        )
    # The last of those that have one pixel take the place of what is missing.
    drawn = sorted([*extending, *(d for d in reversed(others) if d not in extending)][:2])
    rows, columns = [None, None, *drawn][-2:]
    view = _View(Axes(axes.channels, rows, columns), _boxes(selection, axes, channels))
    _check_size(view)
    return view


def _selection(tensor: InfiniteTensor, region: object) -> Selection:
    """What a region means, or what is drawn by default."""
    axes = Axes.of(tensor)
    if region is None:
        region = tuple(
            (slice(-HALF, HALF) if extent is None else slice(None))
            if axes.spans(d) or d == axes.channels
            else standing(extent)
            for d, extent in enumerate(tensor.shape)
        )
    selection = parse(region, tensor.shape, node_of(tensor).spec.labels)
    if 0 in selection.shape:
        raise ValidationError(f"the region is empty, got {quoted(region)}; give one such as sl[0:512, 0:512]")
    if min(selection.steps) < 1:
        raise ValidationError(f"rows run down and columns to the right: steps must be positive, got {quoted(region)}")
    return selection


def _channels(tensor: InfiniteTensor, axes: Axes, selection: Selection, given: object) -> list[int] | None:
    """Which channels are drawn: one, or three as colours; None for a tensor without."""
    d = axes.channels
    if d is None or d in selection.squeezed:
        if given is not None:
            problem = "the region has one channel" if d is not None else "the tensor has no dimension of channels"
            raise ValidationError(f"channel={quoted(given)}: {problem}; leave it out, or name one with dims=")
        return None if d is None else [selection.start[d]]
    extent = tensor.shape[d] or 0
    if given is None:
        inside = range(selection.start[d], selection.stop[d], selection.steps[d])
        return list(inside) if axes.is_colour(tensor) and len(inside) == 3 else [inside[0]]
    found = [as_index(one) for one in (members(given) or (given,))]
    if len(found) not in (1, 3) or not all(one is not None and -extent <= one < extent for one in found):
        raise ValidationError(
            f"channel must be an int, or three of them, from {-extent} to {extent - 1}, got {quoted(given)}"
        )
    return [one % extent for one in found if one is not None]


def _boxes(selection: Selection, axes: Axes, channels: Sequence[int] | None) -> list[Selection]:
    whole = selection._replace(squeezed=())
    if axes.channels is None or channels is None:
        return [whole]

    def at(bounds: Index, value: int) -> Index:
        return tuple(value if d == axes.channels else bound for d, bound in enumerate(bounds))

    return [whole._replace(start=at(whole.start, one), stop=at(whole.stop, one + 1)) for one in channels]


def _check_size(view: _View) -> None:
    drawn = [view.boxes[0].size[d] for d in (view.axes.rows, view.axes.columns) if d is not None]
    if math.prod(drawn) > _MOST_PIXELS:
        raise ValidationError(
            f"the region has {' x '.join(map(count_of, drawn))} pixels to draw, and may have {count_of(_MOST_PIXELS)}; "
            "give a smaller region, or one with a larger step, such as sl[0:8192:4, 0:8192:4]"
        )


def _pixels(
    tensor: InfiniteTensor, view: _View, *, computed: bool
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """What is drawn, (rows, columns, channels), and which of it is known; None for all."""
    order = [d for d in (view.axes.rows, view.axes.columns) if d is not None]
    keep = tuple(slice(None) if d in order else 0 for d in range(tensor.ndim))
    source = tensor if computed else tensor.stored_only()
    read = [shown(block[keep]) for block in source[list(view.boxes)]]
    pixels = np.stack(read, axis=-1)
    known = None if computed else np.stack([_known(tensor, box)[keep] for box in view.boxes], axis=-1)
    if view.axes.rows is None:
        pixels, known = pixels[None], None if known is None else known[None]
    return pixels, known


def _known(tensor: InfiniteTensor, box: Selection) -> npt.NDArray[np.bool_]:
    """Which pixels of a selection lie in tiles that are stored whole."""
    layout = node_of(tensor).contents.layout(node_of(tensor).spec)
    found = tensor.coverage(box, "missing").numpy()
    for d, (pixels, size) in enumerate(zip(box.pixels, layout.tile_shape, strict=True)):
        found = found.take(np.array(pixels) // size - pixels[0] // size, axis=d)
    return ~found


def _draw_image(ax: matplotlib.axes.Axes, picture: _Picture, options: dict[str, Any]) -> None:
    view, known = picture.view, picture.known
    rows, columns = view.axes.rows, view.axes.columns
    assert rows is not None
    assert columns is not None
    if picture.channels == 1:
        values = picture.channel(0)
    else:
        values = np.nan_to_num(as_colours(picture.pixels))
        options.pop("cmap")
        if known is not None:
            values = np.where(known.all(-1, keepdims=True), values, float(_BLANK))
    if known is not None:
        ax.set_facecolor(_BLANK)
    (left, right), (top, bottom) = view.extent(columns), view.extent(rows)
    image = ax.imshow(values, **{"extent": (left, right, bottom, top), "origin": "upper", **options})
    ax.set_xlabel(picture.dims[columns])
    ax.set_ylabel(picture.dims[rows])
    if picture.channels == 1 and ax.figure is not None:
        # As high as the picture, whatever its shape.
        ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0, 0.05, 1)))


def _draw_line(ax: matplotlib.axes.Axes, picture: _Picture, options: dict[str, Any]) -> None:
    view, d = picture.view, picture.view.axes.columns
    assert d is not None
    at = np.array(view.boxes[0].pixels[d])
    for number in range(picture.channels):
        ax.plot(at, picture.channel(number)[0], **options)
    ax.set_xlabel(picture.dims[d])


def _title(tensor: InfiniteTensor, view: _View) -> str:
    """The id that a user gave, and where the picture stands along the dimensions that it does not show."""
    drawn = {view.axes.rows, view.axes.columns}
    box = view.boxes[0]
    single = len(view.boxes) == 1
    places = [
        f"{tensor.dims[d]}={box.start[d]}"
        for d in range(tensor.ndim)
        if d not in drawn and (single or d != view.axes.channels)
    ]
    return ", ".join([*([tensor.tensor_id] if node_of(tensor).tensor.named else []), *places])
