"""Chunks are encoded to what zarr writes, decoded to what it reads, and never trusted: inside, chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from numcodecs import Blosc, Zstd  # type: ignore[import-untyped]
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from infinite_tensor.values.dtypes import DTYPES, dtype_name, stored_dtype
from infinite_tensor_stores.homes import StoreHome
from infinite_tensor_stores.zarr.codec import ChunkCodec, codecs_of
from tests.support.bounds import bounded

Block = npt.NDArray[Any]

SHAPE = (5, 24)

COMPRESSORS: dict[str, Any] = {
    "auto": "auto",
    "nothing": None,
    "zstd with checksum": ZstdCodec(level=3, checksum=True),
    "zstd twice": (ZstdCodec(level=1), ZstdCodec(level=-7)),
    "blosc as it comes": BloscCodec(),
    "blosc of pairs of bytes": BloscCodec(cname="zlib", clevel=1, shuffle="noshuffle", typesize=2, blocksize=64),
    "blosc, then zstd": (BloscCodec(cname="lz4", shuffle="bitshuffle"), ZstdCodec(level=1)),
    "zstd, then blosc": (ZstdCodec(), BloscCodec(cname="blosclz")),
}


def document(dtype: str, compressors: Any, shape: Sequence[int] = SHAPE) -> dict[str, Any]:
    """The ``zarr.json`` of an array of one chunk."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if dtype == "bool" else [0, 0] if dtype.startswith("complex") else 0,
        "codecs": codecs_of(dtype, compressors),
        "attributes": {},
    }


def blocks_of(dtype: str, shape: Sequence[int] = SHAPE) -> list[Block]:
    """Blocks of random bits, of few different elements, and of one."""
    kind, dice = np.dtype(dtype), np.random.default_rng(7)
    length = int(np.prod(shape))
    random = np.frombuffer(dice.bytes(length * kind.itemsize), np.uint8)
    bits = (random % 2).view(kind) if kind == np.bool_ else random.view(kind)
    return [found.reshape(shape) for found in (bits, bits[dice.integers(3, size=length)], np.repeat(bits[:1], length))]


def written_by_zarr(block: Block, description: dict[str, Any]) -> bytes:
    """The chunk of an array in memory."""
    store = MemoryStore({"zarr.json": default_buffer_prototype().buffer.from_bytes(json.dumps(description).encode())})
    zarr.open_array(store, config={"write_empty_chunks": True})[:] = block
    (chunk,) = StoreHome(store).get(["c/0/0"], 2**30)
    assert chunk is not None
    return chunk


def sealed(compressed: bytes) -> bytes:
    """With the checksum that makes it pass for whole."""
    checksum: int = google_crc32c.value(compressed)
    return compressed + checksum.to_bytes(4, "little")


def same(found: Block | Exception, expected: Block) -> bool:
    """Whether it is a block of the same bits."""
    assert isinstance(found, np.ndarray), found
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@pytest.mark.parametrize("compressors", COMPRESSORS.values(), ids=COMPRESSORS)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_chunks_are_what_zarr_writes_and_are_read_back(dtype: torch.dtype, compressors: Any) -> None:
    description = document(stored_dtype(dtype), compressors)
    codec, blocks = ChunkCodec(description), blocks_of(stored_dtype(dtype))
    chunks = codec.encode(blocks)
    assert chunks == [written_by_zarr(block, description) for block in blocks]
    assert all(map(same, codec.decode(chunks), blocks))


def test_a_codec_may_be_given_as_a_document_names_it() -> None:
    assert codecs_of("float32", {"name": "zstd", "configuration": {"level": 1, "checksum": False}}) == codecs_of(
        "float32"
    )
    assert codecs_of("float32", [{"name": "zstd", "configuration": {"level": 3}}]) == codecs_of(
        "float32", ZstdCodec(level=3)
    )


def test_codecs_are_those_that_zarr_writes_for_them() -> None:
    for dtype in map(stored_dtype, DTYPES):
        for compressors in COMPRESSORS.values():
            given = ZstdCodec(level=1) if compressors == "auto" else () if compressors is None else compressors
            several = given if isinstance(given, tuple) else (given,)
            array = zarr.create_array(
                MemoryStore(), shape=(1,), chunks=(1,), dtype=dtype, compressors=(*several, Crc32cCodec()), filters=None
            )
            described: Any = array.metadata.to_dict()["codecs"]
            assert codecs_of(dtype, compressors) == list(described)


