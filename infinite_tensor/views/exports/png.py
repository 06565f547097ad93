"""Regions as PNG images, of which no more than a few rows are in memory.

pillow takes an image whole, and no colours of 16 bits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink
from infinite_tensor.views.png import COLOURS, beginning, chunk

_LONGEST = 2**31 - 1
_STEP_BYTES = 2**20
"""About as much is filtered at a time."""
_UNIT_BYTES = 2**22


def check_png(cutout: Cutout) -> None:
    """ValidationError if a region is no image that PNG has."""
    channels, rows, columns = cutout.image("png")
    if cutout.dtype.name not in ("uint8", "uint16"):
        raise ValidationError(
            f"format 'png' holds uint8 and uint16, and the tensor is {cutout.tensor.dtype}; convert it first, as in "
            't.map(lambda x: (x.clamp(0, 1) * 255).round().to(torch.uint8), dtype="uint8").export(...), or write .npy, '
            ".tif or .zarr"
        )
    if channels not in COLOURS:
        raise ValidationError(
            f"format 'png' holds 1, 3 or 4 channels, and the region has {channels} along dimension "
            f"{cutout.dims[cutout.channels or 0]!r}; take some of them, as in sl[0:3, 0:512, 0:512], or one, as in "
            "sl[0, 0:512, 0:512]"
        )
    if max(rows, columns) > _LONGEST:
        raise ValidationError(f"a PNG has at most {_LONGEST} rows and columns, and the region {rows} x {columns}")


@contextmanager
def opened_png(cutout: Cutout, path: Path) -> Iterator[Sink]:
    """A file for an image."""
    with path.open("wb") as file:
        sink = _Png(cutout, file)
        yield sink
        sink.end()


class _Png(Sink):
    def __init__(self, cutout: Cutout, file: BinaryIO) -> None:
        channels, rows, columns = cutout.image("png")
        self._file, self._channels = file, cutout.channels
        self._depth = cutout.dtype.itemsize
        self._bytes_per_pixel = channels * self._depth
        self._above = np.zeros((1, columns * self._bytes_per_pixel), np.uint8)
        self._compressor = zlib.compressobj()
        self.unit = _rows_of(cutout, self._above.size)
        file.write(beginning(rows, columns, channels, self._depth))

    def put(self, place: Place, pixels: Pixels) -> None:
        del place
        together = pixels if self._channels is None else np.moveaxis(pixels, self._channels, -1)
        rows = together.reshape(len(together), -1).astype(f">u{self._depth}", order="C").view(np.uint8)
        count = max(1, _STEP_BYTES // rows.shape[1])
        for first in range(0, len(rows), count):
            some = rows[first : first + count]
            self._write(self._compressor.compress(_filtered(some, self._above, self._bytes_per_pixel)))
            self._above = some[-1:].copy()

    def end(self) -> None:
        """Write what comes after the last row."""
        self._write(self._compressor.flush())
        self._file.write(chunk(b"IEND", b""))

    def _write(self, compressed: bytes) -> None:
        if compressed:
            self._file.write(chunk(b"IDAT", compressed))


def _rows_of(cutout: Cutout, row_bytes: int) -> Index:
    """A box of whole rows, which follow each other: those of a tile, or fewer."""
    rows = next(d for number, d in enumerate(cutout.kept) if number != cutout.channels)
    unit = list(cutout.frame.shape)
    unit[rows] = max(1, min(cutout.frame.tile[rows], _UNIT_BYTES // row_bytes))
    return tuple(unit)


def _filtered(rows: Pixels, above: Pixels, width: int) -> bytes:
    """Rows of bytes as what differs from pixels beside them, each in the way that leaves the smallest numbers."""
    up = np.concatenate([above, rows[:-1]])
    left, corner = np.zeros_like(rows), np.zeros_like(rows)
    left[:, width:], corner[:, width:] = rows[:, :-width], up[:, :-width]
    ways = {0: rows, 1: rows - left, 2: rows - up, 4: rows - _paeth(left, up, corner)}
    sizes = [np.abs(way.view(np.int8).astype(np.int16)).sum(axis=1, dtype=np.int64) for way in ways.values()]
    chosen = np.array(list(ways), np.uint8)[np.argmin(sizes, axis=0)]
    filtered = np.empty((len(rows), 1 + rows.shape[1]), np.uint8)
    filtered[:, 0] = chosen
    for kind, way in ways.items():
        filtered[chosen == kind, 1:] = way[chosen == kind]
    return filtered.tobytes()


def _paeth(left: Pixels, up: Pixels, corner: Pixels) -> Pixels:
    """Of three bytes, the one that is nearest to left + up - corner; of equals the first."""
    a, b, c = (each.astype(np.int16) for each in (left, up, corner))
    from_left, from_up, from_corner = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
    nearer_up = np.where(from_up <= from_corner, up, corner)
    return np.where((from_left <= from_up) & (from_left <= from_corner), left, nearer_up)
