"""Reads image files as torch tensors.

Pillow is used if all values of a file are kept, otherwise rasterio.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from infinite_tensor.errors import InfiniteTensorError, StoreError
from infinite_tensor.pipelines.rasters import RasterReader, page_of, turn_of
from infinite_tensor.pipelines.readers import ArrayReader, Reader, as_tensor
from infinite_tensor.support.forks import Lock
from infinite_tensor.support.given import as_index
from infinite_tensor.values.arrays import Box, Stamps
from infinite_tensor.values.meaning import COLOURS, Coordinate, Meaning


class ImageReader(Reader):
    """Reads an image file.

    The first read decodes the whole page.

    Parameters
    ----------
    path : path
        Path of the file.
    name : str or None
        Name of the content. If None, a digest of the file identifies the content.
    page : int or None
        The page to read. None means the first page, with a warning if the file has several pages.
    """

    in_memory = True

    def __init__(self, path: str, name: str | None, page: object) -> None:
        self._path, self._file = path, None if name else _looked_at(path)
        self._raster: RasterReader | None = None
        self._lock, self._page, self._pixels = Lock(), as_index(page) or 0, None
        try:
            with _opened_image(path) as image:
                pages = _pages_of(image)
                page = page_of(path, page, len(pages))
                self._frame = pages[page]
                image.seek(self._frame)
                said = _said_of(image, path)
                _check_held(image, said)
                self.shape, self.dtype = _form_of(image, said)
                if not image.tile:
                    # pillow has decoded the image already. Take the shape from the pixels: the orientation of a PNG may
                    # come last, and the channels of an icon are only known after decoding.
                    self._pixels = _pixels_of(image, self.dtype)
                    self.shape = tuple(self._pixels.shape)
        except _NotHeldError as reason:
            self._raster = _raster_instead(path, page, reason)
            self.shape, self.dtype = self._raster.shape, self._raster.dtype
            self.shape = self.shape[1:] if self.shape[0] == 1 else self.shape

    @property
    def meaning(self) -> Meaning | None:
        """The colours of the channels, unless there are three colours or none."""
        if self._raster is not None:
            known = [each for each in self._raster.meaning.of(Coordinate) if each.called == COLOURS]
        else:
            colours = {2: ["gray", "alpha"], 4: ["red", "green", "blue", "alpha"]}.get(self.shape[0])
            known = [Coordinate(COLOURS, [0], np.array(colours), {})] if colours else []
        return Meaning(known) if known and len(self.shape) > 2 else None

    def _read(self, region: Box) -> torch.Tensor:
        with self._lock:
            if self._pixels is None:
                self._pixels = self._decoded()
        return self._pixels[region]

    def _decoded(self) -> torch.Tensor:
        if self._file is not None and _looked_at(self._path)[0] != self._file[0]:
            raise StoreError(f"{self._path} has changed since a tensor was made of it; make the tensor again")
        if self._raster is None:
            try:
                with _opened_image(self._path) as image:
                    image.seek(self._frame)
                    return _pixels_of(image, self.dtype)
            except _NotHeldError as reason:
                self._raster = _raster_instead(self._path, self._page, reason)
        with _without_place():
            pixels = self._raster.read(tuple(slice(0, n) for n in self._raster.shape))
        return pixels[0] if len(pixels) == 1 else pixels

    def digest(self) -> str:
        """Return a digest of the file and the page number, without decoding."""
        assert self._file is not None
        whole, _ = self._file
        return hashlib.sha256(f"{whole} {self._page}".encode()).hexdigest() if self._page else whole

    def stamps(self) -> Stamps:
        """Return the stamp of the file: the size and modification time, to notice changes.

        Return an empty dict if the content has a name, or if the digest covers all bytes of the file.
        """
        return {} if self._file is None else self._file[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pixels": None}

    def __repr__(self) -> str:
        return f"image({self._path!r})"


def _looked_at(path: str) -> tuple[str, Stamps]:
    try:
        if not Path(path).stat().st_size:
            raise StoreError(f"{path} is an empty file")
        reader = ArrayReader(np.memmap(path, np.uint8, "r"))
        return reader.digest(), reader.stamps()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


class _NotHeldError(Exception):
    """Pillow cannot return the values of a file.

    `dtype` is the dtype of the values, or "" if unknown.
    """

    def __init__(self, why: str, dtype: str = "") -> None:
        super().__init__(why)
        self.dtype = dtype


@contextlib.contextmanager
def _opened_image(path: str) -> Iterator[Any]:
    try:
        from PIL import Image, UnidentifiedImageError  # noqa: PLC0415  (of an extra)
    except ImportError as error:
        raise ImportError("from_image needs the package pillow: pip install pillow") from error
    is_tiff = False
    try:
        # Give pillow an open file. With a path, pillow would map grey pixels into memory and take them for turned
        # pixels.
        with Path(path).open("rb") as file, Image.open(file) as image:
            is_tiff = image.format == "TIFF"
            yield image
    except InfiniteTensorError:
        raise
    except (UnidentifiedImageError, SyntaxError) as error:
        # pillow raises SyntaxError for an unknown page in a file of a known format.
        raise _NotHeldError("pillow does not recognize the format") from error
    except (OSError, ValueError, EOFError, Image.DecompressionBombError) as error:
        if is_tiff and isinstance(error, OSError):
            # Few builds of libtiff have all compressions. Of broken files of other formats, GDAL reads what is there.
            raise _NotHeldError(f"pillow cannot decode it: {error}") from error
        raise StoreError(
            f"{path} cannot be read as an image: {error}; from_raster reads large images in parts"
        ) from error


def _pages_of(image: Any) -> list[int]:
    """Return the numbers of the frames, without layers, masks and reduced copies."""
    # In these formats, later frames are layers of the first frame or its depth.
    frames = 1 if image.format in ("MPO", "PSD") else getattr(image, "n_frames", 1)
    if image.format != "TIFF" or frames == 1:
        return list(range(frames))
    pages = [frame for frame in range(frames) if not _is_part(image, frame)]
    image.seek(0)
    return pages


def _is_part(image: Any, frame: int) -> bool:
    # If pillow has no mode for the frame, pillow raises an error only after reading the tags.
    with contextlib.suppress(SyntaxError):
        image.seek(frame)
    return frame > 0 and bool(image.tag_v2.get(_SUBFILE_TYPE, 0) & _REDUCED_OR_MASK)


_SUBFILE_TYPE, _REDUCED_OR_MASK = 254, 1 | 4

_SHOWN_AS = {"P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB"}
"""Conversions of pillow modes not expected by networks, such as palettes."""


def _mode_of(image: Any) -> str:
    if image.mode == "P" and "transparency" in image.info:
        return "RGBA"
    return str(_SHOWN_AS.get(image.mode, image.mode))


def _pixels_of(image: Any, dtype: torch.dtype) -> torch.Tensor:
    from PIL import ImageOps  # noqa: PLC0415  (of an extra)

    ImageOps.exif_transpose(image, in_place=True)
    mode = _mode_of(image)
    pixels = as_tensor(np.asarray(image if mode == image.mode else image.convert(mode))).to(dtype)
    return pixels.movedim(-1, 0) if pixels.ndim == 3 else pixels


def _form_of(image: Any, said: _Samples) -> tuple[tuple[int, ...], torch.dtype]:
    mode = _mode_of(image)
    turned = turn_of(image.getexif().get(0x0112, 1)).swapped
    if turned and image.format == "TIFF":
        # pillow turns TIFF images itself, in some versions only on loading.
        image.load()
        turned = False
    width, height = image.size[::-1] if turned else image.size
    bands = len(image.getbands()) if mode == image.mode else len(mode)
    shape = (height, width) if bands == 1 else (bands, height, width)
    return shape, getattr(torch, "uint8" if image.mode in _PALETTES else said.dtype)


# Values as declared by a file, and as changed by pillow.


class _Samples(NamedTuple):
    """Number of channels of an image, and name of the dtype.

    The dtype may be unknown to torch, such as "uint12".
    """

    channels: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.channels} channel{'s' * (self.channels > 1)} of {self.dtype}"


_PALETTES = ("P", "PA")
"""Pillow modes with palette indices as values."""
_MADE = {"1": "bool", "I": "int32", "F": "float32"} | dict.fromkeys(("I;16", "I;16L", "I;16B", "I;16N"), "uint16")
"""Dtypes of pillow's modes. Other modes are uint8."""


