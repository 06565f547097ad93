"""Metadata of pixels for other programs.

Coordinates and attributes follow the conventions of xarray. zarr itself makes the documents of a hierarchy of
arrays, in memory. The module also checks names for Zarr.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import zarr
from zarr.storage import MemoryStore

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.support.nested import Key, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.definition import Number
from infinite_tensor.values.meaning import (
    Attribute,
    Coordinate,
    Georeference,
    Meaning,
    PixelCode,
    nodata_in,
)
from infinite_tensor.views.frame import MOST_LABELS, Frame, Sampling, chunk_bytes

DOCUMENT = "zarr.json"
UNFINISHED = "export.json"
"""The document in the root of an unfinished export, in place of ``zarr.json``."""

_PLAIN_NAME = re.compile(r"[^\W_][\w.-]*")

SPATIAL_REF = "spatial_ref"
"""Coordinate without dimensions for the CRS, as in rioxarray and GDAL."""

_LABELS_AT_ONCE = 2**20
_ATTRIBUTES = {"nodata": ("_FillValue", "nodatavals"), "scale": ("scale_factor", "scales")} | {
    "offset": ("add_offset", "offsets")
}
"""Two attributes for each `PixelCode`: for a single value, and for a value per band."""
_ELSEWHERE = ("colour map", "mask", "GCPs", "RPCs")
Codec: TypeAlias = Literal["auto"] | None
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


# Names.


def plain_name_of(tensor: InfiniteTensor) -> str | None:
    """Return the last part of a tensor's id as a name.

    Return None if the id is random, or if the part is unsuitable as a name.
    """
    last = tensor.tensor_id.rpartition("/")[2]
    return last if node_of(tensor).tensor.named and is_plain_name(last) and last not in tensor.dims else None


def array_name_of(tensor: InfiniteTensor) -> str:
    """Return a name for the array of a tensor.

    The name differs from the names of dimensions, because these are names of coordinates.
    """
    name = plain_name_of(tensor) or "values"
    while name in tensor.dims:
        name += "_"
    return name


def is_plain_name(name: str) -> bool:
    """Whether a name is suitable for all programs.

    Such a name begins with a letter or a digit, and contains only letters, digits, dots, hyphens and underscores.
    """
    return _PLAIN_NAME.fullmatch(name) is not None and is_name(name)


def is_name(name: str) -> bool:
    """Whether an array or a group can have this name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return (
        re.search(r"[/\\\0]", name) is None
        and bool(name.strip("."))
        and not name.startswith("__")
        and name not in (DOCUMENT, UNFINISHED)
    )


def path_of(key: Key) -> str:
    """Return the path of a member of a group.

    Raise ValidationError if a name in the path is not allowed in Zarr.
    """
    if not all(map(is_name, key)):
        raise ValidationError(
            f"{show(key)} cannot be the path of a Zarr array: a name must not contain slashes, NUL or invalid "
            f"Unicode, begin with '__', consist of dots, or be {DOCUMENT!r} or {UNFINISHED!r}; give the tensor another "
            "name, as in TensorGroup({'another': group[key]})"
        )
    return "/".join(key)


# The metadata of pixels.


def attributes_of(meaning: Meaning, dtype: torch.dtype) -> dict[str, Any]:
    """Convert metadata to attributes for an array of type `dtype`."""
    found = {fact.called: fact.value for fact in meaning.of(Attribute)}
    if any(place.is_point for place in meaning.of(Georeference)):
        found["AREA_OR_POINT"] = "Point"
    for fact in meaning.of(PixelCode):
        if fact.called not in _ELSEWHERE:
            name, names = _ATTRIBUTES.get(fact.called, (fact.called, fact.called))
            value = nodata_in(fact.value, dtype) if name == "_FillValue" and fact.along is None else fact.value
            if value is not None:
                found[name if fact.along is None else names] = value
    return found


def unsaid_by_attributes(meaning: Meaning) -> list[str]:
    """List the metadata left out of a Zarr array.

    The entries are texts for a warning, such as ``coordinate 'x'``.
    """
    nameless = [label for fact in meaning.of(Coordinate) if not is_name(fact.called) for label in fact.labels]
    return [
        *meaning.lost,
        *[label for fact in meaning.facts for label in fact.labels if label in _ELSEWHERE],
        *nameless,
    ]


def coordinates_of(meaning: Meaning, dims: Sequence[str], shape: Sequence[int]) -> dict[str, Coordinate]:
    """Return the coordinates in the metadata of an array, by name."""
    places = [each for place in meaning.of(Georeference) for each in _of_place(place, dims, shape)]
    given = {each.called: each for each in (*places, *meaning.of(Coordinate))}
    # A coordinate named like a dimension must lie along this dimension alone.
    return {name: each for name, each in given.items() if name not in dims or [dims[d] for d in each.dims] == [name]}


