"""Export of regions to .npy files, PNG images and Cloud-Optimized TIFFs.

A TIFF of georeferenced pixels is a GeoTIFF.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.pipelines.pyramid import holds_labels
from infinite_tensor.pipelines.rasters import RasterReader
from infinite_tensor.support.disks import allocate_file
from infinite_tensor.values.definition import CHANNELS
from infinite_tensor.values.meaning import (
    COLOURS,
    Attribute,
    Coordinate,
    Fact,
    Georeference,
    PixelCode,
    crs_of,
    nodata_in,
)
from infinite_tensor.views.colours import Labels, are_labels
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink

_MODES = ((1, "uint8"), (1, "uint16"), (3, "uint8"), (4, "uint8"))
"""Numbers of channels and dtypes written by pillow without conversion."""
_SIDES = (512, 256, 128)
"""Rows and columns of a TIFF block, largest first. GDAL's COG driver requires at least 128."""
_BLOCK_BYTES = 2**23
"""Maximum bytes of a block in a Cloud-Optimized TIFF, with all bands. GDAL keeps about 20 blocks in memory."""
_SCRATCH = (".tiled", ".ovr.tmp", ".msk.ovr.tmp")
"""Suffixes of temporary files next to an unfinished TIFF, for pixels and GDAL's overviews."""
_LITTLE_ROOM = 2**20
"""A disk with less free space counts as full."""
_PREDICTORS = {1: "NO", 2: "STANDARD", 3: "FLOATING_POINT"}
"""Names of predictors in the COG driver, by number in the GTiff driver."""
_LONGEST = 2**31 - 1
_MOST_BANDS = 65_535
_TOGETHER = 4
"""Maximum number of bands interleaved by pixel, as the colours of an image. More bands are stored separately."""
_CACHE_BYTES = 2**25
"""GDAL's block cache. The default is 5% of the machine's memory."""
_SETTINGS = {"GDAL_CACHEMAX": _CACHE_BYTES, "GDAL_TIFF_INTERNAL_MASK": True}
_RGBA = ("red", "green", "blue", "alpha")
_ACROSS = frozenset({"x", "lon", "longitude", "easting"})
"""Names of the coordinate from left to right."""


@contextmanager
def opened_npy(cutout: Cutout, path: Path) -> Iterator[Sink]:
    """Create a .npy file for a region, in C order."""
    np.lib.format.open_memmap(path, "w+", cutout.dtype, cutout.shape).flush()
    allocate_file(path)

    def put(place: Place, pixels: Pixels) -> None:
        # Map again each time, because written pages would stay in memory.
        np.load(path, mmap_mode="r+")[place] = pixels

    yield Sink(cutout.frame.tile, put)


def check_png(cutout: Cutout) -> None:
    """Check that pillow can write the region as PNG."""
    _image()
    channels, _, _ = cutout.image("png")
    if (channels, cutout.dtype.name) not in _MODES:
        told = (
            "format 'png' supports 1, 3 or 4 channels of uint8, or 1 of uint16, but the region has "
            f"{channels} of {cutout.tensor.dtype}; "
        )
        if cutout.dtype.kind in "iu":
            raise ValidationError(
                f'{told}convert labels to uint8, as in t.map(lambda x: x.to(torch.uint8), dtype="uint8").export(..., '
                "palette=True) for a colour per label, or write .tif, .npy or .zarr"
            )
        raise ValidationError(
            f"{told}convert it first, as in t.map(lambda x: (x.clamp(0, 1) * 255).round().to(torch.uint8), "
            'dtype="uint8").export(...), take fewer channels, as in sl[0:3, 0:512, 0:512], or write .tif, .npy or .zarr'
        )
    if channels == len(_RGBA) and cutout.colours and {*cutout.colours} != {*_RGBA}:
        raise ValidationError(
            f"the fourth channel of a PNG is alpha, but the bands are {', '.join(cutout.colours)}; take three of them, "
            "as in sl[0:3, 0:512, 0:512], or write .tif, .npy or .zarr"
        )


def check_labels_png(cutout: Cutout) -> None:
    """Check that pillow can write the region as PNG with a palette."""
    check_png(cutout)
    channels, _, _ = cutout.image("png")
    if (channels, cutout.dtype.name) != (1, "uint8"):
        raise ValidationError(
            f"palette=True needs one channel of uint8, but the region has {channels} of "
            f"{cutout.tensor.dtype}; leave it out, or take one channel, as in sl[0, 0:512, 0:512]"
        )