def _made_of(image: Any) -> _Samples:
    return _Samples(len(image.getbands()), _MADE.get(image.mode, "uint8"))


def _said_of(image: Any, path: str) -> _Samples:
    find = _SAID.get(image.format)
    if find is None:
        return _made_of(image)
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return find(image, data)


def _check_held(image: Any, said: _Samples) -> None:
    """Check that pillow neither changes nor drops values of the file."""
    made = _made_of(image)
    wider = made.dtype == "int32" and said.dtype in ("int16", "uint16")
    if image.mode not in _PALETTES and said != made and not (wider and said.channels == made.channels):
        raise _NotHeldError(f"pillow would convert {said} to {made}", said.dtype)


def _in_tiff(image: Any, _data: mmap.mmap) -> _Samples:
    tags = image.tag_v2
    widths, kinds = (sorted(set(tags.get(tag, (1,)))) for tag in (258, 339))
    dtype = " and ".join(f"{_KINDS.get(kind, 'unknown')}{width}" for kind in kinds for width in widths)
    said = _Samples(tags.get(277, len(image.getbands())), "bool" if dtype == "uint1" else dtype)
    decoder, _, _, args = image.tile[0]
    if decoder == "libtiff" and args[0].endswith(_SWAPPED):
        raise _NotHeldError(f"pillow would swap the bytes of {said}, compressed and big-endian", said.dtype)
    if tags.get(284) == 2 and widths[-1] > 8:
        raise _NotHeldError(f"pillow does not read {said} in planes", said.dtype)
    if tags.get(262) == 0 and said.dtype == "uint8":
        raise _NotHeldError("pillow would invert the values, because 0 means white", said.dtype)
    if tags.get(262) == 2 and 1 in tags.get(338, ()):
        raise _NotHeldError("pillow would divide the colours by alpha", said.dtype)
    return said


