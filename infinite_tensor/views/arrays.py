"""Tensors for xarray and Dask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.stored_only import StoredOnly
from infinite_tensor.support.given import as_index, checked_flag, members, quoted, word
from infinite_tensor.support.tables import count_of
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore.messages import warn_of_lost
from infinite_tensor.values.meaning import nodata_in
from infinite_tensor.views.frame import Frame
from infinite_tensor.views.metadata import attributes_of, coordinates_of, plain_name_of

if TYPE_CHECKING:
    import dask.array
    import xarray

_MOST_CHUNKS = 2**22
"""Maximum number of chunks. Computing any part of a Dask array takes about 200 bytes per chunk."""


def xarray_of(
    source: InfiniteTensor | StoredOnly, region: object, coords: Mapping[str, Any] | None, *, lazy: bool
) -> xarray.DataArray:
    """Return a tensor as an xarray.DataArray; see `InfiniteTensor.to_xarray`."""
    try:
        import xarray  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ImportError("to_xarray needs the package xarray: pip install xarray") from error
    # If the extra is missing, the error above says so.
    from infinite_tensor.views.lazy_xarray import coordinates, lazily  # noqa: PLC0415

    frame = Frame.of(source, region)
    tensor = frame.tensor
    data = lazily(frame) if checked_flag("lazy", lazy) else frame[(slice(None),) * frame.ndim]
    nodata = nodata_in(source.nodata, source.dtype) if isinstance(source, StoredOnly) else None
    meaning = frame.meaning
    warn_of_lost("what to_xarray returns", meaning.lost)
    attrs = attributes_of(meaning, tensor.dtype) | ({} if nodata is None else {"_FillValue": nodata})
    if "_FillValue" in attrs:
        attrs["_FillValue"] = frame.dtype.type(attrs["_FillValue"])
    try:
        array = xarray.DataArray(data, dict(coords or {}), tensor.dims, plain_name_of(tensor), attrs)
        for name, known in coordinates_of(meaning, tensor.dims, frame.shape).items():
            if name not in array.coords:
                array = array.assign_coords({name: ([tensor.dims[d] for d in known.dims], known.values, known.attrs)})
        for dim, first, extent in zip(tensor.dims, frame.origin, frame.shape, strict=True):
            if dim not in array.coords:
                array = array.assign_coords(coordinates(dim, first, extent))
    except (TypeError, ValueError) as error:
        sizes = dict(zip(tensor.dims, frame.shape, strict=True))
        raise ValidationError(
            f"coords must map names of dimensions to one coordinate per pixel, for a region of {sizes}, got "
            f"{quoted(coords)}: {error}"
        ) from error
    return array


def dask_of(source: InfiniteTensor | StoredOnly, region: object, chunks: Any) -> dask.array.Array:
    """Return a tensor as a Dask array; see `InfiniteTensor.to_dask`."""
    try:
        import dask.array  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ImportError("to_dask needs the package dask.array: pip install 'dask[array]'") from error
    frame = Frame.of(source, region)
    of_tiles = word(chunks) == "tiles"
    _check_count(frame, math.prod(frame.tile_counts) if of_tiles else _count(frame, chunks))
    try:
        cuts = frame.tile_cuts if of_tiles else chunks
        array: dask.array.Array = dask.array.from_array(
            frame, cuts, asarray=False, fancy=False, meta=np.empty((0,) * frame.ndim, frame.dtype)
        )
    except (TypeError, ValueError) as error:
        raise ValidationError(f'chunks must be "tiles" or chunks for Dask, got {quoted(chunks)}: {error}') from error
    return array


def _check_count(frame: Frame, count: int) -> None:
    if count > _MOST_CHUNKS:
        raise ValidationError(
            f"a Dask array can have {count_of(_MOST_CHUNKS)} chunks at most, but the region of shape {frame.shape} has "
            f"{count_of(count)}; give a smaller region, or larger chunks, as in chunks={2 * max(frame.tile)}"
        )


def _count(frame: Frame, chunks: Any) -> int:
    """Return a lower bound for the number of chunks.

    Raise ValidationError for empty chunks, because Dask would accept them.
    """
    entries = members(chunks)
    if isinstance(chunks, Mapping):
        entries = tuple([chunks.get(d, -1) for d in range(len(frame.shape))])
    elif entries is None:
        entries = (chunks,) * len(frame.shape)
    elif len(frame.shape) == 1 < len(entries):
        # All entries are chunks of the one dimension.
        entries = (entries,)
    return math.prod(map(_count_along, frame.shape, entries))


def _count_along(extent: int, entry: object) -> int:
    """Return the number of chunks along a dimension.

    Return 1 for a word such as ``auto``, because only Dask can interpret it.
    """
    sizes = members(entry)
    numbers = [as_index(size) for size in ((entry,) if sizes is None else sizes)]
    if sizes is None and numbers in ([-1], [None]) and not isinstance(entry, bool):
        return 1
    if isinstance(entry, bool) or not all(number is None or number > 0 for number in numbers):
        raise ValidationError(
            f"chunks must have at least 1 pixel along each dimension, or -1 for the whole dimension, got "
            f"{quoted(entry)}; leave chunks out for one chunk per tile"
        )
    return len(numbers) if sizes is not None else -(-extent // (numbers[0] or 1))