@contextmanager
def opened_png(cutout: Cutout, path: Path, *, palette: bool = False) -> Iterator[Sink]:
    """Create a PNG.

    The whole image is in memory until the end, because pillow cannot write it row by row.
    """
    image = np.empty(cutout.shape, cutout.dtype)
    yield Sink(cutout.frame.tile, image.__setitem__)
    if cutout.channels is not None:
        image = np.moveaxis(image, cutout.channels, -1)
    channels = _RGBA[: image.shape[-1]]
    if cutout.colours and sorted(cutout.colours) == sorted(channels):
        image = image[..., [*map(cutout.colours.index, channels)]]
    if image.shape[-1] == 1 and image.ndim == 3:
        image = image[..., 0]
    file = _image().fromarray(np.ascontiguousarray(image))
    options = {}
    if palette:
        colours = Labels.of(cutout.meaning).colours[:256]
        file.putpalette((colours.tobytes() * 256)[: 3 * 256])
        options = {} if cutout.nodata is None else {"transparency": cutout.nodata}
    file.save(path, "PNG", **options)


def unsaid_by_png(cutout: Cutout, *, palette: bool = False) -> list[str]:
    """List the codes of pixels left out of a PNG. Nobody expects a place in a PNG."""
    codes = [code for code in cutout.meaning.of(PixelCode) if not (palette and code.called == "colour map")]
    return [*cutout.meaning.lost, *[label for code in codes for label in code.labels]]


def _image() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415  (of an extra)
    except ImportError as error:
        raise ImportError("format 'png' needs the package pillow: pip install pillow") from error
    return Image


# TIFF.


def check_tiff(cutout: Cutout) -> None:
    """Check that a TIFF supports the region."""
    _rasterio()
    bands, rows, columns = cutout.image("tiff")
    if cutout.dtype.kind not in "iufc":
        raise ValidationError(
            f"format 'tiff' supports integers, floats and complex numbers, but the tensor is "
            f"{cutout.tensor.dtype}; convert it first, as in t.map(lambda x: x.to(torch.uint8), "
            'dtype="uint8").export(...), or write .npy or .zarr'
        )
    if bands > _MOST_BANDS or max(rows, columns) > _LONGEST:
        raise ValidationError(
            f"a TIFF has at most {_MOST_BANDS} bands and {_LONGEST} rows and columns, but the region has {bands} bands "
            f"of {rows} x {columns}; write .zarr"
        )
    crs = _said_of(cutout).profile.get("crs")
    if crs and not _is_held(crs):
        raise ValidationError(f"a GeoTIFF cannot store the CRS of the raster, {crs.to_string()}; write .npy or .zarr")


def _is_held(crs: Any) -> bool:
    """Whether a GeoTIFF supports a CRS. Rotated poles are not supported, for example."""
    with _rasterio().Env(GDAL_PAM_ENABLED=False), _without_georeference(), _rasterio().MemoryFile() as file:
        with file.open(driver="GTiff", width=1, height=1, count=1, dtype="uint8", crs=crs):
            pass
        with file.open() as found:
            return found.crs is not None


@contextmanager
def opened_tiff(cutout: Cutout, path: Path) -> Iterator[Sink]:
    """Create a Cloud-Optimized TIFF.

    GDAL makes it from a tiled TIFF. With very many bands, create only the tiled TIFF, because GDAL would need too much
    memory.
    """
    bands, _, _ = cutout.image("tiff")
    dtype = _dtype_of(cutout)
    side = next((side for side in _SIDES if side**2 * bands * dtype.itemsize <= _BLOCK_BYTES), None)
    if side is None:
        with _opened_tiles(cutout, path, _SIDES[0]) as (sink, _):
            yield sink
        return
    scratch = [path.with_name(path.name + ending) for ending in _SCRATCH]
    try:
        # Delete the files of a killed export.
        _delete(scratch)
        with _opened_tiles(cutout, scratch[0], side) as (sink, only_labels):
            yield sink
        resampling = "NEAREST" if dtype.kind == "c" else "MODE" if only_labels() else "AVERAGE"
        _copy_optimized(scratch[0], path, side, resampling)
    except Exception as error:
        # On a full disk, GDAL may report another error, and may have deleted the file.
        taken = scratch[0].stat().st_size if scratch[0].exists() else 0
        if shutil.disk_usage(path.parent).free < max(taken, _LITTLE_ROOM):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
    finally:
        _delete(scratch)


def _delete(paths: list[Path]) -> None:
    for each in paths:
        each.unlink(missing_ok=True)


