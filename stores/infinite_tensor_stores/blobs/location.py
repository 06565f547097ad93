"""Where a blob lives: a folder on a local disk, with files that are as they were read, or a prefix elsewhere."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from zarr.abc.store import Store

from infinite_tensor.errors import RegionError, StoreError
from infinite_tensor_stores.blobs.header import DOCUMENT, Header
from infinite_tensor_stores.blobs.writers import FOLDER, LOCK, LOCKS, FileLock, Lease
from infinite_tensor_stores.files import LARGEST_DOCUMENT, FileStore, content, opened, read_file, read_opened
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.targets import DEFAULT_TIMEOUT, absolute, is_in_memory, shown, zarr_store
from infinite_tensor_stores.zarr.objects import concurrently, disconnect, get_many, put_many

_HOLDS = os.name != "nt"
"""Whether a file that is held open can be replaced. Windows refuses that, and gives its number to no other file."""

_PARTIAL = "writer.partial"
"""What is being written, until it is renamed: there is one writer, so there is one such file."""


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


class Document(Protocol):
    """A ``zarr.json`` as it was read."""

    content: bytes

    def is_current(self) -> bool:
        """Whether it is still the one that is there, as far as that can be told without a request."""

    def release(self) -> None:
        """Hold it no longer; nobody asks any more whether it is current."""


class Right(Protocol):
    """The right to write."""

    def check(self) -> None:
        """Raise StoreError if somebody else may have it by now."""

    def release(self) -> None:
        """Let others write."""

    def abandon(self) -> None:
        """In a forked child: leave it to the parent."""


class Home(ABC):
    """A place for one blob.

    Parameters
    ----------
    target, storage_options, timeout
        As `zarr_store` takes them.
    """

    def __init__(self, target: Any, storage_options: dict[str, Any] | None, timeout: float) -> None:
        self.target = absolute(target)
        self.storage_options = storage_options
        self.timeout = timeout
        self._opened: Store | None = None

    @property
    def store(self) -> Store:
        """The zarr Store; in a forked child a new one."""
        if self._opened is None:
            self._opened = zarr_store(self.target, self.storage_options, read_only=False, timeout=self.timeout)
        return self._opened

    def renew(self) -> None:
        """In a forked child: connections are the parent's."""
        self._opened = None

    @abstractmethod
    def document(self) -> Document | None:
        """The ``zarr.json``, None where there is none; ValueError where something is that cannot be one."""

    @abstractmethod
    def commit(self, document: bytes) -> None:
        """Put a ``zarr.json`` in the place of the one that is there."""

    @abstractmethod
    def read(self, keys: Sequence[str], most: int) -> list[bytes | None]:
        """Objects of at most so many bytes; None for one that is not there, `Unreadable` for what cannot be one."""

    @abstractmethod
    def lock(self, *, create: bool = False) -> Right:
        """The right to write; with `create`, in a place that may have to be made."""

    @abstractmethod
    def stranger(self) -> str | None:
        """Something in this place that no blob has there."""

    @abstractmethod
    def objects(self) -> list[str]:
        """Of all objects."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether there is an object."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; what is not there is no error."""

    @abstractmethod
    def vanish(self) -> None:
        """Delete the place itself, which holds no block any more."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""

    is_local: bool
    """Whether it is a folder on a local disk."""

    @property
    @abstractmethod
    def shared(self) -> bool:
        """Whether other processes can see what it holds."""

    @property
    @abstractmethod
    def filename(self) -> Path | str:
        """The absolute path of a folder; what stands for one elsewhere, without credentials."""

    def __repr__(self) -> str:
        return shown(self.target)


class Folder(Home):
    """A folder on a local disk, the same one wherever the process goes, or another process opens it."""

    is_local = True

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path.absolute()
        super().__init__(self.path, None, timeout)

    def document(self) -> Document | None:
        """The ``zarr.json``."""
        try:
            return ReadFile(self.path / DOCUMENT, LARGEST_DOCUMENT)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def commit(self, document: bytes) -> None:
        """Write a file, and rename it."""
        self.replace(DOCUMENT, [document])

    def read(self, keys: Sequence[str], most: int) -> list[bytes | None]:
        """The content of files."""
        return [read_file(self.path / key, most) for key in keys]

    def replace(self, key: str, parts: Sequence[Any], size: int | None = None) -> None:
        """Put a new file in the place of `key`: some parts, with a hole before the last where `size` is more."""
        partial = self.path / _PARTIAL
        descriptor = _created(partial)
        try:
            for number, part in enumerate(parts):
                if size is not None and number == len(parts) - 1:
                    os.lseek(descriptor, size - len(part), os.SEEK_SET)
                _write(descriptor, part)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                partial.unlink()
            raise
        os.close(descriptor)
        partial.replace(self.path / key)

    def lock(self, *, create: bool = False) -> Right:
        """A lock on a file."""
        if create:
            self.path.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path) if LOCKS else Lease(lambda: self.store)

    def stranger(self) -> str | None:
        """A file or folder that is not a blob's."""
        return next((key for key in sorted(self.objects()) if not _is_ours(key)), None)

    def objects(self) -> list[str]:
        """The names of the files."""
        return [path.name for path in self.path.iterdir()] if self.path.exists() else []

    def exists(self, key: str) -> bool:
        """Whether there is a file."""
        return (self.path / key).exists()

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files."""
        for key in keys:
            (self.path / key).unlink(missing_ok=True)

    def vanish(self) -> None:
        """Delete the lock, and the folder if nothing else is in it."""
        self.delete([_PARTIAL, LOCK])
        with suppress(OSError):
            (self.path / FOLDER).rmdir()
        with suppress(OSError):
            self.path.rmdir()

    def close(self) -> None:
        """There are no connections."""

    @property
    def shared(self) -> bool:
        """Other processes can see it."""
        return True

    @property
    def filename(self) -> Path:
        """The absolute path."""
        return self.path


class Fetched:
    """A ``zarr.json`` from afar: to ask whether it has changed costs no less than to fetch it anew."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def is_current(self) -> bool:
        """As far as is known."""
        return True

    def release(self) -> None:
        """Nothing is held."""


