"""The objects of a zarr Store: moved and listed many at once, on an event loop unless they are local files."""

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
"""Requests of one call at a time, unless the user has said how many."""

_FEWEST_FAILURES = 8
"""As many in a row, and as many as are under way at a time, mean that all would fail."""
_RETRIES = 2

_PAGE = 1000


class Objects:
    """The objects of a zarr Store.

    Parameters
    ----------
    open_store : callable
        ``open_store()`` returns the Store; called again in a forked child, since connections do not survive a fork.
    concurrency : int
        How many requests of one call are in progress at a time.
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
        """The folder that holds the objects as files; None where they are anywhere else."""
        store = self.store
        return store.root if isinstance(store, LocalStore) else None

    @property
    def is_of_others(self) -> bool:
        """Whether the Store is of a kind of which nothing is known here but what zarr says of all."""
        return not isinstance(self.store, LocalStore | MemoryStore | RemoteStore)

    def forget(self) -> None:
        """Open another Store when one is next used; a forked child calls this."""
        self._store = None

    def disconnect(self) -> None:
        """Close connections; new ones are opened when they are next used."""
        if isinstance(self._store, RemoteStore):
            sync(self._store.fs.disconnect)

    @property
    def _waits_for_nothing(self) -> bool:
        """Whether what is asked of the Store comes to its end without an event loop."""
        return type(self.store) is FileStore

    def run(self, call: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of ``await call(*args, **kwargs)``, of which all that is waited for is of these objects."""
        return _at_once(call, *args, **kwargs) if self._waits_for_nothing else sync(call, *args, **kwargs)

    # Many at once.

    def each(self, call: Callable[[T], Coroutine[Any, Any, R]], arguments: Iterable[T]) -> list[R]:
        """`concurrently`; one after the other on a local disk."""
        if self._waits_for_nothing:
            return _one_by_one(lambda argument: _at_once(call, argument), list(arguments))
        return concurrently(call, arguments, self.concurrency)

    def get(self, keys: Iterable[str], most: int = LARGEST_DOCUMENT) -> list[bytes | None]:
        """The objects under `keys`, None for those that do not exist.

        `Unreadable` stands for one that has more than `most` bytes, and for what is not a regular file on a local disk.
        """
        return self.each(lambda key: self.get_one(key, most), keys)

    def get_decoded(self, keys: Sequence[str], codec: ChunkCodec) -> list[npt.NDArray[Any] | Exception | None]:
        """The chunks under `keys`, None for those that do not exist, and what is wrong with one that is damaged."""
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
        """Write each object, whether or not it exists."""
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
        """Write each block as a chunk under its key."""
        self.put(dict(zip(blocks, codec.encode(list(blocks.values())), strict=True)))

    def exist(self, keys: Iterable[str]) -> list[bool]:
        """Whether there is an object under each key."""
        return self.each(self.store.exists, keys)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; one that does not exist is no error."""
        self.each(self.store.delete, keys)

    def sizes(self, keys: Iterable[str]) -> list[int]:
        """Size of each object in bytes, 0 where it has gone meanwhile."""
        store = self.store

        async def size(key: str) -> int:
            try:
                return await store.getsize(key)
            except FileNotFoundError:
                return 0

        return self.each(size, keys)

    def freed(self, keys: Iterable[str]) -> list[str]:
        """Delete folders in the places of objects, but those that hold something; the keys that are free then.

        What lies behind a link out of the store is not, and is warned about.
        """
        root = self.root
        return [key for key in keys if root is None or _is_free(root, key)]

    def alone_in(self, folder: str) -> AbstractContextManager[None]:
        """`disks.alone_in` on a local disk; elsewhere anybody else may come in between."""
        return nullcontext() if self.root is None else alone_in(self.root / folder)

    # One, for `each` and `run`.

    async def get_one(self, key: str, most: int = LARGEST_DOCUMENT) -> bytes | None:
        """One object, as of `get`."""
        store = self.store
        if isinstance(store, FileStore | RemoteStore):
            return await store.read(key, most)
        found = await store.get(key, PROTOTYPE)
        return None if found is None else bounded(found.to_bytes(), most)

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; whether it is ours. Atomic wherever the storage can."""
        store, buffer = self.store, PROTOTYPE.buffer.from_bytes(data)
        if not isinstance(store, RemoteStore):
            await self._insist(lambda: store.set_if_not_exists(key, buffer), FileNotFoundError)
        elif await store.create(key, data):
            return True
        # An attempt whose answer was lost may have written it, and then another one has found it.
        found = await self.get_one(key, len(data))
        if found is None and self.root is not None:
            _check_folder((self.root / key).parent)
        return found == data

    async def delete_folder(self, prefix: str) -> None:
        """Delete everything below `prefix`; nothing there is no error, nor is what another process adds meanwhile."""
        store = self.store
        try:
            await self._insist(lambda: store.delete_dir(prefix), OSError)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    async def delete_link(self, prefix: str) -> bool:
        """Whether a folder was a symbolic link, which is deleted then; nothing of what it leads to is."""
        if self.root is None or not (self.root / prefix).is_symlink():
            return False
        await self.store.delete(prefix)
        return True

    async def _insist(self, action: Callable[[], Awaitable[None]], harmless: type[OSError]) -> None:
        """Change files, again if another process has deleted or added some of them meanwhile."""
        for _ in range(0 if self.root is None else _RETRIES):
            try:
                await action()
            except harmless:
                continue
            return
        await action()

    # What there is.

    def children(self, prefix: str) -> list[str]:
        """Names of the objects and folders right below a folder."""
        return self.run(self.names_in, prefix)

    async def names_in(self, prefix: str) -> list[str]:
        """`children`, for `each` and `run`."""
        return [name.rstrip("/") async for name in self.store.list_dir(prefix)]

    def pages(self, prefix: str, length: int = _PAGE) -> Iterator[list[str]]:
        """The keys of all objects below a folder (all there are, for ``""``), up to `length` at a time."""
        if self.root is not None:
            keys = _walked(self.root, prefix)
        else:
            keys = _listed(self.store.list_prefix(f"{prefix}/" if prefix else ""))
        yield from _paged(keys, length)

    def places(self, prefix: str, length: int) -> Iterator[list[str]]:
        """`pages`, then the keys at which lie empty folders, or links to folders."""
        yield from self.pages(prefix, length)
        if self.root is not None:
            yield from _paged(_empty_folders(self.root, prefix), length)

    def stored_pages(self, prefix: str) -> Iterator[dict[str, Stored]]:
        """The keys of all objects below a folder, with the size of each, 0 for one that has gone, and its time."""
        if isinstance(self.store, RemoteStore):
            # A listing tells it, which otherwise takes a request each.
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
        """The first keys below a folder, up to `most`, their bytes, and whether these are all: in a request or two.

        The bytes are None where they would take a request for each key. All is None where a listing has no end that it
        can be stopped before.
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
    """Run ``call(argument)`` for all arguments on the event loop, `concurrency` of them at a time.

    Where some fail, the others are carried out all the same, unless so many fail one after the other that the
    storage itself must be out of order. The first error is raised when none is in progress any more.
    """
    wanted = list(arguments)
    if not wanted:
        return []
    return sync(_together, call, wanted, concurrency)


def _at_once(call: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """The result of ``await call(*args, **kwargs)``, which waits for nothing."""
    try:
        call(*args, **kwargs).send(None)
    except StopIteration as end:
        found: R = end.value
        return found
    raise AssertionError("a folder has made somebody wait")


class _OutOfOrderError(Exception):
    """The storage fails so often that asking it further is of no use."""


class _Failures:
    """What has gone wrong in some calls, of which all are made unless so many fail one after the other."""

    def __init__(self, most: int = _FEWEST_FAILURES) -> None:
        self._most = most
        self._errors: list[Exception] = []
        self._in_a_row = 0

    @property
    def too_many(self) -> bool:
        """Whether the storage itself must be out of order."""
        return self._in_a_row >= self._most

    def add(self, error: Exception | None) -> None:
        """Count the error of a call; None is none."""
        self._in_a_row = 0 if error is None else self._in_a_row + 1
        self._errors += [] if error is None else [error]

    def tell(self) -> None:
        """Raise the first error, if there is any."""
        if self._errors:
            raise self._errors[0]


def _one_by_one(call: Callable[[T], R], arguments: Sequence[T], threads: int = 1) -> list[R]:
    """Run ``call(argument)`` for all arguments, with errors as of `concurrently`."""
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
    """`concurrently`, on the event loop."""
    failures = _Failures(max(concurrency, _FEWEST_FAILURES))
    results: dict[int, R] = {}
    waiting = iter(enumerate(arguments))

    async def work() -> None:
        """Make one call after the other, until all have been taken or too many have failed."""
        for number, argument in waiting:
            try:
                results[number] = await call(argument)
                failures.add(None)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Nobody has cancelled it but the storage itself.
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
        # It has ended the other workers too.
        pass
    failures.tell()
    return [results[number] for number in range(len(arguments))]


def _check_folder(path: Path) -> None:
    """Raise NotADirectoryError where something else lies in the place of a folder: no object can be put there."""
    if os.path.lexists(path) and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _is_free(root: Path, key: str) -> bool:
    """Whether no folder lies in the place of an object any more: one that is empty, or a link to one, is deleted."""
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
    """When a file was written; now, if it has gone meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _paged(keys: Iterator[str], length: int) -> Iterator[list[str]]:
    while page := list(islice(keys, length)):
        yield page


def _walked(root: Path, prefix: str) -> Iterator[str]:
    # Unlike zarr's own listing, os.walk minds no folder that another process deletes meanwhile.
    # By strings: a Path takes several times as long as the listing of a folder.
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