def _copy_optimized(source: Path, path: Path, side: int, resampling: str) -> None:
    import rasterio.shutil  # noqa: PLC0415  (of an extra)

    with _rasterio().Env(**_SETTINGS), _without_georeference():
        with _rasterio().open(source) as file:
            predictor = _PREDICTORS[int(file.tags(ns="IMAGE_STRUCTURE").get("PREDICTOR", 1))]
        rasterio.shutil.copy(
            str(source),
            str(path),
            driver="COG",
            blocksize=side,
            compress="DEFLATE",
            predictor=predictor,
            overview_predictor=predictor,
            overview_resampling=resampling,
            BIGTIFF="IF_SAFER",
        )
        # GDAL reports no error if the disk fills up on closing. Reading the last block detects a full disk.
        with _rasterio().open(path) as file:
            last = ((file.height - 1, file.height), (file.width - 1, file.width))
            file.read(file.count, window=last)
            file.read_masks(file.count, window=last)


@contextmanager
def _opened_tiles(cutout: Cutout, path: Path, side: int) -> Iterator[tuple[Sink, Callable[[], bool]]]:
    """Create a tiled TIFF. Yield its sink, and a function.

    The function returns whether all pixels written so far are labels, such as class numbers. If the definition does not
    say so, small integers count as labels.
    """
    from rasterio.windows import Window  # noqa: PLC0415  (of an extra)

    bands, rows, columns = cutout.image("tiff")
    said, dtype, mask = _said_of(cutout), _dtype_of(cutout), _mask_of(cutout)
    nodata = said.profile.get("nodata")
    has_nan, only_labels, known = False, True, "colormap" in said.attributes or holds_labels(cutout.tensor)

    def put(place: Place, pixels: Pixels) -> None:
        nonlocal has_nan, only_labels
        has_nan = has_nan or (dtype.kind == "f" and bool(np.isnan(pixels).any()))
        only_labels = only_labels and (known or are_labels(pixels[pixels != nodata]))
        box = list(place)
        channels = slice(0, 1) if cutout.channels is None else box.pop(cutout.channels)
        pixels = pixels[None] if cutout.channels is None else np.moveaxis(pixels, cutout.channels, 0)
        window = Window.from_slices(*box)
        with _rasterio().Env(**_SETTINGS):
            indexes = list(range(channels.start + 1, channels.stop + 1))
            file.write(pixels.astype(dtype, copy=False), indexes=indexes, window=window)
            if mask is not None and channels.start == 0:
                file.write_mask(mask(*box), window=window)

    with _rasterio().Env(**_SETTINGS), _without_georeference():
        file = _rasterio().open(
            path,
            "w",
            driver="GTiff",
            count=bands,
            height=rows,
            width=columns,
            dtype=dtype.name,
            tiled=True,
            blockysize=side,
            blockxsize=side,
            interleave="pixel" if bands <= _TOGETHER else "band",
            compress="deflate",
            # The libtiff of older wheels has no predictor for integers of 64 bits.
            predictor={"f": 3, "c": 1}.get(dtype.kind, 2 if dtype.itemsize < 8 else 1),
            # BigTIFF if the file might reach 4 GiB, the limit of a plain TIFF.
            BIGTIFF="IF_SAFER",
            **said.profile,
        )
    with file:
        # Colours must be set before pixels.
        for name, value in said.attributes.items():
            if name == "colormap":
                file.write_colormap(1, value)
            else:
                setattr(file, name, value)
        _write_tags(file, said.tags)
        yield Sink(_unit_of(cutout, bands, side), put), lambda: only_labels
        if has_nan and nodata is None and mask is None:
            # Otherwise, GDAL would make a pixel of an overview NaN if a single pixel below is.
            file.nodata = math.nan


def _rasterio() -> Any:
    try:
        import rasterio  # noqa: PLC0415  (of an extra)
    except ImportError as error:
        raise ImportError("format 'tiff' needs the package rasterio: pip install rasterio") from error
    return rasterio


def _unit_of(cutout: Cutout, bands: int, side: int) -> Index:
    """Return the unit of the sink for a TIFF, per dimension of the tensor.

    A unit has the rows and columns of one block of the file. If the file has few bands, a unit has all of them,
    otherwise the bands of one tile of the tensor.
    """
    unit = [min(n, extent) for n, extent in zip(cutout.frame.tile, cutout.frame.shape, strict=True)]
    for number, d in enumerate(cutout.kept):
        if number != cutout.channels:
            unit[d] = side
        else:
            unit[d] = bands if bands <= _TOGETHER else min(unit[d], bands)
    return tuple(unit)


@contextmanager
def _without_georeference() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _rasterio().errors.NotGeoreferencedWarning)
        yield


# The metadata of a file.


