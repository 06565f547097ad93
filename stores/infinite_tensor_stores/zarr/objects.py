"""The objects of a zarr Store: moved and listed many at once, on zarr's own event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

from zarr.abc.store import Store
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from infinite_tensor.support.waiting import Mark
from infinite_tensor_stores.files import LARGEST_DOCUMENT, FileStore, Unreadable
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.remote import RemoteStore

T = TypeVar("T")
R = TypeVar("R")

PROTOTYPE = default_buffer_prototype()

DEFAULT_CONCURRENCY = 32
"""Requests of one call at a time, unless the user has said how many."""

_FEWEST_FAILURES = 8
"""As many in a row, and as many as are under way at a time, mean that all would fail."""
_RETRIES = 2

_PAGE = 1000


def get_many(
    store: Store, keys: Sequence[str], concurrency: int = DEFAULT_CONCURRENCY, *, most: int = LARGEST_DOCUMENT
) -> list[bytes | None]:
    """The objects under `keys`, None for those that do not exist.

    `Unreadable` stands for one that has more than `most` bytes, and for what is not a regular file on a local disk.
    """
    return concurrently(lambda key: get_one(store, key, most), keys, concurrency)


async def get_one(store: Store, key: str, most: int = LARGEST_DOCUMENT) -> bytes | None:
    """One object, as of `get_many`."""
    if isinstance(store, FileStore | RemoteStore):
        return await store.read(key, most)
    found = await store.get(key, PROTOTYPE)
    if found is None:
        return None
    return Unreadable.too_large(len(found), most) if len(found) > most else bytes_of(found)


def put_many(store: Store, objects: Mapping[str, bytes], concurrency: int = DEFAULT_CONCURRENCY) -> None:
    """Write each object, whether or not it exists."""

    async def put(item: tuple[str, bytes]) -> None:
        data = PROTOTYPE.buffer.from_bytes(item[1])
        await _insisted(store, lambda: store.set(item[0], data), FileNotFoundError)

    concurrently(put, objects.items(), concurrency)


def put_encoded(
    store: Store,
    blocks: Mapping[str, T],
    encode: Callable[[Sequence[T]], list[bytes]],
    concurrency: int,
) -> None:
    """Write what ``encode(blocks)`` makes of each block under its key; from afar, some while it makes others."""
    if isinstance(store, LocalStore | MemoryStore):
        put_many(store, dict(zip(blocks, encode(list(blocks.values())), strict=True)), concurrency)
        return

    async def put(item: tuple[str, T]) -> None:
        key, block = item
        (data,) = await asyncio.to_thread(encode, [block])
        await store.set(key, PROTOTYPE.buffer.from_bytes(data))

    concurrently(put, blocks.items(), concurrency)


async def create(store: Store, key: str, data: bytes) -> bool:
    """Write an object unless it exists; whether it is ours. Atomic wherever the storage can."""
    buffer = PROTOTYPE.buffer.from_bytes(data)
    if not isinstance(store, RemoteStore):
        await _insisted(store, lambda: store.set_if_not_exists(key, buffer), FileNotFoundError)
    elif await store.create(key, data):
        return True
    # An attempt whose answer was lost may have written it, and then another one has found it.
    return await get_one(store, key, len(data)) == data


async def delete_folder(store: Store, prefix: str) -> None:
    """Delete everything below `prefix`; nothing there is no error, nor is what another process goes on adding."""
    try:
        await _insisted(store, lambda: store.delete_dir(prefix), OSError)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


async def delete_link(store: Store, prefix: str) -> bool:
    """Whether a folder was a symbolic link, which is deleted then; nothing of what it leads to is."""
    folder = store.root / prefix if isinstance(store, LocalStore) else None
    if folder is None or not folder.is_symlink():
        return False
    folder.unlink(missing_ok=True)
    return True


async def _insisted(store: Store, action: Callable[[], Awaitable[None]], harmless: type[OSError]) -> None:
    """Change files, again if another process has deleted or added some of them meanwhile."""
    for _ in range(_RETRIES if isinstance(store, LocalStore) else 0):
        try:
            await action()
        except harmless:
            continue
        return
    await action()


def concurrently(
    call: Callable[[T], Awaitable[R]], arguments: Iterable[T], concurrency: int = DEFAULT_CONCURRENCY
) -> list[R]:
    """Run ``call(argument)`` for all arguments on zarr's event loop, `concurrency` of them at a time.

    Where some fail, the others are carried out all the same, unless so many fail one after the other that the
    storage itself must be out of order. The first error is raised when none is in progress any more.
    """
    wave = _Wave(call, list(arguments), concurrency)
    with wave.wanted.running:
        return sync(wave.run)


_tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], Mark] = weakref.WeakKeyDictionary()
"""What is in progress on the event loop, and who waits for it; used there alone."""


def wait_for_abandoned() -> None:
    """Return when no request is in progress any more whose caller was interrupted."""
    sync(_abandoned)


async def _abandoned() -> None:
    waiting = [task for task, wanted in list(_tasks.items()) if not (task.done() or wanted.is_under_way)]
    if waiting:
        await asyncio.wait(waiting)


class _OutOfOrderError(Exception):
    """The storage fails so often that asking it further is of no use."""


class _Wave(Generic[T, R]):
    """Calls of which a bounded number is in progress at a time."""

    def __init__(self, call: Callable[[T], Awaitable[R]], arguments: Sequence[T], concurrency: int) -> None:
        # Who waits for the results; of what an interrupted caller wanted, no more is begun.
        self.wanted = Mark()
        self._call = call
        self._waiting = iter(enumerate(arguments))
        self._workers = min(concurrency, len(arguments))
        self._most_failures = max(concurrency, _FEWEST_FAILURES)
        self._results: dict[int, R] = {}
        self._errors: list[Exception] = []
        self._failed_in_a_row = 0

    async def run(self) -> list[R]:
        """The results, in the order of the arguments."""
        task = asyncio.current_task()
        assert task is not None
        _tasks[task] = self.wanted
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._workers):
                    workers.create_task(self._work())
        except* _OutOfOrderError:
            # It has ended the other workers too.
            pass
        if self._errors:
            raise self._errors[0]
        return [result for _, result in sorted(self._results.items(), key=itemgetter(0))]

    async def _work(self) -> None:
        for number, argument in self._waiting:
            if not self.wanted.is_under_way:
                return
            try:
                self._results[number] = await self._call(argument)
                self._failed_in_a_row = 0
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Nobody has cancelled it but the storage itself.
                self._failed(ConnectionError("the storage has cancelled the request"), error)
            except Exception as error:  # noqa: BLE001  (raised when the others are done)
                self._failed(error, error)

    def _failed(self, failure: Exception, cause: BaseException) -> None:
        self._errors.append(failure)
        self._failed_in_a_row += 1
        if self._failed_in_a_row == self._most_failures:
            raise _OutOfOrderError from cause


def disconnect(store: Store) -> None:
    """Close the connections that a store holds; it opens new ones when it is used again."""
    if isinstance(store, RemoteStore):
        sync(store.disconnect)


def bytes_of(buffer: Buffer | None) -> bytes:
    """The content of a zarr buffer that is known to be there."""
    assert buffer is not None
    return buffer.to_bytes()


def pages(store: Store, prefix: str, length: int = _PAGE) -> Iterator[list[str]]:
    """The keys of all objects below a folder (all there are, for ``""``), up to `length` at a time."""
    if isinstance(store, LocalStore):
        keys = _walked(store.root, prefix)
    else:
        keys = _listed(store.list_prefix(f"{prefix}/" if prefix else ""))
    while page := list(islice(keys, length)):
        yield page


def children(store: Store, prefix: str) -> list[str]:
    """Names of the objects and folders right below a folder."""

    async def names() -> list[str]:
        return [name.rstrip("/") async for name in store.list_dir(prefix)]

    return sync(names)


def sized_pages(store: Store, prefix: str, concurrency: int) -> Iterator[dict[str, int]]:
    """The keys of all objects below a folder with their sizes in bytes, 0 for one that has gone meanwhile."""
    if isinstance(store, RemoteStore):
        # A listing tells the sizes, which otherwise take a request each.
        listed = _listed(store.list_sizes(f"{prefix}/"))
        while page := dict(islice(listed, _PAGE)):
            yield page
    else:
        for keys in pages(store, prefix):
            yield dict(zip(keys, sizes_of(store, keys, concurrency), strict=True))


def sizes_of(store: Store, keys: list[str], concurrency: int) -> list[int]:
    """Size of each object in bytes, 0 where it has gone meanwhile."""

    async def size(key: str) -> int:
        try:
            return await store.getsize(key)
        except FileNotFoundError:
            return 0

    return concurrently(size, keys, concurrency)


def temporary_files_in(store: Store) -> bool:
    """Whether processes that were killed may have left files behind that stand for no object."""
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001  (zarr tells what is wrapped nowhere else)
    return isinstance(store, LocalStore)


def _walked(root: Path, prefix: str) -> Iterator[str]:
    # Unlike zarr's own listing, os.walk minds no folder that another process deletes meanwhile.
    for folder, _, names in os.walk(root / prefix):
        within = Path(folder).relative_to(root).as_posix()
        yield from (name if within == "." else f"{within}/{name}" for name in names)


def _listed(entries: AsyncIterator[T]) -> Iterator[T]:
    async def some() -> list[T]:
        found = []
        async for entry in entries:
            found.append(entry)
            if len(found) == _PAGE:
                break
        return found

    while page := sync(some):
        yield from page
