"""Local files as the objects of a store: only regular ones, no larger than they can be, are read.

To open a FIFO would block for ever, and a device or a file without end would fill the memory. A symbolic link
is what it leads to.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

LARGEST_DOCUMENT = 2**25
"""Bytes that a ``zarr.json`` of ours, or of a group that we are a guest of, takes at most."""

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
"""What the name of a file ends in that is a store in HDF5, in lower case."""

# To open a FIFO waits for somebody who writes, unless told not to. Windows has neither.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
# A socket, a device without a driver, a symbolic link that leads to itself.
_NOT_TO_BE_OPENED = (errno.ENXIO, errno.ENODEV, errno.ELOOP)
_IRREGULAR = "it is not a regular file"
_PIECE = 2**16


class Unreadable(bytes):
    """Stands for an object that is there and is not read. It is empty, so whatever does not look takes it for damaged.

    Attributes
    ----------
    reason : str
        Why it is not read.
    """

    reason: str

    def __new__(cls, reason: str) -> Self:
        """An object that is not read for a reason."""
        found = super().__new__(cls)
        found.reason = reason
        return found

    @classmethod
    def too_large(cls, size: int, most: int) -> Self:
        """An object of `size` bytes where there can be `most`."""
        return cls(f"it has {size} bytes, and can have {most} at most")


def bounded(data: bytes, most: int) -> bytes:
    """`data`, or `Unreadable` in its place if it has more than `most` bytes."""
    return Unreadable.too_large(len(data), most) if len(data) > most else data


def content(data: bytes) -> bytes:
    """`data`, if it was read; ValueError that says why not."""
    if isinstance(data, Unreadable):
        raise ValueError(data.reason)  # noqa: TRY004  (what is stored is a value)
    return data


def parsed(document: bytes) -> dict[str, Any]:
    """The JSON object in `document`; ValueError for anything else, however it is nested or encoded."""
    try:
        found = json.loads(content(document))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not an object")  # noqa: TRY004  (what it holds is a value)
    return found


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of a regular file, which is closed in the end, and the status of the file.

    Raises
    ------
    OSError
        If there is none, or it cannot be opened, as of `os.open`.
    ValueError
        If it is not a regular file.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        # Below a folder that is a link to itself there is nothing.
        if error.errno not in _NOT_TO_BE_OPENED or not os.path.lexists(path):
            raise
        raise ValueError(_IRREGULAR) from error
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise ValueError("it is a folder, not a regular file")
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(_IRREGULAR)
        yield descriptor, found
    finally:
        os.close(descriptor)


def read_opened(descriptor: int, found: os.stat_result, most: int) -> bytes:
    """All bytes of a file that `opened` has opened; `Unreadable` if it has more than `most`, even if it grows."""
    if found.st_size > most:
        return Unreadable.too_large(found.st_size, most)
    parts: list[bytes] = []
    size = 0
    # To ask for just what is there saves a copy; what somebody adds meanwhile comes in pieces.
    while size <= most and (part := os.read(descriptor, max(found.st_size - size, 0) or _PIECE)):
        parts.append(part)
        size += len(part)
    return bounded(b"".join(parts), most)


def read_file(path: str | os.PathLike[str], most: int) -> bytes | None:
    """The content of a file, None if there is none; `Unreadable` for what is not a regular file, or has more bytes."""
    try:
        with opened(path) as (descriptor, found):
            return read_opened(descriptor, found, most)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        return Unreadable(str(error))
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
