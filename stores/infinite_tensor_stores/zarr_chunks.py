"""Encoding and decoding many chunks of a Zarr array at once: what leans on zarr's inner interfaces.

A set of chunks is fetched with concurrent gets (`zarr_objects`) and decoded in one call, so presence and content come
in one round trip, and an absent chunk is never taken for a chunk of fill values. Codecs that `direct_codec` does not
know go through the array's codec pipeline.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.metadata import ArrayV3Metadata
from zarr.storage import MemoryStore

from infinite_tensor.errors import ValidationError
from infinite_tensor_stores.direct_codec import Bytes, DirectCodec, on_threads
from infinite_tensor_stores.files import content
from infinite_tensor_stores.zarr_loop import sync
from infinite_tensor_stores.zarr_objects import PROTOTYPE, bytes_of, get_many

_CRC_LENGTH = 4
_INFLATED_AT_ONCE = 2**20
_LARGEST_HEADER = 2**16


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
            array = zarr.open_array(scratch, mode="r", zarr_format=3).async_array
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
    zarr.create_array(
        scratch,
        shape=tuple(tile),
        chunks=tuple(tile),
        dtype=dtype,
        filters=None,
        compressors=(*chosen, Crc32cCodec()),
        zarr_format=3,
    )
    (document,) = get_many(scratch, ["zarr.json"])
    codecs: list[dict[str, Any]] = json.loads(document or b"")["codecs"]
    return codecs


def new_codecs_of(dtype: str, tile: Sequence[int], compressors: Any) -> list[dict[str, Any]]:
    """`codecs_of` a new array; ValidationError for compressors of which damage may take any amount of memory."""
    cause = None
    try:
        codecs = codecs_of(dtype, tile, compressors)
        names = [codec["name"] for codec in codecs[1:-1]]
        if names == ["gzip"] or {"zstd", "blosc"}.issuperset(names):
            return codecs
    except Exception as error:  # noqa: BLE001  (zarr raises what it pleases on what makes no sense)
        cause = error
    raise ValidationError(
        f"compressors={compressors!r}: what is new can be compressed by Zstandard and Blosc, one or several of them, "
        "or gzip alone, or None; choose compressors=zarr.codecs.ZstdCodec(level=1), say"
    ) from cause


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


def _unsealed(data: bytes) -> npt.NDArray[np.uint8]:
    """What is compressed; ValueError if it was changed."""
    compressed = np.frombuffer(content(data), np.uint8)[:-_CRC_LENGTH]
    if google_crc32c.value(compressed) != int.from_bytes(data[-_CRC_LENGTH:], "little"):
        raise ValueError("its checksum is not that of its content")
    return compressed
