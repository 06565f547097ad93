"""Level 2 of an image with missing pixels, by all that makes levels: the mean of the valid pixels of level 1."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import rasterio
import torch
import xarray
import zarr

from infinite_tensor import InfiniteTensor, MemoryTileStore, from_array, open_store, predict
from infinite_tensor.views.face import store_of_levels
from infinite_tensor.views.painter import Painter
from infinite_tensor.views.plane import Plane, Tile

Pixels: TypeAlias = np.ndarray[Any, Any]

SIDE = 1100
"""Long enough for two levels."""
SHOWN = (slice(0, 256), slice(0, 256))
"""A tile of viewers in level 2."""


def picture(dtype: str) -> Pixels:
    generator = np.random.default_rng(5)
    pixels = generator.integers(0, 100, (SIDE, SIDE)).astype(dtype)
    pixels[generator.random((SIDE, SIDE)) < 0.6] = np.nan
    return pixels


def halved(pixels: Pixels) -> Pixels:
    blocks = np.stack([pixels[y::2, x::2] for y in (0, 1) for x in (0, 1)])
    valid = ~np.isnan(blocks)
    with np.errstate(invalid="ignore"):
        means: Pixels = np.where(valid, blocks, 0).sum(0) / valid.sum(0)
    return means


def by_pyramid(t: InfiniteTensor, _folder: Path) -> Any:
    return t.pyramid(2, store=MemoryTileStore())[1][...]


def by_steps(t: InfiniteTensor, _folder: Path) -> Any:
    return t.coarsen(2).coarsen(2)[...]


def by_fill(t: InfiniteTensor, folder: Path) -> Any:
    t.coarsen(1, method="nearest", store=folder / "filled.zarr", tensor_id="t").fill(pyramid=True, progress=False)
    return open_store(folder / "filled.zarr", mode="r").open("t/level-2").stored_only(-1)[...]


def by_predict(t: InfiniteTensor, folder: Path) -> Any:
    predict(torch.nn.Identity(), t, folder / "p.zarr", window=(550, 550), pyramid=True, progress=False)
    return open_store(folder / "p.zarr", mode="r").open("prediction/level-2").stored_only(-1)[...]


def by_export(t: InfiniteTensor, folder: Path) -> Any:
    t.export(..., folder / "out.zarr", pyramid=2)
    return zarr.open_array(str(folder / "out.zarr"), path="s2/values", mode="r")[...]


def by_tiff(t: InfiniteTensor, folder: Path) -> Any:
    t.export(..., folder / "out.tif")
    with rasterio.open(folder / "out.tif", overview_level=1) as file:
        return file.read(1)


def by_view(t: InfiniteTensor, _folder: Path) -> Any:
    store = store_of_levels(t, ..., t.pyramid(2, store=MemoryTileStore()))
    return zarr.open_array(store, path="s2/values", mode="r")[...]


def by_painter(t: InfiniteTensor, _folder: Path) -> Any:
    return Painter(t).paint(Plane.of(t.shape, t.dims), Tile(2, 0, 0), compute=True).values


def by_stored(t: InfiniteTensor, folder: Path) -> Any:
    by_fill(t, folder)
    stored = open_store(folder / "filled.zarr", mode="r").open("t")
    return Painter(stored).paint(Plane.of(stored.shape, stored.dims), Tile(2, 0, 0), compute=False).values


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize(
    ("made", "nodata"),
    [
        # What is computed from an image does not have its nodata.
        (by_predict, np.nan),
        *itertools.product(
            [by_pyramid, by_steps, by_fill, by_export, by_tiff, by_view, by_painter, by_stored],
            [np.nan, -9999.0],
        ),
    ],
)
def test_level_2_is_a_mean_of_means(made: Callable[[InfiniteTensor, Path], Any], nodata: float, tmp_path: Path) -> None:
    pixels = picture("float32")
    expected = halved(halved(pixels.astype(np.float64)))
    assert not np.allclose(expected[1, 1], np.nanmean(pixels[4:8, 4:8]))
    given = np.where(np.isnan(pixels), nodata, pixels).astype("float32")
    t = from_array(xarray.DataArray(given, dims=("y", "x"), attrs={} if np.isnan(nodata) else {"_FillValue": nodata}))
    found = np.squeeze(np.asarray(made(t, tmp_path), np.float64))[SHOWN]
    found[found == nodata] = np.nan
    assert np.allclose(found, expected[SHOWN], rtol=1e-5, equal_nan=True)
