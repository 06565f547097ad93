"""TIFFs as Cloud-Optimized GeoTIFFs: overviews in a file that keeps its pixels, and all that was said of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import rasterio
import rasterio.shutil
import torch
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.rpc import RPC

from infinite_tensor import InfiniteTensor, StoreError, from_array, from_raster, predict, sl
from infinite_tensor.views.painter import Painter
from infinite_tensor.views.plane import Plane, Tile
from tests.behaviour.views.exports.scenes import names_in
from tests.support.dict_store import DictTileStore

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
OTHERS = ["float16", "float32", "float64", "complex64", "complex128"]
UTM = CRS.from_epsg(32633)
GCPS = [GroundControlPoint(row, column, 14 + column, 40 - row) for row, column in ((0, 0), (0, 9), (9, 0), (9, 9))]
RPCS = RPC(100, 200, 40, 1, [1.0] * 20, [1.0] * 20, 24.0, 20.0, 14, 1, [1.0] * 20, [1.0] * 20, 32.0, 30.0)


def noise(*shape: int, dtype: str = "uint8", high: int = 100) -> npt.NDArray[Any]:
    pixels = np.random.default_rng(0).integers(0, high, shape).astype(dtype)
    return pixels * (1 + 1j) if pixels.dtype.kind == "c" else pixels


def exported(t: InfiniteTensor, folder: Path, **options: Any) -> Any:
    """The export of all of a tensor, as GDAL opens it; nothing else is there."""
    (folder / "out").mkdir()
    t.export(..., folder / "out" / "out.tif", progress=False, **options)
    assert names_in(folder / "out") == ["out.tif"]
    return rasterio.open(folder / "out" / "out.tif")


def overview(file: Any, level: int = 0) -> npt.NDArray[Any]:
    with rasterio.open(file.name, OVERVIEW_LEVEL=level) as found:
        pixels: npt.NDArray[Any] = found.read()
        return pixels


@pytest.mark.parametrize("dtype", INTEGERS + OTHERS)
def test_every_dtype_has_overviews_and_the_same_pixels(dtype: str, tmp_path: Path) -> None:
    pixels = noise(600, 700, dtype=dtype)
    with exported(from_array(pixels), tmp_path) as file:
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert file.overviews(1) == [2]
        assert np.array_equal(file.read(1), pixels)


@pytest.mark.parametrize(
    ("bands", "dtype", "side", "overviews"),
    [(1, "uint8", 512, [2]), (4, "uint8", 512, [2]), (10, "float32", 256, [2, 4]), (100, "float32", 128, [2, 4, 8])],
)
def test_blocks_of_many_bands_are_smaller(
    bands: int, dtype: str, side: int, overviews: list[int], tmp_path: Path
) -> None:
    pixels = noise(bands, 40, 530, dtype=dtype)
    with exported(from_array(pixels), tmp_path) as file:
        assert file.block_shapes == [(side, side)] * bands
        assert file.overviews(bands) == overviews
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert np.array_equal(file.read(), pixels)


def test_of_very_many_bands_it_is_a_plain_tiff(tmp_path: Path) -> None:
    pixels = noise(129, 20, 30, dtype="float32")
    with exported(from_array(pixels), tmp_path) as file:
        assert "LAYOUT" not in file.tags(ns="IMAGE_STRUCTURE")
        assert np.array_equal(file.read(), pixels)


@pytest.mark.parametrize(
    "place",
    [
        {"crs": UTM, "transform": rasterio.Affine(0.5, 0, 500_000, 0, -0.25, 4_600_000)},
        {"crs": CRS.from_epsg(4326), "gcps": GCPS},
        {},
    ],
    ids=["transform", "gcps", "rpcs alone"],
)
def test_the_copy_says_all_that_the_raster_said(place: dict[str, Any], tmp_path: Path) -> None:
    pixels, mask = noise(2, 600, 700, dtype="int16"), noise(600, 700, high=2).astype(bool)
    profile = {"driver": "GTiff", "count": 2, "height": 600, "width": 700, "dtype": "int16", "nodata": -7}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(tmp_path / "in.tif", "w", **profile, **place) as file,
    ):
        file.write(pixels)
        file.write_mask(mask)
        file.scales, file.offsets, file.units = (0.1, 0.2), (1.0, 2.0), ("m", "K")
        file.descriptions = ("height", "heat")
        file.rpcs = RPCS
    with rasterio.open(tmp_path / "in.tif") as said, exported(from_raster(tmp_path / "in.tif"), tmp_path) as found:
        for name in ["crs", "transform", "nodata", "scales", "offsets", "units", "descriptions", "rpcs"]:
            assert getattr(found, name) == getattr(said, name), name
        assert [(g.row, g.col, g.x, g.y) for g in found.gcps[0]] == [(g.row, g.col, g.x, g.y) for g in said.gcps[0]]
        assert found.gcps[1] == said.gcps[1]
        assert np.array_equal(found.read_masks(1), said.read_masks(1))
        assert np.array_equal(found.read(), pixels)


def test_the_colour_map_stays_and_overviews_have_no_other_classes(tmp_path: Path) -> None:
    pixels = np.where(noise(600, 700, high=4) == 0, 9, 200).astype("uint8")
    profile = {"driver": "GTiff", "count": 1, "height": 600, "width": 700, "dtype": "uint8"}
    with rasterio.open(tmp_path / "in.tif", "w", **profile) as file:
        file.write_colormap(1, {9: (1, 2, 3, 255), 200: (9, 8, 7, 255)})
        file.write(pixels, 1)
    with exported(from_raster(tmp_path / "in.tif"), tmp_path) as found:
        assert found.colorinterp == (ColorInterp.palette,)
        assert found.colormap(1)[200] == (9, 8, 7, 255)
        assert set(np.unique(overview(found))) == {9, 200}


def test_overviews_are_means_of_numbers_and_the_most_frequent_of_labels(tmp_path: Path) -> None:
    # Three of each four pixels are 1; the fourth is another class, or another number.
    for name, other, expected in (("labels", 7, 1), ("numbers", 41, 11)):
        pixels = np.ones((600, 700), np.uint8)
        pixels[::2, ::2] = other
        (tmp_path / name).mkdir()
        with exported(from_array(pixels), tmp_path / name) as file:
            assert (overview(file) == expected).all()


def test_overviews_of_many_classes_have_no_other_ones(tmp_path: Path) -> None:
    # Of each class there are three pixels in four: their mean would be the number of another class.
    scores = torch.zeros(41, 600, 700)
    scores[1] = 0.5
    scores[40, ::2, ::2] = 1
    t = predict(lambda batch: batch, scores, window=(300, 350), overlap=0, reduce="argmax", progress=False)
    with exported(t, tmp_path) as file:
        assert (file.read() == 40).any()
        assert (overview(file) == 1).all()
    tiles = Painter(t)
    for picture in next(tiles.stored(Plane.of(t.shape, t.dims), [Tile(1, 0, 0)])):
        assert set(np.unique(picture.values)) == {1.0}


def test_what_is_nodata_is_no_class(tmp_path: Path) -> None:
    labels = from_array(3 + 4 * noise(600, 700, high=2))
    store = DictTileStore({}, tile_size=100)
    t = labels.map(torch.clone, dims=(0, 1), window=100, dtype="uint8", store=store, tensor_id="t")
    t.fill(sl[0:300, 0:700], progress=False)
    with exported(t, tmp_path, compute=False, fill_value=255) as file:
        assert file.nodata == 255
        assert set(np.unique(overview(file))) == {3, 7, 255}


def test_what_lies_beside_it_meanwhile_takes_no_more_room_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, sizes = rasterio.shutil.copy, []

    def measured(source: str, *args: Any, **options: Any) -> None:
        sizes.append(Path(source).stat().st_size)
        copy(source, *args, **options)

    monkeypatch.setattr(rasterio.shutil, "copy", measured)
    with exported(from_array(noise(1500, 1500, high=3)), tmp_path) as file:
        assert sizes[0] < Path(file.name).stat().st_size


def test_an_error_of_the_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rasterio.shutil, "copy", fails)
    with pytest.raises(StoreError, match=r"cannot write '.*out.tif': OSError: .*No space left"):
        from_array(noise(20, 30)).export(..., tmp_path / "out.tif")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("lost", [10, 9000])
def test_a_copy_that_lacks_its_end_is_an_error(lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = rasterio.shutil.copy

    def full_disk(source: str, target: str, **options: Any) -> None:
        # GDAL does not tell that what it writes last found no room.
        copy(source, target, **options)
        os.truncate(target, Path(target).stat().st_size - lost)

    monkeypatch.setattr(rasterio.shutil, "copy", full_disk)
    with pytest.raises(StoreError, match=r"cannot write '.*out.tif': RasterioIOError"):
        from_array(noise(600, 700)).export(..., tmp_path / "out.tif")
    assert names_in(tmp_path) == []
