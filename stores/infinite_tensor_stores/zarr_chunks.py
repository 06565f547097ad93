"""Encoding and decoding many chunks of a Zarr array at once: what leans on zarr's inner interfaces.

A set of chunks is fetched with concurrent gets (`zarr_objects`) and decoded in one call of the array's codec
pipeline, so presence and content come in one round trip, and an absent chunk is never taken for a chunk of
fill values.

Where the compressor is Zstandard, a chunk carries its place, under the checksum that ends it: swapped for another
one, it is not taken for its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.metadata import ArrayV3Metadata
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from infinite_tensor_stores.zarr_objects import PROTOTYPE, bytes_of, get_many
from infinite_tensor_stores.zstd_stamp import LENGTH, content_size, stamp_of, stamped

_CRC_LENGTH = 4


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
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        try:
            scratch = MemoryStore({"zarr.json": PROTOTYPE.buffer.from_bytes(json.dumps(document).encode())})
            array = zarr.open_array(scratch, mode="r", zarr_format=3).async_array
            names = [codec["name"] for codec in document["codecs"]]
        except Exception as error:  # (zarr and the codecs raise what they please on what makes no sense)
            raise ValueError(f"zarr cannot make sense of codecs {document['codecs']!r}: {error}") from error
        metadata: Any = array.metadata
        compressors = metadata.codecs[1:]
        if (names[0], names[-1]) != ("bytes", "crc32c") or not all(isinstance(c, BytesBytesCodec) for c in compressors):
            raise ValueError(f"codecs must be bytes, compressors and crc32c, got {document['codecs']!r}")
        self._pipeline = array.codec_pipeline
        self._spec: ArraySpec = metadata.get_chunk_spec((), array.config, PROTOTYPE)
        self._dtype = self._spec.dtype.to_native_dtype()
        self._stamps = names[-2] == "zstd"
        self._size = self._dtype.itemsize * math.prod(self._spec.shape) if names[1:] == ["zstd", "crc32c"] else None

    def encode(self, blocks: Sequence[npt.NDArray[Any]], keys: Sequence[str]) -> list[bytes]:
        """The stored form of each block; its key in the store is what it is bound to."""
        buffers = [PROTOTYPE.nd_buffer.from_numpy_array(np.ascontiguousarray(block)) for block in blocks]
        encoded = map(bytes_of, sync(self._pipeline.encode([(buffer, self._spec) for buffer in buffers])))
        return [self._bound(data, key) for data, key in zip(encoded, keys, strict=True)]

    def decode(self, stored: Sequence[bytes], keys: Sequence[str]) -> list[npt.NDArray[Any] | Exception]:
        """The block of each stored form, or what is wrong with it."""
        try:
            for data in stored:
                self._check_size(data)
            blocks = self._decode(stored)
            for block, data, key in zip(blocks, stored, keys, strict=True):
                self._check(block, data, key)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (codecs raise what they please on damaged data)
            if len(stored) == 1:
                return [error]
            # One of many is damaged: find out which.
            return [self.decode([data], [key])[0] for data, key in zip(stored, keys, strict=True)]
        return list(blocks)

    def _decode(self, stored: Sequence[bytes]) -> list[npt.NDArray[Any]]:
        buffers = [PROTOTYPE.buffer.from_bytes(one) for one in stored]
        decoded = sync(self._pipeline.decode([(buffer, self._spec) for buffer in buffers]))
        return [np.asarray(block.as_numpy_array()) for block in decoded if block is not None]

    def _bound(self, data: bytes, key: str) -> bytes:
        if not self._stamps:
            return data
        frame = stamped(data[:-_CRC_LENGTH], _stamp(key))
        checksum: int = google_crc32c.value(frame)
        return frame + checksum.to_bytes(_CRC_LENGTH, "little")

    def _check_size(self, data: bytes) -> None:
        """Before the memory for it is taken: a frame that does not say how much that is may take all there is."""
        if self._size is not None and content_size(data) != self._size:
            raise ValueError(f"it holds {content_size(data)} bytes, not {self._size}")

    def _check(self, block: npt.NDArray[Any], data: bytes, key: str) -> None:
        if block.shape != self._spec.shape or block.dtype != self._dtype:
            raise ValueError(f"it holds {block.dtype} of shape {block.shape}, not {self._dtype} of {self._spec.shape}")
        # Another tool may have written it without a stamp.
        if self._stamps and stamp_of(data) not in (None, _stamp(key)):
            raise ValueError("it was written for another place")


def codecs_of(dtype: str, tile: Sequence[int], compressors: Any) -> list[dict[str, Any]]:
    """The codecs of an array of complete tiles as its ``zarr.json`` names them.

    `compressors` is what a user may give: a codec, several, None, or "auto" for fast Zstandard.
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


def normal_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """An array's ``zarr.json``, less its attributes, as zarr itself writes it; ValueError if zarr cannot read it."""
    try:
        return dict(ArrayV3Metadata.from_dict({**document, "attributes": {}}).to_dict())
    except Exception as error:  # (zarr raises what it pleases on what makes no sense)
        raise ValueError(f"zarr cannot make sense of it: {error}") from error


def _stamp(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=LENGTH).digest()
