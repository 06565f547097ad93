"""A mark inside a zstd frame that no decoder minds: it binds a compressed chunk to its place.

A frame (RFC 8878) is a header and then blocks. A block of type RLE repeats one byte; one that repeats it zero
times adds nothing to the content, and carries that byte. `LENGTH` such blocks right behind the header are a stamp.
"""

from __future__ import annotations

LENGTH = 8

_MAGIC = b"\x28\xb5\x2f\xfd"
_EMPTY_RLE = b"\x02\x00\x00"
"""The header of a block: not the last one, of type RLE, of size 0."""


def stamped(frame: bytes, stamp: bytes) -> tuple[bytes, memoryview]:
    """`frame` with a stamp of `LENGTH` bytes in it, in two parts of which the second is no copy.

    Raises
    ------
    ValueError
        If it is no zstd frame.
    """
    start = _first_block(frame)
    if start is None:
        raise ValueError("this is no zstd frame")
    return frame[:start] + b"".join(_EMPTY_RLE + stamp[i : i + 1] for i in range(LENGTH)), memoryview(frame)[start:]


def stamp_of(frame: bytes) -> bytes | None:
    """The stamp that a frame carries, or None."""
    start = _first_block(frame)
    if start is None:
        return None
    blocks = frame[start : start + 4 * LENGTH]
    if any(blocks[4 * i : 4 * i + 3] != _EMPTY_RLE for i in range(LENGTH)):
        return None
    return blocks[3::4]


def content_size(frame: bytes) -> int | None:
    """How many bytes a frame says that it holds, or None where it does not say so."""
    start = _first_block(frame)
    if start is None:
        return None
    length = _size_length(frame[4])
    # Sizes from 256 to 65791 are stored in two bytes, less 256.
    return int.from_bytes(frame[start - length : start], "little") + (256 if length == 2 else 0) if length else None


def _first_block(frame: bytes) -> int | None:
    """Where the header of a frame ends; None if it is no frame."""
    if len(frame) < 6 or frame[:4] != _MAGIC:
        return None
    descriptor = frame[4]
    window = 0 if descriptor & 0x20 else 1
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    return 5 + window + dictionary + _size_length(descriptor)


def _size_length(descriptor: int) -> int:
    return (1 if descriptor & 0x20 else 0, 2, 4, 8)[descriptor >> 6]
