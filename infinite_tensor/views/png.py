"""Small pictures as PNG, without pillow: a notebook may show one where no other package is installed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_COLOURS = {1: 0, 3: 2, 4: 6}
"""The colour type of an image with so many channels: grey, RGB, RGBA."""

_NONE, _UP = 0, 2


def png(pixels: npt.NDArray[Any]) -> bytes:
    """An image as a PNG file.

    Parameters
    ----------
    pixels : uint8 or uint16 array of shape (rows, columns), or (rows, columns, 1, 3 or 4)
        Grey, RGB or RGBA, at least one pixel.
    """
    rows, columns, *channels = pixels.shape
    kind = _COLOURS[channels[0] if channels else 1]
    depth = 8 * pixels.dtype.itemsize
    # Most significant byte first.
    data = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">")).reshape(rows, -1).view(np.uint8)
    header = struct.pack(">IIBBBBB", columns, rows, depth, kind, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", min(_filtered(data), key=len)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _filtered(data: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """Rows as they are, and less those above them, which suits smooth pictures; each begins with how it is filtered."""
    above = np.concatenate([np.zeros_like(data[:1]), data[:-1]])
    for number, rows in ((_NONE, data), (_UP, data - above)):
        yield zlib.compress(np.pad(rows, ((0, 0), (1, 0)), constant_values=number).tobytes(), 9)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
