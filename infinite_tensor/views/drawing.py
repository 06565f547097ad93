"""Regions drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.support.arguments import checked_flag
from infinite_tensor.support.given import quoted
from infinite_tensor.support.tables import count_of
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.frame import shown

if TYPE_CHECKING:
    import matplotlib.axes

_HALF = 256
"""Pixels on each side of 0 that are drawn of an unbounded dimension."""
_MOST_PIXELS = 2**24
_OF_LABELS = {"cmap": "tab20", "vmin": -0.5, "vmax": 19.5, "interpolation": "nearest"}
"""What draws numbers of classes, each in a colour of its own."""
_MOST_LABELS = 20
_BLANK = "0.85"
"""The grey of pixels that are not stored."""


def draw(
    tensor: InfiniteTensor, region: object, *, ax: matplotlib.axes.Axes | None, compute: object, **options: Any
) -> matplotlib.axes.Axes:
    """Draw a region; see `InfiniteTensor.show`."""
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ImportError("t.show draws with matplotlib; pip install matplotlib") from error
    computed = checked_flag("compute", compute)
    selection = _selection(tensor, region)
    kept = [d for d in range(tensor.ndim) if d not in selection.squeezed]
    channels = _channels_of([selection.size[d] for d in kept])
    drawn = [d for number, d in enumerate(kept) if number != channels]
    _check_drawable([selection.size[d] for d in drawn])
    values = _pixels(tensor, selection, channels, computed=computed)
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    names, places = [tensor.dims[d] for d in drawn], [selection.pixels[d] for d in drawn]
    if len(drawn) == 1:
        ax.plot(np.array(places[0]), values, **options)
        ax.set_xlabel(names[0])
    else:
        _draw_image(
            ax,
            values,
            places,
            options if options.keys() & {"cmap", "norm"} or not _are_labels(values) else _OF_LABELS | options,
        )
        ax.set(ylabel=names[0], xlabel=names[1])
    at = [f"{tensor.dims[d]}={selection.start[d]}" for d in selection.squeezed]
    ax.set_title(", ".join([*([tensor.tensor_id] if node_of(tensor).tensor.named else []), *at]))
    return ax


def _selection(tensor: InfiniteTensor, region: object) -> Selection:
    """What a region means, or what is drawn by default."""
    if region is None:
        region = tuple(slice(-_HALF, _HALF) if extent is None else slice(None) for extent in tensor.shape)
    selection = parse(region, tensor.shape, node_of(tensor).spec.labels)
    if 0 in selection.shape:
        raise ValidationError(f"the region is empty, got {quoted(region)}; give one such as sl[0:512, 0:512]")
    if min(selection.steps) < 1:
        raise ValidationError(f"rows run down and columns to the right: steps must be positive, got {quoted(region)}")
    return selection


def _channels_of(shape: Sequence[int]) -> int | None:
    """Which of three dimensions is one of channels: the first or last one, of an extent of 1 or 3."""
    return next((d for d in (0, 2) if len(shape) == 3 and shape[d] in (1, 3)), None)


def _check_drawable(shape: Sequence[int]) -> None:
    extents = " x ".join(map(count_of, shape))
    if len(shape) not in (1, 2):
        raise ValidationError(
            f"a picture has one or two dimensions, and 1 or 3 channels, and the region has {extents or 'one pixel'}; "
            "give slices for two dimensions and ints for the others, such as sl[0, 0:512, 0:512]"
        )
    if math.prod(shape) > _MOST_PIXELS:
        raise ValidationError(
            f"the region has {extents} pixels to draw, and may have {count_of(_MOST_PIXELS)}; give a smaller region, "
            "or one with a larger step, such as sl[0:8192:4, 0:8192:4]"
        )


def _pixels(tensor: InfiniteTensor, selection: Selection, channels: int | None, *, computed: bool) -> npt.NDArray[Any]:
    """What is drawn, with three channels last; what is not stored is masked, of colours transparent."""
    values: npt.NDArray[Any] = shown((tensor if computed else tensor.stored_only())[selection])
    missing = np.zeros(values.shape, bool) if computed else _missing(tensor, selection)
    if np.iscomplexobj(values):
        values = np.abs(values)
    if channels is not None:
        values, missing = (np.moveaxis(each, channels, -1) for each in (values, missing))
    if channels is None or values.shape[-1] == 1:
        return np.ma.array(values, mask=missing).reshape(values.shape[:2])
    opaque = 255 if values.dtype == np.uint8 else 1
    return values if computed else np.dstack([values, np.where(missing.any(-1), 0, opaque).astype(values.dtype)])


def _are_labels(values: npt.NDArray[Any]) -> bool:
    """Whether a picture shows classes: a few whole numbers from 0 on."""
    return values.ndim == 2 and values.dtype.kind in "iu" and values.min() >= 0 and values.max() < _MOST_LABELS


def _missing(tensor: InfiniteTensor, selection: Selection) -> npt.NDArray[np.bool_]:
    """Which pixels of a selection lie in tiles that are not stored whole."""
    layout = node_of(tensor).contents.layout(node_of(tensor).spec)
    found: npt.NDArray[np.bool_] = tensor.coverage(selection, "missing").numpy()
    for d, (pixels, size) in enumerate(zip(selection.pixels, layout.tile_shape, strict=True)):
        found = found.take(np.array(pixels) // size - pixels[0] // size, axis=d)
    return found.squeeze(selection.squeezed)


def _draw_image(
    ax: matplotlib.axes.Axes, values: npt.NDArray[Any], places: Sequence[range], options: dict[str, Any]
) -> None:
    # Each pixel is in the middle of what stands for it.
    (top, bottom), (left, right) = ((at[0] - at.step / 2, at[-1] + at.step / 2) for at in places)
    image = ax.imshow(values, **{"extent": (left, right, bottom, top), "origin": "upper", **options})
    ax.set_facecolor(_BLANK)
    if values.ndim == 2 and ax.figure is not None:
        # As high as the picture, whatever its shape.
        ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0, 0.05, 1)))
