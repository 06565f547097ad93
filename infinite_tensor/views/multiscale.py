"""Images at several resolutions, as specified by OME-Zarr 0.5 (https://ngff.openmicroscopy.org/0.5)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
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


def image_of(
    name: str, frame: Frame, levels: Sequence[InfiniteTensor], start: Index | None = None
) -> tuple[dict[str, Frame], Mapping[str, Any]]:
    """Return a box of pixels and its levels as an OME-Zarr image.

    The arrays have the paths ``s0/<name>``, ``s1/<name>`` and so on, the box first. With them come the attributes of
    their group.

    Pixel ``i`` of a level stands for the pixels ``[i * n, (i + 1) * n)`` of the tensor, counted from `start`. A level
    includes every pixel that stands for at least one pixel of the box.

    Parameters
    ----------
    name : str
        The name of the array of each level.
    frame : Frame
        The box. If it shows stored pixels only, so do the levels.
    levels : sequence of InfiniteTensor
        The levels, such as those of `InfiniteTensor.pyramid`, level 1 first.
    start : tuple of int, optional
        The pixel of the tensor at which pixel 0 of each level begins. Default: pixel 0.

    Raises
    ------
    ValidationError
        If the dimensions cannot be axes of OME-Zarr.
    """
    axes = axes_of(frame)
    space = [d for d, axis in zip(frame.dims, axes, strict=True) if axis.get("type") == "space"]
    made = [cast("Coarsening", level.f) for level in levels]
    start = start or (0,) * frame.ndim
    origin = tuple(map(operator.sub, frame.origin, start))
    arrays = {f"s0/{name}": frame.named()}
    for k, level in enumerate(levels, 1):
        source = level if frame.fill_value is None else level.stored_only(frame.fill_value)
        is_first, counts = made[k - 1].method == "nearest", made[k - 1].scale
        shifts = [a if n == 1 or is_first else a + (n - 1) / 2 for a, n in zip(start, counts, strict=True)]
        along = tuple(map(Sampling, counts, shifts))
        # Chunks of all levels have the same shape, for any windows.
        box = replace(Frame.of(source, box_above(origin, frame.shape, counts)), tile=frame.tile)
        arrays[f"s{k}/{name}"] = box.named(frame.dims, along)
    steps = _steps(arrays[f"s0/{name}"], space)
    axes = [axis | ({"unit": step.unit} if step.unit else {}) for axis, step in zip(axes, steps.values(), strict=True)]
    multiscale = {"name": frame.tensor.tensor_id, "axes": axes, "datasets": _datasets(arrays, steps)}
    said = multiscale | {"type": made[-1].method} if made else multiscale
    return arrays, {"ome": {"version": "0.5", "multiscales": [said]}}


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
