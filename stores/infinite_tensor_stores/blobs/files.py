"""A file of a blob on a local disk, as it was read, and whether it is still the one that is there."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from infinite_tensor_stores.files import content, opened, read_opened

_HOLDS = os.name != "nt"
"""Whether a file that is held open can be replaced. Windows refuses that, and gives its number to no other file."""


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
    ValueError
        If it is not a regular file, or has more bytes.

    Attributes
    ----------
    content : bytes
        What it held.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = os.fspath(path)
        with opened(path) as (descriptor, found):
            self.content = content(read_opened(descriptor, found, most))
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
