"""Regions as tiled TIFF images, which are GeoTIFFs where it is known where the pixels are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink
from infinite_tensor.views.exports.tiff_tags import dtype_of, mask_of, said_of

_DTYPES = frozenset(
    [
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)
_BLOCK = 512
_LONGEST = 2**31 - 1
_MOST_BANDS = 65_535
_TOGETHER = 4
"""So many bands are stored pixel by pixel, as the colours of an image; more are stored band by band."""
_CACHE_BYTES = 2**25
"""GDAL would take a twentieth of the machine's memory."""


def check_tiff(cutout: Cutout) -> None:
    """ValidationError if a region is no image that TIFF has."""
    _rasterio()
    bands, rows, columns = cutout.image("tiff")
    if dtype_of(cutout).name not in _DTYPES:
        raise ValidationError(
            f"format 'tiff' holds integers, floats and complex numbers, and the tensor is "
            f"{cutout.tensor.dtype}; convert it first, as in t.map(lambda x: x.to(torch.uint8), "
            'dtype="uint8").export(...), or write .npy or .zarr'
        )
    if bands > _MOST_BANDS or max(rows, columns) > _LONGEST:
        raise ValidationError(
            f"a TIFF has at most {_MOST_BANDS} bands and {_LONGEST} rows and columns, and the region {bands} of "
            f"{rows} x {columns}; write .zarr"
        )
    crs = said_of(cutout).profile.get("crs")
    if crs and not _is_held(crs):
        raise ValidationError(f"no GeoTIFF holds the CRS of the raster, {crs.to_string()}; write .npy or .zarr")


def _is_held(crs: Any) -> bool:
    """Whether a GeoTIFF can have a CRS. GDAL writes others, such as those of rotated poles, into a second file."""
    with _rasterio().Env(GDAL_PAM_ENABLED=False), _without_georeference(), _rasterio().MemoryFile() as file:
        with file.open(driver="GTiff", width=1, height=1, count=1, dtype="uint8", crs=crs):
            pass
        with file.open() as found:
            return found.crs is not None


@contextmanager
def opened_tiff(cutout: Cutout, path: Path) -> Iterator[Sink]:
    """A file for an image."""
    sink = _Tiff(cutout, path)
    with sink.file:
        yield sink


def _rasterio() -> Any:
    try:
        import rasterio  # noqa: PLC0415  (of an extra)
    except ImportError as error:
        raise ImportError("format 'tiff' needs the package rasterio: pip install rasterio") from error
    return rasterio


class _Tiff(Sink):
    def __init__(self, cutout: Cutout, path: Path) -> None:
        bands, rows, columns = cutout.image("tiff")
        self._channels = cutout.channels
        self.unit, block = _unit_of(cutout, bands)
        self._dtype, self._mask = dtype_of(cutout), mask_of(cutout)
        said = said_of(cutout)
        with self._settings(), _without_georeference():
            self.file = _rasterio().open(
                path,
                "w",
                driver="GTiff",
                count=bands,
                height=rows,
                width=columns,
                dtype=self._dtype.name,
                tiled=True,
                blockysize=block[0],
                blockxsize=block[1],
                interleave="pixel" if bands <= _TOGETHER else "band",
                compress="deflate",
                # The libtiff of older wheels predicts no integers of 64 bits.
                predictor={"f": 3, "c": 1}.get(self._dtype.kind, 2 if self._dtype.itemsize < 8 else 1),
                # Wherever the file might have 4 GiB, which others cannot have.
                BIGTIFF="IF_SAFER",
                **said.profile,
            )
            # Colours cannot be set after pixels.
            for name, value in said.attributes.items():
                if name == "colormap":
                    self.file.write_colormap(1, value)
                else:
                    setattr(self.file, name, value)
            self.file.update_tags(**said.tags)

    def put(self, place: Place, pixels: Pixels) -> None:
        """See `Sink`."""
        from rasterio.windows import Window  # noqa: PLC0415  (of an extra)

        if self._channels is None:
            bands, (rows, columns) = slice(0, 1), place
            pixels = pixels[None]
        else:
            bands = place[self._channels]
            rows, columns = (part for d, part in enumerate(place) if d != self._channels)
            pixels = np.moveaxis(pixels, self._channels, 0)
        window = Window.from_slices(rows, columns)
        with self._settings():
            self.file.write(
                pixels.astype(self._dtype, copy=False),
                indexes=list(range(bands.start + 1, bands.stop + 1)),
                window=window,
            )
            if self._mask is not None and bands.start == 0:
                self.file.write_mask(self._mask(rows, columns), window=window)

    @staticmethod
    def _settings() -> Any:
        return _rasterio().Env(GDAL_CACHEMAX=_CACHE_BYTES, GDAL_TIFF_INTERNAL_MASK=True)


def _unit_of(cutout: Cutout, bands: int) -> tuple[Index, tuple[int, int]]:
    """The box that is written at a time, and the rows and columns of a block in the file: a tile where it has them."""
    unit = [min(n, extent) for n, extent in zip(cutout.frame.tile, cutout.frame.shape, strict=True)]
    block = []
    for number, d in enumerate(cutout.kept):
        tile = cutout.frame.tile[d]
        if number == cutout.channels:
            unit[d] = bands if bands <= _TOGETHER else min(unit[d], bands)
        else:
            block.append(tile if tile % 16 == 0 and tile <= 2 * _BLOCK else _BLOCK)
            unit[d] = block[-1]
    return tuple(unit), (block[0], block[1])


@contextmanager
def _without_georeference() -> Iterator[None]:
    """A file that does not say where it is is nothing to be warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _rasterio().errors.NotGeoreferencedWarning)
        yield
