"""The stamp that binds a compressed chunk to its place, and that nobody else minds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import torch
import zarr
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from infinite_tensor import DamagedDataWarning, InfiniteTensor, TensorWindow, TileAccessError, ZarrTileStore
from infinite_tensor.values.definition import DTYPES, dtype_name
from infinite_tensor_stores.zstd_stamp import content_size, stamp_of, stamped

STAMP = bytes(range(100, 108))

_ALL = slice(0, 16), slice(-8, 8)


def _frames() -> dict[str, tuple[bytes, bytes]]:
    """Content, and a frame of it, for each length of a frame's header."""
    found = {}
    for size in (1, 255, 256, 65791, 65792, 10**6):
        content = (np.arange(size) % 251).astype(np.uint8).tobytes()
        for checksum in (False, True):
            found[f"{size}{' with checksum' * checksum}"] = content, bytes(Zstd(1, checksum).encode(content))
    noise = np.random.default_rng(0).bytes(300_000)
    found["incompressible"] = noise, bytes(Zstd(1).encode(noise))
    return found


FRAMES = _frames()


@pytest.mark.parametrize(("content", "frame"), FRAMES.values(), ids=FRAMES)
def test_a_stamped_frame_holds_what_it_held_and_the_stamp(content: bytes, frame: bytes) -> None:
    marked = b"".join(stamped(frame, STAMP))
    assert stamp_of(marked) == STAMP
    assert stamp_of(frame) is None
    assert content_size(marked) == content_size(frame) == len(content)
    assert len(marked) == len(frame) + 32
    assert Zstd(1).decode(marked) == content


@pytest.mark.parametrize(
    "data", [b"", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\x20", b"no frame at all, but long enough"]
)
def test_what_is_no_frame_has_no_stamp_and_gets_none(data: bytes) -> None:
    assert stamp_of(data) is None
    assert content_size(data) is None
    with pytest.raises(ValueError, match="no zstd frame"):
        stamped(data, STAMP)


def _filled(path: Path, dtype: torch.dtype, **options: Any) -> tuple[torch.Tensor, Path, tuple[slice, ...]]:
    """Complete tiles, the path of their array, and where they are in it."""
    values = torch.arange(12).reshape(3, 4).to(dtype)
    with ZarrTileStore(path, tile_size=8, **options) as store:
        tensor = InfiniteTensor(
            (None, None),
            lambda ctx: values if sum(ctx) % 2 else values.flip(0),
            TensorWindow((3, 4)),
            dtype=dtype,
            tile_store=store,
            tensor_id="t",
        )
        pixels, info = tensor[_ALL], store.tensor_info("t")
    assert info.tiles_complete == 4
    origin = info.definition["origin"]
    return (
        pixels,
        path / info.location,
        tuple(slice(s.start + o, s.stop + o) for s, o in zip(_ALL, origin, strict=True)),
    )


def _numpy(pixels: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.asarray((pixels.view(torch.uint16) if pixels.dtype is torch.bfloat16 else pixels).numpy())


def _chunks(array: Path) -> list[Path]:
    return sorted(path for path in (array / "c").rglob("*") if path.is_file())


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_zarr_reads_stamped_chunks(tmp_path: Path, dtype: torch.dtype) -> None:
    pixels, array, region = _filled(tmp_path, dtype)
    assert all(stamp_of(chunk.read_bytes()) is not None for chunk in _chunks(array))
    assert np.asarray(zarr.open_array(array, mode="r")[region]).tobytes() == _numpy(pixels).tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool, torch.complex64], ids=dtype_name)
def test_tensorstore_reads_stamped_chunks(tmp_path: Path, dtype: torch.dtype) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    pixels, array, region = _filled(tmp_path, dtype)
    opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(array)}}).result()
    assert opened[region].read().result().tobytes() == _numpy(pixels).tobytes()


def test_the_rust_pipeline_reads_and_writes_stamped_chunks(tmp_path: Path) -> None:
    pytest.importorskip("zarrs")
    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
    pixels, array, region = _filled(tmp_path / "a", torch.float32)
    with zarr.config.set(pipeline):
        assert np.array_equal(np.asarray(zarr.open_array(array, mode="r")[region]), _numpy(pixels))
        _, other, _ = _filled(tmp_path / "b", torch.float32)
        with ZarrTileStore(tmp_path / "a", mode="r") as store:
            assert store.verify("t") == []
    assert np.array_equal(np.asarray(zarr.open_array(other, mode="r")[region]), _numpy(pixels))
    with ZarrTileStore(tmp_path / "b", mode="r") as store:
        assert store.verify("t") == []


@pytest.mark.parametrize("compressors", ["auto", ZstdCodec(level=3, checksum=True), (GzipCodec(), ZstdCodec())])
def test_a_chunk_swapped_for_another_ones_is_found(tmp_path: Path, compressors: Any) -> None:
    _, array, _ = _filled(tmp_path, torch.float32, compressors=compressors)
    first, second, *_ = _chunks(array)
    first.write_bytes(second.read_bytes())
    with ZarrTileStore(tmp_path, compressors=compressors) as store:
        (damage,) = store.verify("t")
        assert damage.kind == "tile"
        assert "another place" in damage.reason
        with pytest.warns(DamagedDataWarning, match="another place"), pytest.raises(TileAccessError):
            store.open("t")[_ALL]


@pytest.mark.parametrize("compressors", [None, BloscCodec(cname="lz4"), (ZstdCodec(), GzipCodec())], ids=str)
def test_other_compressors_bind_no_chunk_to_its_place_but_find_other_damage(tmp_path: Path, compressors: Any) -> None:
    pixels, array, region = _filled(tmp_path, torch.float32, compressors=compressors)
    assert np.array_equal(np.asarray(zarr.open_array(array, mode="r")[region]), _numpy(pixels))
    first, *_ = _chunks(array)
    data = first.read_bytes()
    first.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    with ZarrTileStore(tmp_path, compressors=compressors) as store:
        assert [damage.kind for damage in store.verify("t")] == ["tile"]


def test_a_chunk_that_another_tool_wrote_without_a_stamp_is_taken(tmp_path: Path) -> None:
    _, array, region = _filled(tmp_path, torch.float32)
    theirs = zarr.open_array(array, mode="r+")
    theirs[region] = np.full((16, 16), 7, dtype=np.float32)
    assert all(stamp_of(chunk.read_bytes()) is None for chunk in _chunks(array))
    with ZarrTileStore(tmp_path, mode="r") as store:
        assert store.verify("t") == []
        assert store.open("t")[_ALL].unique().tolist() == [7]


def test_a_chunk_that_claims_to_hold_more_than_a_tile_takes_no_memory(tmp_path: Path) -> None:
    _, array, _ = _filled(tmp_path, torch.float32)
    first, *_ = _chunks(array)
    # A header that promises 2**40 bytes, and one empty last block.
    frame = b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + b"\x01\x00\x00"
    checksum: int = google_crc32c.value(frame)
    first.write_bytes(frame + checksum.to_bytes(4, "little"))
    with ZarrTileStore(tmp_path, mode="r") as store:
        (damage,) = store.verify("t")
    assert "it holds 1099511627776 bytes, not 256" in damage.reason
