"""What a command reads beside stores: arrays, images and rasters in files, and what a file of the user defines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli.arguments import is_reference, reference
from infinite_tensor.errors import StoreError, ValidationError

_RASTERS = (".tif", ".tiff", ".vrt", ".jp2", ".img")


def source_at(place: str, dims: tuple[str, ...] | None) -> Any:
    """What `predict` slides over: an array, image or raster in a file, a Zarr array, or something in a Python file.

    Raises
    ------
    click.UsageError
        If there is nothing like that.
    """
    if is_reference(place):
        return reference(place)
    if "://" not in place:
        path = Path(place)
        if not path.exists():
            raise click.UsageError(f"there is no source {place!r}")
        if path.is_file():
            return _file(path, dims)
    return _zarr_array(place, dims)


def mask_at(place: str, scale: object) -> Any:
    """The mask at a path, or of a name in a Python file."""
    found: Any
    if is_reference(place):
        found = reference(place)
    else:
        path = Path(place)
        if not path.is_file():
            raise click.UsageError(f"there is no mask {place!r}")
        found = _file(path, None)
    if isinstance(found, infinite_tensor.Mask):
        return found
    return infinite_tensor.Mask(found, scale=scale)


def _file(path: Path, dims: tuple[str, ...] | None) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        import numpy as np  # noqa: PLC0415  (as long as a command takes without it)

        try:
            return infinite_tensor.from_array(np.load(path, mmap_mode="r"), dims=dims)
        except ValueError as error:
            raise click.UsageError(f"{path} holds no array of numbers as numpy.save writes it") from error
    if suffix in _RASTERS and find_spec("rasterio") is not None:
        return infinite_tensor.from_raster(path)
    return infinite_tensor.from_image(path)


def _zarr_array(place: str, dims: tuple[str, ...] | None) -> Any:
    import zarr  # noqa: PLC0415

    try:
        found = zarr.open_array(place, mode="r")
    except Exception as error:
        # zarr has no error of its own that all others are.
        hint = "; of a tensor in a store, give its id with --source-tensor" if _holds_tensors(place) else ""
        raise click.UsageError(f"{place!r} is no Zarr array ({type(error).__name__}){hint}") from error
    names = getattr(found.metadata, "dimension_names", None)
    if dims is None and names is not None and all(names):
        dims = tuple(names)
    return infinite_tensor.from_array(found, dims=dims)


def _holds_tensors(place: str) -> bool:
    try:
        with infinite_tensor.open_store(place, mode="r") as store:
            return bool(store.tensor_ids())
    except (StoreError, ValidationError):
        return False
