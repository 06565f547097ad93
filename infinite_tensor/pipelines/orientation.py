"""How a picture is turned, as EXIF says: where its rows and columns lie in the file, and which files say so."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

_TAG = 0x0112
_BIG = 43
"""The version of a TIFF of more than 4 GiB."""


class Turn(NamedTuple):
    """From rows and columns in a file to those of the picture: they are first reversed, and then swapped."""

    swapped: bool = False
    up: bool = False
    left: bool = False

    def ordered(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """What belongs to the rows of the picture and to its columns, of what belongs to those in the file; or back."""
        return (columns, rows) if self.swapped else (rows, columns)

    def in_file(self, rows: slice, columns: slice, extents: tuple[int, int]) -> tuple[slice, slice]:
        """Where a region of the picture lies in a file of so many rows and columns."""
        rows, columns = self.ordered(rows, columns)
        return (
            _reversed(rows, extents[0]) if self.up else rows,
            _reversed(columns, extents[1]) if self.left else columns,
        )

    def turned(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Pixels as the picture has them; rows and columns are the last two dimensions. It may be a view."""
        pixels = pixels[..., :: -1 if self.up else 1, :: -1 if self.left else 1]
        return pixels.swapaxes(-2, -1) if self.swapped else pixels


_TURNS = {
    2: Turn(left=True),
    3: Turn(up=True, left=True),
    4: Turn(up=True),
    5: Turn(swapped=True),
    6: Turn(swapped=True, up=True),
    7: Turn(swapped=True, up=True, left=True),
    8: Turn(swapped=True, left=True),
}


def turn_of(orientation: int) -> Turn:
    """What an EXIF orientation means; one that EXIF does not know turns nothing."""
    return _TURNS.get(orientation, Turn())


def _reversed(part: slice, extent: int) -> slice:
    return slice(extent - part.stop, extent - part.start)


def orientation_of(raster: Any, path: str) -> int:
    """That of a raster, 1 where none is told: by rasterio of a JPEG, by the file of a local TIFF, PNG or WebP."""
    said = raster.tags().get("EXIF_Orientation", "")
    if said.isdecimal():
        return int(said)
    if raster.driver not in ("GTiff", *_EXIF) or not Path(path).is_file():
        return 1
    with Path(path).open("rb") as file:
        try:
            if raster.driver == "GTiff":
                return _in_directory(file, int(raster.get_tag_item("IFD_OFFSET", "TIFF", bidx=1)))
            begin = _EXIF[raster.driver](file)
            file.seek(begin)
            order = _order(file)
            return _in_directory(file, begin + _unpacked(file, f"{order}2xI")[0], begin)
        except struct.error:
            # The file ends before.
            return 1


def _exif_in_png(file: BinaryIO) -> int:
    """Where EXIF begins, which is a TIFF within the file."""
    file.seek(8)
    while True:
        size, name = _unpacked(file, ">I4s")
        if name == b"eXIf":
            return file.tell()
        file.seek(size + 4, os.SEEK_CUR)


def _exif_in_webp(file: BinaryIO) -> int:
    file.seek(12)
    while True:
        name, size = _unpacked(file, "<4sI")
        if name == b"EXIF":
            begin = file.tell()
            return begin + (6 if file.read(6) == b"Exif\0\0" else 0)
        file.seek(size + size % 2, os.SEEK_CUR)


_EXIF = {"PNG": _exif_in_png, "WEBP": _exif_in_webp}


def _in_directory(file: BinaryIO, at: int, begin: int = 0) -> int:
    """The orientation in one directory of a TIFF that begins in a file at `begin`."""
    file.seek(begin)
    order = _order(file)
    big = _unpacked(file, f"{order}H")[0] == _BIG
    file.seek(at)
    for _ in range(_unpacked(file, order + ("Q" if big else "H"))[0]):
        # One short stands in its entry, in place of the offset of more.
        tag, value = _unpacked(file, order + ("H10xH6x" if big else "H6xH2x"))
        if tag == _TAG:
            return int(value)
    return 1


def _order(file: BinaryIO) -> str:
    return "<" if file.read(2) == b"II" else ">"


def _unpacked(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))
