"""Local files as the objects of a store: a folder as a zarr Store.

Only regular files, no larger than they can be, are read: to open a FIFO would block for ever, and a device or a file
without end would fill the memory. A symbolic link is what it leads to.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

from infinite_tensor.errors import LinkNotFollowedWarning, StoreError
from infinite_tensor.support.disks import give_name, remove
from infinite_tensor.support.threads import on_threads

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

_DELETING = 4
"""On how many threads folders are deleted."""


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


class LeadsOutError(StoreError):
    """What was to be deleted or repaired lies behind a link that leads out of the store."""


def own_path(root: Path, key: str) -> Path:
    """The path of an object that may be deleted or repaired.

    Whoever made the store may have put a link there to what belongs to somebody else.

    Raises
    ------
    LeadsOutError
        If a folder above it, but not the root, is a link that leads out of the root.
    """
    folder = os.fspath(root)
    for name in key.split("/")[:-1]:
        folder = f"{folder}/{name}"
        # A Path takes longer, and this is asked for each file.
        if os.path.islink(folder) and not Path(folder).resolve().is_relative_to(root.resolve()):  # noqa: PTH114
            raise LeadsOutError(
                f"{folder!r} is a link out of the store, to {str(Path(folder).resolve())!r}: what lies there is read, "
                "and never deleted or repaired. Delete the link, or move what it leads to into its place"
            )
    return root / key


@contextmanager
def left_alone() -> Iterator[None]:
    """Within it, a link that leads out of the store ends what is being done with a warning."""
    try:
        yield
    except LeadsOutError as error:
        warnings.warn(str(error), LinkNotFollowedWarning, stacklevel=4)


class FileStore(LocalStore):
    """What `LocalStore` does, without waiting for a FIFO and without following a link when it deletes.

    Nothing of it takes an event loop: its coroutines come to their end without a break.
    """

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, as of `read_file`."""
        return read_file(self.root / key, most)

    async def set(self, key: str, value: Buffer) -> None:
        """Write a file beside its place, and rename it."""
        self.write(key, [value.to_bytes()])

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """The same, unless there is one."""
        with suppress(FileExistsError):
            self.write(key, [value.to_bytes()], exclusive=True)

    def write(self, key: str, parts: Sequence[Any], *, exclusive: bool = False) -> None:
        """Write some parts as one file, with another name until it is whole; FileExistsError if there must be none."""
        self._check_writable()
        path = self.root / key
        partial = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        descriptor = _created(partial)
        try:
            try:
                for part in parts:
                    view = memoryview(part)
                    while view:
                        view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
            if exclusive:
                give_name(partial, path, self.root)
            else:
                partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        if exclusive:
            # Where there are no hard links it was renamed.
            partial.unlink(missing_ok=True)

    async def exists(self, key: str) -> bool:
        """Whether there is a file."""
        return (self.root / key).is_file()

    async def getsize(self, key: str) -> int:
        """The bytes of a file."""
        return (self.root / key).stat().st_size

    async def delete(self, key: str) -> None:
        """Delete a file, or a folder with all that is in it; of a symbolic link only the link. Errors of `own_path`."""
        self._check_writable()
        remove(own_path(self.root, key))

    async def delete_dir(self, prefix: str) -> None:
        """The same, unless it is a file."""
        self._check_writable()
        path = own_path(self.root, prefix)
        if path.is_dir() and not path.is_symlink():
            # A disk that is busy makes each file wait that goes; those of several folders wait at the same time.
            on_threads(shutil.rmtree, _folders_of_chunks(path), _DELETING)
        if path.is_dir() or path.is_symlink():
            remove(path)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """The names of what is right below a folder."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(self.root / prefix):  # noqa: PTH208  (only names are wanted)
                yield name


def _folders_of_chunks(array: Path) -> list[str]:
    """The folders, no links to any, right below that of the chunks of an array; none where it is no array."""
    chunks = array / "c"
    if chunks.is_symlink() or not chunks.is_dir():
        return []
    with os.scandir(chunks) as inside:
        return [entry.path for entry in inside if entry.is_dir(follow_symlinks=False)]


def _created(path: Path) -> int:
    """A descriptor of a new file, in a folder that may be new."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)
    except OSError as error:
        for above in path.parents:
            if os.path.lexists(above) and not above.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above)) from error
        raise
