"""PNG without pillow, which a notebook may lack: small pictures, and what larger files are made of."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

COLOURS = {1: 0, 3: 2, 4: 6}
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
    # Most significant byte first.
    data = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">")).reshape(rows, -1).view(np.uint8)
    begin = beginning(rows, columns, channels[0] if channels else 1, pixels.dtype.itemsize)
    return begin + chunk(b"IDAT", min(_filtered(data), key=len)) + chunk(b"IEND", b"")


def beginning(rows: int, columns: int, channels: int, depth: int) -> bytes:
    """What a file begins with; `depth` is that of a channel, in bytes."""
    header = struct.pack(">IIBBBBB", columns, rows, 8 * depth, COLOURS[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)


def _filtered(data: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """Rows as they are, and less those above them, which suits smooth pictures; each begins with how it is filtered."""
    above = np.concatenate([np.zeros_like(data[:1]), data[:-1]])
    for number, rows in ((_NONE, data), (_UP, data - above)):
        yield zlib.compress(np.pad(rows, ((0, 0), (1, 0)), constant_values=number).tobytes(), 9)


def chunk(name: bytes, data: bytes) -> bytes:
    """A part of a file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
