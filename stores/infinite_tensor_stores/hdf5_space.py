"""Room on the disk for an HDF5 file, taken before it is written to.

HDF5 does not survive a disk that gets full in the middle of a write: what it could not write it tries to write
again whenever an object is closed, and in the end it takes the interpreter with it.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

_MARGIN = 2**20
"""Bytes for what HDF5 itself keeps in the file, beside the data."""


def reserve(h5: Any, nbytes: int) -> None:
    """Take room for `nbytes` more of data in an open file; OSError where there is none."""
    descriptor, end = h5.id.get_vfd_handle(), h5.id.get_filesize()
    if os.fstat(descriptor).st_size < end + nbytes + _MARGIN:
        _allocate(descriptor, end, nbytes + _MARGIN)


def give_back(h5: Any) -> None:
    """Let go of the room that was taken and not used; the file must be flushed."""
    os.ftruncate(h5.id.get_vfd_handle(), h5.id.get_filesize())


def check_room(folder: Path) -> None:
    """OSError where there is no room for a new file."""
    with tempfile.TemporaryFile(dir=folder) as scratch:
        _allocate(scratch.fileno(), 0, _MARGIN)


def _allocate(descriptor: int, start: int, nbytes: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, start, nbytes)
    except OSError as error:
        # Some file systems cannot tell beforehand.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