def _dtype_of(cutout: Cutout) -> np.dtype[Any]:
    """Return the dtype of the file. GDAL lacks float16."""
    return np.dtype(np.float32) if cutout.dtype == np.float16 else cutout.dtype


def _mask_of(cutout: Cutout) -> Callable[[slice, slice], Any] | None:
    """Return a function for reading the mask of the source raster, or None.

    The function takes rows and columns of the file.
    """
    reader, (y, x) = getattr(cutout.tensor.f, "reader", None), cutout.frame.origin[-2:]
    known = [code for code in cutout.meaning.of(PixelCode) if code.called == "mask"]
    if not known or not isinstance(reader, RasterReader) or cutout.kept[-2:] != (1, 2):
        return None
    return lambda rows, columns: reader.read_mask(
        slice(rows.start + y, rows.stop + y), slice(columns.start + x, columns.stop + x)
    )


def unsaid_by_tiff(cutout: Cutout) -> list[str]:
    """List the metadata left out of a TIFF.

    The entries are texts for a warning, such as ``coordinate 'x'``.
    """
    said = _said_of(cutout).said
    return [label for label in cutout.meaning.labels if label not in said]


class _Said(NamedTuple):
    """The metadata of a file.

    Attributes
    ----------
    profile : dict
        The metadata to give when the file is opened.
    attributes : dict
        The attributes to set on the open file, by their names in rasterio.
    tags : dict of int to dict of str to str
        All other metadata, as tags: 0 has those of the file, 1 those of the first band.
    said : set of str
        The labels of all metadata in the file, for messages.
    """

    profile: dict[str, Any]
    attributes: dict[str, Any]
    tags: dict[int, dict[str, str]]
    said: set[str]

    def say_tag(self, fact: Fact, texts: Sequence[str], first: int = 0) -> None:
        """Add a tag of the file, or a tag for each band from band `first` on, unless a TIFF would change it."""
        own = {band: {fact.called: text} for band, text in enumerate(texts, first) if text}
        tags = {band: self.tags.get(band, {}) | tag for band, tag in own.items()}
        if tags and _are_held(tags):
            self.tags.update(tags)
            self.said.update(fact.labels)


def _said_of(cutout: Cutout) -> _Said:
    bands, _, _ = cutout.image("tiff")
    rows, columns = (number for number in range(len(cutout.kept)) if number != cutout.channels)
    found = _Said({"photometric": _photometric(cutout)}, {}, {}, set())
    for fact in cutout.meaning.facts:
        if isinstance(fact, Georeference):
            if (fact.rows, fact.columns) == (rows, columns):
                _say_place(fact, found)
        elif isinstance(fact, Coordinate):
            _say_coordinate(fact, cutout, bands, found)
        elif isinstance(fact, PixelCode):
            _say_code(fact, cutout, bands, found)
        elif isinstance(fact, Attribute):
            if fact.called == "units":
                found.attributes["units"] = [str(fact.value)] * bands
                found.said.update(fact.labels)
            else:
                found.say_tag(fact, [fact.value if isinstance(fact.value, str) else json.dumps(fact.value)])
    if "transform" not in found.profile and "gcps" not in found.profile:
        _say_coordinates(cutout, rows, columns, found)
    if cutout.nodata is not None:
        found.profile["nodata"] = cutout.nodata
    return found


def _photometric(cutout: Cutout) -> str:
    """Return the colours of the first bands, which are all that a plain TIFF says.

    If nothing is known of three bands of uint8, they are taken for a picture. No band is taken for alpha.
    """
    is_picture = cutout.dtype == np.uint8 and cutout.image("tiff")[0] == 3
    known = cutout.colours or (_RGBA[:3] if is_picture else ())
    return "RGB" if known[:3] == _RGBA[:3] else "MINISBLACK"


def _are_held(tags: Mapping[int, Mapping[str, str]]) -> bool:
    """Whether a TIFF gives tags back as they are. GDAL cuts names at colons and equals signs, for example."""
    # With a CRS, because other files have no AREA_OR_POINT.
    how = {"width": 1, "height": 1, "count": max(1, *tags), "dtype": "uint8", "crs": "EPSG:4326"}
    with _rasterio().Env(GDAL_PAM_ENABLED=False), _without_georeference(), _rasterio().MemoryFile() as memory:
        with memory.open(driver="GTiff", **how) as file:
            _write_tags(file, tags)
        with memory.open() as file:
            return all(file.tags(band).get(name) == text for band in tags for name, text in tags[band].items())


def _write_tags(file: Any, tags: Mapping[int, Mapping[str, str]]) -> None:
    for band, said in tags.items():
        # These two are arguments of `update_tags`.
        file.update_tags(band, **{name: text for name, text in said.items() if name not in ("bidx", "ns")})


