"""Local files as the objects of a store: only regular ones, no larger than they can be, are read.

A FIFO would block whoever opens it for ever, and a device or a file without end would fill the memory. A symbolic link
is what it leads to.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat

from zarr.storage import LocalStore

LARGEST_DOCUMENT = 2**25
"""Bytes that a ``zarr.json`` of ours, or of a group that we are a guest of, takes at most."""

# To open a FIFO waits for somebody who writes, unless told not to. Windows has neither.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
# A socket, a device without a driver, a symbolic link that leads to itself.
_NO_FILE = (errno.ENXIO, errno.ENODEV, errno.ELOOP)


class Unreadable(bytes):
    """Stands for an object that is there and is not read. It is empty, so to whoever does not look it is damaged.

    Attributes
    ----------
    reason : str
        Why it is not read.
    """

    reason: str

    @classmethod
    def because(cls, reason: str) -> Unreadable:
        """An object that is not read for a reason."""
        found = cls()
        found.reason = reason
        return found

    @classmethod
    def too_large(cls, size: int, most: int) -> Unreadable:
        """An object of `size` bytes where there can be `most`."""
        return cls.because(f"it has {size} bytes, and can have {most} at most")


def content(data: bytes) -> bytes:
    """`data`, if it was read; ValueError that says why not."""
    if isinstance(data, Unreadable):
        raise ValueError(data.reason)  # noqa: TRY004  (what is stored is a value)
    return data


def open_file(path: str | os.PathLike[str]) -> tuple[int, os.stat_result] | Unreadable:
    """A descriptor of a regular file to read from, and its status; errors as of `os.open` where there is none."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in _NO_FILE:
            return Unreadable.because("it is no regular file")
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode):
        return descriptor, found
    os.close(descriptor)
    return Unreadable.because("it is a folder" if stat.S_ISDIR(found.st_mode) else "it is no regular file")


def read_file(path: str | os.PathLike[str], most: int) -> bytes | None:
    """The content of a file, `Unreadable` if it is no regular one or has more than `most` bytes; None for no file."""
    try:
        opened = open_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if isinstance(opened, Unreadable):
        return opened
    descriptor, found = opened
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor is no path)
        return Unreadable.too_large(found.st_size, most) if found.st_size > most else file.read(found.st_size)


class FileStore(LocalStore):
    """What `LocalStore` does, without waiting for a FIFO and without following a link when it deletes."""

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, None if there is none; `Unreadable` for what is no regular file, or larger than `most` bytes."""
        return await asyncio.to_thread(read_file, self.root / key, most)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a folder. Of a symbolic link only the link goes."""
        path = self.root / prefix
        if path.is_symlink():
            self._check_writable()
            path.unlink(missing_ok=True)
        else:
            await super().delete_dir(prefix)
