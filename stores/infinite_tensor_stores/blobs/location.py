"""Where a blob lies: a prefix of any zarr Store, or a folder on a local disk, which takes no event loop to use."""

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
from infinite_tensor_stores.files import LARGEST_DOCUMENT, FileStore, content, opened, read_opened
from infinite_tensor_stores.targets import DEFAULT_TIMEOUT, absolute, is_in_memory, shown, zarr_store
from infinite_tensor_stores.zarr.layout import DOCUMENT
from infinite_tensor_stores.zarr.objects import Objects

_CAN_REPLACE_OPEN_FILES = os.name != "nt"
"""Windows refuses to put a file in the place of one that is open, and gives its number to no other file."""

_PARTIAL = "writer.partial"
"""What is being written, until it is renamed: there is one writer, so there is one such file."""

Right: TypeAlias = FileLock | Lease
"""The right to write."""


class Document:
    """A ``zarr.json`` as it was read; one that was fetched is current as far as can be told without a request."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def is_current(self) -> bool:
        """Whether it is still the one that is there."""
        return True


class DocumentFile(Document):
    """A ``zarr.json`` on a local disk; errors as of `files.opened`, and ValueError where it is too large.

    The file is held open: otherwise the file system could give its number to the file that takes its place, and within
    a tick of the clock, a few milliseconds, both would look the same.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        with opened(path) as (descriptor, found):
            super().__init__(content(read_opened(descriptor, found, LARGEST_DOCUMENT)))
            self._number, self._changed = found.st_ino, found.st_ctime_ns
            self._file = OpenFile(os.dup(descriptor)) if _CAN_REPLACE_OPEN_FILES else None

    def is_current(self) -> bool:
        """Whether the file that is there is this one, and has not been written to since."""
        try:
            found = os.stat(self._path)  # noqa: PTH116  (asked at every read, and a Path takes longer)
        except OSError:
            return False
        return found.st_ino == self._number and found.st_ctime_ns == self._changed


class Location(Objects):
    """The objects of one blob, at a prefix of a zarr Store.

    Parameters
    ----------
    target, storage_options, timeout : object
        As of `location_of`.

    Attributes
    ----------
    address : tuple
        The arguments of `location_of` for the same place, with connections of its own.
    """

    is_local = False
    """Whether it is a folder on a local disk."""

    def __init__(self, target: Any, storage_options: dict[str, Any] | None, timeout: float) -> None:
        super().__init__(lambda: zarr_store(target, storage_options, read_only=False, timeout=timeout))
        self.address = target, storage_options, timeout

    def __repr__(self) -> str:
        return shown(self.address[0])

    def __reduce__(self) -> tuple[Any, ...]:
        if is_in_memory(self.store):
            raise pickle.PicklingError(f"{self!r} is in the memory of this process, where no other can read it")
        return location_of, self.address

    @property
    def filename(self) -> str:
        """The absolute path of a folder; elsewhere the URL, without credentials."""
        return repr(self)

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Within it, what a storage raises becomes a StoreError that names the blob and says `what` failed."""
        try:
            yield
        except (RegionError, ValidationError, MemoryError):
            raise
        except StoreError as error:
            if str(error).startswith(repr(self)):
                raise
            raise StoreError(f"{self!r} {what}: {error}") from error
        except Exception as error:  # (each storage has errors of its own)
            raise StoreError(f"{self!r} {what}: {type(error).__name__}: {error}") from error

    @explained()
    def document(self) -> Document | None:
        """The ``zarr.json``, None where there is none; StoreError where something is that cannot be one."""
        (found,) = self.get([DOCUMENT])
        return None if found is None else Document(content(found))

    def header(self) -> tuple[Header, Document]:
        """What is committed; BlobNotFoundError where there is nothing, StoreError where it cannot be read."""
        document = self.document()
        if document is None:
            raise BlobNotFoundError(f"{self!r}: there is no blob; mode 'w' creates one")
        return Header.from_bytes(document.content), document

    def commit(self, header: Header) -> None:
        """Put a ``zarr.json`` in the place of the one that is there."""
        self.put({DOCUMENT: header.to_bytes()})

    def names(self) -> list[str]:
        """Of all objects and folders."""
        # Some storages list the folder itself, without a name.
        return list(filter(None, self.children("")))

    def stranger(self) -> str | None:
        """Something that no blob has."""
        ours = (DOCUMENT, LOCK, _PARTIAL, FOLDER)
        return next((name for name in sorted(self.names()) if name not in ours and not name.startswith("c.")), None)

    def delete_blocks(self) -> None:
        """Delete all blocks."""
        self.delete([name for name in self.names() if name.startswith("c.")])

    def delete_lock(self) -> None:
        """Delete what a lock and an unfinished write have left; there is none of it but on a local disk."""

    def vanish(self) -> None:
        """Delete the place itself, in which nothing lies any more; a prefix is gone with its objects."""

    def claim(self) -> Right:
        """The right to write; a folder is created for it. StoreError if somebody else has it."""
        return Lease(self)


class Folder(Location):
    """A folder on a local disk, the same one wherever the process goes, or another process opens it.

    Its files are read and written by the thread that asks for it, so that nothing runs on after an interrupt.
    """

    is_local = True

    def __init__(self, target: Any, storage_options: dict[str, Any] | None, timeout: float) -> None:
        super().__init__(target, storage_options, timeout)
        assert isinstance(self.store, FileStore)
        self.path = self.store.root.absolute()

    def __repr__(self) -> str:
        return shown(self.path)

    @property
    def filename(self) -> str:
        """The absolute path."""
        return str(self.path)

    @explained()
    def document(self) -> Document | None:
        """The ``zarr.json``, which is held open."""
        try:
            return DocumentFile(self.path / DOCUMENT)
        except FileNotFoundError:
            return None

    def commit(self, header: Header) -> None:
        """The same; it is on the disk before it gets its name, which else may be that of an empty file one day."""
        self.replace(DOCUMENT, [header.to_bytes()], sync=True)

    def replace(self, key: str, parts: Sequence[Any], size: int = 0, *, sync: bool = False) -> None:
        """Put a new file in the place of `key`: some parts, with a hole before the last where `size` is more."""
        partial = self.path / _PARTIAL
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

    def delete_lock(self) -> None:
        """Delete the lock, and what is being written."""
        self.delete([_PARTIAL, LOCK])

    def vanish(self) -> None:
        """Delete the folder if nothing is in it."""
        for folder in (self.path / FOLDER, self.path):
            with suppress(OSError):
                folder.rmdir()

    def claim(self) -> Right:
        """A lock on a file where the operating system has such, else a lease."""
        if self.store.read_only:
            raise StoreError("the zarr Store that was given is read-only")
        try:
            return FileLock(self.path)
        except NoLocksError:
            tell_weaker(
                self.path,
                f"this file system has no locks, so a writer that was killed keeps others out for {SECONDS:.0f} s",
            )
            return Lease(Objects(lambda: self.store))


def location_of(target: Any, storage_options: dict[str, Any] | None, timeout: float = DEFAULT_TIMEOUT) -> Location:
    """The place that a path, an fsspec URL or a zarr Store names; errors as of `zarr_store`."""
    location = Location(absolute(target), storage_options, timeout)
    return Folder(*location.address) if type(location.store) is FileStore else location


def _created(path: Path) -> int:
    """A descriptor of a new file. What a killed writer has left is deleted; a link would lead elsewhere."""
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            path.unlink(missing_ok=True)
