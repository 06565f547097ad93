"""The location of a blob: a prefix of a zarr Store, or a local folder.

A local folder is used without an event loop.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from infinite_tensor.errors import BlobNotFoundError, RegionError, StoreError, ValidationError
from infinite_tensor.support.disks import OpenFile, sync_opened, tell_weaker
from infinite_tensor_stores.blobs.header import Header, explained
from infinite_tensor_stores.blobs.writers import FOLDER, LOCK, SECONDS, FileLock, Lease, NoLocksError
from infinite_tensor_stores.files import LARGEST_DOCUMENT, content, opened, read_opened
from infinite_tensor_stores.homes import FileHome
from infinite_tensor_stores.targets import DEFAULT_TIMEOUT, absolute, home_of, shown
from infinite_tensor_stores.zarr.layout import DOCUMENT

PARTIAL = "writer.partial"
"""The name of an unfinished file. There is a single writer, so a single name is enough."""

Right: TypeAlias = FileLock | Lease
"""The right to write."""


class Document:
    """A ``zarr.json`` as read from the storage."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def is_current(self) -> bool:
        """Return whether the document is unchanged in the storage.

        Always True on remote storage, without a check.
        """
        return True


class DocumentFile(Document):
    """A ``zarr.json`` on a local disk.

    This object keeps the file open. While it is open, no other file can get its inode number. Raises the errors of
    `files.opened`, and ValueError if the file is too large.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        with opened(path) as (descriptor, found):
            super().__init__(content(read_opened(descriptor, found, LARGEST_DOCUMENT)))
            self._number, self._changed = found.st_ino, found.st_ctime_ns
            self._file = OpenFile(os.dup(descriptor))

    def is_current(self) -> bool:
        """Return whether the file was neither replaced nor written to."""
        try:
            found = os.stat(self._path)  # noqa: PTH116  (called at every read, and Path is slower)
        except OSError:
            return False
        return found.st_ino == self._number and found.st_ctime_ns == self._changed


class Location:
    """The objects of one blob.

    Parameters
    ----------
    target, storage_options, timeout : object
        As for `location_of`.

    Attributes
    ----------
    home : Home
        The objects.
    address : tuple
        The arguments for `location_of` to open the same location again.
    """

    is_local = False
    """Whether the location is a folder on a local disk."""

    def __init__(self, target: Any, storage_options: dict[str, Any] | None, timeout: float) -> None:
        self.home = home_of(target, storage_options, read_only=False, timeout=timeout)
        self.address = target, storage_options, timeout

    def __repr__(self) -> str:
        return shown(self.address[0])

    def __reduce__(self) -> tuple[Any, ...]:
        if self.home.in_memory:
            raise pickle.PicklingError(f"{self!r} cannot be pickled, because it is in the memory of this process")
        return location_of, self.address

    @property
    def filename(self) -> str:
        """The absolute path, or the URL without credentials."""
        return repr(self)

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Turn errors of the storage into StoreErrors.

        `what` is a text for the message, such as "cannot be read".
        """
        try:
            yield
        except (RegionError, ValidationError, MemoryError):
            raise
        except StoreError as error:
            if str(error).startswith(repr(self)):
                raise
            raise StoreError(f"{self!r} {what}: {error}") from error
        except Exception as error:  # (storages raise different errors)
            raise StoreError(f"{self!r} {what}: {type(error).__name__}: {error}") from error

    @explained()
    def document(self) -> Document | None:
        """Read the ``zarr.json``.

        Return None if there is no document. Raise StoreError if the document is too large or not a regular file.
        """
        (found,) = self.home.get([DOCUMENT])
        return None if found is None else Document(content(found))

    def header(self) -> tuple[Header, Document]:
        """Read the last commit.

        Raise BlobNotFoundError if there is no blob. Raise StoreError if the commit cannot be read.
        """
        document = self.document()
        if document is None:
            raise BlobNotFoundError(f"{self!r}: there is no blob; mode 'w' creates one")
        return Header.from_bytes(document.content), document

    def commit(self, header: Header) -> None:
        """Replace the ``zarr.json``."""
        self.home.put({DOCUMENT: header.to_bytes()})

    def names(self) -> list[str]:
        """List the names of all objects and folders at this location."""
        # Some storages list the folder itself, without a name.
        return list(filter(None, self.home.names("")))

    def stranger(self) -> str | None:
        """Return the name of an object or folder not belonging to a blob.

        Return None if there is no such name.
        """
        ours = (DOCUMENT, LOCK, PARTIAL, FOLDER)
        return next((name for name in sorted(self.names()) if name not in ours and not name.startswith("c.")), None)

    def delete_blocks(self, *others: str) -> None:
        """Delete all blocks, and other objects."""
        self.home.delete([name for name in self.names() if name.startswith("c.") or name in others])

    def vanish(self) -> None:
        """Delete an empty folder on a local disk."""

    def claim(self) -> Right:
        """Get the right to write.

        Raise StoreError if another writer has the right. On a local disk, create the folder.
        """
        return Lease(self.home)


