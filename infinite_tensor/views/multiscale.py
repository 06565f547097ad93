"""One image at several resolutions in one group, as OME-Zarr 0.5 has it (https://ngff.openmicroscopy.org/0.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.pipelines.pyramid import box_above
from infinite_tensor.pipelines.sliding import CHANNELS, names_of
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.coarse import Coarsening, scales
from infinite_tensor.values.meaning import Coordinate
from infinite_tensor.views.frame import Frame
from infinite_tensor.views.metadata import Along, Shown, coordinates_of

_RANKS = {"t": 0, "time": 0, "z": 2, "y": 3, "x": 4}
"""In which order dimensions are, by their names; those of others are"""
_OTHER = 1
"""between time and space."""
_SAME_PLACE = 1e-3
"""By no more, in pixels, does rounding change where one lies."""


class Image(NamedTuple):
    """What is shown of a tensor and its levels.

    Attributes
    ----------
    arrays : mapping of str to Shown
        By their paths ``s0/<name>``, ``s1/<name>`` and so on, the tensor first.
    attributes : mapping
        What the group says of them.
    """

    arrays: Mapping[str, Shown]
    attributes: Mapping[str, Any]


def image_of(name: str, frame: Frame, kept: Sequence[int], levels: Sequence[InfiniteTensor]) -> Image:
    """The image of a box of pixels.

    Pixel ``i`` of a level stands for the pixels ``[i * n, (i + 1) * n)`` of the tensor, wherever the box begins: a
    level shows every pixel that stands for one of the box.

    Parameters
    ----------
    name : str
        What the array of each level is called.
    frame : Frame
        The box. Where it shows only what is stored, so do the levels.
    kept : sequence of int
        The dimensions that arrays have; the box has one pixel along the others.
    levels : sequence of InfiniteTensor
        Those of `InfiniteTensor.pyramid`, level 1 first.

    Raises
    ------
    ValidationError
        If the dimensions are no axes of OME-Zarr.
    """
    axes = axes_of(frame, kept)
    space = [d for d, axis in zip(kept, axes, strict=True) if axis.get("type") == "space"]
    dims = {d: frame.tensor.dims[d] for d in kept}
    made = [cast("Coarsening", level.f) for level in levels]
    arrays = {f"s0/{name}": Shown.of(frame, dims)}
    for k, (level, counts) in enumerate(zip(levels, scales(made), strict=True), 1):
        source = level if frame.fill_value is None else level.stored_only(frame.fill_value)
        is_first = made[k - 1].method == "nearest"
        along = tuple([Along(n, 0 if n == 1 or is_first else (n - 1) / 2) for n in counts])
        # Chunks of all levels are alike, whatever their windows are.
        box = replace(Frame.of(source, box_above(frame.origin, frame.shape, counts)), tile=frame.tile)
        arrays[f"s{k}/{name}"] = Shown.of(box, dims, along)
    multiscale = {"name": frame.tensor.tensor_id, "axes": axes, "datasets": _datasets(arrays, space)}
    said = multiscale | {"type": made[-1].method} if made else multiscale
    return Image(arrays, {"ome": {"version": "0.5", "multiscales": [said]}})


def axes_of(frame: Frame, kept: Sequence[int]) -> list[dict[str, str]]:
    """What OME-Zarr says of these dimensions; ValidationError if it does not have them so."""
    tensor = frame.tensor
    names, dims = names_of(tensor), [tensor.dims[d] for d in kept]
    for d, name in enumerate(names):
        if d not in kept and _RANKS.get(str(name), 0) > _OTHER:
            at = frame.origin[d]
            raise ValidationError(
                f"levels are coarser along {name!r} too, along which the region has one pixel: give {at}:{at + 1} in "
                f"place of {at}"
            )
    if not any(names):
        names[-2:] = ("y", "x")[-tensor.ndim :]
    ranks = [_RANKS.get(str(names[d]), _OTHER) for d in kept]
    if len({*ranks}) < len(ranks) or sum(rank > _OTHER for rank in ranks) < 2:
        raise ValidationError(
            "OME-Zarr has two or three dimensions of space, called z, y and x, and before them at most one of time, "
            f"called t, and one other; the region has {tuple(dims)}: pick one pixel of another one by an int, or name "
            'them so, as by from_array(t.to_xarray(region).rename(lat="y", lon="x"))'
        )
    if ranks != sorted(ranks):
        ordered = ", ".join(repr(name) for _, name in sorted(zip(ranks, dims, strict=True)))
        raise ValidationError(
            "the dimensions of OME-Zarr are time, channels or another one, z, y and x in this order, and the region "
            f"has {tuple(dims)}; export from_array(t.to_xarray(region).transpose({ordered})) instead"
        )
    types = ["time" if rank < _OTHER else "space" if rank > _OTHER else "channel" for rank in ranks]
    return [
        {"name": name} | ({} if kind == "channel" and name.lower() not in CHANNELS else {"type": kind})
        for name, kind in zip(dims, types, strict=True)
    ]


def _datasets(arrays: Mapping[str, Shown], space: Sequence[int]) -> list[dict[str, Any]]:
    """Where the middles of pixels are, in the unit of the finest level."""
    units = _units(next(iter(arrays.values())), space)
    datasets = []
    for path, shown in arrays.items():
        scales = [unit * shown.along[d].pixels for d, (unit, _) in units.items()]
        firsts = [unit * shown.along[d].middle(shown.frame.origin[d]) + zero for d, (unit, zero) in units.items()]
        transformations = [{"type": "scale", "scale": scales}, {"type": "translation", "translation": firsts}]
        datasets.append({"path": path, "coordinateTransformations": transformations})
    return datasets


def _units(shown: Shown, space: Sequence[int]) -> dict[int, tuple[float, float]]:
    """How long a pixel is along each dimension, and where the middle of pixel 0 is.

    By its coordinates if they rise in even steps along all dimensions of space, since viewers show no others; else in
    pixels.
    """
    known = coordinates_of(shown.meaning, [*shown.dims.values()], [shown.frame.shape[d] for d in shown.dims])
    found = {d: _steps(known.get(shown.dims[d]), shown.frame.origin[d]) for d in space}
    even = {d: steps for d, steps in found.items() if steps is not None}
    return dict.fromkeys(shown.dims, (1.0, 0.0)) | (even if len(even) == len(space) else {})


def _steps(coordinate: Coordinate | None, first: int) -> tuple[float, float] | None:
    """The step and the value at pixel 0 of a coordinate that begins at pixel `first`; None if it is not even."""
    if coordinate is None or coordinate.values.dtype.kind not in "iuf" or len(coordinate.values) < 2:
        return None
    values = coordinate.values.astype(np.float64)
    step = (values[-1] - values[0]) / (len(values) - 1)
    even = values[0] + step * np.arange(len(values))
    is_even = step > 0 and np.allclose(values, even, rtol=0, atol=_SAME_PLACE * step)
    return (float(step), float(values[0] - step * first)) if is_even else None
