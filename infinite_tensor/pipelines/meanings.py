"""What files and arrays say of their pixels, beside their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.errors import ValidationError
from infinite_tensor.values.definition import json_value
from infinite_tensor.values.meaning import MOST_COORDINATES, Attribute, Code, Coordinate, Fact, Georeference, Meaning

_CODES = {
    "_FillValue": "nodata",
    "missing_value": "nodata",
    "scale_factor": "scale",
    "add_offset": "offset",
    **{name: name for name in ("flag_values", "flag_masks", "flag_meanings", "valid_min", "valid_max", "valid_range")},
}
"""Attributes that say what numbers stand for, by the conventions of netCDF, and what that is called here."""


def meaning_of_raster(raster: Any) -> Meaning:
    """What rasterio finds in a file, whose dimensions are bands, rows and columns."""
    from rasterio.enums import ColorInterp, MaskFlags  # noqa: PLC0415  (of an extra)

    gcps, crs = raster.gcps
    crs = raster.crs or crs
    place = Georeference(
        "",
        1,
        2,
        crs.to_wkt(version="WKT2_2019") if crs else None,
        None if raster.transform.is_identity else [*raster.transform[:6]],
        [[gcp.row, gcp.col, gcp.x, gcp.y, gcp.z or 0.0] for gcp in gcps],
        None if raster.rpcs is None else raster.rpcs.to_dict(),
    )
    facts: list[Fact] = [place] if place.labels else []
    if any(raster.descriptions):
        facts.append(Coordinate("band", [0], np.array([each or "" for each in raster.descriptions]), {}))
    if len({*raster.units}) > 1:
        facts.append(Coordinate("units", [0], np.array([each or "" for each in raster.units]), {}))
    elif raster.units[0]:
        facts.append(Attribute("units", raster.units[0]))
    per_band = {"nodata": (raster.nodatavals, None), "scale": (raster.scales, 1.0), "offset": (raster.offsets, 0.0)}
    for name, (values, default) in per_band.items():
        if len({*map(repr, values)}) > 1:
            facts.append(Code(name, [*values], 0))
        elif values[0] != default:
            facts.append(Code(name, values[0]))
    if raster.count == 1 and raster.colorinterp[0] is ColorInterp.palette:
        facts.append(Code("colour map", [[value, *colour] for value, colour in raster.colormap(1).items()]))
    if raster.mask_flag_enums[0] == [MaskFlags.per_dataset]:
        facts.append(Code("mask", True))
    return Meaning(tuple(facts))


def meaning_of_array(array: Any, dims: Sequence[str]) -> Meaning | None:
    """What xarray knows of an array, whose dimensions have these names here; None of other arrays."""
    if not type(array).__module__.startswith("xarray."):
        return None
    # What an export says of the origin holds of the export.
    said, lost = _said({name: value for name, value in array.attrs.items() if name != "infinite_tensor"})
    codes = {_CODES[name]: value for name, value in reversed(said.items()) if name in _CODES}
    facts: list[Fact] = [Attribute(name, value) for name, value in said.items() if name not in _CODES]
    facts += [Code(name, float(value) if value == "NaN" else value) for name, value in codes.items()]
    renamed = dict(zip(array.dims, dims, strict=True))
    for name, coordinate in getattr(array, "coords", {}).items():
        values = _values_of(coordinate)
        if values is None:
            lost.append(f"coordinate {name!r}")
            continue
        called = renamed[name] if coordinate.dims == (name,) else str(name)
        numbers, attrs = [array.dims.index(dim) for dim in coordinate.dims], _said(coordinate.attrs)[0]
        # That of rioxarray stays where it is when pixels move; coordinates, which say the same, do not.
        if attrs.pop("GeoTransform", None) and not {*array.dims[-2:]} <= {*array.coords}:
            lost.append("transform")
        facts.append(Coordinate(called, numbers, values, attrs))
    return Meaning(tuple(facts), tuple(lost))


def _said(attrs: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Attributes that JSON can hold, and what messages call the others."""
    said, lost = {}, []
    for name, value in attrs.items():
        try:
            said[str(name)] = json_value(str(name), value.tolist() if isinstance(value, _OF_NUMPY) else value)
        except ValidationError:
            lost.append(f"attribute {name!r}")
    return said, lost


_OF_NUMPY = np.ndarray | np.generic


def _values_of(coordinate: Any) -> npt.NDArray[Any] | None:
    """Numbers, dates or texts; None for all else, and for more than are kept in memory."""
    if coordinate.size > MOST_COORDINATES:
        return None
    values = np.asarray(coordinate.values)
    if values.dtype.kind in "OT" and all(isinstance(each, str) for each in values.reshape(-1).tolist()):
        values = values.astype(str)
    kind = values.dtype.kind
    return values if kind == "U" or (kind in "biufmM" and values.itemsize <= 8) else None
