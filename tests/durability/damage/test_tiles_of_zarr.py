"""The tiles of a Zarr store, as other tools read and write them, and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.support.stored import DTYPES, dtype_name

_ALL = slice(0, 16), slice(-8, 8)


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
def test_zarr_reads_tiles(tmp_path: Path, dtype: torch.dtype) -> None:
    pixels, array, region = _filled(tmp_path, dtype)
    assert np.asarray(zarr.open_array(array, mode="r")[region]).tobytes() == _numpy(pixels).tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool, torch.complex64], ids=dtype_name)
def test_tensorstore_reads_tiles(tmp_path: Path, dtype: torch.dtype) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    pixels, array, region = _filled(tmp_path, dtype)
    opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(array)}}).result()
    assert opened[region].read().result().tobytes() == _numpy(pixels).tobytes()


def test_the_rust_pipeline_reads_and_writes_tiles(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("compressors", ["auto", None, BloscCodec(cname="lz4"), ZstdCodec(checksum=True)])
def test_a_changed_tile_is_found_whatever_compresses_it(tmp_path: Path, compressors: Any) -> None:
    pixels, array, region = _filled(tmp_path, torch.float32, compressors=compressors)
    assert np.array_equal(np.asarray(zarr.open_array(array, mode="r")[region]), _numpy(pixels))
    first, *_ = _chunks(array)
    data = first.read_bytes()
    first.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    with ZarrTileStore(tmp_path, compressors=compressors) as store:
        assert [damage.kind for damage in store.verify("t")] == ["tile"]


def test_a_tile_that_another_tool_has_written_is_taken(tmp_path: Path) -> None:
    _, array, region = _filled(tmp_path, torch.float32)
    theirs = zarr.open_array(array, mode="r+")
    theirs[region] = np.full((16, 16), 7, dtype=np.float32)
    with ZarrTileStore(tmp_path, mode="r") as store:
        assert store.verify("t") == []
        assert store.open("t")[_ALL].unique().tolist() == [7]
