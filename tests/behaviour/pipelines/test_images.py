"""`from_image`: what the pixels of a file are, when it is decoded, and what identifies it."""

from __future__ import annotations

import base64
import os
import pickle
import shutil
import struct
import sys
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from PIL import Image, ImageOps, features
from rasterio.errors import NotGeoreferencedWarning

from infinite_tensor import StoreError, ValidationError, from_image, from_raster
from tests.behaviour.pipelines.arrays import assert_reads, numbers, sent
from tests.support.interpreters import CONTEXT


def colours(height: int = 40, width: int = 60, bands: int = 3) -> np.ndarray[Any, Any]:
    return numbers((height, width, bands), "uint8")


def saved(path: Path, pixels: np.ndarray[Any, Any], mode: str | None = None, **options: Any) -> Path:
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path, **options)
    return path


def by_pillow(path: Path, mode: str | None = None, *, turned: bool = False) -> torch.Tensor:
    """What pillow makes of a file, channels first."""
    with Image.open(path) as image:
        shown = ImageOps.exif_transpose(image) if turned else image
        return torch.from_numpy(np.array(shown if mode is None else shown.convert(mode))).movedim(-1, 0)


def mode_of(path: Path) -> str:
    with Image.open(path) as image:
        return image.mode


# Pixels.


def test_a_colour_image_has_its_channels_first_and_a_grey_one_none(tmp_path: Path) -> None:
    pixels = torch.from_numpy(colours())
    colour, grey = (from_image(saved(tmp_path / "a.png", each.numpy())) for each in (pixels, pixels[..., 0]))
    assert (colour.dims, grey.dims) == (("c", "y", "x"), ("y", "x"))
    assert_reads(colour, pixels.movedim(-1, 0))
    assert_reads(grey, pixels[..., 0])


def test_one_bit_is_a_bool(tmp_path: Path) -> None:
    pixels = numbers((40, 61), "bool")
    path = saved(tmp_path / "a.png", pixels * np.uint8(255), "1")
    assert_reads(from_image(path), torch.from_numpy(pixels))


@pytest.mark.parametrize(
    ("name", "bands", "mode", "becomes"),
    [
        ("a.png", 2, "LA", "LA"),
        ("a.png", 4, "RGBA", "RGBA"),
        ("a.gif", 3, "P", "RGB"),
        ("a.jpg", 3, "CMYK", "RGB"),
    ],
)
def test_colours_of_any_mode_and_alpha_become_channels(
    name: str, bands: int, mode: str, becomes: str, tmp_path: Path
) -> None:
    path = saved(tmp_path / name, colours(bands=bands), mode)
    assert mode_of(path) == mode
    assert_reads(from_image(path), by_pillow(path, becomes))


