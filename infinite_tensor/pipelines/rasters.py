"""Reads rasters and their metadata with rasterio."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.pipelines.readers import Reader, as_tensor, torch_dtype_of
from infinite_tensor.support.given import as_index, quoted
from infinite_tensor.support.tables import plain
from infinite_tensor.values.arrays import Box, Stamps, cut, stamps_of_raster
from infinite_tensor.values.meaning import COLOURS, Attribute, Coordinate, Fact, Georeference, Meaning, PixelCode, Tag

_GDAL_CACHE_BYTES = 2**23
"""By default, GDAL would cache blocks in 5% of the memory. The tensor has a cache already."""


class RasterReader(Reader):
    """Reads windows of a raster.

    Each thread and each process opens a separate handle.

    Parameters
    ----------
    path : str
        A path, or anything else that rasterio opens.
    page : int or None
        The page of a TIFF to read. None reads the first page, with a warning if there are more.

    Attributes
    ----------
    crs, transform, nodata
        As in rasterio.
    meaning : Meaning
        Metadata of the pixels.
    colours : tuple of str
        The colour interpretation of each band, as named by rasterio.
    """

    def __init__(self, path: str, page: object) -> None:
        self._path = path
        self._handles = threading.local()
        pages = [each for each in self._handle().subdatasets if each.startswith("GTIFF_DIR:")]
        number = page_of(path, page, max(1, len(pages)))
        if number:
            self._path, self._handles = pages[number], threading.local()
        raster = self._handle()
        if len(set(raster.dtypes)) > 1:
            raise ValidationError(
                f"{path} has bands of different dtypes, {raster.dtypes}; give one file for each dtype"
            )
        self.shape = (raster.count, raster.height, raster.width)
        if not raster.count:
            raise ValidationError(f"{path} has no bands, but subdatasets: give one of {raster.subdatasets}")
        self.dtype = _dtype_of_bands(raster)
        together = raster.interleaving is not None and raster.interleaving.value == "PIXEL"
        self.chunks = cut((raster.count if together else 1, *raster.block_shapes[0]), self.dtype.itemsize)
        self.crs, self.transform, self.nodata = raster.crs, raster.transform, raster.nodata
        # Open a new handle, because rasterio may raise errors of earlier reads with an old handle.
        with _opened_raster(self._path) as again:
            self.colours = tuple(each.name for each in again.colorinterp)
        self.meaning = meaning_of_raster(raster, self.colours)

    def _handle(self) -> Any:
        handles, process = self._handles, os.getpid()
        # A forked child shares the file position of an open handle with its parent.
        if getattr(handles, "process", None) != process:
            handles.raster, handles.process = _opened_raster(self._path), process
        return handles.raster

    def _read(self, region: Box) -> torch.Tensor:
        return self.every(region[0], region[1], region[2])

    def every(self, bands: int | slice, rows: slice, columns: slice) -> torch.Tensor:
        """Read rows and columns, which may have a step.

        With a step, each pixel is one of the pixels from it to the next. If the file has overviews, they are read.
        """
        import rasterio  # noqa: PLC0415  (of an extra)
        from rasterio.windows import Window  # noqa: PLC0415

        numbers = range(1, self.shape[0] + 1)[bands]
        indexes = numbers if isinstance(numbers, int) else [*numbers]
        extents = tuple([len(range(each.start, each.stop, each.step or 1)) for each in (rows, columns)])
        shape = extents if isinstance(numbers, int) else (len(numbers), *extents)
        try:
            with rasterio.Env(GDAL_CACHEMAX=_GDAL_CACHE_BYTES):
                block = self._handle().read(indexes, window=Window.from_slices(rows, columns), out_shape=shape)
            if self._handle().driver == "Zarr":
                # Chunks of a deleted array read as 0, but opening it again raises an error.
                _opened_raster(self._path).close()
            return as_tensor(block).to(self.dtype)
        except OSError as error:
            # rasterio's own error only points to that of GDAL.
            raise StoreError(f"{self._path} cannot be read: {error.__cause__ or error}") from error

    def read_mask(self, rows: slice, columns: slice) -> Any:
        """Read the mask of a region, with 0 for pixels without data.

        All bands share this mask.
        """
        from rasterio.windows import Window  # noqa: PLC0415  (of an extra)

        return self._handle().read_masks(1, window=Window.from_slices(rows, columns))

    def _stamps(self) -> Stamps:
        return stamps_of_raster(self._path, self._handle().files)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_handles"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._handles = threading.local()

    def __repr__(self) -> str:
        return f"raster({self._path!r})"


def page_of(path: str, page: object, count: int) -> int:
    """Return the number of the page to read, out of `count` pages.

    If `page` is None, this is the first page, with a warning if there are more.
    """
    if page is None:
        if count > 1:
            warnings.warn(
                f"{plain(path)} has {count} pages, and only the first is read; give a page from page=0 to "
                f"page={count - 1}",
                stacklevel=4,
            )
        return 0
    number = as_index(page)
    if number is None or not 0 <= number < count:
        raise ValidationError(
            f"page must be an int from 0 to {count - 1}, got {quoted(page)}: the number of pages in {path} is {count}"
        )
    return number


def _dtype_of_bands(raster: Any) -> torch.dtype:
    """Return the dtype of the stored values. GDAL may use a larger dtype for reading."""
    if raster.dtypes[0] == "complex_int16":
        return torch.complex64
    half = raster.dtypes[0] == "float32" and raster.tags(1, ns="IMAGE_STRUCTURE").get("NBITS") == "16"
    return torch.float16 if half else torch_dtype_of(raster.dtypes[0])


def _opened_raster(path: str) -> Any:
    try:
        import rasterio  # noqa: PLC0415  (of an extra)
    except ImportError as error:
        raise ImportError("from_raster needs the package rasterio: pip install rasterio") from error
    try:
        return rasterio.open(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened as a raster: {error}; for a photograph, call from_image") from error


def meaning_of_raster(raster: Any, colours: Sequence[str]) -> Meaning:
    """Return the metadata of a raster.

    The dimensions of the tensor are bands, rows and columns. `colours` are the names of the colours of bands.
    """
    from rasterio.enums import MaskFlags  # noqa: PLC0415  (of an extra)

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
        raster.tags().get("AREA_OR_POINT") == "Point",
    )
    facts: list[Fact] = [place] if place.labels else []
    facts += _said_in_tags(raster)
    # GDAL calls the first of unknown bands grey. Three unknown bands of bytes would be taken for a picture.
    is_known = colours[0] not in ("gray", "undefined", "palette") or {*colours[1:]} - {"undefined"}
    if is_known or (raster.count > 2 and raster.dtypes[0] == "uint8"):
        # Only a file of one band has a palette, as its colour map.
        facts.append(Coordinate(COLOURS, [0], np.array([each.replace("palette", "undefined") for each in colours]), {}))
    if any(raster.descriptions):
        facts.append(Coordinate("band", [0], np.array([each or "" for each in raster.descriptions]), {}))
    if len({*raster.units}) > 1:
        facts.append(Coordinate("units", [0], np.array([each or "" for each in raster.units]), {}))
    elif raster.units[0]:
        facts.append(Attribute("units", raster.units[0]))
    per_band = {"nodata": (raster.nodatavals, None), "scale": (raster.scales, 1.0), "offset": (raster.offsets, 0.0)}
    for name, (values, default) in per_band.items():
        if len({*map(repr, values)}) > 1:
            facts.append(PixelCode(name, [*values], 0))
        elif values[0] != default:
            facts.append(PixelCode(name, values[0]))
    if (*colours,) == ("palette",):
        facts.append(PixelCode("colour map", [[value, *colour] for value, colour in raster.colormap(1).items()]))
    if raster.mask_flag_enums[0] == [MaskFlags.per_dataset]:
        facts.append(PixelCode("mask", True))
    return Meaning(facts)


_OTHERWISE = re.compile(
    "AREA_OR_POINT|EXIF_Orientation|STATISTICS_.*|NETCDF_DIM_.*|band|units|colorinterp|_FillValue|missing_value|"
    "scale_factor|add_offset|coordinates|grid_mapping"
)
"""Tags that other facts repeat, or that are wrong for a region of the raster."""


def _said_in_tags(raster: Any) -> list[Fact]:
    """Return the tags of a raster and of its bands."""
    facts: list[Fact] = [Tag(name, value) for name, value in _tags_of(raster).items()]
    of_bands = [_tags_of(raster, band) for band in raster.indexes]
    names = dict.fromkeys(name for tags in of_bands for name in tags)
    facts += [Coordinate(name, [0], np.array([tags.get(name, "") for tags in of_bands]), {}) for name in names]
    return facts


def _tags_of(raster: Any, band: int = 0) -> dict[str, str]:
    return {name: value for name, value in raster.tags(band).items() if not _OTHERWISE.fullmatch(name)}
