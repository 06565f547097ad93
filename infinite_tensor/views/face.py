"""Zarr arrays with chunks computed on read.

The module builds on zarr's abstract store class and its helpers for subclasses. The tests compare every key, byte and
listing with an array written by zarr itself.

zarr runs every store on one event loop, and decodes chunks in the thread pool of that loop. Computing a chunk on either
would deadlock as soon as ``f`` reads a Zarr array. So chunks are computed on other threads, as many as there are
requests: with fewer, all of them could be waiting for requests that wait for a thread.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import default_buffer_prototype

from infinite_tensor.filling.stored_only import StoredOnly
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.exit import end_before_flush
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.support.nested import Key
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.frame import Frame
from infinite_tensor.views.metadata import (
    array_name_of,
    coordinates_of,
    documents_of,
    is_plain_name,
    path_of,
)
from infinite_tensor.views.multiscale import image_of

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, BufferPrototype

Bytes: TypeAlias = "bytes | memoryview"

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_KEYS_AT_ONCE = 1000

T = TypeVar("T")


def zarr_of(tensor: InfiniteTensor, region: object) -> zarr.Array[Any]:
    """Return a tensor as a Zarr array; see `InfiniteTensor.as_zarr`."""
    name = array_name_of(tensor)
    return zarr.open_array(FaceStore({name: Frame.of(tensor, region).named()}), path=name, mode="r")


def zarr_of_members(members: Mapping[Key, tuple[InfiniteTensor, object, Sequence[Fraction]]]) -> zarr.Group:
    """Return tensors as a Zarr group; see `TensorGroup.as_zarr`.

    `members` maps each key to a tensor, a region, and a scale per dimension.
    """
    frames, scales = {}, {}
    for key, (tensor, region, scale) in members.items():
        path = path_of(key)
        frames[path], scales[path] = Frame.of(tensor, region), scale
    return zarr.open_group(FaceStore(with_distinct_dims(frames, scales)), mode="r")


def store_of_levels(tensor: InfiniteTensor | StoredOnly, region: object, levels: Sequence[InfiniteTensor]) -> FaceStore:
    """Return a tensor and its levels as an OME-Zarr image.

    Paths, pixels and metadata are the same as in an export.

    Parameters
    ----------
    tensor : InfiniteTensor or StoredOnly
        The tensor. With a `StoredOnly`, nothing is computed, not even for levels.
    region
        As for `InfiniteTensor.as_zarr`.
    levels : sequence of InfiniteTensor
        The levels of its `InfiniteTensor.pyramid`, or only the first few.

    Raises
    ------
    RegionError, ValidationError
        As for `InfiniteTensor.as_zarr`, or if the dimensions cannot be axes of OME-Zarr.
    """
    frame = Frame.of(tensor, region)
    return FaceStore(*image_of(array_name_of(frame.tensor), frame, levels))


def with_distinct_dims(frames: Mapping[str, Frame], scales: Mapping[str, Sequence[Fraction]]) -> dict[str, Frame]:
    """Rename dimensions with conflicting names in a group.

    xarray refuses a group if two dimensions of the same name cover different pixels, or if a dimension has the name of
    an array.
    """
    meanings: dict[str, tuple[object, ...]] = {}
    renamed = {}
    for path, frame in frames.items():
        above, _, key = path.rpartition("/")
        dims = {}
        known = coordinates_of(frame.meaning, [*frame.dims.values()], [frame.shape[d] for d in frame.dims])
        for d, name in frame.dims.items():
            values = known[name].values.tobytes() if name in known else b""
            meaning = frame.origin[d], frame.shape[d], scales[path][d], values
            while "/".join(filter(None, (above, name))) in frames or meanings.setdefault(name, meaning) != meaning:
                name = f"{key}_{name}"  # noqa: PLW2901  (until nothing else is called so)
            dims[d] = name
        renamed[path] = frame.named(dims)
    return renamed


class FaceStore(Store):
    """A read-only Zarr hierarchy with tensors and their coordinates.

    Parameters
    ----------
    frames : mapping of str to Frame
        The arrays by their paths.
    attributes : mapping, optional
        For an image with levels: the attributes of the group.
    """

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(
        self, frames: Mapping[str, Frame], attributes: Mapping[str, Any] | None = None, *, read_only: bool = True
    ) -> None:
        if not read_only:
            raise ValueError("a view of a tensor cannot be written to; open it with read_only=True, or mode='r'")
        super().__init__(read_only=True)
        self._frames = dict(frames)
        self._attributes = attributes
        # Now, because zarr makes the documents, and on its event loop this would wait for itself.
        self._contents = documents_of(frames, attributes or {}, is_plain_name, in_levels=attributes is not None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._frames, self._attributes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FaceStore) and (self._tokens, self._attributes) == (other._tokens, other._attributes)

    __hash__ = None  # type: ignore[assignment]  # as of zarr's own stores

    @property
    def _tokens(self) -> dict[str, tuple[object, ...]]:
        return {path: (frame.token, frame.dims) for path, frame in self._frames.items()}

    def __repr__(self) -> str:
        shown = ", ".join(f"{path}: {frame.tensor.tensor_id!r}" for path, frame in self._frames.items())
        return f"FaceStore({shown})"

    __str__ = __repr__

    def document(self, key: str) -> bytes | None:
        """Return the metadata or coordinates under a key, or None for any other key. Computes no pixel."""
        documents, chunks = self._contents
        return chunks[key]() if key in chunks else documents.get(key)

    @property
    def _keys(self) -> Iterator[str]:
        """The keys of all documents, and of the chunks of all coordinates."""
        return itertools.chain(*self._contents)

    def chunk_of(self, key: str) -> tuple[Frame, Index] | None:
        """Return the frame and the index of the chunk under a key, or None for any other key."""
        path, _, chunk = key.rpartition("/c/")
        frame, numbers = self._frames.get(path), chunk.split("/")
        if frame is None or not all(map(_NUMBER.fullmatch, numbers)):
            return None
        index = tuple(map(int, numbers))
        return (frame, index) if frame.has_chunk(index) else None

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key, or a range of its bytes.

        Return None if there is no such key.
        """
        await self._ensure_open()
        found: Bytes | None = self.document(key)
        if found is None:
            chunk = self.chunk_of(key)
            if chunk is None:
                return None
            face, index = chunk
            # A look-up on this thread is several times faster.
            is_main = threading.current_thread() is threading.main_thread()
            found = None if is_main else face.chunk_in_memory(index)
            if found is None:
                found = await answered(partial(face.chunk, index))
        return (prototype or default_buffer_prototype()).buffer.from_bytes(found[_range_of(byte_range, len(found))])

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Call `get` for each key and range of bytes, and return the results in order."""
        return list(await asyncio.gather(*[self.get(key, prototype, part) for key, part in key_ranges]))

    async def exists(self, key: str) -> bool:
        """Whether a key exists. Computes nothing."""
        return any(key in each for each in self._contents) or self.chunk_of(key) is not None

    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes. Computes nothing."""
        chunk = self.chunk_of(key)
        if chunk is not None:
            return chunk[0].chunk_size
        document = self.document(key)
        if document is None:
            raise FileNotFoundError(key)
        return len(document)

    async def set(self, key: str, value: Buffer) -> None:  # noqa: ARG002
        """Raise ValueError: the store is read-only."""
        self._check_writable()

    async def delete(self, key: str) -> None:  # noqa: ARG002
        """Raise ValueError: the store is read-only."""
        self._check_writable()

    def list(self) -> AsyncIterator[str]:
        """Yield all keys, including the keys of all chunks. An unbounded tensor has very many."""
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys beginning with `prefix`."""
        for key in self._keys:
            if key.startswith(prefix):
                yield key
        for path, frame in self._frames.items():
            folder = f"{path}/c/"
            if not (folder.startswith(prefix) or prefix.startswith(folder)):
                continue
            for count, chunk in enumerate(_chunks(frame.chunk_counts, prefix[len(folder) :])):
                if count % _KEYS_AT_ONCE == 0:
                    # Let other tasks of the event loop run.
                    await asyncio.sleep(0)
                yield folder + chunk

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of the entries of a folder."""
        path = prefix.rstrip("/")
        folder = f"{path}/" if path else ""
        names = [key.removeprefix(folder).partition("/")[0] for key in self._keys if key.startswith(folder)]
        for name in dict.fromkeys([*names, "c"] if path in self._frames else names):
            yield name
        array, _, above = folder.rpartition("/c/")
        counts = self._frames[array].chunk_counts if array in self._frames else ()
        numbers = above.split("/")[:-1]
        there = all(_NUMBER.fullmatch(number) and int(number) < n for number, n in zip(numbers, counts, strict=False))
        for i in range(counts[len(numbers)]) if there and len(numbers) < len(counts) else ():
            if i % _KEYS_AT_ONCE == 0:
                await asyncio.sleep(0)
            yield str(i)


