"""Moving many chunks of a Zarr array at once: the one module that leans on zarr's inner interfaces.

A set of chunks is fetched with concurrent gets and decoded in one call of the array's codec pipeline, so
presence and content come in one round trip, and an absent chunk is never taken for a chunk of fill values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore

T = TypeVar("T")
R = TypeVar("R")

_CONCURRENCY = 16
_PROTOTYPE = default_buffer_prototype()


class ChunkCodec:
    """Encodes and decodes the chunks of an array that is described by the bytes of its ``zarr.json``."""

    def __init__(self, document: bytes) -> None:
        scratch = MemoryStore({"zarr.json": _PROTOTYPE.buffer.from_bytes(document)})
        array = zarr.open_array(scratch, mode="r", zarr_format=3).async_array
        self._pipeline = array.codec_pipeline
        self._metadata: Any = array.metadata
        self._spec: ArraySpec = self._metadata.get_chunk_spec((), array.config, _PROTOTYPE)

    def key(self, chunk: Sequence[int]) -> str:
        """The key of a chunk, relative to the array."""
        return str(self._metadata.encode_chunk_key(tuple(chunk)))

    def encode(self, blocks: Sequence[npt.NDArray[Any]]) -> list[bytes]:
        """The stored form of each block."""
        buffers = [_PROTOTYPE.nd_buffer.from_numpy_array(np.ascontiguousarray(block)) for block in blocks]
        encoded = sync(self._pipeline.encode([(buffer, self._spec) for buffer in buffers]))
        return [_bytes_of(buffer) for buffer in encoded]

    def decode(self, stored: Sequence[bytes]) -> list[npt.NDArray[Any] | Exception]:
        """The block of each stored form, or what is wrong with it."""
        try:
            return self._decode(stored)
        except Exception as error:  # noqa: BLE001  (codecs raise what they please on damaged data)
            if len(stored) == 1:
                return [error]
            # One of many is damaged: find out which.
            return [self.decode([one])[0] for one in stored]

    def _decode(self, stored: Sequence[bytes]) -> list[npt.NDArray[Any] | Exception]:
        buffers = [_PROTOTYPE.buffer.from_bytes(one) for one in stored]
        decoded = sync(self._pipeline.decode([(buffer, self._spec) for buffer in buffers]))
        return [np.asarray(block.as_numpy_array()) for block in decoded if block is not None]


def array_document(
    shape: Sequence[int], chunk: Sequence[int], dtype: str, fill_value: object, compressors: Any
) -> bytes:
    """The ``zarr.json`` of an array of complete tiles; `compressors` are followed by a CRC-32C."""
    scratch = MemoryStore()
    zarr.create_array(
        scratch,
        shape=tuple(shape),
        chunks=tuple(chunk),
        dtype=dtype,
        fill_value=fill_value,
        filters=None,
        compressors=compressors,
        zarr_format=3,
        config={"write_empty_chunks": True},
    )
    document = get_many(scratch, ["zarr.json"])[0]
    assert document is not None
    return document


def get_many(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    """The objects under `keys`, None for those that do not exist."""

    async def get(key: str) -> bytes | None:
        found = await store.get(key, _PROTOTYPE)
        return None if found is None else _bytes_of(found)

    return concurrently(get, keys)


def put_many(store: Store, objects: Mapping[str, bytes]) -> None:
    """Write each object, whether or not it exists."""

    async def put(item: tuple[str, bytes]) -> None:
        await store.set(item[0], _PROTOTYPE.buffer.from_bytes(item[1]))

    concurrently(put, list(objects.items()))


async def create(store: Store, key: str, data: bytes) -> bool:
    """Write an object unless it exists; whether it is ours. Atomic wherever the storage can."""
    if isinstance(store, FsspecStore):
        try:
            await store.fs._pipe_file(f"{store.path}/{key}", data, mode="create")
        except FileExistsError:
            return False
        return True
    await store.set_if_not_exists(key, _PROTOTYPE.buffer.from_bytes(data))
    found = await store.get(key, _PROTOTYPE)
    return found is not None and _bytes_of(found) == data


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


def _bytes_of(buffer: Buffer | None) -> bytes:
    assert buffer is not None
    return buffer.to_bytes()
