"""Encoding and decoding many chunks of a Zarr array at once: what leans on zarr's inner interfaces.

A set of chunks is fetched with concurrent gets (`zarr_objects`) and decoded in one call of the array's codec
pipeline, so presence and content come in one round trip, and an absent chunk is never taken for a chunk of
fill values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.array_spec import ArraySpec
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from infinite_tensor_stores.zarr_objects import PROTOTYPE, bytes_of, get_many


class ChunkCodec:
    """Encodes and decodes the chunks of an array that is described by the bytes of its ``zarr.json``."""

    def __init__(self, document: bytes) -> None:
        scratch = MemoryStore({"zarr.json": PROTOTYPE.buffer.from_bytes(document)})
        array = zarr.open_array(scratch, mode="r", zarr_format=3).async_array
        self._pipeline = array.codec_pipeline
        self._metadata: Any = array.metadata
        self._spec: ArraySpec = self._metadata.get_chunk_spec((), array.config, PROTOTYPE)

    def key(self, chunk: Sequence[int]) -> str:
        """The key of a chunk, relative to the array."""
        return str(self._metadata.encode_chunk_key(tuple(chunk)))

    def encode(self, blocks: Sequence[npt.NDArray[Any]]) -> list[bytes]:
        """The stored form of each block."""
        buffers = [PROTOTYPE.nd_buffer.from_numpy_array(np.ascontiguousarray(block)) for block in blocks]
        encoded = sync(self._pipeline.encode([(buffer, self._spec) for buffer in buffers]))
        return [bytes_of(buffer) for buffer in encoded]

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
        buffers = [PROTOTYPE.buffer.from_bytes(one) for one in stored]
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
