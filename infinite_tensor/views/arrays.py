"""Tensors for xarray and Dask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.frame import Frame
from infinite_tensor.views.names import plain_name_of
from infinite_tensor.views.pixels import Pixels

if TYPE_CHECKING:
    import dask.array
    import xarray


def xarray_of(
    tensor: InfiniteTensor, region: object, coords: Mapping[str, Any] | None, *, lazy: bool
) -> xarray.DataArray:
    """A tensor for xarray; see `InfiniteTensor.to_xarray`."""
    try:
        import xarray  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ImportError("to_xarray needs the package xarray: pip install xarray") from error
    # If the extra is missing, the error above says so.
    from infinite_tensor.views.lazy_xarray import lazily, span  # noqa: PLC0415

    frame = Frame.of(tensor, region)
    pixels = Pixels(frame)
    along = {
        dim: span(first, extent) for dim, first, extent in zip(tensor.dims, frame.origin, frame.shape, strict=True)
    }
    data = lazily(pixels) if lazy else pixels[(slice(None),) * pixels.ndim]
    try:
        return xarray.DataArray(data, along | dict(coords or {}), tensor.dims, plain_name_of(tensor))
    except (TypeError, ValueError) as error:
        sizes = dict(zip(tensor.dims, frame.shape, strict=True))
        raise ValidationError(
            f"coords must be a mapping from names of dimensions to one coordinate for each pixel, of which the region "
            f"has {sizes}, got {quoted(coords)}: {error}"
        ) from error


def dask_of(tensor: InfiniteTensor, region: object, chunks: Any) -> dask.array.Array:
    """A tensor for Dask; see `InfiniteTensor.to_dask`."""
    try:
        import dask.array  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ImportError("to_dask needs the package dask.array: pip install 'dask[array]'") from error
    pixels = Pixels(Frame.of(tensor, region))
    try:
        cuts = pixels.frame.tile_cuts if isinstance(chunks, str) and chunks == "tiles" else chunks
        array: dask.array.Array = dask.array.from_array(
            pixels, cuts, asarray=False, fancy=False, meta=np.empty((0,) * pixels.ndim, pixels.dtype)
        )
    except (TypeError, ValueError) as error:
        raise ValidationError(f'chunks must be "tiles" or what Dask takes, got {quoted(chunks)}: {error}') from error
    return array
