"""Digests of arrays: of all that is in them, or of samples of what lies in a file and is large."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import google_crc32c
import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any] | np.generic"
Region: TypeAlias = tuple[slice, ...]

_ALL_BYTES = 2**26
"""Of what does not lie in memory, a digest sees all up to this size, and samples of what is larger."""
_SAMPLES = 64
_SAMPLE_BYTES = 2**12
_STEP_BYTES = 2**22


def is_large(shape: Sequence[int], itemsize: int) -> bool:
    """Whether a digest is of the CRC-32C of each 4 MiB, or of samples; it is of the bytes of all else."""
    return math.prod(shape) * itemsize > _ALL_BYTES


def digest_of_regions(read: Callable[[Region], Any], shape: Sequence[int], itemsize: int, *, in_file: bool) -> str:
    """SHA-256 of values, as bytes in C order; beyond 64 MiB of the CRC-32C of each 4 MiB, in a file of samples.

    A sample is a run of values of up to 4 KiB. 64 of them are spread evenly along each dimension; the first and the
    last are at the two ends of the array.

    Parameters
    ----------
    read : callable
        ``read(region)``: the bytes of a region, which has both ends of each slice.
    shape : sequence of int
        Extents.
    itemsize : int
        Bytes of an element.
    in_file : bool
        Whether it lies in a file, or wherever else to read all of it takes long.
    """
    digest, large = hashlib.sha256(), is_large(shape, itemsize)
    sampled = large and in_file
    for region in (_samples if sampled else _steps)(shape, itemsize):
        content = read(region)
        digest.update(checksum(content) if large and not sampled else content)
    return digest.hexdigest()


def digest_of_array(array: Array) -> str:
    """SHA-256 of dtype, shape and values, as `digest_of_regions` looks at them."""
    values, digest = np.asarray(array), ""
    if values.nbytes:
        digest = digest_of_regions(
            lambda region: np.ascontiguousarray(values[region]).reshape(-1).view(np.uint8).data,
            values.shape,
            values.itemsize,
            in_file=memory_map_of(array) is not None,
        )
    return hashlib.sha256(f"{values.dtype.str} {values.shape} {digest}".encode()).hexdigest()


def checksum(content: Any) -> bytes:
    """The CRC-32C of bytes, which is ten times as fast as SHA-256."""
    # It takes arrays of numpy as they are, and no memoryview.
    return google_crc32c.value(np.frombuffer(content, np.uint8)).to_bytes(4, "little")  # type: ignore[no-any-return]


def memory_map_of(array: object) -> np.memmap[Any, Any] | None:
    """The memory map of a file that an array shows a part of."""
    base = array
    while isinstance(base, np.ndarray):
        # What was computed from a memmap is one without pages, and changes to a copy on write are in no file.
        if isinstance(base, np.memmap) and getattr(base, "_mmap", None) is not None and base.mode != "c":
            return base if base.filename is not None else None
        base = base.base
    return None


def contiguous_box(shape: Sequence[int], itemsize: int, nbytes: int) -> list[int]:
    """The extents of a box of up to so many bytes, whose elements follow each other in C order."""
    room, box = max(1, nbytes // itemsize), []
    for extent in reversed(shape):
        box.append(max(1, min(extent, room)))
        room //= extent
    return box[::-1]


def _steps(shape: Sequence[int], itemsize: int) -> Iterator[Region]:
    """All of an array, in C order."""
    box = contiguous_box(shape, itemsize, _STEP_BYTES)
    for start in itertools.product(*(range(0, extent, n) for extent, n in zip(shape, box, strict=True))):
        yield tuple(slice(a, min(a + n, e)) for a, n, e in zip(start, box, shape, strict=True))


def _samples(shape: Sequence[int], itemsize: int) -> Iterator[Region]:
    """A few places of a large array: no two of them at the same level of a dimension that is long enough."""
    box = contiguous_box(shape, itemsize, _SAMPLE_BYTES)
    steps = _SAMPLES - 1
    for i in range(_SAMPLES):
        region = []
        for d, (extent, n) in enumerate(zip(shape, box, strict=True)):
            # Multiples of 38, near the golden ratio of 63, keep places apart in two dimensions and more.
            at = i if i == steps else i * 38**d % steps
            start = (at * (extent - n) + steps // 2) // steps
            region.append(slice(start, start + n))
        yield tuple(region)
