"""Moving many objects of a zarr Store at once, on zarr's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from zarr.abc.store import Store
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

T = TypeVar("T")
R = TypeVar("R")

PROTOTYPE = default_buffer_prototype()

_CONCURRENCY = 16


def get_many(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    """The objects under `keys`, None for those that do not exist."""

    async def get(key: str) -> bytes | None:
        found = await store.get(key, PROTOTYPE)
        return None if found is None else bytes_of(found)

    return concurrently(get, keys)


def put_many(store: Store, objects: Mapping[str, bytes]) -> None:
    """Write each object, whether or not it exists."""

    async def put(item: tuple[str, bytes]) -> None:
        await store.set(item[0], PROTOTYPE.buffer.from_bytes(item[1]))

    concurrently(put, list(objects.items()))


async def create(store: Store, key: str, data: bytes) -> bool:
    """Write an object unless it exists; whether it is ours. Atomic wherever the storage can."""
    if isinstance(store, FsspecStore):
        try:
            await store.fs._pipe_file(f"{store.path}/{key}", data, mode="create")
        except FileExistsError:
            return False
        return True
    await store.set_if_not_exists(key, PROTOTYPE.buffer.from_bytes(data))
    found = await store.get(key, PROTOTYPE)
    return found is not None and bytes_of(found) == data


async def delete_folder(store: Store, prefix: str) -> None:
    """Delete everything below `prefix`; nothing there is no error."""
    if isinstance(store, LocalStore) and not await asyncio.to_thread((store.root / prefix).exists):
        return
    await store.delete_dir(prefix)


async def delete_parts(store: Store, prefix: str, count: int) -> None:
    """Delete the objects ``prefix/0`` to ``prefix/count-1``, the last first, without a listing."""
    for number in reversed(range(count)):
        await store.delete(f"{prefix}/{number}")
    if isinstance(store, LocalStore):
        await delete_folder(store, prefix)


def concurrently(call: Callable[[T], Awaitable[R]], arguments: Iterable[T]) -> list[R]:
    """Run ``call(argument)`` for all arguments on zarr's event loop, a bounded number at a time."""

    async def run() -> list[R]:
        gate = asyncio.Semaphore(_CONCURRENCY)

        async def one(argument: T) -> R:
            async with gate:
                return await call(argument)

        return await asyncio.gather(*map(one, arguments))

    return sync(run())


def bytes_of(buffer: Buffer | None) -> bytes:
    """The content of a zarr buffer that is known to be there."""
    assert buffer is not None
    return buffer.to_bytes()
