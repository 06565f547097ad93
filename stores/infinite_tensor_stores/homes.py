"""Homes of objects: what the stores ask of a storage, many objects at once.

There are three kinds of homes: local files (`FileHome`), file systems of fsspec (`remote.RemoteHome`), and a zarr Store
that a user hands in (`StoreHome`).
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype

# zarr has no public name for its event loop.
from zarr.core.sync import _get_loop
from zarr.storage import LocalStore, MemoryStore, StorePath, WrapperStore

from infinite_tensor.support.disks import alone_in, give_name, remove
from infinite_tensor.support.threads import on_threads
from infinite_tensor_stores.files import LARGEST_DOCUMENT, bounded, left_alone, own_path, read_file
from infinite_tensor_stores.many import each, on_loop, threads_for

T = TypeVar("T")

DEFAULT_CONCURRENCY = 32
"""By default, how many requests of one call are in progress at a time."""

_DELETING = 4
"""The number of threads for deleting folders."""

_RETRIES = 2
_PAGE = 1000
_PROTOTYPE = default_buffer_prototype()


class Stored(NamedTuple):
    """Size and last modification of an object.

    The size is in bytes. The time is in seconds since 1970, or None if unknown.
    """

    size: int
    changed: float | None = None


class Home(ABC):
    """The objects of one storage, by key.

    Any thread may call the methods, also in a forked child.

    Attributes
    ----------
    root : Path or None
        The folder, on a local disk.
    read_only : bool
        Whether writing raises ValueError.
    in_memory : bool
        Whether the objects are in the memory of this process.
    is_near : bool
        Whether objects are on a local disk or in memory.
    at_once : int
        The number of requests of one call that are under way at a time.
    lists_details : bool
        Whether `entries` gives times, and sizes without requests of their own.
    """

    root: Path | None = None
    read_only = False
    in_memory = False
    is_near = False
    at_once = 1
    lists_details = True

    @abstractmethod
    def get(self, keys: Iterable[str], most: int = LARGEST_DOCUMENT) -> list[bytes | None]:
        """Read objects.

        Return None for an object that does not exist. Return `Unreadable` for an object of more than `most` bytes. On a
        local disk, also return `Unreadable` for a file that is not regular.
        """

    @abstractmethod
    def put(self, objects: Mapping[str, bytes]) -> None:
        """Write objects, replacing existing objects."""

    def create(self, objects: Mapping[str, bytes]) -> list[bool]:
        """Write objects that do not exist.

        Return for each whether it now has this content. The write is atomic if the storage supports that.
        """
        created = self._create(objects)
        # After a lost answer, a retry may find the object already written, so compare the content.
        doubtful = [key for key, is_certain in zip(objects, created, strict=True) if not is_certain]
        found = dict(zip(doubtful, self.get(doubtful, max(map(len, objects.values()), default=0)), strict=True))
        return [key not in found or found[key] == data for key, data in objects.items()]

    @abstractmethod
    def _create(self, objects: Mapping[str, bytes]) -> list[bool]:
        """Write objects that do not exist. Return for each whether this call has certainly written it."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. A missing object is not an error."""

    @abstractmethod
    def _delete_folder(self, folder: str) -> None:
        """Delete everything below a folder. A missing folder is not an error."""

    @abstractmethod
    def exist(self, keys: Iterable[str]) -> list[bool]:
        """Return for each key whether there is an object."""

    @abstractmethod
    def sizes(self, keys: Iterable[str]) -> list[int]:
        """Return the size of each object in bytes.

        The size is 0 for an object deleted meanwhile.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """List the names of the objects and folders in a folder."""

    @abstractmethod
    def keys(self, folder: str) -> Iterator[str]:
        """Iterate over the keys of all objects below a folder; ``""`` is everything."""

    @abstractmethod
    def entries(self, folder: str) -> Iterator[tuple[str, Stored]]:
        """Iterate over all objects below a folder, with size and time.

        The size is 0 for an object deleted meanwhile.
        """

    def copy(self, keys: Mapping[str, str]) -> None:
        """Copy objects, each from a key to another key."""
        for key, to in keys.items():
            (data,) = self.get([key], 2**62)
            if data is None:
                raise FileNotFoundError(key)
            self.put({to: data})

    def disconnect(self) -> None:  # noqa: B027  (most homes have no connections)
        """Close connections. The next use opens new connections."""

    def delete_folders(self, folders: Iterable[str]) -> None:
        """Delete everything below folders.

        It is no error if nothing is there, or if another process adds objects.
        """
        each(self._delete_folder, folders, self.at_once)

    # On a local disk only.

    def freed(self, keys: Iterable[str]) -> list[str]:
        """Remove folders in the place of objects, and return the keys free for writing.

        Through damage, a folder may be at the key of an object. An empty folder or a link to a folder is deleted. If a
        folder is not empty, its key is not returned. The same holds, with a warning, for a key behind a link out of the
        store.
        """
        root = self.root
        return [key for key in keys if root is None or _is_free(root, key)]

    def alone_in(self, folder: str) -> AbstractContextManager[None]:
        """Lock a folder against other threads and processes, for a context.

        Uses `disks.alone_in` on a local disk. Does nothing on remote storage.
        """
        return nullcontext() if self.root is None else alone_in(self.root / folder)

    def delete_link(self, folder: str) -> bool:
        """Delete a symbolic link to a folder, but not its target.

        Return whether `folder` was a link.
        """
        if self.root is None or not (self.root / folder).is_symlink():
            return False
        self.delete([folder])
        return True

    def places(self, folder: str) -> Iterator[str]:
        """Iterate over the keys of all objects, empty folders and links below a folder.

        Empty folders and links to folders exist on a local disk only, and come last. They are included to find damage,
        such as an empty folder in the place of a tile.
        """
        yield from self.keys(folder)
        if self.root is not None:
            yield from _empty_folders(self.root, folder)


class FileHome(Home):
    """The files of a local folder, safe against FIFOs and links.

    Reading never waits for a FIFO. Deleting does not follow links.
    """

    is_near = True

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self.root: Path = root
        self.read_only = read_only

    def __repr__(self) -> str:
        return f"FileHome({str(self.root)!r})"

    def get(self, keys: Iterable[str], most: int = LARGEST_DOCUMENT) -> list[bytes | None]:
        """Read files with `read_file`."""
        return [read_file(self.root / key, most) for key in keys]

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Write files, replacing existing files atomically."""
        threads = threads_for(sum(map(len, objects.values())))
        # Another process may delete the folder.
        each(lambda item: _again(FileNotFoundError, self._write, *item), objects.items(), threads)

    def _create(self, objects: Mapping[str, bytes]) -> list[bool]:
        def create(item: tuple[str, bytes]) -> None:
            _again(FileNotFoundError, self._write, *item, exclusive=True)

        return [error is None for error in each(create, objects.items(), 1, (FileExistsError,))]

    def _write(self, key: str, data: bytes, *, exclusive: bool = False) -> None:
        check_writable(self)
        path = self.root / key
        unfinished = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        descriptor = _created(unfinished)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
            if exclusive:
                give_name(unfinished, path, self.root)
            else:
                unfinished.replace(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
        if exclusive:
            # `give_name` makes a hard link, or renames if the file system has none.
            unfinished.unlink(missing_ok=True)

    def exist(self, keys: Iterable[str]) -> list[bool]:
        """Return for each key whether there is a file."""
        return [(self.root / key).is_file() for key in keys]

    def sizes(self, keys: Iterable[str]) -> list[int]:
        """See `Home`."""
        return [_status(self.root / key)[0] for key in keys]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, folders or links.

        A folder is deleted with its content, a link without its target. Raises the errors of `own_path`.
        """
        check_writable(self)
        each(lambda key: remove(own_path(self.root, key)), keys)

    def _delete_folder(self, folder: str) -> None:
        """Delete a folder or a link.

        A folder is deleted with its content, a link without its target. A file is left alone.
        """
        check_writable(self)
        try:
            # Another process may change the same files.
            _again(OSError, self._remove_folder, own_path(self.root, folder))
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def _remove_folder(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            # On a busy disk each deletion waits, so delete from several folders at the same time.
            on_threads(shutil.rmtree, _folders_of_chunks(path), _DELETING)
        if path.is_dir() or path.is_symlink():
            remove(path)

    def names(self, folder: str) -> list[str]:
        """See `Home`."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.listdir(self.root / folder)  # noqa: PTH208  (only names are wanted)
        return []

    def keys(self, folder: str) -> Iterator[str]:
        """See `Home`."""
        return _walked(self.root, folder)

    def entries(self, folder: str) -> Iterator[tuple[str, Stored]]:
        """See `Home`."""
        return ((key, _status(self.root / key)) for key in self.keys(folder))


class StoreHome(Home):
    """A zarr Store that a user hands in, on zarr's event loop.

    Only methods of zarr's `Store` are called.
    """

    lists_details = False

    def __init__(self, store: Store, at_once: int = DEFAULT_CONCURRENCY) -> None:
        self.store = store
        self.read_only = store.read_only
        self.at_once = at_once
        self.in_memory = is_in_memory(store)
        self.is_near = isinstance(store, LocalStore | MemoryStore)

    def __repr__(self) -> str:
        return repr(self.store)

    def _ask(
        self, call: Callable[[T], Awaitable[Any]], arguments: Iterable[T], *harmless: type[Exception]
    ) -> list[Any]:
        return on_loop(_get_loop(), call, arguments, self.at_once, harmless)

    def open(self) -> None:
        """Open the Store, as zarr does with a Store that it is given."""
        self._ask(lambda store: StorePath.open(store, ""), [self.store])

    def get(self, keys: Iterable[str], most: int = LARGEST_DOCUMENT) -> list[bytes | None]:
        """See `Home`."""
        found = self._ask(lambda key: self.store.get(key, _PROTOTYPE), keys)
        return [None if buffer is None else bounded(buffer.to_bytes(), most) for buffer in found]

    def put(self, objects: Mapping[str, bytes]) -> None:
        """See `Home`."""
        self._ask(lambda key: self.store.set(key, _PROTOTYPE.buffer.from_bytes(objects[key])), objects)

    def _create(self, objects: Mapping[str, bytes]) -> list[bool]:
        # zarr does not tell whether it has written an object.
        self._ask(lambda key: self.store.set_if_not_exists(key, _PROTOTYPE.buffer.from_bytes(objects[key])), objects)
        return [False] * len(objects)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Home`."""
        self._ask(self.store.delete, keys)

    def _delete_folder(self, folder: str) -> None:
        self._ask(self.store.delete_dir, [folder])

    def exist(self, keys: Iterable[str]) -> list[bool]:
        """See `Home`."""
        return self._ask(self.store.exists, keys)

    def sizes(self, keys: Iterable[str]) -> list[int]:
        """See `Home`."""
        found = self._ask(self.store.getsize, keys, FileNotFoundError)
        return [size if isinstance(size, int) else 0 for size in found]

    def names(self, folder: str) -> list[str]:
        """See `Home`."""
        return [name.rstrip("/") for name in self._listed(lambda: self.store.list_dir(folder))]

    def keys(self, folder: str) -> Iterator[str]:
        """See `Home`."""
        return self._listed(lambda: self.store.list_prefix(f"{folder}/" if folder else ""))

    def entries(self, folder: str) -> Iterator[tuple[str, Stored]]:
        """See `Home`. Each size is a request."""
        for page in batches(self.keys(folder), _PAGE):
            for key, size in zip(page, self.sizes(page), strict=True):
                yield key, Stored(size)

    def _listed(self, call: Callable[[], AsyncIterator[str]]) -> Iterator[str]:
        begun: list[AsyncIterator[str]] = []

        async def some(length: int) -> list[str]:
            # Some Stores begin to list at once, which needs the event loop.
            begun[:] = begun or [call()]
            found = []
            async for entry in begun[0]:
                found.append(entry)
                if len(found) == length:
                    break
            return found

        while page := self._ask(some, [_PAGE])[0]:
            yield from page


def batches(values: Iterable[T], length: int) -> Iterator[list[T]]:
    """Iterate over lists of up to `length` values."""
    left = iter(values)
    while batch := list(islice(left, length)):
        yield batch


def check_writable(home: Home) -> None:
    """Raise ValueError if a home is read-only."""
    if home.read_only:
        raise ValueError("the storage was opened in read-only mode")


def is_in_memory(store: Store) -> bool:
    """Return whether a zarr Store keeps data in the memory of this process."""
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001  (zarr has no public name for it)
    return isinstance(store, MemoryStore)


def _again(harmless: type[OSError], action: Callable[..., None], *args: Any, **options: Any) -> None:
    """Call `action`, again after an error of type `harmless`."""
    for _ in range(_RETRIES):
        try:
            return action(*args, **options)
        except harmless:
            continue
    return action(*args, **options)


def _is_free(root: Path, key: str) -> bool:
    with left_alone():
        path = own_path(root, key)
        if path.is_dir():
            try:
                (path.unlink if path.is_symlink() else path.rmdir)()
            except OSError:
                return False
        return True
    return False


def _walked(root: Path, folder: str) -> Iterator[str]:
    # Unlike zarr's own listing, os.walk does not fail if another process deletes a folder meanwhile.
    # Uses strings, because Path takes several times as long as listing the folder.
    start = len(os.path.join(root, ""))  # noqa: PTH118
    for path, _, names in os.walk(os.path.join(root, folder)):  # noqa: PTH118
        within = path[start:].replace(os.sep, "/")
        yield from (f"{within}/{name}" for name in names) if within else names


def _empty_folders(root: Path, folder: str) -> Iterator[str]:
    for path, inside, names in os.walk(root / folder):
        links = [link for name in inside if (link := Path(path, name)).is_symlink()]
        for each_path in links if inside or names else [Path(path)]:
            yield each_path.relative_to(root).as_posix()


def _status(path: Path) -> Stored:
    """Return size and time of a file, or 0 and now if it has just been deleted."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return Stored(0, time.time())
    return Stored(found.st_size, found.st_mtime)


def _folders_of_chunks(array: Path) -> list[str]:
    chunks = array / "c"
    if chunks.is_symlink() or not chunks.is_dir():
        return []
    with os.scandir(chunks) as inside:
        return [entry.path for entry in inside if entry.is_dir(follow_symlinks=False)]


def _created(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
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
