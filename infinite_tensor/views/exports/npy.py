"""Regions as files of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from infinite_tensor.support.disks import allocate_file
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink


@contextmanager
def opened_npy(cutout: Cutout, path: Path) -> Iterator[Sink]:
    """A file for a region, in C order."""
    np.lib.format.open_memmap(path, "w+", cutout.dtype, cutout.shape).flush()
    allocate_file(path)
    yield _Npy(cutout, path)


class _Npy(Sink):
    def __init__(self, cutout: Cutout, path: Path) -> None:
        self.unit = cutout.frame.tile
        self._path = path

    def put(self, place: Place, pixels: Pixels) -> None:
        # Mapped again each time, so that what has been written does not stay in memory.
        mapped = np.load(self._path, mmap_mode="r+")
        mapped[place] = pixels
        del mapped
