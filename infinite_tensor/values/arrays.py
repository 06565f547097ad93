"""Digests of arrays: of all that is in them, or of samples of what lies in a file and is large."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import google_crc32c
import numpy as np

from infinite_tensor.errors import ValidationError

Array: TypeAlias = "np.ndarray[Any, Any] | np.generic"
Box: TypeAlias = tuple[slice, ...]

_ALL_BYTES = 2**26
"""Of what does not lie in memory, a digest sees all up to this size, and samples of what is larger."""
_SAMPLES = 64
_SAMPLE_BYTES = 2**12
_STEP_BYTES = 2**22
_ROW_BYTES = 2**28
"""The most that is read at once so that a chunk is decoded once."""
CHUNK_BYTES = 2**27
"""Larger chunks are read in parts: Dask has some that no memory holds."""


def is_large(shape: Sequence[int], itemsize: int) -> bool:
    """Whether a digest is of the CRC-32C of each 4 MiB, or of samples; it is of the bytes of all else."""
    return math.prod(shape) * itemsize > _ALL_BYTES


def digest_of_regions(
    read: Callable[[Box], Any],
    shape: Sequence[int],
    itemsize: int,
    *,
    in_file: bool,
    chunks: Sequence[int] | None = None,
) -> str:
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
    chunks : sequence of int, optional
        What is decoded at once where it lies. Each chunk is read once, unless a row of chunks takes more than 256 MiB.
    """
    if is_large(shape, itemsize) and in_file:
        samples = list(_samples(shape, itemsize))
        contents: Iterable[Any] = map(read, samples) if chunks is None else _by_chunk(read, samples, itemsize, chunks)
    else:
        contents = map(read, _steps(shape, itemsize, chunks))
        if is_large(shape, itemsize):
            contents = _checksums(contents)
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _by_chunk(
    read: Callable[[Box], Any], samples: Sequence[Box], itemsize: int, chunks: Sequence[int]
) -> list[np.ndarray[Any, Any]]:
    """The bytes of each sample; all that is needed of a chunk is read at once."""
    found = [np.empty((*extents_of(sample), itemsize), np.uint8) for sample in samples]
    needed: dict[tuple[int, ...], list[tuple[int, Box]]] = {}
    for number, sample in enumerate(samples):
        along = [range(each.start // n, -(-each.stop // n)) for each, n in zip(sample, chunks, strict=True)]
        for chunk in itertools.product(*along):
            part = tuple(
                slice(max(each.start, i * n), min(each.stop, (i + 1) * n))
                for each, i, n in zip(sample, chunk, chunks, strict=True)
            )
            needed.setdefault(chunk, []).append((number, part))
    for parts in needed.values():
        sides = zip(*(part for _, part in parts), strict=True)
        box = tuple(slice(min(each.start for each in side), max(each.stop for each in side)) for side in sides)
        content = np.frombuffer(read(box), np.uint8).reshape(*extents_of(box), itemsize)
        for number, part in parts:
            found[number][_within(part, samples[number])] = content[_within(part, box)]
    return found


def extents_of(region: Box) -> tuple[int, ...]:
    """The shape of a region, which has both ends of each slice."""
    return tuple(each.stop - each.start for each in region)


def _within(part: Box, box: Box) -> Box:
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(part, box, strict=True))


def _checksums(contents: Iterable[Any]) -> Iterator[bytes]:
    """The CRC-32C of each 4 MiB of what stands in a row, however it comes."""
    crc, room = 0, _STEP_BYTES
    for content in contents:
        rest = np.frombuffer(content, np.uint8)
        while len(rest):
            crc = google_crc32c.extend(crc, rest[:room])
            rest, room = rest[room:], room - len(rest[:room])
            if not room:
                yield crc.to_bytes(4, "little")
                crc, room = 0, _STEP_BYTES
    if room < _STEP_BYTES:
        yield crc.to_bytes(4, "little")


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


def check_unmasked(values: Any, has: str) -> None:
    """ValidationError, which begins with `has`, if elements of an array are masked, as numpy and astropy have it."""
    mask = values.mask if hasattr(type(values), "mask") else None
    # netCDF4 has a mask of that name which says what reads do.
    is_mask = isinstance(mask, np.ndarray | np.bool_ | bool) and not hasattr(values, "set_auto_mask")
    if is_mask and np.any(mask):
        raise ValidationError(
            f"{has} a mask, for which there is no place in a tensor; give a.filled(value), "
            "dask.array.ma.filled(a, value) or numpy.where(a.mask, value, a.data), or call a.set_auto_mask(False) of "
            "netCDF4, which then reads what the file holds"
        )


def cut(chunks: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Chunks, halved along their longest dimension until they take up to 128 MiB."""
    parts = list(chunks)
    while math.prod(parts) * itemsize > CHUNK_BYTES:
        d = parts.index(max(parts))
        parts[d] = -(-parts[d] // 2)
    return tuple(parts)


def contiguous_box(shape: Sequence[int], itemsize: int, nbytes: int) -> list[int]:
    """The extents of a box of up to so many bytes, whose elements follow each other in C order."""
    room, box = max(1, nbytes // itemsize), []
    for extent in reversed(shape):
        box.append(max(1, min(extent, room)))
        room //= extent
    return box[::-1]


def _steps(shape: Sequence[int], itemsize: int, chunks: Sequence[int] | None) -> Iterator[Box]:
    """All of an array, in C order, in boxes of about 4 MiB or of one row of chunks, so that each chunk lies in one."""
    box = contiguous_box(shape, itemsize, _STEP_BYTES)
    if chunks is not None:
        # Chunks have one element before this dimension; a row of them is whole behind it.
        d = next((d for d, n in enumerate(chunks) if n > 1), len(chunks) - 1)
        row = [*[1] * d, min(chunks[d], shape[d]), *shape[d + 1 :]]
        row_bytes = math.prod(row) * itemsize
        if _STEP_BYTES < row_bytes <= _ROW_BYTES:
            box = row
        elif row_bytes <= _STEP_BYTES and box[d] < shape[d]:
            box[d] -= box[d] % row[d]
    for start in itertools.product(*(range(0, extent, n) for extent, n in zip(shape, box, strict=True))):
        yield tuple(slice(a, min(a + n, e)) for a, n, e in zip(start, box, shape, strict=True))


def _samples(shape: Sequence[int], itemsize: int) -> Iterator[Box]:
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
