"""Compressing and decompressing chunks without zarr's codec pipeline, which takes more time than the work itself.

The pipeline runs each codec of each chunk as a task of an event loop, or on a thread: 40-170 us per chunk, and several
copies. What the codecs `bytes`, `zstd` and `blosc` do is known, so it is done here with the same libraries and to the
same bytes.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, Zstd  # type: ignore[import-untyped]
from zarr.abc.codec import Codec
from zarr.codecs import BloscCodec, BytesCodec, ZstdCodec

from infinite_tensor_stores.zarr_loop import sync

Bytes: TypeAlias = bytes | npt.NDArray[np.uint8]
"""Bytes that may be read without a copy of them."""

T = TypeVar("T")
R = TypeVar("R")

_BLOSC_HEADER = 16
_LONGEST_HEADER = 18
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_THREADS = os.cpu_count() or 1
_WORTH_A_THREAD = 2**18
"""Bytes whose compression takes longer than handing it to another thread."""


class DirectCodec:
    """What the codecs of an array do to its chunks, checksum excluded.

    Parameters
    ----------
    compressors : sequence of zarr codec
        From the first that is applied to a chunk to the last.
    dtype : numpy.dtype
        Of the chunks, in the byte order of this machine.
    shape : sequence of int
        Of each chunk.
    """

    def __init__(self, compressors: Sequence[Codec], dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self._compressors = [_compressor(codec) for codec in compressors]
        self._dtype = dtype
        self._shape = tuple(shape)
        self._size = dtype.itemsize * math.prod(shape)
        # What does not compress grows a little.
        self._most = self._size + self._size // 64 + 2**10

    @classmethod
    def of(cls, codecs: Sequence[Codec], dtype: np.dtype[Any], shape: Sequence[int]) -> DirectCodec | None:
        """For the codecs of an array less the checksum; None if only zarr knows all of them."""
        serializer, *compressors = codecs
        if type(serializer) is not BytesCodec or any(
            type(codec) not in (ZstdCodec, BloscCodec) for codec in compressors
        ):
            return None
        if serializer.endian is not None and serializer.endian.value != sys.byteorder:
            return None
        return cls(compressors, dtype, shape)

    def encode(self, block: npt.NDArray[Any]) -> Bytes:
        """The bytes of a block of the array's dtype, compressed; without compressors, they may be the block's own."""
        data: Bytes = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        for compressor in self._compressors:
            data = compressor.encode(data)
        return data

    def decode(self, data: Bytes) -> npt.NDArray[Any]:
        """The block that was compressed; without compressors, it may be a view of `data`.

        Raises
        ------
        ValueError
            If `data` claims to hold more or less than a chunk; the memory for it is not taken then.
        RuntimeError
            If it is damaged otherwise.
        """
        if not self._compressors:
            return np.frombuffer(data, self._dtype).reshape(self._shape)
        first, *others = self._compressors
        for compressor in reversed(others):
            size = _size_in(compressor, data)
            if size is None or size > self._most:
                raise ValueError(f"it holds {size} bytes, not {self._size} that are compressed")
            data = compressor.decode(data)
        size = _size_in(first, data)
        if size != self._size:
            raise ValueError(f"it holds {size} bytes, not {self._size}")
        block = np.empty(self._shape, self._dtype)
        first.decode(data, block)
        return block


def on_threads(call: Callable[[T], R], arguments: Sequence[T], nbytes: int) -> list[R]:
    """Run ``call(argument)`` for all arguments, on several of zarr's threads where `nbytes` of work are worth it."""
    parts = min(_THREADS, len(arguments), nbytes // _WORTH_A_THREAD)
    if parts < 2:
        return list(map(call, arguments))
    bounds = [len(arguments) * part // parts for part in range(parts + 1)]

    def run(part: int) -> list[R]:
        return list(map(call, arguments[bounds[part] : bounds[part + 1]]))

    async def gathered() -> list[list[R]]:
        return await asyncio.gather(*(asyncio.to_thread(run, part) for part in range(parts)))

    return [result for results in sync(gathered) for result in results]


def _compressor(codec: Codec) -> Any:
    if isinstance(codec, ZstdCodec):
        return Zstd(codec.level, codec.checksum)
    assert isinstance(codec, BloscCodec)
    shuffle = _SHUFFLES.index(codec.shuffle.value)
    return Blosc(codec.cname.value, codec.clevel, shuffle, codec.blocksize, codec.typesize)


def _size_in(compressor: Any, data: Bytes) -> int | None:
    """How many bytes `data` says that it decompresses to, None if it does not say so; ValueError if it is cut short."""
    header = bytes(data[:_LONGEST_HEADER])
    if isinstance(compressor, Zstd):
        return content_size(header)
    # Blosc would read as much as the header says is there.
    if len(data) < _BLOSC_HEADER or int.from_bytes(header[12:16], "little") != len(data):
        raise ValueError("this is no whole Blosc buffer")
    return int.from_bytes(header[4:8], "little")


def content_size(frame: bytes) -> int | None:
    """How many bytes a Zstandard frame (RFC 8878) says that it holds, None where it does not say so, or is none."""
    if len(frame) < 6 or frame[:4] != _ZSTD_MAGIC:
        return None
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    length = (single, 2, 4, 8)[descriptor >> 6]
    # Behind the descriptor lie a byte for the window, but for a single segment, and the number of a dictionary.
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    # Sizes from 256 to 65791 are stored in two bytes, less 256.
    return int.from_bytes(frame[start : start + length], "little") + (256 if length == 2 else 0) if length else None
