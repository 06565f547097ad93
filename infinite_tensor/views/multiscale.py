"""Images at several resolutions, as specified by OME-Zarr 0.5 (https://ngff.openmicroscopy.org/0.5)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index, is_empty, with_entry
from infinite_tensor.pipelines.pyramid import box_above
from infinite_tensor.pipelines.sliding import names_of
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.coarse import Coarsening
from infinite_tensor.values.definition import CHANNELS
from infinite_tensor.views.frame import Frame, Sampling, label_of
from infinite_tensor.views.metadata import coordinates_of

_RANKS = {"t": 0, "time": 0, "z": 2, "y": 3, "x": 4}
"""The order of dimensions, by name."""
_OTHER = 1
"""Rank of dimensions with other names, between time and space."""
_PART_BYTES = 2**25
"""Approximate bytes of a part to write. The levels of each part are computed from memory."""

Box: TypeAlias = tuple[Index, Index]
"""Start and stop of a box, in chunks or pixels per dimension."""


def image_of(name: str, frame: Frame, levels: Sequence[InfiniteTensor]) -> tuple[dict[str, Frame], Mapping[str, Any]]:
    """Return a box of pixels and its levels as an OME-Zarr image.

    The arrays have the paths ``s0/<name>``, ``s1/<name>`` and so on, the box first. With them come the attributes of
    their group.

    Pixel ``i`` of a level stands for the pixels ``[i * n, (i + 1) * n)`` of the tensor, wherever the box begins. A
    level includes every pixel that stands for at least one pixel of the box.

    Parameters
    ----------
    name : str
        The name of the array of each level.
    frame : Frame
        The box. If it shows stored pixels only, so do the levels.
    levels : sequence of InfiniteTensor
        The levels of `InfiniteTensor.pyramid`, level 1 first.

    Raises
    ------
    ValidationError
        If the dimensions cannot be axes of OME-Zarr.
    """
    axes = axes_of(frame)
    space = [d for d, axis in zip(frame.dims, axes, strict=True) if axis.get("type") == "space"]
    made = [cast("Coarsening", level.f) for level in levels]
    arrays = {f"s0/{name}": frame.named()}
    for k, level in enumerate(levels, 1):
        source = level if frame.fill_value is None else level.stored_only(frame.fill_value)
        is_first, counts = made[k - 1].method == "nearest", made[k - 1].scale
        along = tuple([Sampling(n, 0 if n == 1 or is_first else (n - 1) / 2) for n in counts])
        # Chunks of all levels have the same shape, for any windows.
        box = replace(Frame.of(source, box_above(frame.origin, frame.shape, counts)), tile=frame.tile)
        arrays[f"s{k}/{name}"] = box.named(frame.dims, along)
    steps = _steps(arrays[f"s0/{name}"], space)
    axes = [axis | ({"unit": step.unit} if step.unit else {}) for axis, step in zip(axes, steps.values(), strict=True)]
    multiscale = {"name": frame.tensor.tensor_id, "axes": axes, "datasets": _datasets(arrays, steps)}
    said = multiscale | {"type": made[-1].method} if made else multiscale
    return arrays, {"ome": {"version": "0.5", "multiscales": [said]}}


def parts_of(arrays: Mapping[str, Frame]) -> Iterator[tuple[str, Box]]:
    """Yield the boxes to write for an image with levels, each with the path of its array.

    A box of a level comes right after the boxes of the next finer level in the same area. So the level is computed from
    pixels that are still in memory. Each box consists of whole chunks.
    """
    levels = [*arrays.items()][::-1]
    counts = levels[0][1].chunk_counts
    for path, box in _in_order(levels, ((0,) * len(counts), counts)):
        yield path, _pixels(arrays[path], *box)


def _in_order(levels: Sequence[tuple[str, Frame]], box: Box) -> Iterator[tuple[str, Box]]:
    """Yield the boxes of chunks to write in one area of an image, with the paths of their levels.

    `levels` begins with the coarsest level. The area is `box`, in chunks of the coarsest level. A box of a level comes
    after the boxes of all finer levels in its area.
    """
    boxes = [box]
    for (_, coarser), (_, finer) in itertools.pairwise(levels):
        boxes.append(_below(coarser, finer, boxes[-1]))
    start, stop = _pixels(levels[-1][1], *boxes[-1])
    nbytes = math.prod(map(operator.sub, stop, start)) * levels[-1][1].dtype.itemsize
    low, high = box
    counts = list(map(operator.sub, high, low))
    longest = max(range(len(counts)), key=counts.__getitem__)
    if nbytes <= _PART_BYTES or (len(levels) == 1 and counts[longest] == 1):
        yield from [(path, each) for (path, _), each in zip(levels, boxes, strict=True) if not is_empty(*each)][::-1]
    elif counts[longest] > 1:
        middle = (low[longest] + high[longest]) // 2
        yield from _in_order(levels, (low, with_entry(high, longest, middle)))
        yield from _in_order(levels, (with_entry(low, longest, middle), high))
    else:
        yield from _in_order(levels[1:], boxes[1])
        yield levels[0][0], box


def _below(coarser: Frame, finer: Frame, box: Box) -> Box:
    factors = [of_one.pixels // of_other.pixels for of_one, of_other in zip(coarser.along, finer.along, strict=True)]
    low, high = (tuple(map(min, map(operator.mul, side, factors), finer.chunk_counts)) for side in box)
    return low, high


def _pixels(frame: Frame, low: Index, high: Index) -> Box:
    start, stop = (
        tuple([first + min(i * n, extent) for first, i, n, extent in spans])
        for spans in (zip(frame.origin, side, frame.chunk_shape, frame.shape, strict=True) for side in (low, high))
    )
    return start, stop


def axes_of(frame: Frame) -> list[dict[str, str]]:
    """Describe dimensions as axes of OME-Zarr.

    Raise ValidationError if OME-Zarr does not allow the dimensions.
    """
    tensor, kept = frame.tensor, [*frame.dims]
    names, dims = names_of(tensor), [tensor.dims[d] for d in kept]
    for d, name in enumerate(names):
        if d not in kept and _RANKS.get(str(name), 0) > _OTHER:
            at = frame.origin[d]
            raise ValidationError(
                f"levels are coarser along {name!r} too, so the region must keep this dimension: give {at}:{at + 1} in "
                f"place of {at}"
            )
    if not any(names):
        names[-2:] = ("y", "x")[-tensor.ndim :]
    ranks = [_RANKS.get(str(names[d]), _OTHER) for d in kept]
    if len({*ranks}) < len(ranks) or sum(rank > _OTHER for rank in ranks) < 2:
        raise ValidationError(
            "the dimensions of an OME-Zarr image may be t, one with another name, z, y and x, and must include two of "
            f"z, y and x, but the region has {tuple(dims)}; index other dimensions by ints, or rename them, as in "
            'from_array(t.to_xarray(region).rename(lat="y", lon="x"))'
        )
    if ranks != sorted(ranks):
        ordered = ", ".join(repr(name) for _, name in sorted(zip(ranks, dims, strict=True)))
        raise ValidationError(
            "the dimensions of an OME-Zarr image must be in the order t, channels or another dimension, z, y, x, but "
            f"the region has {tuple(dims)}; export from_array(t.to_xarray(region).transpose({ordered})) instead"
        )
    types = ["time" if rank < _OTHER else "space" if rank > _OTHER else "channel" for rank in ranks]
    return [
        {"name": name} | ({} if kind == "channel" and name.lower() not in CHANNELS else {"type": kind})
        for name, kind in zip([label_of(tensor.dims[d], frame.shape[d]) for d in kept], types, strict=True)
    ]


class _Step(NamedTuple):
    """The size of a pixel and the middle of pixel 0, in a unit of OME-Zarr, or in pixels."""

    size: float = 1.0
    zero: float = 0.0
    unit: str | None = None


def _datasets(arrays: Mapping[str, Frame], steps: Mapping[int, _Step]) -> list[dict[str, Any]]:
    datasets = []
    for path, frame in arrays.items():
        scales = [step.size * frame.along[d].pixels for d, step in steps.items()]
        firsts = [step.size * frame.along[d].middle(frame.origin[d]) + step.zero for d, step in steps.items()]
        transformations = [{"type": "scale", "scale": scales}, {"type": "translation", "translation": firsts}]
        datasets.append({"path": path, "coordinateTransformations": transformations})
    return datasets


def _steps(frame: Frame, space: Sequence[int]) -> dict[int, _Step]:
    """Return the step along each dimension.

    It is that of the coordinates if these ascend in even steps along all dimensions of space. Otherwise it is in
    pixels, because viewers require even steps.
    """
    known = coordinates_of(frame.meaning, [*frame.dims.values()], [frame.shape[d] for d in frame.dims])
    even = {}
    for d in space:
        coordinate = known.get(frame.dims[d])
        if coordinate is not None and (step := coordinate.even_step) > 0:
            first = float(coordinate.values[0]) - step * frame.origin[d]
            even[d] = _Step(step, first, _unit_of(coordinate.attrs.get("units")))
    return dict.fromkeys(frame.dims, _Step()) | (even if len(even) == len(space) else {})


def _unit_of(said: object) -> str | None:
    """Return the name in OME-Zarr of a unit of length, for a name or a symbol as xarray and CF write it."""
    name = str(said)
    symbol, word = name.replace("\u00b5", "u").replace("\u03bc", "u"), name.lower().removesuffix("s")
    return _LENGTHS.get(symbol, {each: each for each in _LENGTHS.values()}.get(word.replace("metre", "meter")))


_LENGTHS = {
    "km": "kilometer",
    "m": "meter",
    "cm": "centimeter",
    "mm": "millimeter",
    "um": "micrometer",
    "nm": "nanometer",
    "pm": "picometer",
}