_SWAPPED = ("BS", "BF")
"""Endings of pillow's names for big-endian signed integers and floats. libtiff swaps their bytes itself."""
_KINDS = {1: "uint", 2: "int", 3: "float", 4: "uint", 5: "complex_int", 6: "complex"}


def _in_jpeg2000(_image: Any, data: mmap.mmap) -> _Samples:
    begin = data.find(b"\xff\x4f\xff\x51")
    (channels,) = struct.unpack_from(">H", data, begin + 40)
    depths = sorted(set(data[begin + 42 : begin + 42 + 3 * channels : 3]))
    return _Samples(channels, " and ".join(f"{'int' if d & 128 else 'uint'}{(d & 127) + 1}" for d in depths))


def _in_ppm(image: Any, _data: mmap.mmap) -> _Samples:
    decoder, _, _, args = image.tile[0]
    if image.mode in ("1", "F"):
        return _made_of(image)
    if decoder == "raw":
        return _Samples(len(image.getbands()), "uint16" if ";16" in str(args) else "uint8")
    # pillow scales values with any other maximum.
    return _Samples(len(image.getbands()), {255: "uint8", 65535: "uint16"}.get(args[-1], f"values up to {args[-1]}"))


def _unsigned(bits: int) -> str:
    return "bool" if bits == 1 else f"uint{bits}"


_AVIF = {0: "uint8", 0x40: "uint10", 0x20: "uint12", 0x60: "uint12"}
_SAID: dict[str, Callable[[Any, mmap.mmap], _Samples]] = {
    "TIFF": _in_tiff,
    "PNG": lambda _, data: _Samples({2: 3, 4: 2, 6: 4}.get(data[25], 1), _unsigned(data[24])),
    "JPEG2000": _in_jpeg2000,
    "PPM": _in_ppm,
    "AVIF": lambda image, data: _made_of(image)._replace(dtype=_AVIF[data[data.find(b"av1C") + 6] & 0x60]),
    "SGI": lambda image, data: _made_of(image)._replace(dtype=_unsigned(8 * data[3])),
    # Integers in FITS files are signed, except those of 8 bits.
    "FITS": lambda image, _: _Samples(
        1, "float64" if ";64" in str(image.tile) else _made_of(image).dtype.replace("uint16", "int16")
    ),
    "DDS": lambda image, _: _Samples(3, "float16") if "BC6" in str(image.tile) else _made_of(image),
}
"""Functions for reading the declared values of a file, by format. Pillow may change such values."""


# Reading with rasterio instead of pillow.


_COLOURS = {"undefined", "gray", "red", "green", "blue", "alpha"}
"""rasterio's names for colours of bands without conversion."""

_ELSEWHERE = "read the image with another library, and give from_array(values)"


def _raster_instead(path: str, page: object, reason: _NotHeldError) -> RasterReader:
    refused = f"{path} cannot be read as an image: {reason}"
    try:
        with _without_place():
            raster = RasterReader(path, page)
            colours = raster.colours
    except ImportError as error:
        raise StoreError(f"{refused}; rasterio may read the image: pip install rasterio") from error
    except StoreError as error:
        raise StoreError(f"{refused}, and rasterio does not open the file; {_ELSEWHERE}") from error
    # If pillow knows the dtype, the file contains no palette. GDAL also reports a palette if the value 0 means white.
    if set(colours) - _COLOURS - ({"palette"} if reason.dtype else set()):
        raise StoreError(f"{refused}, and the bands are {colours}; from_raster(path) reads bands as they are stored")
    if reason.dtype.startswith("int") and not raster.dtype.is_signed:
        raise StoreError(f"{refused}, and rasterio would read {raster.dtype}; {_ELSEWHERE}")
    return raster


@contextlib.contextmanager
def _without_place() -> Iterator[None]:
    from rasterio.errors import NotGeoreferencedWarning  # noqa: PLC0415  (of an extra)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield
