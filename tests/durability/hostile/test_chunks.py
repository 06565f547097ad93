"""Chunks that would swell without end when they are decompressed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import BZ2
from zarr.storage import MemoryStore

from infinite_tensor import DamagedDataWarning, TensorBlob, ValidationError, ZarrTileStore
from tests.durability.hostile.honest import EXPECTED, REGION, TILE, fill, make_base
from tests.support.bounds import bounded
from tests.support.reference import same_bits

numcodecs = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")

_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK = 128 * 1024


def _zeros(length: int, header: bytes) -> bytes:
    """A zstd frame (RFC 8878) of `length` zeros in blocks that each repeat one byte."""
    count = length // _BLOCK
    blocks = [((_BLOCK << 3) | 2 | (number == count - 1)).to_bytes(3, "little") + b"\0" for number in range(count)]
    return _MAGIC + header + b"".join(blocks)


_WINDOW = b"\x38"
_BOMBS = {
    "of 8 GiB, which it does not tell": _zeros(2**33, b"\x00" + _WINDOW),
    "of 8 GiB, as it tells": _zeros(2**33, b"\xc0" + _WINDOW + (2**33).to_bytes(8, "little")),
    "of 8 GiB, while it tells of one tile": _zeros(
        2**33, b"\x40" + _WINDOW + (TILE * TILE * 4 - 256).to_bytes(2, "little")
    ),
    "of one block that tells of 2**60 bytes": _zeros(_BLOCK, b"\xc0" + _WINDOW + (2**60).to_bytes(8, "little")),
}


@pytest.mark.parametrize("frame", _BOMBS.values(), ids=_BOMBS)
def test_a_chunk_that_would_fill_the_memory_is_computed_again(frame: bytes) -> None:
    memory = MemoryStore()
    fill(ZarrTileStore(memory, tile_size=TILE))
    (key,) = [key for key in memory._store_dict if key.startswith("t-base/tiles-") and "/c/" in key]
    checksum: int = google_crc32c.value(frame)
    data = frame + checksum.to_bytes(4, "little")
    memory._store_dict[key] = default_buffer_prototype().buffer.from_bytes(data)
    with ZarrTileStore(memory, tile_size=TILE) as store:
        with bounded(), pytest.warns(DamagedDataWarning, match=r"tile \(0, 0\) of tensor 'base' is damaged"):
            assert same_bits(make_base(store)[REGION], EXPECTED["base"])
        store.flush()
        assert memory._store_dict[key].to_bytes() != data
        assert store.verify("base") == []


OTHERS: dict[str, Callable[[], Any]] = {
    "bz2": lambda: BZ2(level=1),
    "gzip": GzipCodec,
    "gzip, then zstd": lambda: (GzipCodec(), ZstdCodec()),
    "zstd, then bz2": lambda: (ZstdCodec(), BZ2(level=1)),
    "a name": lambda: "zstd",
    "a number": lambda: 3,
}


@numcodecs
@pytest.mark.parametrize("compressors", OTHERS.values(), ids=OTHERS)
def test_nothing_new_is_compressed_by_what_cannot_be_bounded(compressors: Callable[[], Any]) -> None:
    memory = MemoryStore()
    with ZarrTileStore(memory, compressors=compressors()) as store:
        with pytest.raises(ValidationError, match="Zstandard or Blosc"):
            make_base(store)
        assert store.tensor_ids() == []
    assert list(memory._store_dict) == []
    with pytest.raises(ValidationError, match="Zstandard or Blosc"):
        TensorBlob.open(MemoryStore(), "w", dtype="float32", shape=3, compressors=compressors())
