"""Reads image files as torch tensors.

pillow reads values of 8 bits or 1 bit, and tells the orientation. rasterio reads everything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infinite_tensor.errors import InfiniteTensorError, StoreError
from infinite_tensor.pipelines.rasters import RasterReader, page_of
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
        self._path, self._file = path, None if name else _identity_of(path)
        self._lock, self._page, self._orientation = Lock(), as_index(page) or 0, 1
        self._pixels: torch.Tensor | None = None
        self._raster: RasterReader | None = None
        try:
            with _opened_image(path) as image:
                pages = _pages_of(image)
                page = page_of(path, page, len(pages))
                self._frame = pages[page]
                image.seek(self._frame)
                is_whole = _is_whole(image, path)
                self._orientation = image.getexif().get(0x0112, 1)
                if not is_whole:
                    raise _NotWholeError("pillow would change its values")
                self._take_form(image)
        except _NotWholeError as reason:
            self._raster = _raster_instead(path, page, reason)
            self.dtype = self._raster.dtype
            bands, *size = self._raster.shape
            size = size[::-1] if self._orientation in _SWAPPED else size
            self.shape = (*size,) if bands == 1 else (bands, *size)

    def _take_form(self, image: Any) -> None:
        self.dtype = torch.bool if image.mode == "1" else torch.uint8
        is_swapped = self._orientation in _SWAPPED
        if is_swapped and image.format == "TIFF":
            # Some versions of pillow turn a TIFF when they decode it.
            image.load()
        if image.tile:
            width, height = image.size[::-1] if is_swapped else image.size
            mode = _mode_of(image)
            bands = len(image.getbands()) if mode == image.mode else len(mode)
            self.shape = (height, width) if bands == 1 else (bands, height, width)
        else:
            # pillow has decoded the image already: the orientation of a PNG may come last.
            self._pixels = _pixels_of(image)
            self.shape = tuple(self._pixels.shape)

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
        if self._file is not None and _identity_of(self._path)[0] != self._file[0]:
            raise StoreError(f"{self._path} has changed since a tensor was made of it; make the tensor again")
        if self._raster is None:
            try:
                with _opened_image(self._path) as image:
                    image.seek(self._frame)
                    return _pixels_of(image)
            except _NotWholeError as reason:
                self._raster = _raster_instead(self._path, self._page, reason)
        with _without_place():
            pixels = self._raster.read(tuple(slice(0, n) for n in self._raster.shape)).numpy()
        turns, is_mirrored = _TURNS.get(self._orientation, (0, False))
        turned = as_tensor(np.rot90(pixels[..., ::-1] if is_mirrored else pixels, turns, (-2, -1)))
        return turned[0] if len(turned) == 1 else turned

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


_TURNS = {2: (0, True), 3: (2, False), 4: (2, True), 5: (1, True), 6: (3, False), 7: (3, True), 8: (1, False)}
"""Quarter turns to the left by EXIF orientation, and whether to mirror the columns before."""
_SWAPPED = (5, 6, 7, 8)
"""Orientations that swap rows and columns."""


def _identity_of(path: str) -> tuple[str, Stamps]:
    """Return the digest and the stamps of a file."""
    try:
        if not Path(path).stat().st_size:
            raise StoreError(f"{path} is an empty file")
        reader = ArrayReader(np.memmap(path, np.uint8, "r"))
        return reader.digest(), reader.stamps()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


class _NotWholeError(Exception):
    """pillow cannot return the values of a file."""


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
        raise _NotWholeError("pillow does not recognize the format") from error
    except (OSError, ValueError, EOFError, Image.DecompressionBombError) as error:
        if is_tiff and isinstance(error, OSError):
            # Few builds of libtiff have all compressions. Of broken files of other formats, GDAL reads what is there.
            raise _NotWholeError(f"pillow cannot decode it: {error}") from error
        raise StoreError(
            f"{path} cannot be read as an image: {error}; from_raster reads large images in parts"
        ) from error


def _is_whole(image: Any, path: str) -> bool:
    """Whether pillow keeps all values of a file: 8 bits or 1 bit, neither scaled, inverted nor dropped."""
    if image.mode in ("1", "P", "PA"):
        return True
    tile = image.tile[0] if image.tile else ("", None, 0, "")
    codec, args = tile[0], tile[3] if isinstance(tile[3], tuple) else (tile[3],)
    raw = str(args[0])
    # Behind a semicolon, pillow's name of the values in the file has their bits, or an I if they are inverted. An a is
    # an alpha that the colours are divided by.
    is_changed = re.search(r";(\d|I)|a", raw) is not None and raw != "CMYK;I"
    is_scaled = codec.startswith("ppm") and args[-1] != 255
    return not (image.mode[0] in "IF" or is_changed or is_scaled or codec in _DEEP or _has_more(image, path))


_DEEP = ("jpeg2k", "SGI16")
"""Codecs of pillow for values of more than 8 bits, which the mode does not tell."""


def _has_more(image: Any, path: str) -> bool:
    """Whether a TIFF has other values or channels than pillow returns, or an AVIF has more than 8 bits."""
    if image.format == "TIFF":
        bits, kinds, channels = (image.tag_v2.get(tag, (1,)) for tag in (258, 339, 277))
        return max(bits) > 8 or not {*kinds} <= {1, 4} or channels not in ((1,), len(image.getbands()))
    if image.format == "AVIF":
        content = Path(path).read_bytes()
        return bool(content[content.find(b"av1C") + 6] & 0x40)
    return False


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


def _mode_of(image: Any) -> str:
    """Return the mode that networks expect: no palettes and inks."""
    if image.mode == "P" and "transparency" in image.info:
        return "RGBA"
    return {"P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB"}.get(image.mode, str(image.mode))


def _pixels_of(image: Any) -> torch.Tensor:
    from PIL import ImageOps  # noqa: PLC0415  (of an extra)

    ImageOps.exif_transpose(image, in_place=True)
    mode = _mode_of(image)
    pixels = as_tensor(np.asarray(image if mode == image.mode else image.convert(mode)))
    return pixels.movedim(-1, 0) if pixels.ndim == 3 else pixels


# Reading with rasterio instead of pillow.


def _raster_instead(path: str, page: object, reason: _NotWholeError) -> RasterReader:
    problem = f"{path} cannot be read as an image: {reason}"
    try:
        with _without_place():
            raster = RasterReader(path, page)
    except ImportError as error:
        raise StoreError(f"{problem}; rasterio may read the image: pip install rasterio") from error
    except StoreError as error:
        raise StoreError(
            f"{problem}, and rasterio does not open the file; read the image with another library, and give "
            "from_array(values)"
        ) from error
    # GDAL also reports a palette if the value 0 means white.
    if set(raster.colours) - {"undefined", "gray", "red", "green", "blue", "alpha", "palette"}:
        raise StoreError(f"{problem}, and its bands are {raster.colours}; from_raster(path) reads bands as stored")
    return raster


@contextlib.contextmanager
def _without_place() -> Iterator[None]:
    from rasterio.errors import NotGeoreferencedWarning  # noqa: PLC0415  (of an extra)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield
