"""`from_image`: what the pixels of a file are, when it is decoded, and what identifies it."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

from infinite_tensor import PatchDataset, StoreError, ValidationError, from_image, sl
from tests.behaviour.pipelines.arrays import assert_reads, numbers, sent
from tests.support.interpreters import CONTEXT


def colours(height: int = 40, width: int = 60, bands: int = 3) -> np.ndarray[Any, Any]:
    return numbers((height, width, bands), "uint8")


def saved(path: Path, pixels: np.ndarray[Any, Any], mode: str | None = None, **options: Any) -> Path:
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path, **options)
    return path


# Pixels.


def test_a_colour_image_has_its_channels_first(tmp_path: Path) -> None:
    pixels = colours()
    t = from_image(saved(tmp_path / "a.png", pixels))
    assert t.dims == ("c", "y", "x")
    assert_reads(t, torch.from_numpy(pixels).movedim(-1, 0))


def test_a_grey_image_has_two_dimensions(tmp_path: Path) -> None:
    pixels = numbers((40, 60), "uint8")
    t = from_image(saved(tmp_path / "a.png", pixels))
    assert t.dims == ("y", "x")
    assert_reads(t, torch.from_numpy(pixels))


@pytest.mark.parametrize(("name", "dtype"), [("a.tif", "uint16"), ("a.png", "uint16"), ("a.tif", "float32")])
def test_the_dtype_is_that_of_the_file(name: str, dtype: str, tmp_path: Path) -> None:
    pixels = numbers((40, 60), dtype)
    assert_reads(from_image(saved(tmp_path / name, pixels)), torch.from_numpy(pixels))


def test_ints_of_32_bits_stay(tmp_path: Path) -> None:
    pixels = numbers((40, 60), "int32")
    assert_reads(from_image(saved(tmp_path / "a.tif", pixels)), torch.from_numpy(pixels))


def test_big_endian_pixels_are_those_of_this_machine(tmp_path: Path) -> None:
    pixels = numbers((6, 8), "uint16")
    Image.frombytes("I;16B", (8, 6), pixels.astype(">u2").tobytes()).save(tmp_path / "a.tif")
    with Image.open(tmp_path / "a.tif") as image:
        assert image.mode == "I;16B"
    assert_reads(from_image(tmp_path / "a.tif"), torch.from_numpy(pixels))


def test_one_bit_is_a_bool(tmp_path: Path) -> None:
    pixels = numbers((40, 61), "bool")
    path = saved(tmp_path / "a.png", pixels * np.uint8(255), "1")
    assert_reads(from_image(path), torch.from_numpy(pixels))


@pytest.mark.parametrize(("bands", "mode"), [(2, "LA"), (4, "RGBA")])
def test_alpha_is_a_channel(bands: int, mode: str, tmp_path: Path) -> None:
    pixels = colours(bands=bands)
    path = saved(tmp_path / "a.png", pixels)
    with Image.open(path) as image:
        assert image.mode == mode
    assert_reads(from_image(path), torch.from_numpy(pixels).movedim(-1, 0))


def test_a_palette_becomes_its_colours(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.gif", colours(), "P")
    with Image.open(path) as image:
        assert image.mode == "P"
        expected = torch.from_numpy(np.array(image.convert("RGB")))
    assert_reads(from_image(path), expected.movedim(-1, 0))


def test_transparency_in_a_palette_becomes_an_alpha_channel(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", colours(), "P", transparency=0)
    with Image.open(path) as image:
        expected = torch.from_numpy(np.array(image.convert("RGBA")))
    assert not expected[..., 3].all()
    assert_reads(from_image(path), expected.movedim(-1, 0))


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", colours(), "CMYK")
    with Image.open(path) as image:
        assert image.mode == "CMYK"
        expected = torch.from_numpy(np.array(image.convert("RGB")))
    assert_reads(from_image(path), expected.movedim(-1, 0))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.tif", "a.png"])
def test_it_is_turned_as_its_exif_orientation_says(name: str, orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / name, colours(), exif=exif)
    with Image.open(path) as image:
        expected = torch.from_numpy(np.array(ImageOps.exif_transpose(image))).movedim(-1, 0)
    assert expected.shape == ((3, 60, 40) if orientation >= 5 else (3, 40, 60))
    assert_reads(from_image(path), expected)


def test_of_several_images_in_a_file_the_first_is_read(tmp_path: Path) -> None:
    pixels = [numbers((10, 12), "uint8", seed) for seed in range(3)]
    first, *others = [Image.fromarray(each) for each in pixels]
    first.save(tmp_path / "a.tif", save_all=True, append_images=others)
    assert_reads(from_image(tmp_path / "a.tif"), torch.from_numpy(pixels[0]))


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
def test_colours_of_16_bits_are_not_cut_to_8(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    path = tmp_path / "a.png"
    with rasterio.open(path, "w", driver="PNG", width=8, height=6, count=3, dtype="uint16") as file:
        file.write(numbers((3, 6, 8), "uint16"))
    with pytest.raises(ValidationError, match=r"colours of 16 bits, which pillow cuts to 8; read it with from_raster"):
        from_image(path)


# When it is decoded.


def broken(path: Path) -> Path:
    """An image whose header is whole, and whose pixels are not."""
    content = saved(path, colours(300, 300)).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def test_it_is_decoded_when_it_is_first_read(tmp_path: Path) -> None:
    t = from_image(broken(tmp_path / "a.jpg"))
    assert t.shape == (3, 300, 300)
    with pytest.raises(
        StoreError, match=r"a.jpg cannot be read as an image: .*; from_raster reads large ones in parts"
    ):
        t[0, 0, 0]


def test_it_is_decoded_once(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", colours())
    t = from_image(path, chunks=16)
    before = t[:, 0:4, 0:4]
    path.unlink()
    assert torch.equal(t[:, 0:4, 0:4], before)
    assert t[...].shape == (3, 40, 60)


def test_threads_that_read_it_first_read_the_same(tmp_path: Path) -> None:
    pixels = colours(200, 200)
    t = from_image(saved(tmp_path / "a.png", pixels), chunks=10)
    assert torch.equal(t.read(sl[:, :, :], workers=8), torch.from_numpy(pixels).movedim(-1, 0))


def test_an_image_that_has_changed_before_it_is_decoded_is_not_read(tmp_path: Path) -> None:
    t = from_image(saved(tmp_path / "a.bmp", colours()))
    saved(tmp_path / "a.bmp", colours()[::-1].copy())
    with pytest.raises(StoreError, match=r"a.bmp has changed since a tensor was made of it; make it again"):
        t[0, 0, 0]


# Identity, and other processes.


def test_a_copy_of_the_file_is_the_same_source_and_another_file_is_not(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", colours())
    before = from_image(path).to_json()
    (tmp_path / "other").mkdir()
    assert from_image(shutil.copy(path, tmp_path / "other" / "b.png")).to_json() == before
    changed = colours()
    changed[3, 4, 1] ^= 1
    assert from_image(saved(path, changed)).version != before["version"]


def test_a_name_stands_for_the_content(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", colours())
    assert from_image(path, name="photo 7").version == {"name": "photo 7"}


def test_it_is_pickled_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = colours(500, 500)
    saved(tmp_path / "a.png", pixels)
    monkeypatch.chdir(tmp_path)
    t = from_image("a.png")
    expected = t[:, 7]
    assert len(pickle.dumps(t)) < 10_000
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert torch.equal(child.submit(row, t).result(), expected)
    assert torch.equal(row(sent(sent(t))), expected)


def row(t: Any) -> torch.Tensor:
    os.chdir("/")
    found: torch.Tensor = t[:, 7]
    return found


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_workers_of_a_data_loader_read_it(tmp_path: Path) -> None:
    t = from_image(saved(tmp_path / "a.png", colours()))
    patches = PatchDataset(t, (3, 8, 8), sl[:, :, :], length=6, seed=1)
    loader = DataLoader(patches, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert torch.equal(torch.cat(list(loader)), torch.stack([patches[i] for i in range(6)]))


# Refusals.


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.png", colours())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"^from_image needs the package pillow: pip install pillow$"):
        from_image(path)


def test_what_is_no_image_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    for path, message in [
        (tmp_path / "a.png", "a.png cannot be read as an image"),
        (tmp_path / "empty.png", "empty.png is an empty file"),
        (tmp_path / "missing.png", "missing.png cannot be read"),
        (tmp_path, "cannot be read"),
    ]:
        with pytest.raises(StoreError, match=message):
            from_image(path)


@pytest.mark.parametrize("path", [None, 7, b"a.png", Image.new("L", (3, 3))])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(ValidationError, match="path must be a str or a path, got"):
        from_image(path)


def test_an_image_that_pillow_takes_for_a_bomb_is_sent_to_from_raster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "a.png", colours())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(StoreError, match=r"decompression bomb.*from_raster reads large ones in parts"):
        from_image(path)
