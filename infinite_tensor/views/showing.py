"""Tables of tensors for notebooks, and drawings by matplotlib.

Tables show definitions, and read nothing from a store.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.geometry.window import Shape
from infinite_tensor.groups.group import TensorGroup
from infinite_tensor.groups.members import scale_text
from infinite_tensor.support.given import checked_flag, quoted
from infinite_tensor.support.nested import show
from infinite_tensor.support.tables import code, count_of, facts, note, panel, shown_id, table
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.definition import names_of
from infinite_tensor.values.dtypes import dtype_name
from infinite_tensor.views.colours import MOST_LABELS, Labels
from infinite_tensor.views.frame import step_of
from infinite_tensor.views.plane import COLOURS, Plane, read

if TYPE_CHECKING:
    import matplotlib.axes

_MOST_ROWS = 12
_HALF = 256
"""Pixels of an unbounded dimension to draw on each side of 0."""
_SCREEN = 2**20
"""Approximate number of pixels of a picture on a screen."""
_MOST_PIXELS = 2**24
_BLANK = "0.85"
"""Grey of missing pixels."""


def html_of_tensor(tensor: InfiniteTensor) -> str:
    """Return the HTML of a tensor for a notebook."""
    rows = [*_facts_of(tensor), ("store", code(tensor.tile_store))]
    return panel("InfiniteTensor", code(shown_id(tensor.tensor_id)), facts(rows))


def _facts_of(tensor: InfiniteTensor) -> Iterator[tuple[str, str]]:
    yield "shape", code(_shape_told(tensor.shape, tensor.dims))
    yield "dtype", code(dtype_name(tensor.dtype))
    window = tensor.output_window
    stride = "" if window.stride == window.size else f", stride {window.stride}"
    yield "window", code(f"{window.size}{stride}")
    if tensor.blend is not None:
        yield "blend", code(_name_of(tensor.blend) if hasattr(tensor.blend, "__name__") else quoted(tensor.blend))
    if tensor.reduce is not None:
        yield "reduce", code(quoted(tensor.reduce))
    if {*tensor.edge} != {"drop"}:
        yield "edge", code(tensor.edge)
    if tensor.device.type != "cpu":
        yield "device", code(tensor.device)
    yield "f", code("none: only stored pixels can be read" if tensor.f is None else _name_of(tensor.f))
    if tensor.args:
        yield "args", code(", ".join(shown_id(arg.tensor_id) for arg in tensor.args))


def _name_of(f: Any) -> str:
    while (wrapped := f.func if isinstance(f, functools.partial) else getattr(f, "__wrapped__", None)) is not None:
        f = wrapped
    return str(getattr(f, "__qualname__", type(f).__name__.lstrip("_"))).rpartition("<locals>.")[2]


def _shape_told(shape: Shape, dims: Sequence[str]) -> str:
    extents = ["∞" if extent is None else repr(extent) for extent in shape]
    if tuple(dims) == names_of(None, len(shape)):
        told = f"({', '.join(extents)}{',' * (len(extents) == 1)})"
    else:
        told = ", ".join(f"{name}: {extent}" for name, extent in zip(dims, extents, strict=True))
    return told.replace(" ", "\u00a0")


def html_of_group(group: TensorGroup) -> str:
    """Return the HTML of a group for a notebook."""
    keys: list[Any] = group.keys(include_nested=True, leaves_only=True)
    headings = ["tensor", "shape", "dtype", "shares", "id", "store"]
    rows = []
    for key in keys[:_MOST_ROWS]:
        tensor = group[key]
        cells = [
            show((key,) if isinstance(key, str) else key),
            _shape_told(tensor.shape, tensor.dims),
            dtype_name(tensor.dtype),
            f"{group.dims(key)}{scale_text(group.scale(key))}",
            shown_id(tensor.tensor_id),
            tensor.tile_store,
        ]
        rows.append([code(cell) for cell in cells])
    name = code(_shape_told(group.shape, names_of(None, group.ndim)))
    more = note(f"and {count_of(len(keys) - len(rows))} more") if len(keys) > len(rows) else ""
    return panel("TensorGroup", name, table("", headings, rows, left=len(headings)), more)


# Drawings.


def draw(
    tensor: InfiniteTensor,
    region: object,
    *,
    ax: matplotlib.axes.Axes | None,
    compute: object,
    every: object,
    max_pixels: object,
    **options: Any,
) -> matplotlib.axes.Axes:
    """Draw a region; see `InfiniteTensor.show`."""
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ImportError("t.show needs the package matplotlib: pip install matplotlib") from error
    computed = checked_flag("compute", compute)
    selection = _selection(tensor, region)
    plane, drawn = _drawn(tensor, selection)
    default = _SCREEN if every is None and max_pixels is None else max_pixels
    step = step_of([selection.size[d] for d in drawn], every, default)
    steps = [n * step if d in drawn else n for d, n in enumerate(selection.steps)]
    picked = selection._replace(steps=tuple(steps))
    _check_count([picked.size[d] for d in drawn])
    values = _pixels(tensor, picked, plane, computed=computed)
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    names, places = [tensor.dims[d] for d in drawn], [picked.pixels[d] for d in drawn]
    if len(drawn) == 1:
        ax.plot(np.array(places[0]), values, **options)
        ax.set_xlabel(names[0], parse_math=False)
    else:
        labels = Labels.of(node_of(tensor).spec.definition.meaning)
        labelled = values.ndim == 2 and labels.fit(values) and not options.keys() & {"cmap", "norm"}
        _draw_image(ax, values, places, options, labels if labelled else None)
        ax.set_ylabel(names[0], parse_math=False)
        ax.set_xlabel(names[1], parse_math=False)
    at = [f"{tensor.dims[d]}={selection.start[d]}" for d in selection.squeezed]
    title = ", ".join([*([shown_id(tensor.tensor_id)] if node_of(tensor).tensor.named else []), *at])
    ax.set_title(title, parse_math=False)
    return ax


def _selection(tensor: InfiniteTensor, region: object) -> Selection:
    if region is None:
        region = tuple(slice(-_HALF, _HALF) if extent is None else slice(0, extent) for extent in tensor.shape)
    selection = parse(region, tensor.shape, node_of(tensor).spec.labels)
    if 0 in selection.shape:
        raise ValidationError(f"the region is empty, got {quoted(region)}; give, for example, sl[0:512, 0:512]")
    if min(selection.steps) < 1:
        raise ValidationError(f"steps of the region must be positive, got {quoted(region)}")
    return selection


def _drawn(tensor: InfiniteTensor, selection: Selection) -> tuple[Plane | None, list[int]]:
    """Return the plane of a region, among its dimensions, and its rows and columns in the tensor.

    A region of one dimension has no plane, and is drawn as a line.
    """
    kept = [d for d in range(tensor.ndim) if d not in selection.squeezed]
    sizes = tuple([selection.size[d] for d in kept])
    plane = Plane.of(sizes, [tensor.dims[d] for d in kept]) if len(kept) > 1 else None
    if not kept or (plane is not None and any(sizes[d] > 1 for d in plane.others if d != plane.colours)):
        raise ValidationError(
            "a picture has one or two dimensions, and perhaps 1, 3 or 4 colours, but the region has "
            f"{_extents(sizes) or 'one pixel'}; give slices for two dimensions and ints for the others, such as "
            "sl[0, 0:512, 0:512]"
        )
    return plane, kept if plane is None else [kept[plane.rows], kept[plane.columns]]


def _extents(sizes: Sequence[int]) -> str:
    return " x ".join(map(count_of, sizes))


def _check_count(sizes: Sequence[int]) -> None:
    if math.prod(sizes) > _MOST_PIXELS:
        raise ValidationError(
            f"the region has {_extents(sizes)} pixels to draw, but at most {count_of(_MOST_PIXELS)} can be drawn; give "
            "a smaller region, a larger every, or a smaller max_pixels"
        )


def _pixels(tensor: InfiniteTensor, selection: Selection, plane: Plane | None, *, computed: bool) -> npt.NDArray[Any]:
    """Return the pixels to draw, with colours last. Missing pixels are masked or transparent."""
    if plane is None:
        values, missing = read(tensor, selection, compute=computed)
        return np.ma.array(values, mask=missing)
    kept = [d for d in range(tensor.ndim) if d not in selection.squeezed]
    single = [kept[d] for d in plane.others if d != plane.colours]
    region = selection._replace(squeezed=tuple(sorted([*selection.squeezed, *single])))
    values, missing = plane.read(tensor, region, compute=computed)
    if plane.colours is None:
        return np.ma.array(values, mask=missing)
    values, missing = values[..., :COLOURS], missing[..., :COLOURS]
    opaque = 255 if values.dtype.kind in "iu" else 1
    return values if computed else np.dstack([values, np.where(missing.any(-1), 0, opaque).astype(values.dtype)])


def _draw_image(
    ax: matplotlib.axes.Axes,
    values: npt.NDArray[Any],
    places: Sequence[range],
    options: dict[str, Any],
    labels: Labels | None,
) -> None:
    # The square of a pixel reaches half a pixel around its coordinates.
    (top, bottom), (left, right) = ((at[0] - at.step / 2, at[-1] + at.step / 2) for at in places)
    if labels is not None:
        from matplotlib.colors import ListedColormap  # noqa: PLC0415  (an extra)

        colours: Any = ListedColormap(labels.colours / 255) if labels.is_given else "tab20"
        most = len(labels.colours) - 0.5
        options = {"cmap": colours, "vmin": -0.5, "vmax": most, "interpolation": "nearest", **options}
    image = ax.imshow(values, **{"extent": (left, right, bottom, top), "origin": "upper", **options})
    ax.set_facecolor(_BLANK)
    if values.ndim == 2 and ax.figure is not None:
        # Make the bar as high as the picture, for any shape.
        bar = ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0, 0.05, 1)))
        if labels is not None and labels.names:
            bar.set_ticks([*labels.names], labels=[*labels.names.values()])
        elif labels is not None and np.ma.count(values):
            ticks = range(min(int(values.max()) + 1, len(labels.colours)))
            bar.set_ticks(ticks if len(ticks) <= MOST_LABELS else ())
            bar.ax.set_ylim(-0.5, len(ticks) - 0.5)