def _of_place(place: Georeference, dims: Sequence[str], shape: Sequence[int]) -> Iterator[Coordinate]:
    attrs: dict[str, Any] = {} if place.crs is None else {"crs_wkt": place.crs, "spatial_ref": place.crs}
    if place.transform is not None:
        a, b, c, d, e, f = place.transform
        attrs["GeoTransform"] = " ".join(map(repr, (c, a, b, f, d, e)))
        for along, first, step in ((place.columns, c, a), (place.rows, f, e)):
            if b == d == 0 and shape[along] <= MOST_LABELS:
                yield Coordinate(dims[along], [along], first + step * (np.arange(shape[along]) + 0.5), {})
    if attrs:
        yield Coordinate(SPATIAL_REF, [], np.array(0), attrs)


def zarr_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as Zarr v3 stores them.

    A float nodata value is encoded as text, because JSON has no NaN and no infinities.
    """
    fill = attributes.get("_FillValue")
    encoded = base64.standard_b64encode(struct.pack("<d", fill)).decode() if isinstance(fill, float) else fill
    return {**attributes} if fill is None else {**attributes, "_FillValue": encoded}


class Pixels(NamedTuple):
    """The middles of the pixels along a dimension, as a coordinate that takes no memory.

    Attributes
    ----------
    dims : sequence of int
        The dimension.
    first, extent : int
        The first pixel, and the number of pixels.
    along : Sampling
        The position of each.
    """

    dims: Sequence[int]
    first: int
    extent: int
    along: Sampling

    def values(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the entries from `start` to `stop`, as int64 or float64."""
        numbers: npt.NDArray[Any] = self.along.middle(np.arange(self.first + start, self.first + stop, dtype=np.int64))
        return numbers

    def chunk(self, start: int, size: int) -> bytes:
        """Return the bytes of the entries from `start` on, filled up to `size`."""
        values = self.values(start, min(start + size, self.extent))
        return bytes(chunk_bytes(np.pad(values, (0, size - len(values)))))


def _coordinates(frame: Frame) -> dict[str, Coordinate | Pixels]:
    """Return the coordinates of an array, by name.

    A dimension without coordinates gets the middles of its pixels, unless there are too many pixels.
    """
    dims = [*frame.dims.values()]
    found: dict[str, Coordinate | Pixels] = {
        **coordinates_of(frame.meaning, dims, [frame.shape[d] for d in frame.dims])
    }
    for number, (d, name) in enumerate(frame.dims.items()):
        if name not in found and frame.shape[d] <= MOST_LABELS:
            found[name] = Pixels([number], frame.origin[d], frame.shape[d], frame.along[d])
    return found


Chunk: TypeAlias = Callable[[], bytes]
"""Computes the bytes of a chunk."""


def documents_of(
    frames: Mapping[str, Frame],
    attributes: Mapping[str, Any],
    may_be: Callable[[str], bool],
    fill_values: Mapping[str, Number] | None = None,
    nodata: Mapping[str, Any] | None = None,
    codec: Codec = None,
    *,
    in_levels: bool = False,
) -> tuple[dict[str, bytes], dict[str, Chunk]]:
    """Return the documents and coordinates of a Zarr hierarchy by their keys, the document of the group last.

    The second mapping computes the chunks of coordinates without values of their own, not yet encoded. Do not call
    this on zarr's event loop: zarr itself makes the documents there.

    Parameters
    ----------
    frames : mapping of str to Frame
        The arrays by their paths.
    attributes : mapping
        The attributes of the group.
    may_be : callable
        ``may_be(name)`` tells whether a coordinate may have this name.
    fill_values, nodata : mapping, optional
        The fill value and the nodata value of each array, by its path. Default: 0 and none.
    codec : "auto" or None
        The compressors of zarr, or none.
    in_levels : bool
        Whether each array is a level, in a group of its own. Programs may open a level alone, so each gets consolidated
        metadata.
    """
    found: dict[str, Any] = {}
    chunks: dict[str, Chunk] = {}
    group = zarr.create_group(MemoryStore(found), attributes={**attributes})
    for path, frame in frames.items():
        said = {} if nodata is None or path not in nodata else zarr_attributes({"_FillValue": nodata[path]})
        _add_array(frame, group, path, 0 if fill_values is None else fill_values[path], said, codec)
    for path, frame in frames.items():
        said = _add_coordinates(frame, group, path, may_be, codec, chunks, is_alone=in_levels or len(frames) == 1)
        array = group[path]
        array.update_attributes(said | array.attrs.asdict())
    documents = {key: value.to_bytes() for key, value in found.items()}
    folders = [*dict.fromkeys(path.partition("/")[0] + "/" for path in frames if in_levels), ""]
    whole = {f"{folder}{DOCUMENT}": _consolidated(documents, folder) for folder in folders}
    return {key: each for key, each in documents.items() if key not in whole} | whole, chunks


