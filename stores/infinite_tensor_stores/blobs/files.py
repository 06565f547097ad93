"""Reading the files of a blob on a local disk: regular ones alone, and no more of them than they may hold."""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# To open a pipe must not wait for somebody who writes to it.
_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

_HOLDS = os.name != "nt"
"""Whether a file that is held open can be replaced. Windows refuses that, and gives its number to no other file."""


class OddFileError(ValueError):
    """Something is there that no blob has there: a pipe, a device, a folder, or a file that is too large."""


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of a regular file, which is closed in the end, and what is known of the file.

    Raises
    ------
    FileNotFoundError
        If there is none.
    OddFileError
        If it is not a regular file.
    """
    descriptor = os.open(path, _READING)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OddFileError("it is not a regular file")
        yield descriptor, found
    finally:
        os.close(descriptor)


def content(descriptor: int, found: os.stat_result, most: int) -> bytes:
    """All bytes of a file that `opened` has opened; OddFileError if they are more than `most`."""
    parts: list[bytes] = []
    size = found.st_size
    while size <= most and (part := os.read(descriptor, found.st_size + 1)):
        parts.append(part)
        size = sum(map(len, parts))
    if size > most:
        raise OddFileError(f"it has {size} bytes, more than the {most} that it may have")
    return b"".join(parts)


class ReadFile:
    """A file as it was read, and whether it is still the one that is there.

    It is held open: otherwise the file system could give its number to the file that takes its place, and within a
    tick of the clock, a few milliseconds, both would look the same.

    Parameters
    ----------
    path : Path
        Where it is.
    most : int
        How many bytes it may have.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        If there is none.
    OddFileError
        If it is not a regular file, or has more bytes.

    Attributes
    ----------
    content : bytes
        What it held.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = os.fspath(path)
        with opened(path) as (descriptor, found):
            self.content = content(descriptor, found, most)
            self._number, self._changed = found.st_ino, found.st_ctime_ns
            held = [os.dup(descriptor)] if _HOLDS else []
        self._release = weakref.finalize(self, _close, held)
        self._release.atexit = False

    def is_current(self) -> bool:
        """Whether the file that is there is this one, and has not been written to since."""
        try:
            found = os.stat(self._path)  # noqa: PTH116  (asked at every read, and a Path takes longer)
        except OSError:
            return False
        return found.st_ino == self._number and found.st_ctime_ns == self._changed

    def release(self) -> None:
        """Hold it no longer."""
        self._release()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
