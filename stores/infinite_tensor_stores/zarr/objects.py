"""Reading, writing and listing many objects of a zarr Store at once.

Requests run on an event loop, except for local files.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy.typing as npt
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore

from infinite_tensor.support.disks import alone_in
from infinite_tensor.support.threads import on_threads
from infinite_tensor_stores.files import LARGEST_DOCUMENT, FileStore, bounded, left_alone, own_path, read_file
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.remote import RemoteStore, Stored
from infinite_tensor_stores.zarr.codec import ChunkCodec, threads_for

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

PROTOTYPE = default_buffer_prototype()

DEFAULT_CONCURRENCY = 32
"""By default, how many requests of one call are in progress at a time."""

_FEWEST_FAILURES = 8
"""After this many failures in a row (at least one per concurrent request), no more requests are made."""
_RETRIES = 2

_PAGE = 1000


class Objects:
    """The objects of a zarr Store.

    Parameters
    ----------
    open_store : callable
        ``open_store()`` returns the Store. It is called again in a forked child, because connections do not survive a
        fork.
    concurrency : int
        The number of requests of one call that are in progress at a time.
    """

    def __init__(self, open_store: Callable[[], Store], concurrency: int = DEFAULT_CONCURRENCY) -> None:
        self.concurrency = concurrency
        self._open_store = open_store
        self._store: Store | None = open_store()

    @property
    def store(self) -> Store:
        """The zarr Store."""
        store = self._store
        if store is None:
            self._store = store = self._open_store()
        return store

    @property
    def root(self) -> Path | None:
        """The folder of a local Store, or None."""
        store = self.store
        return store.root if isinstance(store, LocalStore) else None

    @property
    def is_of_others(self) -> bool:
        """Whether the Store is of an unknown class.

        Then only methods of zarr's `Store` are called.
        """
        return not isinstance(self.store, LocalStore | MemoryStore | RemoteStore)

    def forget(self) -> None:
        """Open the Store again on the next use.

        Called in a forked child.
        """
        self._store = None

    def disconnect(self) -> None:
        """Close connections.

        The next use opens new connections.
        """
        if isinstance(self._store, RemoteStore):
            sync(self._store.fs.disconnect)

    @property
    def _waits_for_nothing(self) -> bool:
        """Whether coroutines of the Store finish without an event loop."""
        return type(self.store) is FileStore

    def run(self, call: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a coroutine function, and return the result.

        `call` may await methods of this object and of its Store, and nothing else.
        """
        return _at_once(call, *args, **kwargs) if self._waits_for_nothing else sync(call, *args, **kwargs)

    # Many at once.

    def each(self, call: Callable[[T], Coroutine[Any, Any, R]], arguments: Iterable[T]) -> list[R]:
        """Run `call` for all arguments.

        On a local disk, the calls are made one after the other, elsewhere with `concurrently`.
        """
        if self._waits_for_nothing:
            return _one_by_one(lambda argument: _at_once(call, argument), list(arguments))
        return concurrently(call, arguments, self.concurrency)

    def get(self, keys: Iterable[str], most: int = LARGEST_DOCUMENT) -> list[bytes | None]:
        """Read the objects under `keys`.

        Return None for an object that does not exist. Return `Unreadable` for an object of more than `most` bytes. On a
        local disk, also return `Unreadable` for a file that is not regular.
        """
        return self.each(lambda key: self.get_one(key, most), keys)

    def get_decoded(self, keys: Sequence[str], codec: ChunkCodec) -> list[npt.NDArray[Any] | Exception | None]:
        """Read and decode the chunks under `keys`.

        Return None for a missing chunk, and an exception for a damaged chunk.
        """
        store = self.store
        if isinstance(store, FileStore) and self._waits_for_nothing:

            def read(key: str) -> npt.NDArray[Any] | Exception | None:
                found = read_file(store.root / key, codec.most_bytes)
                return None if found is None else codec.decoded(found)

            return _one_by_one(read, keys, codec.threads(len(keys)))
        found = self.get(keys, codec.most_bytes)
        present = {key: data for key, data in zip(keys, found, strict=True) if data is not None}
        blocks = dict(zip(present, codec.decode(list(present.values())), strict=True))
        return [blocks.get(key) for key in keys]

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Write objects, replacing existing objects."""
        store = self.store

        async def put(item: tuple[str, bytes]) -> None:
            data = PROTOTYPE.buffer.from_bytes(item[1])
            await self._insist(lambda: store.set(item[0], data), FileNotFoundError)

        if self._waits_for_nothing:
            threads = threads_for(sum(map(len, objects.values())))
            _one_by_one(lambda item: _at_once(put, item), list(objects.items()), threads)
        else:
            concurrently(put, objects.items(), self.concurrency)

    def put_encoded(self, blocks: Mapping[str, npt.NDArray[Any]], codec: ChunkCodec) -> None:
        """Encode blocks, and write each chunk under its key."""
        self.put(dict(zip(blocks, codec.encode(list(blocks.values())), strict=True)))

    def copy(self, keys: Mapping[str, str]) -> None:
        """Copy objects of remote storage, each from a key to another key."""
        store = self.store
        assert isinstance(store, RemoteStore)
        self.each(lambda pair: store.copy(*pair), keys.items())

    def exist(self, keys: Iterable[str]) -> list[bool]:
        """Return for each key whether there is an object."""
        return self.each(self.store.exists, keys)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. A missing object is not an error."""
        self.each(self.store.delete, keys)

    def sizes(self, keys: Iterable[str]) -> list[int]:
        """Return the size of each object in bytes.

        The size is 0 for an object deleted meanwhile.
        """
        store = self.store

        async def size(key: str) -> int:
            try:
                return await store.getsize(key)
            except FileNotFoundError:
                return 0

        return self.each(size, keys)

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

    # Single objects, for `each` and `run`.

    async def get_one(self, key: str, most: int = LARGEST_DOCUMENT) -> bytes | None:
        """Read one object, as `get` does."""
        store = self.store
        if isinstance(store, FileStore | RemoteStore):
            return await store.read(key, most)
        found = await store.get(key, PROTOTYPE)
        return None if found is None else bounded(found.to_bytes(), most)

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists.

        Return whether this call wrote the object. The write is atomic if the storage supports that.
        """
        store, buffer = self.store, PROTOTYPE.buffer.from_bytes(data)
        if not isinstance(store, RemoteStore):
            await self._insist(lambda: store.set_if_not_exists(key, buffer), FileNotFoundError)
        elif await store.create(key, data):
            return True
        # After a lost answer, a retry may find the object already written, so compare the content.
        found = await self.get_one(key, len(data))
        if found is None and self.root is not None:
            _check_folder((self.root / key).parent)
        return found == data

    async def delete_folder(self, prefix: str) -> None:
        """Delete everything below `prefix`.

        It is no error if nothing is there, or if another process adds objects.
        """
        store = self.store
        try:
            await self._insist(lambda: store.delete_dir(prefix), OSError)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    async def delete_link(self, prefix: str) -> bool:
        """Delete a symbolic link to a folder, but not its target.

        Return whether `prefix` was a link.
        """
        if self.root is None or not (self.root / prefix).is_symlink():
            return False
        await self.store.delete(prefix)
        return True

    async def _insist(self, action: Callable[[], Awaitable[None]], harmless: type[OSError]) -> None:
        """Call `action`, with a few retries on a local disk.

        A call is repeated after an error of type `harmless`, as caused by another process that changes the same files.
        """
        for _ in range(0 if self.root is None else _RETRIES):
            try:
                await action()
            except harmless:
                continue
            return
        await action()

    # Listings.

    def children(self, prefix: str) -> list[str]:
        """List the names of the objects and folders in a folder."""
        return self.run(self.names_in, prefix)

    async def names_in(self, prefix: str) -> list[str]:
        """List the names of the objects and folders in a folder.

        This is `children` as a coroutine function, for `each` and `run`.
        """
        return [name.rstrip("/") async for name in self.store.list_dir(prefix)]

    def pages(self, prefix: str, length: int = _PAGE) -> Iterator[list[str]]:
        """Iterate over the keys of all objects below a folder.

        Each page has up to `length` keys. The folder ``""`` is the whole store.
        """
        if self.root is not None:
            keys = _walked(self.root, prefix)
        else:
            keys = _listed(self.store.list_prefix(f"{prefix}/" if prefix else ""))
        yield from _paged(keys, length)

    def places(self, prefix: str, length: int) -> Iterator[list[str]]:
        """Iterate over the keys of all objects, empty folders and links below a folder.

        Each page has up to `length` keys. Empty folders and links to folders exist on a local disk only, and come last.
        They are included to find damage, such as an empty folder in the place of a tile.
        """
        yield from self.pages(prefix, length)
        if self.root is not None:
            yield from _paged(_empty_folders(self.root, prefix), length)

    def stored_pages(self, prefix: str) -> Iterator[dict[str, Stored]]:
        """Iterate over all objects below a folder, with size and time.

        The size is 0 for an object deleted meanwhile.
        """
        if isinstance(self.store, RemoteStore):
            # A listing includes sizes and times, and saves a request per object.
            listed = _listed(self.store.list_objects(f"{prefix}/"))
            while page := dict(islice(listed, _PAGE)):
                yield page
            return
        root = self.root
        for keys in self.pages(prefix):
            sizes = self.sizes(keys)
            times = [None if root is None else _changed(root / key) for key in keys]
            yield {key: Stored(size, changed) for key, size, changed in zip(keys, sizes, times, strict=True)}

    def first_page(self, prefix: str, most: int) -> tuple[list[str], int | None, bool] | None:
        """Return the first keys below a folder, their total size, and whether these are all keys.

        At most `most` keys are returned. For exactly `most` keys, the third value is always False, because there may be
        more. The size is in bytes, or None if each object would need a request. Return None in place of the three
        values if the Store can only list all objects at once.
        """
        store = self.store
        if isinstance(store, RemoteStore):
            if not store.lists_in_pages:
                return None
            found = dict(islice(_listed(store.list_objects(f"{prefix}/"), most), most))
            return list(found), sum(stored.size for stored in found.values()), len(found) < most
        keys = next(self.pages(prefix, most), [])
        known = isinstance(store, LocalStore | MemoryStore)
        return keys, sum(self.sizes(keys)) if known else None, len(keys) < most


def concurrently(
    call: Callable[[T], Awaitable[R]], arguments: Iterable[T], concurrency: int = DEFAULT_CONCURRENCY
) -> list[R]:
    """Run `call` for all arguments on the event loop.

    Up to `concurrency` calls are under way at a time. If a call fails, the other calls are still made, and the first
    error is raised at the end. After many failures in a row, no more calls are made.
    """
    wanted = list(arguments)
    if not wanted:
        return []
    return sync(_together, call, wanted, concurrency)


def _at_once(call: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a coroutine function without an event loop.

    `call` must never suspend.
    """
    try:
        call(*args, **kwargs).send(None)
    except StopIteration as end:
        found: R = end.value
        return found
    raise AssertionError("a coroutine without an event loop has suspended")