def _consolidated(documents: Mapping[str, bytes], folder: str) -> bytes:
    """Return the document of a group with those of all members, for xarray to read without a listing."""
    inside = {key.removeprefix(folder): each for key, each in documents.items() if key.startswith(folder)}
    paths = [key.removesuffix(f"/{DOCUMENT}") for key in inside if key.endswith(f"/{DOCUMENT}")]
    # zarr finds the members of a group only if consolidated metadata lists them together.
    paths.sort(key=lambda path: path.rpartition("/")[0])
    members = {path: json.loads(inside[f"{path}/{DOCUMENT}"]) for path in paths}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
    return json.dumps(json.loads(inside[DOCUMENT]) | {"consolidated_metadata": consolidated}).encode()


def _add_array(
    frame: Frame, group: zarr.Group, path: str, fill_value: Number, attributes: Mapping[str, Any], codec: Codec
) -> None:
    """Create an array in a group.

    The attribute ``origin`` gives the offset of the array: pixel ``p`` of the tensor is at index ``p + origin``.
    """
    shape, chunks, origin = (
        tuple([each[d] for d in frame.dims]) for each in (frame.shape, frame.chunk_shape, frame.origin)
    )
    ours = {"infinite_tensor": {"tensor_id": frame.tensor.tensor_id, "origin": [-first for first in origin]}}
    group.create_array(
        path,
        shape=shape,
        chunks=chunks,
        dtype=frame.dtype,
        fill_value=fill_value,
        dimension_names=[*frame.dims.values()],
        attributes=ours | {**attributes},
        compressors=codec,
        filters=None,
    )


def _add_coordinates(
    frame: Frame,
    group: zarr.Group,
    path: str,
    may_be: Callable[[str], bool],
    codec: Codec,
    chunks: dict[str, Chunk],
    *,
    is_alone: bool,
) -> dict[str, Any]:
    """Create the coordinates of an array in a group. Return the attributes to add to the array.

    All arrays share the coordinate of a dimension. Any other coordinate belongs to an array, and is named after the
    array unless it `is_alone`. Chunks that take no memory are added to `chunks`.
    """
    above, _, key = path.rpartition("/")
    dims, attributes = [*frame.dims.values()], attributes_of(frame.meaning, frame.tensor.dtype)
    others = []
    for called, coordinate in _coordinates(frame).items():
        name = called if called in dims or is_alone else f"{key}_{called}"
        if not may_be(name):
            continue
        while called not in dims and f"{above}/{name}".lstrip("/") in group:
            name += "_"
        at = f"{above}/{name}".lstrip("/")
        if at not in group:
            _add_coordinate(coordinate, group, at, [dims[d] for d in coordinate.dims], codec, chunks)
        others += [] if called in dims else [name]
        if called in (SPATIAL_REF, attributes.get("grid_mapping")):
            attributes["grid_mapping"] = name
    if others:
        attributes["coordinates"] = " ".join(others)
    return zarr_attributes(attributes)


def _add_coordinate(
    coordinate: Coordinate | Pixels,
    group: zarr.Group,
    path: str,
    dims: Sequence[str],
    codec: Codec,
    chunks: dict[str, Chunk],
) -> None:
    options: Any = {"dimension_names": dims, "compressors": codec, "filters": None}
    if isinstance(coordinate, Pixels):
        extent, size = coordinate.extent, min(coordinate.extent, _LABELS_AT_ONCE)
        dtype = coordinate.values(0, 0).dtype
        group.create_array(path, shape=(extent,), chunks=(size,), dtype=dtype, **options)
        starts = range(0, extent, size)
        chunks |= {f"{path}/c/{i}": partial(coordinate.chunk, start, size) for i, start in enumerate(starts)}
        return
    values, attrs = coordinate.values, {**coordinate.attrs}
    if values.dtype.kind in "Mm":
        # As xarray encodes dates.
        unit = _UNITS[np.datetime_data(values.dtype)[0]]
        since = {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian"}
        attrs |= since if values.dtype.kind == "M" else {"units": unit, "dtype": str(values.dtype)}
        values = values.astype(np.int64)
    options |= {"shape": values.shape, "chunks": values.shape, "attributes": attrs}
    is_text = values.dtype.kind == "U"
    array = group.create_array(path, dtype=str if is_text else values.dtype, **options)
    array[...] = values.astype(object) if is_text else values