def _chunks(counts: Index, begun: str) -> Iterator[str]:
    """Yield the keys of chunks with the prefix `begun`.

    For example, with `counts` of 5 x 12 chunks, the prefix ``3/1`` gives ``3/1``, ``3/10`` and ``3/11``.
    """
    number, slash, rest = begun.partition("/")
    for i in _numbers(number, counts[0], whole=bool(slash)):
        if len(counts) > 1:
            yield from (f"{i}/{inner}" for inner in _chunks(counts[1:], rest))
        elif not slash:
            yield str(i)


def _numbers(begun: str, end: int, *, whole: bool) -> Iterable[int]:
    """Return the numbers below `end` with the first digits `begun`.

    For example, ``_numbers("1", 20, whole=False)`` returns 1 and 10 to 19. With ``whole=True``, `begun` is the whole
    number, so only 1 is returned.
    """
    if not begun and not whole:
        return range(end)
    if not _NUMBER.fullmatch(begun):
        return ()
    first = int(begun)
    if whole or first == 0:
        return range(first, min(first + 1, end))
    powers = itertools.takewhile(lambda power: first * power < end, (10**n for n in itertools.count()))
    return itertools.chain.from_iterable(range(first * power, min((first + 1) * power, end)) for power in powers)


def _range_of(part: ByteRequest | None, length: int) -> slice:
    match part:
        case None:
            return slice(None)
        case RangeByteRequest(start, end):
            return slice(start, end)
        case OffsetByteRequest(offset):
            return slice(offset, None)
        case SuffixByteRequest(suffix):
            return slice(max(0, length - suffix), None)
    raise TypeError(f"Unexpected byte_range, got {part!r}; zarr.abc.store defines the kinds of ranges")