def _say_place(place: Georeference, found: _Said) -> None:
    """Add a georeference to `found`. A file has either a transform or ground control points, not both."""
    from rasterio import Affine  # noqa: PLC0415  (of an extra)
    from rasterio.control import GroundControlPoint  # noqa: PLC0415
    from rasterio.crs import CRS  # noqa: PLC0415
    from rasterio.rpc import RPC  # noqa: PLC0415

    crs = None if place.crs is None else crs_of(place.crs)
    if crs is not None:
        found.profile["crs"] = crs
    if place.transform is not None:
        found.profile["transform"] = Affine(*place.transform)
    elif place.gcps:
        # Ground control points are written with a CRS, possibly empty.
        found.profile.setdefault("crs", CRS())
        found.profile["gcps"] = [GroundControlPoint(row, column, x, y, z) for row, column, x, y, z in place.gcps]
    if place.rpcs is not None:
        found.attributes["rpcs"] = RPC(**place.rpcs)
    if place.is_point:
        found.tags.setdefault(0, {})["AREA_OR_POINT"] = "Point"
    unsaid = {"CRS": crs is None, "GCPs": place.transform is not None}
    found.said.update(label for label in place.labels if not unsaid.get(label))


def _say_coordinate(coordinate: Coordinate, cutout: Cutout, bands: int, found: _Said) -> None:
    """Add a coordinate to the metadata `found` of the file.

    A coordinate called units becomes the units of the bands. The coordinate of the channels becomes the descriptions of
    the bands. Another value for each band, or a single one, becomes a tag. Everything else is left out.
    """
    texts = coordinate.values.reshape(-1).astype(str).tolist()
    called, dims = coordinate.called, [*coordinate.dims]
    of_channels = called.lower() in CHANNELS if not dims else called == cutout.dims[dims[0]]
    if dims not in ([], [cutout.channels]) or "crs_wkt" in coordinate.attrs:
        return
    if called == "units":
        found.attributes["units"] = texts if dims else texts * bands
    elif of_channels:
        found.attributes["descriptions"] = texts if dims else texts * bands
    elif called == COLOURS and cutout.colours and {*cutout.colours} <= {*_rasterio().enums.ColorInterp.__members__}:
        found.attributes[COLOURS] = [_rasterio().enums.ColorInterp[each] for each in cutout.colours]
    else:
        found.say_tag(coordinate, texts, len(dims))
        return
    found.said.update(coordinate.labels)


def _say_code(code: PixelCode, cutout: Cutout, bands: int, found: _Said) -> None:
    values, dtype = code.value if code.along is not None else [code.value] * bands, _dtype_of(cutout)
    if code.along not in (None, cutout.channels):
        return
    if code.called == "nodata":
        nodata = None if code.along is not None else nodata_in(code.value, cutout.tensor.dtype)
        if nodata is None:
            return
        found.profile["nodata"] = nodata
    elif code.called in ("scale", "offset"):
        found.attributes[f"{code.called}s"] = values
    elif code.called == "colour map":
        if bands > 1 or dtype.name not in ("uint8", "uint16"):
            return
        found.attributes["colormap"] = {value: tuple(colour) for value, *colour in code.value}
    elif code.called == "mask":
        if _mask_of(cutout) is None:
            return
    else:
        found.say_tag(code, [json.dumps(code.value)])
        return
    found.said.update(code.labels)


def _say_coordinates(cutout: Cutout, rows: int, columns: int, found: _Said) -> None:
    """Convert evenly spaced coordinates to a transform and a CRS for the file.

    Both are added to the metadata `found`.
    """
    from rasterio import Affine  # noqa: PLC0415  (of an extra)

    known = cutout.meaning.of(Coordinate)
    own = {fact.dims[0]: fact for fact in known if len(fact.dims) == 1 and fact.called == cutout.dims[fact.dims[0]]}
    if rows not in own or columns not in own or own[columns].called.lower() not in _ACROSS:
        return
    a, e = own[columns].even_step, own[rows].even_step
    if not a or not e:
        return
    c, f = (float(own[d].values[0]) - step / 2 for d, step in ((columns, a), (rows, e)))
    found.profile["transform"] = Affine(a, 0, c, 0, e, f)
    found.said.update(own[rows].labels + own[columns].labels)
    for fact in known:
        crs = crs_of(fact.attrs["crs_wkt"]) if "crs_wkt" in fact.attrs else None
        if crs is not None:
            found.profile["crs"] = crs
            found.said.update(fact.labels)
