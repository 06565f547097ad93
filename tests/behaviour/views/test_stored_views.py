"""What is stored of a tensor, for xarray and Dask, in files and pictures: nothing is computed for it."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import rasterio
import torch
import xarray
import zarr

from infinite_tensor import InfiniteTensor, TensorGroup, TensorWindow, ZarrTileStore, from_raster, predict
from tests.behaviour.views.exports.scenes import opened, pattern, plane, truth
from tests.support.counting import Constant, Counted

REGION = slice(-8, 16), slice(0, 24)
STORED = slice(0, 8), slice(8, 16)
"""A tile of the region."""


def begun(dtype: str = "uint8", f: Any = pattern) -> InfiniteTensor:
    """A tensor of which one tile is stored."""
    t = plane(f, dtype)
    t.fill(STORED, progress=False)
    return t


def expected(fill_value: Any = 255, dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
    pixels = np.full((24, 24), fill_value, dtype)
    pixels[8:16, 8:16] = truth(STORED)
    return pixels


def nodata_in(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path) as file:
            return file.nodata


class TestXarray:
    @pytest.mark.parametrize("lazy", [True, False])
    def test_it_has_the_pixels_and_says_what_is_nodata(self, lazy: bool) -> None:
        array = begun().stored_only(255).to_xarray(REGION, lazy=lazy)
        assert np.array_equal(array.to_numpy(), expected())
        assert (array.dims, array.name) == (("y", "x"), "height")
        assert array.dtype == np.uint8
        assert array.coords["y"].to_numpy().tolist() == list(range(-8, 16))
        assert array.attrs == {"_FillValue": 255}
        assert type(array.attrs["_FillValue"]) is np.uint8

    def test_xarray_masks_it_where_it_was_saved(self, tmp_path: Path) -> None:
        begun().stored_only(255).to_xarray(REGION).to_dataset().to_zarr(tmp_path / "out.zarr", consolidated=False)
        with xarray.open_zarr(tmp_path / "out.zarr", consolidated=False) as found:
            assert np.array_equal(found["height"].to_numpy(), expected(np.nan, np.float32), equal_nan=True)

    def test_a_value_that_nobody_gave_is_not_nodata(self) -> None:
        array = begun().stored_only().to_xarray(REGION)
        assert np.array_equal(array.to_numpy(), expected(0))
        assert array.attrs == {}

    def test_what_is_stored_later_is_seen_later(self) -> None:
        t = begun()
        array = t.stored_only(255).to_xarray(REGION)
        t.fill(REGION, progress=False)
        assert np.array_equal(array.to_numpy(), truth(REGION))


class TestDask:
    def test_it_has_the_pixels(self) -> None:
        array = begun().stored_only(255).to_dask(REGION)
        assert np.array_equal(array.compute(), expected())
        assert array.chunks == ((8, 8, 8), (8, 8, 8))

    def test_no_block_is_taken_for_one_of_another_moment_or_of_the_tensor(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=8) as store:
            t = plane(tile_store=store)
            view = t.stored_only(255)
            arrays = [view.to_dask(REGION), view.to_dask(REGION), t.to_dask(REGION)]
            assert len({array.name for array in arrays}) == 3

    def test_another_process_may_be_handed_it(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=8) as store:
            t = InfiniteTensor((None, None), Constant(), TensorWindow((4, 4)), tile_store=store, tensor_id="t")
            array = t.stored_only(255).to_dask(REGION)
            assert (pickle.loads(pickle.dumps(array)).compute() == 255).all()  # noqa: S301  (our own)


class TestExport:
    @pytest.mark.parametrize(
        ("dtype", "value"), [("uint8", 255), ("int16", -1), ("int64", 2**53), ("float32", -9999.0), ("float64", np.nan)]
    )
    def test_a_tiff_says_what_is_nodata(self, dtype: str, value: Any, tmp_path: Path) -> None:
        begun(dtype).stored_only(value).export(REGION, tmp_path / "out.tif")
        assert np.array_equal([nodata_in(tmp_path / "out.tif")], [value], equal_nan=True)
        assert np.array_equal(opened(tmp_path / "out.tif"), expected(value, dtype), equal_nan=True)

    def test_it_takes_the_place_of_that_of_a_raster(self, tmp_path: Path) -> None:
        profile = {"driver": "GTiff", "dtype": "float32", "crs": "EPSG:32633", "nodata": -1, "count": 1}
        transform = rasterio.Affine(1, 0, 5, 0, -1, 7)
        with rasterio.open(tmp_path / "in.tif", "w", height=8, width=8, transform=transform, **profile) as file:
            file.write(np.ones((1, 8, 8), np.float32))
        t = from_raster(tmp_path / "in.tif")
        t.export(..., tmp_path / "plain.tif", compute=False)
        t.stored_only(7).export(..., tmp_path / "out.tif")
        assert [nodata_in(tmp_path / name) for name in ("plain.tif", "out.tif")] == [-1, 7]

    @pytest.mark.parametrize(
        ("dtype", "value"), [("uint8", 255), ("int16", -1), ("float32", -0.5), ("float64", np.inf)]
    )
    def test_zarr_says_it_and_xarray_masks_it(self, dtype: str, value: Any, tmp_path: Path) -> None:
        begun(dtype).stored_only(value).export(REGION, tmp_path / "out.zarr")
        array = zarr.open_array(tmp_path / "out.zarr" / "height", mode="r")
        assert array.fill_value == value
        assert np.array_equal(array[...], expected(value, dtype))
        with xarray.open_zarr(tmp_path / "out.zarr") as found:
            assert np.array_equal(found["height"].to_numpy(), expected(np.nan, np.float64), equal_nan=True)
            assert found["height"].encoding["_FillValue"] == value

    @pytest.mark.parametrize(("dtype", "value"), [("bool", True), ("complex64", 1j)])
    def test_what_is_no_real_number_is_nodata_of_nothing(self, dtype: str, value: Any, tmp_path: Path) -> None:
        view = begun(dtype).stored_only(value)
        view.export(REGION, tmp_path / "out.zarr")
        assert "_FillValue" not in zarr.open_array(tmp_path / "out.zarr" / "height", mode="r").attrs
        assert view.to_xarray(REGION).attrs == {}

    def test_a_value_that_nobody_gave_is_not_nodata(self, tmp_path: Path) -> None:
        view = begun().stored_only()
        view.export(REGION, tmp_path / "out.tif")
        view.export(REGION, tmp_path / "out.zarr")
        assert nodata_in(tmp_path / "out.tif") is None
        assert "_FillValue" not in zarr.open_array(tmp_path / "out.zarr" / "height", mode="r").attrs

    def test_a_group_says_it_of_each_of_its_arrays(self, tmp_path: Path) -> None:
        group = TensorGroup({"a": begun(), "b": begun("float32")})
        group.export(REGION, tmp_path / "out.zarr", compute=False, fill_value=9)
        found = zarr.open_group(tmp_path / "out.zarr", mode="r")
        assert [found[name].attrs["_FillValue"] for name in "ab"] == [9, "AAAAAAAAIkA="]

    def test_it_takes_the_options_of_an_export(self, tmp_path: Path) -> None:
        begun().stored_only(255).export(REGION, tmp_path / "pixels", format="npy", progress=False)
        assert np.array_equal(np.load(tmp_path / "pixels"), expected())


def test_what_is_not_stored_is_drawn_blank() -> None:
    ax = begun().stored_only(255).show(REGION, cmap="gray")
    shown: np.ndarray[Any, Any] = np.ma.filled(np.ma.asarray(ax.images[0].get_array(), float), np.nan)
    assert np.array_equal(shown, expected(np.nan, np.float64), equal_nan=True)
    plt.close("all")


def test_no_view_of_it_computes(tmp_path: Path) -> None:
    f = Counted(lambda _ctx: torch.full((4, 4), 3.0))
    view = begun(f=f).stored_only(255)
    calls = list(f.calls)
    view.to_xarray(REGION, lazy=False)
    view.to_dask(REGION).compute()
    for name in ("out.tif", "out.zarr", "out.npy", "out.png"):
        view.export(REGION, tmp_path / name)
    view.show(REGION)
    plt.close("all")
    assert f.calls == calls


def test_after_a_masked_prediction_the_background_is_left_out_and_not_computed(tmp_path: Path) -> None:
    batches = []

    def net(batch: torch.Tensor) -> torch.Tensor:
        batches.append(len(batch))
        return torch.stack([batch[:, 0], batch[:, 1]], dim=1)

    tissue = torch.zeros(128, 128, dtype=torch.bool)
    tissue[:64] = True
    how: dict[str, Any] = {"window": 32, "overlap": 0.5, "reduce": "argmax", "dims": ("c", "y", "x"), "version": 1}
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=32) as store:
        labels = predict(net, torch.rand(2, 128, 128), store, where=tissue, progress=False, **how)
        assert isinstance(labels, InfiniteTensor)
        computed = len(batches)
        view = labels.stored_only(255)
        view.export(..., tmp_path / "labels.tif")
        pixels = view.to_xarray(...).to_numpy()
        assert len(batches) == computed
    assert nodata_in(tmp_path / "labels.tif") == 255
    assert (pixels[64:] == 255).all()
    assert set(np.unique(pixels[:64])) <= {0, 1}
