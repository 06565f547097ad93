"""`from_raster`: real GeoTIFFs, read block by block, with their place on Earth."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from PIL import Image
from rasterio.crs import CRS
from rasterio.windows import Window

from infinite_tensor import (
    InfiniteTensor,
    StoreError,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    from_raster,
    sl,
)
from infinite_tensor.pipelines.sources import RasterTensor
from tests.behaviour.pipelines.arrays import assert_reads, numbers, sent
from tests.support.counting import Counted
from tests.support.interpreters import CONTEXT

CRS_UTM = CRS.from_epsg(32633)
TRANSFORM = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 4_600_000)
TILED = {"tiled": True, "blockxsize": 16, "blockysize": 32, "compress": "deflate"}


def saved(path: Path, pixels: np.ndarray[Any, Any], **options: Any) -> Path:
    """A GeoTIFF of these bands."""
    profile = {"driver": "GTiff", "dtype": pixels.dtype.name, "crs": CRS_UTM, "transform": TRANSFORM} | options
    count, height, width = pixels.shape
    with rasterio.open(path, "w", count=count, height=height, width=width, **profile) as file:
        file.write(pixels)
    return path


# Pixels and place.


@pytest.mark.parametrize("options", [{}, TILED, TILED | {"interleave": "pixel"}, {"ENDIANNESS": "BIG"}], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32", "complex64", "int64"])
def test_a_geotiff_is_read_bit_by_bit(dtype: str, options: dict[str, Any], tmp_path: Path) -> None:
    pixels = numbers((3, 70, 50), dtype)
    t = from_raster(saved(tmp_path / "a.tif", pixels, **options))
    assert t.dims == ("band", "y", "x")
    assert_reads(t, torch.from_numpy(pixels))
    assert_reads(from_raster(tmp_path / "a.tif", chunks=(2, 13, 17)), torch.from_numpy(pixels))


def test_it_knows_where_on_earth_it_is_also_after_pickling(tmp_path: Path) -> None:
    t = from_raster(saved(tmp_path / "a.tif", numbers((1, 70, 50)), nodata=-9999.0))
    for each in (t, sent(t), sent(sent(t))):
        assert isinstance(each, RasterTensor)
        assert each.crs == CRS_UTM
        assert each.transform == TRANSFORM
        assert each.nodata == -9999.0
        assert "EPSG:32633" in repr(each)


def test_nodata_scale_and_offset_leave_the_values_as_they_are(tmp_path: Path) -> None:
    pixels = np.full((1, 20, 20), 7, np.int16)
    with rasterio.open(saved(tmp_path / "a.tif", pixels, nodata=7), "r+") as file:
        file.scales, file.offsets = (0.1,), (5,)
    assert_reads(from_raster(tmp_path / "a.tif"), torch.from_numpy(pixels))


def test_complex_integers_become_complex64(tmp_path: Path) -> None:
    pixels = numbers((2, 70, 50, 2), "int16").astype("float32").view("complex64")[..., 0]
    t = from_raster(saved(tmp_path / "a.tif", pixels, dtype="complex_int16", **TILED))
    assert_reads(t, torch.from_numpy(pixels))


def test_floats_of_16_bits_are_float16(tmp_path: Path) -> None:
    pixels = np.linspace(-9, 9, 3500).reshape(1, 70, 50).astype("float16")
    t = from_raster(saved(tmp_path / "a.tif", pixels.astype("float32"), NBITS=16))
    assert_reads(t, torch.from_numpy(pixels))


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
@pytest.mark.parametrize("name", ["a.jpg", "a.tif", "a.png", "a.webp"])
def test_an_exif_orientation_turns_nothing(name: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    # One colour in each block, which no decoder of a JPEG changes.
    pixels = np.repeat(numbers((40, 64), "uint8")[::8, ::8].repeat(8, 0).repeat(8, 1)[..., None], 3, -1)
    Image.fromarray(pixels).save(tmp_path / name, exif=exif, lossless=True)
    with rasterio.open(tmp_path / name) as file:
        assert_reads(from_raster(tmp_path / name), torch.from_numpy(file.read()))


# Blocks.


@pytest.mark.parametrize(
    ("options", "block"),
    [
        ({}, (4, 32, 8000)),
        ({"interleave": "pixel"}, (4, 32, 8000)),
        ({"tiled": True, "blockxsize": 512, "blockysize": 512, "interleave": "band"}, (4, 512, 512)),
        ({"tiled": True, "blockxsize": 2048, "blockysize": 2048, "interleave": "pixel"}, (4, 2048, 2048)),
    ],
    ids=str,
)
def test_blocks_follow_those_of_the_file(options: dict[str, Any], block: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    profile = {"driver": "GTiff", "dtype": "uint8", "crs": CRS_UTM, "transform": TRANSFORM, "sparse_ok": True}
    with rasterio.open(path, "w", count=4, height=4000, width=8000, **profile, **options):
        pass
    assert from_raster(path, name="a").output_window.size == block


# Identity and resumption.


def blurred(source: InfiniteTensor, path: Path) -> int:
    """How often a filled tensor over the source was computed."""
    f, window = Counted(lambda _ctx, part: part.float().mean(0)), TensorWindow((25, 25))
    with ZarrTileStore(path, tile_size=50) as store:
        through = TensorWindow((3, 25, 25), dimension_map=(None, 0, 1))
        t = InfiniteTensor((50, 50), f, window, [source], [through], tile_store=store, tensor_id="mean")
        t[...]
    return len(f.calls)


def test_a_copied_file_resumes_and_one_other_pixel_does_not(tmp_path: Path) -> None:
    pixels = numbers((3, 50, 50), "uint8")
    path = saved(tmp_path / "a.tif", pixels)
    assert blurred(from_raster(path), tmp_path / "store") == 4
    assert blurred(from_raster(shutil.copy(path, tmp_path / "b.tif")), tmp_path / "store") == 0
    assert blurred(from_array(pixels), tmp_path / "store") == 0
    pixels[2, 30, 40] ^= 1
    with pytest.raises(ValidationError, match="digest"):
        blurred(from_raster(saved(path, pixels)), tmp_path / "store")


# Threads and processes.


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """In which process and on which thread rasterio has opened something."""
    noted, opening = [], rasterio.open

    def open_and_note(*args: Any, **options: Any) -> Any:
        noted.append((os.getpid(), threading.get_ident()))
        return opening(*args, **options)

    monkeypatch.setattr(rasterio, "open", open_and_note)
    return noted


def test_each_thread_has_a_handle_of_its_own(tmp_path: Path, opened: list[tuple[int, int]]) -> None:
    path = saved(tmp_path / "a.tif", numbers((2, 300, 400)), **TILED)
    t = from_raster(path, chunks=32)
    opened.clear()
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            for x in (0, 100, 200):
                t.clear_cache()
                thread.submit(t.read, sl[0, 0, x]).result()
    assert len(opened) == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_a_handle_of_its_own(tmp_path: Path, opened: list[tuple[int, int]]) -> None:
    # A handle that is inherited has one position in the file together with the parent's.
    t = from_raster(saved(tmp_path / "a.tif", numbers((3, 70, 50), "uint8")), chunks=16)
    expected = corner(t).tolist()
    t.clear_cache()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        opened.clear()
        sender.send((corner(t).tolist(), [process for process, _ in opened]))

    child = context.Process(target=work)
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == (expected, [child.pid])
    child.join(60)


def corner(t: Any) -> Any:
    return t[:, 50:, 40:]


def test_another_process_opens_it_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "a.tif", numbers((3, 70, 50), "uint8"))
    monkeypatch.chdir(tmp_path)
    t = from_raster("a.tif")
    assert len(pickle.dumps(t)) < 10_000
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert torch.equal(child.submit(corner, t).result(), corner(t))
    monkeypatch.chdir("/")
    assert torch.equal(corner(sent(t)), corner(t))


# Memory.


def read_all_of(path: Path) -> int:
    """By how much the most memory that this process has held grows while a raster is read in a row and at random."""
    import resource  # noqa: PLC0415  (not on Windows)

    t = from_raster(path)
    t[0, 0, 0]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    height, width = t.shape[1] or 0, t.shape[2] or 0
    total = 0
    for y in range(0, height, 1000):
        for x in range(0, width, 1000):
            part = t[:, max(0, y - 100) : y + 1000, max(0, x - 100) : x + 1000]
            total += int(part[0, -1, -1])
    rng = np.random.default_rng(0)
    for y, x in rng.integers(0, [height - 512, width - 512], (500, 2)).tolist():
        assert t[:, y : y + 512, x : x + 512].shape[1:] == (512, 512)
    assert total
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units")
@pytest.mark.parametrize(("tile", "bands", "most"), [(256, 1, 300e6), (1024, 1, 350e6), (512, 3, 400e6)])
def test_a_raster_of_400_megapixels_takes_no_more_memory_than_the_page_says(
    tile: int, bands: int, most: float, tmp_path: Path
) -> None:
    path, size = tmp_path / "a.tif", 20_000
    profile = {"driver": "GTiff", "dtype": "uint8", "crs": CRS_UTM, "transform": TRANSFORM, "compress": "deflate"}
    blocks = {"tiled": True, "blockxsize": tile, "blockysize": tile, "interleave": "pixel", "zlevel": 1}
    with rasterio.open(path, "w", count=bands, height=size, width=size, **profile, **blocks) as file:
        for y in range(0, size, 1024):
            high = min(1024, size - y)
            row = np.repeat(numbers((bands, 1, size), "uint8", seed=y), high, axis=1)
            file.write(row, window=Window(0, y, size, high))
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert child.submit(read_all_of, path).result() < most


# Refusals.


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(ImportError, match="pip install rasterio"):
        from_raster(tmp_path / "a.tif")


def test_what_is_no_raster_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_text("no raster")
    for path in (tmp_path / "a.tif", tmp_path / "missing.tif"):
        with pytest.raises(StoreError, match=path.name):
            from_raster(path)
    with pytest.raises(ValidationError, match="path"):
        from_raster(7)  # type: ignore[arg-type]


def test_a_damaged_block_says_which_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.tif", numbers((1, 300, 300)), **TILED)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    t = from_raster(path, name="a")
    with pytest.raises(StoreError, match="cannot be read"):
        t[0]
