"""What each format holds of a region, read by numpy, pillow, GDAL and xarray."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import rasterio
import torch
from PIL import Image

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, from_array, sl
from infinite_tensor.errors import RegionError
from tests.behaviour.views.exports.scenes import FORMS, REGION, forms, names_in, opened, plane, truth
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index
from tests.support.stored import DTYPES, dtype_name

NAMES = [dtype_name(dtype) for dtype in DTYPES]
IN_TIFF = [name for name in NAMES if name not in ("bool", "float16")]


@forms
def test_another_program_reads_the_pixels_of_the_region(form: str, tmp_path: Path) -> None:
    target = tmp_path / f"out.{form}"
    plane().export(sl[REGION], target)
    found = opened(target)
    assert found.dtype == np.uint8
    assert np.array_equal(found, truth())
    assert names_in(tmp_path) == [f"out.{form}"]


@forms
def test_a_path_alone_takes_all_of_a_finite_tensor(form: str, tmp_path: Path) -> None:
    pixels = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    t = from_array(pixels, dims=("y", "x"))
    t.export(tmp_path / f"all.{form}")
    assert np.array_equal(opened(tmp_path / f"all.{form}"), pixels)
    t.stored_only(0).export(str(tmp_path / f"stored.{form}"))
    assert opened(tmp_path / f"stored.{form}").shape == (3, 4)
    with pytest.raises(RegionError, match="unbounded"):
        plane().export(tmp_path / f"endless.{form}")


@forms
def test_a_region_of_many_steps_is_the_same_as_one_read(form: str, tmp_path: Path) -> None:
    pixels = torch.randint(0, 2**8, (3, 1100, 3000), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    t = from_array(pixels, dims=("c", "y", "x"), chunks=(1, 64, 128))
    steps: list[int] = []
    t.export(..., tmp_path / f"out.{form}", progress=lambda progress: steps.append(progress.done))
    assert np.array_equal(opened(tmp_path / f"out.{form}"), pixels.numpy())
    assert steps[-1] > 1


@pytest.mark.parametrize(
    ("form", "dtype"),
    [*itertools.product(["zarr", "npy"], NAMES), *itertools.product(["tiff"], IN_TIFF)],
)
def test_every_dtype_is_kept_but_bfloat16_which_becomes_float32(form: str, dtype: str, tmp_path: Path) -> None:
    t = plane(dtype=dtype)
    t.export(sl[REGION], tmp_path / f"out.{form}")
    found, expected = opened(tmp_path / f"out.{form}"), t[REGION].float() if dtype == "bfloat16" else t[REGION]
    assert found.dtype == dtype_name(expected.dtype)
    assert np.array_equal(found, expected.numpy())


@forms
def test_an_int_picks_a_pixel_of_a_dimension_and_drops_it(form: str, tmp_path: Path) -> None:
    pixels = torch.randint(0, 2**8, (5, 20, 30), dtype=torch.uint8)
    t = from_array(pixels, dims=("time", "y", "x"), chunks=8)
    t.export(sl[3, 2:18, ...], tmp_path / f"out.{form}")
    assert np.array_equal(opened(tmp_path / f"out.{form}"), pixels[3, 2:18].numpy())


# Images.


@pytest.mark.parametrize(("channels", "dtype"), [(1, "uint8"), (3, "uint8"), (4, "uint8"), (1, "uint16")])
def test_a_png_has_one_three_or_four_channels_of_8_bits_or_one_of_16(channels: int, dtype: str, tmp_path: Path) -> None:
    high = np.iinfo(dtype).max
    pixels = np.random.default_rng(0).integers(0, high, (channels, 70, 50), dtype, endpoint=True)
    from_array(pixels, chunks=(1, 16, 16)).export(sl[:, 5:69, 1:50], tmp_path / "out.png")
    found = opened(tmp_path / "out.png")
    assert found.dtype == dtype
    assert np.array_equal(found, pixels[:, 5:69, 1:50].squeeze())


@pytest.mark.parametrize(("options", "step"), [({"every": 7}, 7), ({"max_pixels": 100}, 7), ({"every": 1}, 1)])
def test_a_png_may_have_every_so_many_pixel(options: dict[str, Any], step: int, tmp_path: Path) -> None:
    f = Counted(lambda ctx: torch.full((4, 4), ctx[0] % 16 * 16 + ctx[1] % 16))
    t, region = plane(f), sl[-5:55, 3:80]
    t.export(region, tmp_path / "out.png", **options)
    calls = len(f.calls)
    assert np.array_equal(opened(tmp_path / "out.png"), t[-5:55:step, 3:80:step].numpy())
    # Of a window for each pixel.
    assert calls <= 100 or step == 1
    colours = np.random.default_rng(0).integers(0, 256, (3, 40, 50), np.uint8)
    from_array(colours).export(sl[:, 1:, 0:49], tmp_path / "colours.png", every=2)
    assert np.array_equal(opened(tmp_path / "colours.png"), colours[:, 1::2, 0:49:2])


def test_a_png_of_every_so_many_pixel_without_computing(tmp_path: Path) -> None:
    f = Counted(lambda _ctx: torch.full((4, 4), 3.0))
    t = plane(f)
    t.fill(sl[0:8, 0:8], progress=False)
    calls = len(f.calls)
    t.export(sl[0:16, 0:16], tmp_path / "out.png", every=4, compute=False, fill_value=9)
    assert opened(tmp_path / "out.png").tolist() == [[3, 3, 9, 9]] * 2 + [[9] * 4] * 2
    assert len(f.calls) == calls


def test_labels_have_colours_in_a_png_with_a_palette_and_stay_what_they_are(tmp_path: Path) -> None:
    labels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    from_array(labels).stored_only(255).export(..., tmp_path / "out.png", palette=True)
    with Image.open(tmp_path / "out.png") as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), labels)
        assert image.info["transparency"] == 255
        colours = np.asarray(image.convert("RGB"))
    expected = np.round(mpl.colormaps["tab20"](np.arange(20), bytes=False)[:, :3] * 255)
    assert np.array_equal(colours, expected[labels % 20])
    assert np.array_equal(opened(tmp_path / "out.png"), labels)


@pytest.mark.parametrize(("channels", "dtype"), [(3, "uint8"), (1, "uint16")])
def test_a_palette_is_for_one_channel_of_uint8(channels: int, dtype: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="palette"):
        from_array(np.zeros((channels, 5, 5), dtype)).export(..., tmp_path / "out.png", palette=True)


@pytest.mark.parametrize("form", ["png", "tif"])
def test_channels_are_found_by_their_name(form: str, tmp_path: Path) -> None:
    pixels = torch.randint(0, 2**8, (20, 30, 3), dtype=torch.uint8)
    from_array(pixels, dims=("y", "x", "channel"), chunks=8).export(sl[2:, :, :], tmp_path / f"out.{form}")
    assert np.array_equal(opened(tmp_path / f"out.{form}"), pixels[2:].movedim(-1, 0).numpy())


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_tiff_has_any_number_of_bands_in_tiles(tmp_path: Path) -> None:
    pixels = torch.randint(0, 2**8, (7, 100, 90), dtype=torch.uint8)
    store = DictTileStore({}, tile_size=(2, 32, 64))
    t = from_array(pixels, chunks=10).map(lambda x: x, dims=(1, 2), window=50, store=store, tensor_id="t")
    t.export(..., tmp_path / "out.tif")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.profile["tiled"]
        assert set(file.block_shapes) == {(512, 512)}
        assert np.array_equal(file.read(), pixels.numpy())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_tiff_that_may_have_4_gib_is_a_bigtiff(tmp_path: Path) -> None:
    t = InfiniteTensor((None, None), lambda _ctx: torch.ones(512, 512), TensorWindow((512, 512)))
    # What is not stored takes no time to write.
    t.export(sl[0:1024, 0:600_000], tmp_path / "large.tif", compute=False)
    t.export(sl[0:64, 0:64], tmp_path / "small.tif")
    assert (tmp_path / "large.tif").read_bytes()[2:4] == b"+\0"
    assert (tmp_path / "small.tif").read_bytes()[2:4] == b"*\0"


@pytest.mark.parametrize(
    ("t", "region", "form", "message"),
    [
        (plane(dtype="float32"), sl[REGION], "png", "float32"),
        (plane(dtype="bool"), sl[REGION], "tif", "bool"),
        (from_array(np.zeros((2, 9, 9), np.uint8)), ..., "png", "has 2"),
        (from_array(np.zeros((2, 3, 9, 9), np.uint8)), ..., "tif", "index"),
        (from_array(np.zeros(9, np.uint8)), ..., "png", "images"),
    ],
)
def test_what_an_image_cannot_hold_is_an_error_that_says_what_to_do(
    t: InfiniteTensor, region: object, form: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match=message):
        t.export(region, tmp_path / f"out.{form}")
    assert names_in(tmp_path) == []


# What is computed, and what is not.


@forms
def test_windows_are_computed_once_and_stored(form: str, tmp_path: Path) -> None:
    f = Counted(lambda ctx: torch.full((4, 4), float(ctx[0])))
    t = plane(f)
    t.export(sl[REGION], tmp_path / f"out.{form}")
    assert set(f.counts.values()) == {1}
    calls = len(f.calls)
    t.export(sl[REGION], tmp_path / f"again.{form}")
    assert t[REGION].shape == (14, 23)
    assert len(f.calls) == calls


@forms
def test_without_computing_what_is_stored_is_written(form: str, tmp_path: Path) -> None:
    f = Counted(lambda _ctx: torch.full((4, 4), 3.0))
    t = plane(f)
    t.fill(sl[0:8, 8:16], progress=False)
    calls = len(f.calls)
    # By default it is 0.
    for given, value in ((7, 7), (None, 0)):
        t.export(sl[REGION], tmp_path / f"{value}.{form}", compute=False, fill_value=given)
        expected = np.full((14, 23), value)
        expected[5:13, 6:14] = 3
        assert np.array_equal(opened(tmp_path / f"{value}.{form}"), expected)
    assert len(f.calls) == calls


def test_an_export_of_a_chain_computes_what_each_tensor_reads_once(tmp_path: Path) -> None:
    f = Counted(lambda ctx: torch.full((4, 4), float(ctx[0] + ctx[1])))
    ground = InfiniteTensor((None, None), f, TensorWindow((4, 4)))
    smooth = ground.map(lambda x: torch.nn.functional.avg_pool2d(x[None], 3, 1)[0], halo=1, window=8)
    smooth.export(sl[0:40, 0:40], tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), smooth[0:40, 0:40].numpy())
    assert set(f.counts.values()) == {1}


# Regions.


def test_an_unbounded_dimension_needs_both_ends(tmp_path: Path) -> None:
    with pytest.raises(RegionError, match=r"\('y'\) is unbounded"):
        plane().export(..., tmp_path / "out.npy")


@pytest.mark.parametrize("region", [sl[0:8:2, 0:8], sl[0:0, 0:8]], ids=str)
def test_a_region_holds_pixels_without_a_step(region: object, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="step"):
        plane().export(region, tmp_path / "out.npy")


def test_far_from_the_origin_pixels_are_those_of_a_read(tmp_path: Path) -> None:
    def f(ctx: Index) -> torch.Tensor:
        return torch.full((4, 4), ctx[0] % 199 + 1)

    t, far = plane(f), sl[-(2**51) : -(2**51) + 20, 2**50 : 2**50 + 30]
    for form in FORMS:
        t.export(far, tmp_path / f"out.{form}")
        assert np.array_equal(opened(tmp_path / f"out.{form}"), t[far].numpy())