def test_transparency_in_a_palette_becomes_an_alpha_channel(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", colours(), "P", transparency=0)
    expected = by_pillow(path, "RGBA")
    assert not expected[3].all()
    assert_reads(from_image(path), expected)


@pytest.mark.parametrize("orientation", [*range(10), 65_535])
@pytest.mark.parametrize("name", ["a.jpg", "a.tif", "a.png"])
def test_it_is_turned_as_its_exif_orientation_says(name: str, orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / name, colours(), exif=exif)
    # One that EXIF does not know turns nothing.
    expected = by_pillow(path, turned=1 <= orientation <= 8)
    assert expected.shape == ((3, 60, 40) if 5 <= orientation <= 8 else (3, 40, 60))
    assert_reads(from_image(path), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_grey_pixels_are_turned_as_colours_are(dtype: str, tmp_path: Path) -> None:
    pixels = numbers((40, 60), dtype)
    path = saved(tmp_path / "a.tif", pixels, tiffinfo={0x0112: 6})
    assert_reads(from_image(path), torch.from_numpy(np.rot90(pixels, -1).copy()))


# The values of the file, whatever pillow makes of them.


def written(path: Path, pixels: np.ndarray[Any, Any], driver: str, **options: Any) -> Path:
    """A file of GDAL, of bands that come first."""
    count, height, width = pixels.shape
    profile = {"width": width, "height": height, "count": count, "dtype": pixels.dtype.name} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "w", driver=driver, **profile) as file:
            file.write(pixels)
    return path


EXACT = {"QUALITY": 100, "REVERSIBLE": "YES", "YCC": "NO"}
RGB_IN_PLANES = {"photometric": "RGB", "interleave": "band"}


@pytest.mark.parametrize(
    ("driver", "count", "dtype", "options"),
    [
        ("PNG", 3, "uint16", {}),
        ("PNG", 2, "uint16", {}),
        ("JP2OpenJPEG", 3, "uint16", EXACT),
        ("JP2OpenJPEG", 1, "int16", EXACT),
        ("GTiff", 3, "uint16", RGB_IN_PLANES),
        ("GTiff", 3, "uint16", RGB_IN_PLANES | {"compress": "lzw", "tiled": True, "blockxsize": 16, "blockysize": 16}),
        ("GTiff", 4, "uint8", {"photometric": "RGB", "ALPHA": "UNSPECIFIED"}),
        ("GTiff", 4, "uint8", {"photometric": "RGB", "ALPHA": "PREMULTIPLIED"}),
        ("GTiff", 2, "uint8", {"ALPHA": "PREMULTIPLIED"}),
        ("GTiff", 1, "uint8", {"photometric": "MINISWHITE"}),
        ("GTiff", 1, "int8", {}),
        ("GTiff", 1, "int16", {}),
        ("GTiff", 1, "uint32", {"ENDIANNESS": "BIG"}),
        ("GTiff", 1, "int16", {"ENDIANNESS": "BIG", "compress": "deflate"}),
        ("GTiff", 1, "float64", {}),
        ("GTiff", 3, "float32", {"photometric": "RGB"}),
        ("GTiff", 7, "uint8", {}),
        # pillow opens it and cannot decode it.
        ("GTiff", 3, "uint8", {"photometric": "RGB", "compress": "webp", "WEBP_LOSSLESS": True}),
    ],
    ids=str,
)
def test_a_file_of_gdal_is_read_bit_by_bit(
    driver: str, count: int, dtype: str, options: dict[str, Any], tmp_path: Path
) -> None:
    pixels = numbers((count, 40, 60), dtype)
    expected = torch.from_numpy(pixels[0] if count == 1 else pixels)
    t = from_image(written(tmp_path / "a", pixels, driver, **options))
    assert t.dims == (("y", "x") if count == 1 else ("c", "y", "x"))
    assert_reads(t, expected)
    assert_reads(sent(t), expected)


@pytest.mark.parametrize(
    ("driver", "bits", "options"),
    [("PNG", 4, {}), ("GTiff", 2, {}), ("GTiff", 12, {}), ("JP2OpenJPEG", 12, EXACT)],
    ids=str,
)
def test_values_of_few_bits_are_not_scaled(driver: str, bits: int, options: dict[str, Any], tmp_path: Path) -> None:
    pixels = numbers((1, 40, 60), "uint16") % 2**bits
    pixels = pixels if bits > 8 else pixels.astype("uint8")
    path = written(tmp_path / "a", pixels, driver, NBITS=bits, **options)
    assert_reads(from_image(path), torch.from_numpy(pixels[0]))


@pytest.mark.parametrize("largest", [15, 100, 255, 4095, 65_535])
@pytest.mark.parametrize("bands", [1, 3])
def test_values_of_a_pnm_are_not_scaled(bands: int, largest: int, tmp_path: Path) -> None:
    pixels = (numbers((40, 60, bands), "uint32") % (largest + 1)).astype("uint8" if largest < 256 else "uint16")
    header = f"P{5 if bands == 1 else 6}\n60 40\n{largest}\n".encode()
    (tmp_path / "a.pnm").write_bytes(header + pixels.astype(pixels.dtype.newbyteorder(">")).tobytes())
    expected = torch.from_numpy(pixels).movedim(-1, 0)
    assert_reads(from_image(tmp_path / "a.pnm"), expected[0] if bands == 1 else expected)


def test_a_tiff_in_which_0_is_white_keeps_its_numbers(tmp_path: Path) -> None:
    shown = numbers((40, 60), "uint8")
    path = saved(tmp_path / "a.tif", shown, tiffinfo={262: 0})
    with Image.open(path) as image:
        assert np.array_equal(np.asarray(image), shown)
    assert_reads(from_image(path), torch.from_numpy(255 - shown))


def test_floats_of_16_bits_are_float16(tmp_path: Path) -> None:
    pixels = np.linspace(-9, 9, 2400).reshape(1, 40, 60).astype("float16")
    path = written(tmp_path / "a.tif", pixels.astype("float32"), "GTiff", NBITS=16)
    assert_reads(from_image(path), torch.from_numpy(pixels[0]))


@pytest.mark.parametrize("name", ["a.tif", "a.png"])
@pytest.mark.parametrize("orientation", [3, 6, 9])
def test_colours_of_16_bits_are_turned_as_well(orientation: int, name: str, tmp_path: Path) -> None:
    pixels = numbers((3, 40, 60), "uint16")
    driver, options = ("PNG", {}) if name == "a.png" else ("GTiff", {"photometric": "RGB"})
    path = written(tmp_path / name, pixels, driver, **options)
    tell_orientation(path, orientation)
    turned = np.rot90(pixels, {3: 2, 6: -1, 9: 0}[orientation], (1, 2)).copy()
    assert_reads(from_image(path), torch.from_numpy(turned))


def tell_orientation(path: Path, orientation: int) -> None:
    """Write an orientation into a file of GDAL: a tag of a TIFF that it always writes becomes it, a PNG gets a part."""
    content = path.read_bytes()
    exif = struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    if path.suffix == ".png":
        part = b"eXIf" + exif
        part = struct.pack(">I", len(exif)) + part + struct.pack(">I", zlib.crc32(part))
        path.write_bytes(content[:33] + part + content[33:])
    else:
        # Where the sample format stands, which is that of unsigned integers without it.
        entry = content.index(struct.pack("<HHI", 339, 3, 3))
        path.write_bytes(content[:entry] + exif[10:22] + content[entry + 12 :])


def sgi(pixels: np.ndarray[Any, Any]) -> bytes:
    header = struct.pack(">HBBHHHH", 474, 0, pixels.itemsize, 2, pixels.shape[1], pixels.shape[0], 1)
    return header.ljust(512, b"\0") + pixels[::-1].astype(">u2").tobytes()


def fits(pixels: np.ndarray[Any, Any]) -> bytes:
    cards = ["SIMPLE  = T", "BITPIX  = 16", "NAXIS   = 2", "NAXIS1  = 60", "NAXIS2  = 40", "END"]
    return "".join(card.ljust(80) for card in cards).ljust(2880).encode() + pixels.astype(">i2").tobytes()


def avif(_pixels: np.ndarray[Any, Any]) -> bytes:
    return base64.b64decode(AVIF)


@pytest.mark.parametrize("content", [sgi, fits, avif])
def test_what_neither_pillow_nor_rasterio_reads_as_it_is_is_refused(
    content: Callable[[np.ndarray[Any, Any]], bytes], tmp_path: Path
) -> None:
    if content is avif and "avif" not in features.get_supported():
        pytest.skip("pillow is built without it")
    path = tmp_path / f"a.{content.__name__}"
    path.write_bytes(content(numbers((40, 60), "uint16")))
    with pytest.raises(StoreError, match="from_array"):
        from_image(path)


AVIF = (
    "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUEAAADrbWV0YQAAAAAAAAAhaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAAAAAAAAAOcGl0"
    "bQAAAAAAAQAAAB5pbG9jAAAAAEQAAAEAAQAAAAEAAAETAAAAHwAAAChpaW5mAAAAAAABAAAAGmluZmUCAAAAAAEAAGF2MDFDb2xvcgAAAABqaXBy"
    "cAAAAEtpcGNvAAAAFGlzcGUAAAAAAAAACAAAAAgAAAAQcGl4aQAAAAADCgoKAAAADGF2MUOBIEAAAAAAE2NvbHJuY2x4AAIAAgAGgAAAABdpcG1h"
    "AAAAAAAAAAEAAQQBAoMEAAAAJ21kYXQSAAoIOAi/bwICBpAyERlCYwTAADQAAACQP5sMYIpG"
)
"""8 x 8 pixels of 10 bits, as imagecodecs writes them."""


def test_inks_of_16_bits_are_no_colours(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tif", numbers((4, 40, 60), "uint16"), "GTiff", photometric="CMYK")
    with pytest.raises(StoreError, match="from_raster"):
        from_image(path)


def test_without_rasterio_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.png", numbers((3, 40, 60), "uint16"), "PNG")
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(StoreError, match="pip install rasterio"):
        from_image(path)


# Pages.


def paged(path: Path, count: int = 4) -> list[torch.Tensor]:
    pixels = [numbers((10, 12), "uint8", seed) for seed in range(count)]
    first, *others = [Image.fromarray(each) for each in pixels]
    first.save(path, save_all=True, append_images=others)
    return [torch.from_numpy(each) for each in pixels]


@pytest.mark.parametrize("read", [from_image, from_raster])
@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
def test_of_several_pages_one_is_named_and_else_the_first_read(read: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    pages = paged(path)
    with pytest.warns(UserWarning, match="4 pages"):
        t = read(path)
    assert torch.equal(t[...].squeeze(), pages[0])
    for number, page in enumerate(pages):
        t = read(path, page=number)
        assert torch.equal(t[...].squeeze(), page)
        assert torch.equal(sent(t)[...].squeeze(), page)
    assert read(path, page=1).to_json()["version"] != read(path, page=2).to_json()["version"]
    for other in (4, -1, "1", 1.5):
        with pytest.raises(ValidationError, match="page"):
            read(path, page=other)


def test_frames_of_an_animation_are_pages(tmp_path: Path) -> None:
    pages = paged(tmp_path / "a.png")
    with pytest.warns(UserWarning, match="4 pages"):
        from_image(tmp_path / "a.png")
    assert torch.equal(from_image(tmp_path / "a.png", page=2)[...], pages[2])


def test_what_a_phone_keeps_beside_a_photograph_is_no_page(tmp_path: Path) -> None:
    first, other = [Image.fromarray(colours(height)) for height in (40, 20)]
    first.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[other])
    with Image.open(tmp_path / "a.jpg") as image:
        assert getattr(image, "n_frames", 1) == 2
    assert_reads(from_image(tmp_path / "a.jpg"), by_pillow(tmp_path / "a.jpg"))


def test_smaller_copies_of_an_image_are_no_pages(tmp_path: Path) -> None:
    pixels = numbers((1, 256, 256), "uint8")
    path = written(tmp_path / "a.tif", pixels, "GTiff", tiled=True, blockxsize=64, blockysize=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "r+") as file:
            file.build_overviews([2, 4])
    with Image.open(path) as image:
        assert getattr(image, "n_frames", 1) == 3
    assert_reads(from_image(path), torch.from_numpy(pixels[0]))


def test_a_page_that_pillow_does_not_know_is_read_as_well(tmp_path: Path) -> None:
    pixels = numbers((1, 10, 12), "float64")
    paged(tmp_path / "a.tif", 1)
    written(tmp_path / "a.tif", pixels, "GTiff", APPEND_SUBDATASET="YES")
    with pytest.warns(UserWarning, match="2 pages"):
        from_image(tmp_path / "a.tif")
    assert_reads(from_image(tmp_path / "a.tif", page=1), torch.from_numpy(pixels[0]))


def test_pages_that_rasterio_reads_are_told_of_once(tmp_path: Path) -> None:
    pixels = numbers((3, 10, 12), "uint16")
    for appended in ("NO", "YES"):
        written(tmp_path / "a.tif", pixels, "GTiff", photometric="RGB", APPEND_SUBDATASET=appended)
    with pytest.warns(UserWarning, match="2 pages") as warned:
        t = from_image(tmp_path / "a.tif")
    assert len(warned) == 1
    assert_reads(t, torch.from_numpy(pixels))


# When it is decoded.


def test_it_is_decoded_when_it_is_first_read(tmp_path: Path) -> None:
    content = saved(tmp_path / "a.jpg", colours(300, 300)).read_bytes()
    # The header is whole, and the pixels are not.
    (tmp_path / "a.jpg").write_bytes(content[: len(content) // 2])
    t = from_image(tmp_path / "a.jpg")
    assert t.shape == (3, 300, 300)
    with pytest.raises(StoreError, match="from_raster"):
        t[0, 0, 0]


def test_it_is_decoded_once(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", colours())
    t = from_image(path, chunks=16)
    before = t[:, 0:4, 0:4]
    path.unlink()
    assert torch.equal(t[:, 0:4, 0:4], before)
    assert t[...].shape == (3, 40, 60)


def test_an_image_that_has_changed_before_it_is_decoded_is_not_read(tmp_path: Path) -> None:
    t = from_image(saved(tmp_path / "a.bmp", colours()))
    saved(tmp_path / "a.bmp", colours()[::-1].copy())
    with pytest.raises(StoreError, match="changed"):
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


def row(t: Any) -> Any:
    os.chdir("/")
    return t[:, 7]


# Refusals.


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.png", colours())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        from_image(path)


def test_what_is_no_image_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    for path in (tmp_path / "a.png", tmp_path / "empty.png", tmp_path / "missing.png", tmp_path):
        with pytest.raises(StoreError, match=path.name):
            from_image(path)


@pytest.mark.parametrize("path", [None, 7, b"a.png", Image.new("L", (3, 3))])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(ValidationError, match="path"):
        from_image(path)


def test_what_pillow_takes_for_a_bomb_is_sent_to_from_raster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.png", colours())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(StoreError, match="from_raster"):
        from_image(path)