def test_a_chunk_of_the_other_byte_order_is_read() -> None:
    description = document("float32", ZstdCodec())
    description["codecs"][0]["configuration"]["endian"] = "big"
    (block, *_) = blocks_of("float32")
    chunk = written_by_zarr(block, description)
    assert Zstd().decode(chunk[:-4]) == block.astype(">f4").tobytes()
    codec = ChunkCodec(description)
    assert same(codec.decode([chunk])[0], block)
    assert codec.encode([block]) == [chunk]


@pytest.mark.parametrize("compressors", COMPRESSORS.values(), ids=COMPRESSORS)
def test_any_view_of_a_block_is_encoded_as_the_block(compressors: Any) -> None:
    codec = ChunkCodec(document("int16", compressors))
    (block, *_) = blocks_of("int16")
    strided = np.repeat(block, 2, axis=1)[:, ::2]
    turned = np.asfortranarray(block)
    frozen = block.copy()
    frozen.flags.writeable = False
    chunks = codec.encode([strided, turned, frozen])
    assert all(same(found, block) for found in codec.decode(chunks))


@pytest.mark.parametrize("compressors", COMPRESSORS.values(), ids=COMPRESSORS)
def test_damaged_chunks_among_many_are_told_apart(compressors: Any) -> None:
    shape = (256, 64)
    codec = ChunkCodec(document("float64", compressors, shape))
    blocks = blocks_of("float64", shape) * 10
    chunks = codec.encode(blocks)
    chunks[3] = b""
    chunks[7] = chunks[7][:-1]
    chunks[11] = sealed(chunks[11][:-5])
    chunks[19] = chunks[19][:20] + bytes([chunks[19][20] ^ 1]) + chunks[19][21:]
    found = codec.decode(chunks)
    damaged = [number for number, block in enumerate(found) if isinstance(block, Exception)]
    assert damaged == [3, 7, 11, 19]
    assert all(same(found[number], block) for number, block in enumerate(blocks) if number not in damaged)


def _frame(length: int) -> bytes:
    """A zstd frame that says how much it holds, and holds nothing."""
    return b"\x28\xb5\x2f\xfd\xe0" + length.to_bytes(8, "little") + b"\x01\x00\x00"


def _blosc(length: int, compressed: int, content: bytes = b"") -> bytes:
    """A Blosc buffer that says how much it holds, and how long it is itself."""
    block = min(length, 2**20)
    header = b"\x02\x01\x33\x04" + b"".join(size.to_bytes(4, "little") for size in (length, block, compressed))
    return header + content


_LZ4 = BloscCodec(cname="lz4")
_STORED = bytes(Blosc("lz4").encode(blocks_of("float32")[0]))
"""A Blosc buffer of a block that does not compress: it holds the block as it is."""

LIES: dict[str, tuple[Any, bytes]] = {
    "too much for zstd": (ZstdCodec(), _frame(2**60)),
    "too little for zstd": (ZstdCodec(), bytes(Zstd(1).encode(b"short"))),
    "two chunks in a row": (ZstdCodec(), bytes(Zstd(1).encode(bytes(480))) * 2),
    "too much for blosc": (_LZ4, _blosc(2**31 - 64, 24, bytes(8))),
    "blosc longer than it is": (_LZ4, _blosc(480, 2**31 - 1, bytes(8))),
    "blosc cut short": (_LZ4, _STORED[:-100]),
    "blosc cut in its header": (_LZ4, _STORED[:9]),
    "too much for blosc in zstd": ((_LZ4, ZstdCodec()), _frame(2**40)),
    "blosc in zstd cut short": ((_LZ4, ZstdCodec()), bytes(Zstd(1).encode(_STORED[:-100]))),
    "too much for zstd in blosc": ((ZstdCodec(), _LZ4), bytes(Blosc("lz4").encode(_frame(2**40)))),
    "too much for no compressor": (None, bytes(2**20)),
}


@pytest.mark.parametrize(("compressors", "compressed"), LIES.values(), ids=LIES)
def test_a_chunk_that_lies_about_its_size_is_refused(compressors: Any, compressed: bytes) -> None:
    codec = ChunkCodec(document("float32", compressors))
    with bounded():
        (found,) = codec.decode([sealed(compressed)])
    assert isinstance(found, ValueError | RuntimeError)