# Computing chunks for event loops.


class _Threads:
    """The threads that compute chunks: as many as requests at a time, each used again."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="infinite_tensor-face")

    def start(self, work: Callable[[], object]) -> None:
        """Call ``work()`` on a thread. Raise CancelledError if the process ends."""
        try:
            self._pool.submit(work)
        except RuntimeError as error:
            # Not an Exception: asyncio would print a traceback for each chunk, perhaps a thousand times.
            raise asyncio.CancelledError("the process is ending, so no more chunks are computed") from error

    def end(self) -> None:
        """Refuse new requests, and wait for running work."""
        self._pool.shutdown()


_MOST_THREADS = 2**20
"""More than a process can have: a request that waits for a thread may be what all threads wait for."""
_THREADS = _Threads()
end_before_flush(_THREADS.end)


async def answered(compute: Callable[[], T]) -> T:
    """Return the result of ``compute()``, called on another thread. Raise CancelledError if the process ends."""
    loop, context = asyncio.get_running_loop(), copy_context()
    answer: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            settle: Callable[[], None] = partial(answer.set_result, context.run(compute))
        except BaseException as error:  # noqa: BLE001  (raised in the request)
            settle = partial(answer.set_exception, _harmless(error))
        # A closed loop raises RuntimeError: nobody waits there any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if answer.done() else settle())

    # The event loop may be on the main thread. Without store_call, Ctrl-C could leave a lock of the pool taken.
    with store_call():
        _THREADS.start(work)
    return await answer


def _harmless(error: BaseException) -> Exception:
    """Return RuntimeError instead of an exception that would end an event loop, such as SystemExit."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    harmless = RuntimeError(f"{type(error).__name__} was raised while a chunk was computed")
    harmless.__cause__ = error
    return harmless
