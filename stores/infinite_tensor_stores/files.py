"""Files and documents in a local folder.

Only regular files up to a given size are read: opening a FIFO would block for ever, and reading a device or an endless
file would fill the memory. Symbolic links are followed when reading.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from infinite_tensor.errors import LinkNotFollowedWarning, StoreError

LARGEST_DOCUMENT = 2**25
"""The maximum bytes of a ``zarr.json``, written by this library or by another program."""

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
"""The file name suffixes of HDF5 stores, in lower case."""

# Without O_NONBLOCK, opening a FIFO waits for a writer.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
# Errors for a socket, a device without a driver, and a circular symbolic link.
_NOT_TO_BE_OPENED = (errno.ENXIO, errno.ENODEV, errno.ELOOP)
_IRREGULAR = "not a regular file"
_PIECE = 2**16


class Unreadable(bytes):
    """A placeholder for an object left unread.

    As bytes it is empty, so it counts as damaged.

    Attributes
    ----------
    reason : str
        Why the object was not read.
    """

    reason: str

    def __new__(cls, reason: str) -> Self:
        """Create a placeholder with the reason for not reading the object."""
        found = super().__new__(cls)
        found.reason = reason
        return found

    @classmethod
    def too_large(cls, size: int, most: int) -> Self:
        """Create a placeholder for an object of `size` bytes, more than the allowed `most`."""
        return cls(f"{size} bytes, but at most {most} are allowed")


def bounded(data: bytes, most: int) -> bytes:
    """Return `data`, or an `Unreadable` if `data` has more than `most` bytes."""
    return Unreadable.too_large(len(data), most) if len(data) > most else data


def content(data: bytes) -> bytes:
    """Return `data`, or raise ValueError for an `Unreadable`."""
    if isinstance(data, Unreadable):
        raise ValueError(data.reason)  # noqa: TRY004  (not a type error of the caller)
    return data


def parsed(document: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raise ValueError if `document` is not a JSON object, or is nested too deep.
    """
    try:
        found = json.loads(content(document))
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError(f"a JSON {type(found).__name__}, not an object")  # noqa: TRY004  (not a type error of the caller)
    return found


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[int, os.stat_result]]:
    """Open a regular file, as in ``with opened(path) as (descriptor, status)``.

    The status is from `os.fstat`.

    Raises
    ------
    OSError
        If there is no file, or it cannot be opened, as for `os.open`.
    ValueError
        If it is not a regular file.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        # A path below a circular link does not exist, so there is no irregular file.
        if error.errno not in _NOT_TO_BE_OPENED or not os.path.lexists(path):
            raise
        raise ValueError(_IRREGULAR) from error
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise ValueError("a folder, not a regular file")
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(_IRREGULAR)
        yield descriptor, found
    finally:
        os.close(descriptor)


def read_opened(descriptor: int, found: os.stat_result, most: int) -> bytes:
    """Read a file opened with `opened`.

    Return `Unreadable` if the file has more than `most` bytes.
    """
    if found.st_size > most:
        return Unreadable.too_large(found.st_size, most)
    parts: list[bytes] = []
    size = 0
    # Reading exactly the known size saves a copy; if the file grows meanwhile, the rest is read in pieces.
    while size <= most and (part := os.read(descriptor, max(found.st_size - size, 0) or _PIECE)):
        parts.append(part)
        size += len(part)
    return bounded(b"".join(parts), most)


def read_file(path: str | os.PathLike[str], most: int) -> bytes | None:
    """Read a file.

    Return None if there is no file. Return `Unreadable` if the file is not regular, or has more than `most` bytes.
    """
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


class LeadsOutError(StoreError):
    """An object to delete or repair is behind a link out of the store."""


def own_path(root: Path, key: str) -> Path:
    """Return the path of an object to delete or repair.

    Links in a store may lead to files outside of it, by mistake or by an attack. Objects behind such a link are
    refused.

    Raises
    ------
    LeadsOutError
        If a folder between the root and the object is a link out of the root.
    """
    folder = os.fspath(root)
    for name in key.split("/")[:-1]:
        folder = f"{folder}/{name}"
        # `os.path` is faster than Path, and this is called for each file.
        if os.path.islink(folder) and not Path(folder).resolve().is_relative_to(root.resolve()):  # noqa: PTH114
            raise LeadsOutError(
                f"{folder!r} is a link out of the store, to {str(Path(folder).resolve())!r}: its target is read, but "
                "never deleted or repaired. Delete the link, or replace it by its target"
            )
    return root / key


@contextmanager
def left_alone() -> Iterator[None]:
    """Turn a LeadsOutError in the context into a warning."""
    try:
        yield
    except LeadsOutError as error:
        warnings.warn(str(error), LinkNotFollowedWarning, stacklevel=4)