class Prefix(Home):
    """A prefix in object storage, or whatever else zarr has a Store for."""

    is_local = False

    def document(self) -> Document | None:
        """The ``zarr.json``."""
        (found,) = get_many(self.store, [DOCUMENT])
        return None if found is None else Fetched(content(found))

    def commit(self, document: bytes) -> None:
        """One request."""
        put_many(self.store, {DOCUMENT: document})

    def read(self, keys: Sequence[str], most: int) -> list[bytes | None]:
        """The objects, fetched at the same time."""
        return get_many(self.store, keys, most=most)

    def lock(self, *, create: bool = False) -> Right:  # noqa: ARG002  (a prefix is not made)
        """A lease."""
        return Lease(lambda: self.store)

    def stranger(self) -> str | None:
        """An object that is not a blob's."""
        return next((key for key in self.objects() if not _is_ours(key.partition("/")[0])), None)

    def objects(self) -> list[str]:
        """The keys of all objects."""
        return concurrently(_listed, [self.store])[0]

    def exists(self, key: str) -> bool:
        """Whether there is an object."""
        return bool(sync(self.store.exists, key))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        concurrently(self.store.delete, keys)

    def vanish(self) -> None:
        """A prefix is gone with its objects."""

    def close(self) -> None:
        """Close connections that nobody else uses."""
        disconnect(self.store)

    @property
    def shared(self) -> bool:
        """Whether it is anywhere but in the memory of this process."""
        return not is_in_memory(self.store)

    @property
    def filename(self) -> str:
        """The URL."""
        return repr(self)


def home_at(target: Any, storage_options: dict[str, Any] | None, timeout: float = DEFAULT_TIMEOUT) -> Home:
    """The place that a path, an fsspec URL or a zarr Store names; errors as of `zarr_store`."""
    store = zarr_store(target, storage_options, read_only=False, timeout=timeout)
    if type(store) is FileStore:
        return Folder(store.root, timeout)
    home = Prefix(target, storage_options, timeout)
    home._opened = store  # noqa: SLF001  (its own)
    return home


@contextmanager
def reported(home: Home, what: str) -> Iterator[None]:
    """Within it, what a storage raises becomes a StoreError that names the blob and says `what` failed."""
    try:
        yield
    except (RegionError, MemoryError):
        raise
    except StoreError as error:
        if str(error).startswith(repr(home)):
            raise
        raise StoreError(f"{home!r} {what}: {error}") from error
    except Exception as error:  # (each storage has errors of its own)
        raise StoreError(f"{home!r} {what}: {type(error).__name__}: {error}") from error


def read_document(home: Home) -> Document | None:
    """The ``zarr.json``, None where there is none; StoreError where something is that cannot be one."""
    with _explained():
        return home.document()


def read_header(home: Home) -> tuple[Header, Document]:
    """What is committed; FileNotFoundError where there is nothing, StoreError where it cannot be read."""
    document = read_document(home)
    if document is None:
        raise FileNotFoundError("there is no blob; mode 'w' creates one")
    with _explained():
        return Header.from_bytes(document.content), document


@contextmanager
def _explained() -> Iterator[None]:
    """Within it, what a document raises that cannot be read becomes a StoreError."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"its zarr.json is damaged, or of something else ({error})") from error


def _is_ours(name: str) -> bool:
    return name in (DOCUMENT, LOCK, _PARTIAL, FOLDER) or name.startswith("c.")


async def _listed(store: Store) -> list[str]:
    return [key async for key in store.list_prefix("")]


def _created(path: Path) -> int:
    """A descriptor of a new file. What a killed writer has left is deleted; a link would lead elsewhere."""
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            path.unlink(missing_ok=True)


def _write(descriptor: int, part: Any) -> None:
    view = memoryview(part).cast("B")
    while len(view):
        view = view[os.write(descriptor, view) :]