class _OutOfOrderError(Exception):
    """Too many requests in a row have failed."""


class _Failures:
    def __init__(self, most: int = _FEWEST_FAILURES) -> None:
        self._most = most
        self._errors: list[Exception] = []
        self._in_a_row = 0

    @property
    def too_many(self) -> bool:
        """Whether too many calls have failed in a row."""
        return self._in_a_row >= self._most

    def add(self, error: Exception | None) -> None:
        """Record the result of a call: its error, or None."""
        self._in_a_row = 0 if error is None else self._in_a_row + 1
        self._errors += [] if error is None else [error]

    def tell(self) -> None:
        """Raise the first error, if any."""
        if self._errors:
            raise self._errors[0]


def _one_by_one(call: Callable[[T], R], arguments: Sequence[T], threads: int = 1) -> list[R]:
    """Run `call` for all arguments, with the error handling of `concurrently`."""
    failures = _Failures()

    def attempt(argument: T) -> R | None:
        if failures.too_many:
            return None
        try:
            found = call(argument)
        except Exception as error:  # noqa: BLE001  (raised when the others are done)
            failures.add(error)
            return None
        failures.add(None)
        return found

    results = on_threads(attempt, arguments, threads)
    failures.tell()
    return cast("list[R]", results)


async def _together(call: Callable[[T], Awaitable[R]], arguments: Sequence[T], concurrency: int) -> list[R]:
    failures = _Failures(max(concurrency, _FEWEST_FAILURES))
    results: dict[int, R] = {}
    waiting = iter(enumerate(arguments))

    async def work() -> None:
        for number, argument in waiting:
            try:
                results[number] = await call(argument)
                failures.add(None)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # The storage itself has cancelled the request.
                failures.add(ConnectionError("the storage has cancelled the request"))
            except Exception as error:  # noqa: BLE001  (raised when the others are done)
                failures.add(error)
            if failures.too_many:
                raise _OutOfOrderError

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(concurrency, len(arguments))):
                workers.create_task(work())
    except* _OutOfOrderError:
        # The error has stopped the other workers too.
        pass
    failures.tell()
    return [results[number] for number in range(len(arguments))]


