"""Regions as files of numpy, and as PNG images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.disks import allocate_file
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink

_MODES = ((1, "uint8"), (1, "uint16"), (3, "uint8"), (4, "uint8"))
"""Channels and dtypes that pillow writes as they are."""


@contextmanager
def opened_npy(cutout: Cutout, path: Path) -> Iterator[Sink]:
    """A file for a region, in C order."""
    np.lib.format.open_memmap(path, "w+", cutout.dtype, cutout.shape).flush()
    allocate_file(path)

    def put(place: Place, pixels: Pixels) -> None:
        # Mapped again each time, so that what has been written does not stay in memory.
        np.load(path, mmap_mode="r+")[place] = pixels

    yield Sink(cutout.frame.tile, put)


def check_png(cutout: Cutout) -> None:
    """ValidationError if a region is no image that pillow writes as PNG."""
    _image()
    channels, _, _ = cutout.image("png")
    if (channels, cutout.dtype.name) not in _MODES:
        raise ValidationError(
            "format 'png' holds 1, 3 or 4 channels of uint8, or 1 of uint16, and the region has "
            f"{channels} of {cutout.tensor.dtype}; convert it first, as in "
            't.map(lambda x: (x.clamp(0, 1) * 255).round().to(torch.uint8), dtype="uint8").export(...), take some '
            "channels, as in sl[0:3, 0:512, 0:512], or write .tif, .npy or .zarr"
        )


@contextmanager
def opened_png(cutout: Cutout, path: Path) -> Iterator[Sink]:
    """A file for an image, all of which is in memory: pillow takes no rows."""
    image = np.empty(cutout.shape, cutout.dtype)
    yield Sink(cutout.frame.tile, image.__setitem__)
    if cutout.channels is not None:
        image = np.moveaxis(image, cutout.channels, -1)
    if image.shape[-1] == 1 and image.ndim == 3:
        image = image[..., 0]
    _image().fromarray(np.ascontiguousarray(image)).save(path, "PNG")


def _image() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415  (of an extra)
    except ImportError as error:
        raise ImportError("format 'png' needs the package pillow: pip install pillow") from error
    return Image