class DiskLocation(Location):
    """A folder on a local disk.

    The calling thread itself reads and writes files, so that nothing continues in the background after an interrupt.
    """

    is_local = True

    def __init__(self, target: Any, storage_options: dict[str, Any] | None, timeout: float) -> None:
        super().__init__(target, storage_options, timeout)
        assert isinstance(self.home, FileHome)
        self.path = self.home.root

    def __repr__(self) -> str:
        return shown(self.path)

    @property
    def filename(self) -> str:
        """The absolute path."""
        return str(self.path)

    @explained()
    def document(self) -> Document | None:
        """Read the ``zarr.json``, and keep the file open."""
        try:
            return DocumentFile(self.path / DOCUMENT)
        except FileNotFoundError:
            return None

    def commit(self, header: Header) -> None:
        """Replace the ``zarr.json``.

        The new file is synced first.
        """
        self.replace(DOCUMENT, [header.to_bytes()], sync=True)

    def replace(self, key: str, parts: Sequence[Any], size: int = 0, *, sync: bool = False) -> None:
        """Replace the file `key`, with `parts` as its content.

        If `size` is given, the new file has this size: the last part is at its end, after a hole.
        """
        partial = self.path / PARTIAL
        descriptor = _created(partial)
        try:
            for number, part in enumerate(parts):
                if size and number == len(parts) - 1:
                    os.lseek(descriptor, size - len(part), os.SEEK_SET)
                view = memoryview(part).cast("B")
                while len(view):
                    view = view[os.write(descriptor, view) :]
            if sync:
                sync_opened(descriptor, partial)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                partial.unlink()
            raise
        os.close(descriptor)
        partial.replace(self.path / key)

    def vanish(self) -> None:
        """Delete the folder if it is empty."""
        for folder in (self.path / FOLDER, self.path):
            with suppress(OSError):
                folder.rmdir()

    def claim(self) -> Right:
        """Get a file lock, or a lease if the file system has no locks."""
        if self.home.read_only:
            raise StoreError("the given zarr Store is read-only")
        try:
            return FileLock(self.path)
        except NoLocksError:
            tell_weaker(
                self.path,
                f"this file system has no locks, so a writer that was killed keeps others out for {SECONDS:.0f} s",
            )
            return Lease(self.home)


def location_of(target: Any, storage_options: dict[str, Any] | None, timeout: float = DEFAULT_TIMEOUT) -> Location:
    """Return the location for a path, an fsspec URL or a zarr Store.

    Raises the errors of `home_of`.
    """
    location = Location(absolute(target), storage_options, timeout)
    return DiskLocation(*location.address) if isinstance(location.home, FileHome) else location


def _created(path: Path) -> int:
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            path.unlink(missing_ok=True)
