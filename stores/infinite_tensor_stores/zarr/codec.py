"""Chunks as a Zarr array stores them: encoded and decoded many at a time, with a checksum that tells damage.

zarr's codec pipeline runs each codec of each chunk as a task of an event loop, or on a thread: 40-170 us per chunk, and
several copies. What the codecs `bytes`, `zstd` and `blosc` do is known, so it is done here with the same libraries and
to the same bytes.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, Zstd  # type: ignore[import-untyped]
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.api.asynchronous import create_array, open_array
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.metadata import ArrayV3Metadata
from zarr.storage import MemoryStore

from infinite_tensor.errors import ValidationError
from infinite_tensor_stores.files import content
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.zarr.objects import PROTOTYPE, Objects, bytes_of

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

_CRC_LENGTH = 4
_INFLATED_AT_ONCE = 2**20
_LARGEST_HEADER = 2**16


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


class ChunkCodec:
    """Encodes and decodes the chunks of an array.

    Parameters
    ----------
    document : mapping
        The array's ``zarr.json``.

    Raises
    ------
    ValueError
        If its codecs are not ``bytes``, any compressors that are known here, ``crc32c``.

    Attributes
    ----------
    is_bounded : bool
        Whether to decode a chunk takes little more memory than the chunk, whatever is stored in its place.
    most_bytes : int
        What is stored of a chunk has no more: no codec makes pixels much larger than they are.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        try:
            scratch = MemoryStore({"zarr.json": PROTOTYPE.buffer.from_bytes(json.dumps(document).encode())})
            array = sync(open_array, store=scratch, mode="r", zarr_format=3)
            names = [codec["name"] for codec in document["codecs"]]
        except Exception as error:  # (zarr and the codecs raise what they please on what makes no sense)
            raise ValueError(f"zarr cannot make sense of codecs {document['codecs']!r}: {error}") from error
        metadata: Any = array.metadata
        *codecs, _ = metadata.codecs
        if (names[0], names[-1]) != ("bytes", "crc32c") or not all(isinstance(c, BytesBytesCodec) for c in codecs[1:]):
            raise ValueError(f"codecs must be bytes, compressors and crc32c, got {document['codecs']!r}")
        self._spec: ArraySpec = metadata.get_chunk_spec((), array.config, PROTOTYPE)
        self._dtype = self._spec.dtype.to_native_dtype()
        self._size = self._dtype.itemsize * math.prod(self._spec.shape)
        self.most_bytes = 2 * self._size + _LARGEST_HEADER
        self._direct = DirectCodec.of(codecs, self._dtype, self._spec.shape)
        self._pipeline = array.codec_pipeline.from_codecs(codecs)
        self._inflates = [type(codec) for codec in codecs[1:]] == [GzipCodec]
        self.is_bounded = self._direct is not None or self._inflates

    def encode(self, blocks: Sequence[npt.NDArray[Any]]) -> list[bytes]:
        """The stored form of each block."""
        direct = self._direct
        if direct is None:
            return list(map(_sealed, self._encode_piped(blocks)))
        return on_threads(lambda block: _sealed(direct.encode(block)), blocks, self._size * len(blocks))

    def decode(self, stored: Sequence[bytes]) -> list[npt.NDArray[Any] | Exception]:
        """The block of each stored form, or what is wrong with it."""
        if self._direct is not None:
            return on_threads(self._decoded, stored, self._size * len(stored))
        try:
            return list(self._decode_piped(list(map(_unsealed, stored))))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (codecs raise what they please on damaged data)
            if len(stored) == 1:
                return [error]
            # One of many is damaged: find out which.
            return [self.decode([data])[0] for data in stored]

    def intact(self, stored: Sequence[bytes]) -> list[bytes | Exception]:
        """Each stored form, or what is wrong with it, as far as its checksum tells."""
        return on_threads(_checked, stored, sum(map(len, stored)))

    def _decoded(self, data: bytes) -> npt.NDArray[Any] | Exception:
        assert self._direct is not None
        try:
            return self._direct.decode(_unsealed(data))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (codecs raise what they please on damaged data)
            return error

    def _encode_piped(self, blocks: Sequence[npt.NDArray[Any]]) -> list[bytes]:
        buffers = [PROTOTYPE.nd_buffer.from_numpy_array(np.ascontiguousarray(block)) for block in blocks]
        return list(map(bytes_of, sync(self._pipeline.encode, [(buffer, self._spec) for buffer in buffers])))

    def _decode_piped(self, compressed: Sequence[npt.NDArray[np.uint8]]) -> list[npt.NDArray[Any]]:
        if self._inflates:
            for data in compressed:
                _check_inflated(data.tobytes(), self._size)
        buffers = [PROTOTYPE.buffer.from_array_like(data) for data in compressed]
        decoded = sync(self._pipeline.decode, [(buffer, self._spec) for buffer in buffers])
        blocks = [np.asarray(block.as_numpy_array()) for block in decoded if block is not None]
        for block in blocks:
            if block.shape != self._spec.shape or block.dtype.newbyteorder("=") != self._dtype:
                raise ValueError(
                    f"it holds {block.dtype} of shape {block.shape}, not {self._dtype} of {self._spec.shape}"
                )
        return [block.astype(self._dtype, copy=False) for block in blocks]