def _check_folder(path: Path) -> None:
    if os.path.lexists(path) and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


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


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _paged(keys: Iterator[str], length: int) -> Iterator[list[str]]:
    while page := list(islice(keys, length)):
        yield page


def _walked(root: Path, prefix: str) -> Iterator[str]:
    # Unlike zarr's own listing, os.walk does not fail if another process deletes a folder meanwhile.
    # Uses strings, because Path takes several times as long as listing the folder.
    start = len(os.path.join(root, ""))  # noqa: PTH118
    for folder, _, names in os.walk(os.path.join(root, prefix)):  # noqa: PTH118
        within = folder[start:].replace(os.sep, "/")
        yield from (f"{within}/{name}" for name in names) if within else names


def _empty_folders(root: Path, prefix: str) -> Iterator[str]:
    for folder, inside, names in os.walk(root / prefix):
        links = [path for name in inside if (path := Path(folder, name)).is_symlink()]
        for path in links if inside or names else [Path(folder)]:
            yield path.relative_to(root).as_posix()


def _listed(entries: AsyncIterator[T], length: int = _PAGE) -> Iterator[T]:
    async def some() -> list[T]:
        found = []
        async for entry in entries:
            found.append(entry)
            if len(found) == length:
                break
        return found

    while page := sync(some):
        yield from page
