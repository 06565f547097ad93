"""Where on Earth exported pixels are: GeoTIFFs of rasters, and of what is computed from them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from rasterio.crs import CRS

from infinite_tensor import (
    InfiniteTensor,
    MeaningLostWarning,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_raster,
    map_windows,
    predict,
    sl,
)
from tests.behaviour.views.exports.scenes import names_in

pytestmark = pytest.mark.filterwarnings("ignore:.*out.tif is without nodata. the format")
"""Of what is computed: `test_meaning` has a test of it."""

UTM = CRS.from_epsg(32633)
TRANSFORM = rasterio.Affine(0.5, 0, 500_000, 0, -0.25, 4_600_000)
PIXELS = np.arange(3 * 96 * 64, dtype=np.float32).reshape(3, 96, 64)


def raster(folder: Path, transform: Any = TRANSFORM, **options: Any) -> InfiniteTensor:
    path = folder / f"in{len(list(folder.iterdir()))}.tif"
    profile = {"driver": "GTiff", "dtype": "float32", "crs": UTM, "transform": transform, "nodata": -1} | options
    with rasterio.open(path, "w", count=3, height=96, width=64, **profile) as file:
        file.write(PIXELS)
    return from_raster(path)


def moved(x: float, y: float, size: float = 1) -> Any:
    """The transform of pixels of so many pixels of the raster, the first of which begins at (x, y) in it."""
    return rasterio.Affine(0.5 * size, 0, 500_000 + 0.5 * x, 0, -0.25 * size, 4_600_000 - 0.25 * y)


def place_of(t: InfiniteTensor, region: object, folder: Path) -> tuple[Any, Any, Any]:
    """The crs, the transform and the nodata of a region, as GDAL finds them in its export."""
    t.export(region, folder / "out.tif", overwrite=True)
    with rasterio.open(folder / "out.tif") as file:
        return file.crs, file.transform, file.nodata


def test_a_region_of_a_raster_is_where_it_was(tmp_path: Path) -> None:
    t = raster(tmp_path)
    crs, transform, nodata = place_of(t, sl[1:3, 10:90, 20:60], tmp_path)
    assert crs == UTM
    assert transform == moved(20, 10)
    assert nodata == -1
    with rasterio.open(tmp_path / "out.tif") as file:
        assert np.array_equal(file.read(), PIXELS[1:3, 10:90, 20:60])
        assert file.xy(0, 0) == (500_000 + 20.5 * 0.5, 4_600_000 - 10.5 * 0.25)
    # So is one band of it.
    assert place_of(t, sl[1, 10:90, 20:60], tmp_path)[1] == moved(20, 10)


def halved(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(x, 2)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, -1).repeat_interleave(2, -2)


@pytest.mark.parametrize("halo", [0, 2, 6])
@pytest.mark.parametrize(("fn", "scale"), [(halved, Fraction(1, 2)), (lambda x: x + 1, 1), (doubled, 2)])
def test_what_is_mapped_from_a_raster_has_pixels_of_its_scale(fn: Any, scale: Any, halo: int, tmp_path: Path) -> None:
    t = raster(tmp_path).map(fn, halo=halo, scale=scale, window=16)
    crs, transform, nodata = place_of(t, sl[:, 6:20, 8:30], tmp_path)
    assert crs == UTM
    size = float(1 / Fraction(scale))
    assert transform.almost_equals(moved(8 * size, 6 * size, size))
    # What the numbers of the raster mean, those of a function of them do not.
    assert nodata is None


def test_scales_of_a_chain_multiply(tmp_path: Path) -> None:
    t = raster(tmp_path).map(halved, scale=0.5, window=8).map(halved, scale=0.5, window=8, halo=2)
    _, transform, _ = place_of(t, sl[:, 2:10, 4:10], tmp_path)
    assert transform.almost_equals(moved(16, 8, 4))


def test_labels_that_a_network_predicts_are_where_the_raster_is(tmp_path: Path) -> None:
    net = torch.nn.Conv2d(3, 4, 1)
    labels = predict(net, raster(tmp_path), window=32, overlap=0.5, reduce="argmax", progress=False)
    assert isinstance(labels, InfiniteTensor)
    crs, transform, _ = place_of(labels, sl[10:90, 20:60], tmp_path)
    assert crs == UTM
    assert transform == moved(20, 10)


def turned(t: InfiniteTensor, rows: int, columns: int) -> InfiniteTensor:
    """Two dimensions of a tensor of 2 or 3 dimensions, exchanged."""
    window = TensorWindow((16, 16))
    read = TensorWindow((3, 16, 16)[-t.ndim :], dimension_map=(None, 1, 0)[-t.ndim :])

    def f(_ctx: object, region: torch.Tensor) -> torch.Tensor:
        return (region[0] if region.ndim == 3 else region).T

    return InfiniteTensor((rows, columns), f, window, args=[t], args_windows=[read])


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_dimensions_in_another_order_are_followed(tmp_path: Path) -> None:
    once = turned(raster(tmp_path), 64, 96)
    twice = turned(once, 96, 64)
    assert torch.equal(twice[...], torch.from_numpy(PIXELS[0]))
    assert place_of(twice, ..., tmp_path)[1] == TRANSFORM
    # Which way a raster is turned is nothing that follows from windows.
    with pytest.warns(MeaningLostWarning, match=r"is without CRS, transform: "):
        assert place_of(once, ..., tmp_path)[1].is_identity


def test_rasters_that_agree_are_one_place(tmp_path: Path) -> None:
    both = map_windows(lambda a, b: a + b, raster(tmp_path), raster(tmp_path), window=16)
    _, transform, _ = place_of(both, sl[:, 0:96, 0:64], tmp_path)
    assert transform == TRANSFORM


SMALL = rasterio.Affine(1e-7, 0, 14, 0, -1e-7, 41)
"""Pixels of a centimetre, in degrees."""


def moved_in(transform: Any, x: float, y: float) -> Any:
    """A transform of pixels without rotation, moved by so many of them."""
    a, b, c, d, e, f = transform[:6]
    return rasterio.Affine(a, b, c + a * x, d, e, f + e * y)


@pytest.mark.parametrize("transform", [TRANSFORM, SMALL], ids=["metres", "degrees"])
def test_rounding_does_not_part_rasters(transform: Any, tmp_path: Path) -> None:
    rounded = rasterio.Affine(*[float(np.nextafter(number, np.inf)) for number in transform[:6]])
    both = map_windows(lambda a, b: a + b, raster(tmp_path, transform), raster(tmp_path, rounded), window=16)
    assert place_of(both, ..., tmp_path)[1] == transform


@pytest.mark.parametrize("transform", [TRANSFORM, SMALL], ids=["metres", "degrees"])
@pytest.mark.parametrize("by", [(1, 0), (0, -0.01)], ids=str)
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_of_rasters_that_lie_in_different_places_none_is_kept(
    by: tuple[float, float], transform: Any, tmp_path: Path
) -> None:
    elsewhere = raster(tmp_path, moved_in(transform, *by))
    with pytest.warns(MeaningLostWarning, match="disagree about CRS, transform, so the tensor keeps none of these"):
        both = map_windows(lambda a, b: a + b, raster(tmp_path, transform), elsewhere, window=16)
    crs, found, _ = place_of(both, ..., tmp_path)
    assert (crs, found.is_identity) == (None, True)


def test_a_tensor_that_was_opened_by_its_id_is_where_the_raster_is(tmp_path: Path) -> None:
    image = raster(tmp_path)
    with ZarrTileStore(tmp_path / "store", tile_size=16) as store:
        image.map(torch.neg, window=16, store=store, tensor_id="negative").fill(..., progress=False)
    with ZarrTileStore(tmp_path / "store", mode="r") as store:
        opened = store.open("negative", args=[image])
        assert place_of(opened, sl[:, 10:20, 20:30], tmp_path)[:2] == (UTM, moved(20, 10))


ROTATED_POLE = CRS.from_string(
    "+proj=ob_tran +o_proj=longlat +o_lon_p=-162 +o_lat_p=39.25 +lon_0=180 +to_meter=0.0174532925199433"
)


def test_a_crs_that_no_geotiff_holds_is_an_error(tmp_path: Path) -> None:
    t = raster(tmp_path, crs=ROTATED_POLE)
    before = names_in(tmp_path)
    with pytest.raises(ValidationError, match=r"a GeoTIFF cannot store the CRS of the raster, .*; write .npy or .zarr"):
        t.export(..., tmp_path / "out.tif")
    assert names_in(tmp_path) == before
    with pytest.warns(MeaningLostWarning, match=r"out.npy is without CRS, transform, nodata: the format cannot store"):
        t.export(..., tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), PIXELS)


@pytest.mark.parametrize(
    "crs",
    ["EPSG:4326", "EPSG:27700", "ESRI:102008", "+proj=sinu +R=6371007.181", "+proj=geos +h=35785831", "EPSG:4979"],
)
def test_most_are_found_again(crs: str, tmp_path: Path) -> None:
    known = CRS.from_string(crs)
    assert place_of(raster(tmp_path, crs=known), sl[:, 1:9, 1:9], tmp_path)[0] == known


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_raster_that_says_nothing_of_its_place_is_a_plain_tiff(tmp_path: Path) -> None:
    t = raster(tmp_path, rasterio.Affine.identity(), crs=None)
    crs, transform, _ = place_of(t, sl[:, 10:20, 10:20], tmp_path)
    assert crs is None
    assert transform.is_identity