def codecs_of(dtype: str, tile: Sequence[int], compressors: Any) -> list[dict[str, Any]]:
    """The codecs of an array as its ``zarr.json`` names them.

    `compressors` is what a user may give: a codec, several, None, or "auto" for fast Zstandard. What it raises is
    zarr's.
    """
    if isinstance(compressors, str) and compressors == "auto":
        compressors = ZstdCodec(level=1)
    if compressors is None:
        compressors = ()
    chosen = compressors if isinstance(compressors, Sequence) else (compressors,)
    scratch = MemoryStore()
    sync(
        create_array,
        scratch,
        shape=tuple(tile),
        chunks=tuple(tile),
        dtype=dtype,
        filters=None,
        compressors=(*chosen, Crc32cCodec()),
        zarr_format=3,
    )
    (document,) = Objects(lambda: scratch).get(["zarr.json"])
    codecs: list[dict[str, Any]] = json.loads(document or b"")["codecs"]
    return codecs


def new_codecs_of(dtype: str, tile: Sequence[int], compressors: Any) -> list[dict[str, Any]]:
    """`codecs_of` a new array; ValidationError for compressors of which damage may take any amount of memory."""
    cause = None
    try:
        codecs = codecs_of(dtype, tile, compressors)
        if can_be_chosen(codecs):
            return codecs
    except Exception as error:  # noqa: BLE001  (zarr raises what it pleases on what makes no sense)
        cause = error
    raise ValidationError(
        f"compressors={compressors!r}: what is new can be compressed by Zstandard and Blosc, one or several of them, "
        "or gzip alone, or None; choose compressors=zarr.codecs.ZstdCodec(level=1), say"
    ) from cause


def can_be_chosen(codecs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether what is new can be compressed so: damage makes none of these take any amount of memory."""
    names = [codec["name"] for codec in codecs[1:-1]]
    return names == ["gzip"] or {"zstd", "blosc"}.issuperset(names)


def normal_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """An array's ``zarr.json``, less its attributes, as zarr itself writes it; ValueError if zarr cannot read it."""
    try:
        return dict(ArrayV3Metadata.from_dict({**document, "attributes": {}}).to_dict())
    except Exception as error:  # (zarr raises what it pleases on what makes no sense)
        raise ValueError(f"zarr cannot make sense of it: {error}") from error


def _check_inflated(data: bytes, most: int) -> None:
    """ValueError if gzip makes more than `most` bytes of `data`; it does not say so beforehand."""
    inflated = 0
    while data:
        inflater = zlib.decompressobj(wbits=31)
        while data and not inflater.eof:
            inflated += len(inflater.decompress(data, _INFLATED_AT_ONCE))
            if inflated > most:
                raise ValueError(f"it holds more than {most} bytes")
            data = inflater.unconsumed_tail
        data = inflater.unused_data


def _sealed(compressed: Bytes) -> bytes:
    """What is stored: the compressed block, with its checksum behind."""
    view = np.frombuffer(compressed, np.uint8)
    checksum: int = google_crc32c.value(view)
    return b"".join([view.data, checksum.to_bytes(_CRC_LENGTH, "little")])


def _checked(data: bytes) -> bytes | Exception:
    try:
        _unsealed(data)
    except ValueError as error:
        return error
    return data


def _unsealed(data: bytes) -> npt.NDArray[np.uint8]:
    """What is compressed; ValueError if it was changed."""
    compressed = np.frombuffer(content(data), np.uint8)[:-_CRC_LENGTH]
    if google_crc32c.value(compressed) != int.from_bytes(data[-_CRC_LENGTH:], "little"):
        raise ValueError("its checksum is not that of its content")
    return compressed
