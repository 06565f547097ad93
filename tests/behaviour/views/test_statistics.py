"""Statistics of pixels, against those of the standard library and of numpy."""

from __future__ import annotations

import math
import pickle
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import rasterio
import torch

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    Mask,
    MemoryTileStore,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    from_array,
    from_raster,
    sl,
    window_rng,
)
from infinite_tensor.errors import RegionError
from tests.support.counting import Counted
from tests.support.reference import Index
from tests.support.stored import DTYPES
from tests.support.stores import sample

REAL = [dtype for dtype in DTYPES if not dtype.is_complex]
WIDE = [dtype for dtype in REAL if dtype.itemsize > 2]
REGION = sl[-37:41, -9:30]

Values = npt.NDArray[Any]


def store_of(kind: str, path: Path, tile_size: int = 16) -> TileStore:
    if kind == "zarr":
        return ZarrTileStore(path / "s.zarr", tile_size=tile_size)
    return HDF5TileStore(path / "s.h5", tile_size=tile_size) if kind == "hdf5" else MemoryTileStore()


def drawn(dtype: torch.dtype, size: Index = (12, 10)) -> Any:
    """An ``f`` whose windows hold numbers from the whole range of a dtype, or normal ones."""

    def f(ctx: Index) -> torch.Tensor:
        random = window_rng(1, ctx)
        if dtype.is_floating_point:
            return torch.from_numpy(random.normal(3, 2, size)).to(dtype)
        bits = torch.from_numpy(random.integers(0, 256, (*size, dtype.itemsize), np.uint8))
        return bits[..., 0] % 2 == 1 if dtype is torch.bool else bits.view(dtype).squeeze(-1)

    return f


def world(dtype: torch.dtype = torch.float32, store: TileStore | None = None, **options: Any) -> InfiniteTensor:
    given: dict[str, Any] = {"dtype": dtype, "tile_store": store, "tensor_id": "t", "dims": ("y", "x")}
    return InfiniteTensor((None, None), drawn(dtype), TensorWindow((12, 10)), **(given | options))


def numbers(pixels: torch.Tensor) -> Values:
    """Pixels as a flat array of numpy."""
    return (pixels.float() if pixels.dtype is torch.bfloat16 else pixels).reshape(-1).numpy()


def raster(path: Path, pixels: Values, **profile: Any) -> Path:
    """A raster file of some bands."""
    bands, height, width = pixels.shape
    shape = {"count": bands, "height": height, "width": width, "dtype": pixels.dtype.name}
    place = {"transform": rasterio.Affine.translation(5, 5)}
    with rasterio.open(path, "w", driver="GTiff", **shape, **place, **profile) as file:
        file.write(pixels)
    return path


def check(found: Any, values: Values, nan: int = 0) -> None:
    """Whether statistics are those of some numbers, none of which is NaN."""
    assert (found.count, found.nan) == (len(values), nan)
    if not len(values):
        assert all(map(math.isnan, (found.min, found.max, found.mean, found.std)))
        return
    exact = values.tolist()
    assert (found.min, found.max) == (min(exact), max(exact))
    mean, largest = float(statistics.mean(exact)), max(abs(found.max), abs(found.min))
    is_whole = values.dtype.kind in "bui" and largest * len(values) <= 2**53
    assert found.mean == (mean if is_whole else pytest.approx(mean, rel=1e-14, abs=1e-15 * largest))
    assert found.std == pytest.approx(statistics.pstdev(exact), rel=1e-12, abs=0)


class TestFigures:
    @pytest.mark.parametrize("dtype", REAL)
    @pytest.mark.parametrize("kind", sample(["memory", "zarr", "hdf5"]))
    def test_are_those_of_the_pixels_of_a_read(self, tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
        t = world(dtype, store_of(kind, tmp_path))
        found = t.stats(REGION, compute=True)
        values = numbers(t[REGION])
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)]
        check(found, values)
        assert t.stats(REGION, compute=True) == found

    def test_have_no_rounding_where_a_mean_is_large_and_numbers_differ_little(self) -> None:
        values = 1e7 + np.random.default_rng(0).integers(0, 3, 70_000).astype(np.float32)
        assert values.std(dtype=np.float32) != pytest.approx(statistics.pstdev(values.tolist()), rel=1e-3)
        check(from_array(values).stats(), values)

    @pytest.mark.parametrize("numbers", [[1e200, 2e200, 5.0], [-1.7976931348623157e308] * 3])
    def test_of_numbers_whose_squares_are_too_large_are_those_of_numpy(self, numbers: list[float]) -> None:
        found = from_array(np.array(numbers)).stats()
        assert found.mean == pytest.approx(statistics.mean(numbers), rel=1e-15)
        assert found.std == (math.inf if len({*numbers}) > 1 else 0)

    def test_of_equal_numbers_have_no_deviation(self) -> None:
        found = from_array(np.full(200_003, 0.1)).stats()
        assert (found.mean, found.std) == (0.1, 0)

    @pytest.mark.parametrize("numbers", [[2**53, -(2**53), 5], [2**52 - 1, 2**52 - 3], [*range(0, 2**20, 3)]])
    def test_of_integers_are_exact_as_long_as_float64_has_their_sum(self, numbers: list[int]) -> None:
        found = from_array(np.array(numbers)).stats()
        assert found.mean == statistics.mean(numbers)
        assert found.std == pytest.approx(statistics.pstdev(numbers), rel=1e-12, abs=0)

    def test_are_the_same_in_every_order_and_cut_but_for_the_last_digits(self, tmp_path: Path) -> None:
        values = np.random.default_rng(0).normal(1e4, 1e-2, (300, 300)).astype(np.float32)
        found = [from_array(each).stats() for each in (values, values[::-1], values.T, values.reshape(-1))]
        tiled = world(store=ZarrTileStore(tmp_path / "s.zarr", tile_size=7))
        found.append(from_array(values).map(torch.clone, dims=(0, 1), store=tiled.tile_store).stats(compute=True))
        for each in found:
            check(each, values.reshape(-1))
        assert {tuple(each.quantile([0, 0.1, 0.5, 1])) for each in found} == {
            tuple(found[0].quantile([0, 0.1, 0.5, 1]))
        }

    def test_nan_is_counted_apart(self) -> None:
        values = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
        values[values > 1] = np.nan
        check(from_array(values).stats(), values[~np.isnan(values)], nan=int(np.isnan(values).sum()))

    def test_infinities_count(self) -> None:
        found = from_array(np.array([1, np.inf, 2, np.inf], np.float32)).stats()
        assert (found.count, found.min, found.max, found.mean) == (4, 1, math.inf, math.inf)
        assert math.isnan(found.std)
        assert found.quantile([0, 1 / 3, 1]) == [1, 2, math.inf]
        assert math.isnan(from_array(np.array([-np.inf, np.inf])).stats().mean)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int16])
    def test_of_no_pixels_are_told_as_such(self, dtype: torch.dtype) -> None:
        t = world(dtype)
        for found in (t.stats(), t.stats(sl[0:12, 0:10]), t.stats(sl[3:3, 0:10], compute=True)):
            check(found, np.array([]))
            with pytest.raises(ValidationError, match=r"t\.stats\(region, compute=True\)"):
                found.quantile(0.5)
        assert from_array(np.array([np.nan, np.nan])).stats().nan == 2

    def test_complex_numbers_have_none(self) -> None:
        with pytest.raises(ValidationError, match=r"statistics need real numbers, but .*complex64"):
            from_array(np.zeros(3, np.complex64)).stats()


class TestQuantiles:
    WANTED = (0, 0.02, 0.25, 1 / 3, 0.5, 0.9, 0.98, 1)

    @pytest.mark.parametrize("dtype", REAL)
    def test_are_nearly_those_of_numpy(self, dtype: torch.dtype) -> None:
        t = world(dtype)
        found = t.stats(REGION, compute=True)
        values = numbers(t[REGION]).astype(np.float64)
        expected = np.quantile(values[~np.isnan(values)], self.WANTED)
        np.testing.assert_allclose(found.quantile(self.WANTED), expected, rtol=2**-11)
        assert found.quantile(0.25) == found.quantile([0.25])[0]
        if dtype not in WIDE:
            assert found.quantile(self.WANTED) == pytest.approx(expected, rel=1e-14)

    def test_numbers_beyond_float32_are_no_infinities(self) -> None:
        assert from_array(np.array([1e300, math.inf, 2e300, 3e300])).stats().quantile(0.25) == 1e300
        assert from_array(np.array([-1e300, -math.inf, 1e39, math.inf])).stats().quantile(0.5) == 0

    @pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan, "half", [[0.5]], None])
    def test_are_for_parts_from_0_to_1(self, wrong: Any) -> None:
        with pytest.raises(ValidationError, match="q must be a number from 0 to 1"):
            from_array(np.arange(3.0)).stats().quantile(wrong)

    def test_survive_a_pickle(self) -> None:
        found = from_array(np.arange(10.0)).stats()
        assert pickle.loads(pickle.dumps(found)).quantile(0.5) == 4.5  # noqa: S301  (its own)


class TestLabels:
    @pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.int32, np.uint32, np.bool_])
    def test_are_counted(self, dtype: type[np.generic]) -> None:
        values = np.random.default_rng(0).integers(0, 2 if dtype is np.bool_ else 5, (30, 20)).astype(dtype)
        found = from_array(values).stats()
        labels, counts = np.unique(values, return_counts=True)
        assert found.labels == dict(zip(labels.tolist(), counts.tolist(), strict=True))
        assert found.quantile(0.5) == np.quantile(values.astype(float), 0.5)

    def test_of_wide_integers_go_up_to_4096(self) -> None:
        assert from_array(np.array([-4096, 4095, 4096, 4095])).stats().labels == {-4096: 1, 4095: 2, 4096: 1}
        assert from_array(np.array([0, 4097])).stats().labels is None
        assert from_array(np.array([0, 65535], np.uint16)).stats().labels == {0: 1, 65535: 1}

    def test_are_none_of_floats(self) -> None:
        assert from_array(np.zeros(3)).stats().labels is None


class TestWhichPixels:
    @pytest.mark.parametrize("kind", sample(["memory", "zarr", "hdf5"]))
    def test_what_is_missing_is_neither_counted_nor_computed(self, tmp_path: Path, kind: str) -> None:
        f = Counted(drawn(torch.float32, (16, 16)))
        t = InfiniteTensor((None, None), f, TensorWindow((16, 16)), tile_store=store_of(kind, tmp_path), tensor_id="t")
        t.fill(sl[-256:0, 0:512], progress=False)
        t.fill(sl[256:512, -16:32], progress=False)
        calls = len(f.calls)
        region = sl[-250:384, -100:400]
        stored = t.stored_only(math.nan)[region]
        check(t.stats(region), numbers(stored[~stored.isnan()]))
        assert len(f.calls) == calls

    def test_by_default_all_of_a_bounded_tensor(self) -> None:
        values = np.arange(60.0).reshape(3, 4, 5)
        check(from_array(values).stats(), values.reshape(-1))

    def test_by_default_all_that_is_stored_of_an_unbounded_one_however_far(self, tmp_path: Path) -> None:
        t = world(store=store_of("zarr", tmp_path))
        far = 2**50
        for place in (-far, 0, far):
            t.fill(sl[place : place + 1, -place : 1 - place], progress=False)
        stored = [t[sl[at : at + 16, -at : 16 - at]] for at in (-far, 0, far)]
        check(t.stats(), numbers(torch.stack(stored)))

    def test_nothing_says_what_to_compute_of_an_unbounded_one(self) -> None:
        with pytest.raises(RegionError, match=r"'y'\) is unbounded"):
            world().stats(compute=True)

    def test_after_a_fill_both_are_the_same(self, tmp_path: Path) -> None:
        t = world(store=store_of("zarr", tmp_path))
        t.fill(REGION, progress=False)
        check(t.stats(REGION), numbers(t[REGION]))
        check(t.stats(REGION, compute=True), numbers(t[REGION]))

    @pytest.mark.parametrize("computed", [True, False])
    @pytest.mark.parametrize("region", [sl[::3, ::-7], sl[5, ::40], sl[70:3:-30, 2:80:2], sl[..., -1]])
    def test_steps_and_ints_pick_pixels(self, tmp_path: Path, region: Any, computed: bool) -> None:
        values = np.random.default_rng(0).normal(size=(80, 90)).astype(np.float32)
        t = from_array(values).map(torch.clone, dims=(0, 1), store=store_of("zarr", tmp_path))
        if not computed:
            t.fill(..., progress=False)
        check(t.stats(region, compute=computed), values[region].reshape(-1))

    def test_a_step_computes_only_windows_that_hold_a_pixel(self) -> None:
        f = Counted(drawn(torch.float32))
        t = InfiniteTensor((None, None), f, TensorWindow((12, 10)))
        t.stats(sl[0:120:60, 0:100:50], compute=True)
        assert sorted(f.calls) == [(0, 0), (0, 5), (5, 0), (5, 5)]

    def test_nodata_of_a_raster_is_counted_apart(self, tmp_path: Path) -> None:
        pixels = np.random.default_rng(0).choice(np.array([0.1, 1, 2], np.float32), (2, 30, 40))
        t = from_raster(raster(tmp_path / "a.tif", pixels, nodata=0.1))
        # A source has nothing to compute, so all its pixels count.
        found = t.stats()
        check(found, pixels[pixels > 0.5])
        assert found.nodata == (pixels < 0.5).sum()

    @pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
    def test_nodata_of_a_band_is_a_number_in_others(self, tmp_path: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 4, (2, 30, 40)).astype(np.int16)
        path = raster(tmp_path / "a.tif", pixels)
        bands = "".join(
            f'<VRTRasterBand dataType="Int16" band="{at}">{nodata}<SimpleSource><SourceFilename>{path}</SourceFilename>'
            f"<SourceBand>{at}</SourceBand></SimpleSource></VRTRasterBand>"
            for at, nodata in ((1, "<NoDataValue>3</NoDataValue>"), (2, ""))
        )
        (tmp_path / "a.vrt").write_text(f'<VRTDataset rasterXSize="40" rasterYSize="30">{bands}</VRTDataset>')
        t = from_raster(tmp_path / "a.vrt")
        found = t.stats(compute=True)
        check(found, np.concatenate([pixels[0][pixels[0] != 3], pixels[1].reshape(-1)]))
        assert found.nodata == (pixels[0] == 3).sum()
        wanted = np.eye(30, 40) > 0
        assert t.stats(where=wanted, compute=True).nodata == (pixels[0][wanted] == 3).sum()
        assert t.stats(sl[1], compute=True).nodata == 0
        assert t.stats(sl[:, ::2, 3], compute=True).nodata == (pixels[0, ::2, 3] == 3).sum()


class TestMasks:
    @pytest.mark.parametrize("computed", [True, False])
    @pytest.mark.parametrize(("scale", "origin"), [(1, -20), (7, (-3, 2)), (2.5, -40), (0.5, -60)])
    def test_are_taken_pixel_by_pixel(self, tmp_path: Path, scale: Any, origin: Any, computed: bool) -> None:
        t = world(store=store_of("zarr", tmp_path))
        region = sl[-3:41, 2:31]
        wanted = np.random.default_rng(0).random((250, 250)) < 0.2
        if not computed:
            t.fill(region, progress=False)
        found = t.stats(region, where=Mask(wanted, scale=scale, origin=origin), compute=computed)
        check(found, t[region].numpy()[_over(wanted, (range(-3, 41), range(2, 31)), scale, origin)])

    def test_of_fewer_dimensions_hold_along_the_others(self) -> None:
        values, wanted = np.random.default_rng(0).normal(size=(3, 20, 30)), np.eye(20, 30) > 0
        check(from_array(values, dims=("c", "y", "x")).stats(where=wanted), values[:, wanted].reshape(-1))
        found = from_array(values, dims=("c", "y", "x")).stats(where=Mask(wanted.T, dims=("x", "y")))
        check(found, values[:, wanted].reshape(-1))

    def test_may_be_tensors(self, tmp_path: Path) -> None:
        t = world(store=store_of("zarr", tmp_path))
        positive = t.map(lambda x: x > 3, dtype="bool")
        found = t.stats(REGION, where=positive, compute=True)
        pixels = t[REGION]
        check(found, numbers(pixels[pixels > 3]))

    def test_that_are_asked_answer_for_a_tile_or_for_its_pixels(self, tmp_path: Path) -> None:
        t = world(store=store_of("zarr", tmp_path))
        pixels = t[0:32, 0:32]
        check(t.stats(sl[0:32, 0:32], where=lambda at: at[0].start == 16), numbers(pixels[16:]))

        def chequered(at: Sequence[slice]) -> Any:
            y, x = (np.arange(each.start, each.stop) for each in at)
            return (y[:, None] + x) % 2 == 0

        check(t.stats(sl[0:31, 1:32], where=chequered), numbers(pixels[0:31, 1:32])[1::2])
        check(t.stats(sl[0:32, 0:32], where=Mask(lambda _at: True, dims=())), numbers(pixels))

    def test_leave_tiles_out_that_they_do_not_touch(self, tmp_path: Path) -> None:
        f = Counted(drawn(torch.float32, (16, 16)))
        t = InfiniteTensor((None, None), f, TensorWindow((16, 16)), tile_store=store_of("zarr", tmp_path))
        wanted = np.zeros((64, 64))
        wanted[20, 40] = 1
        assert t.stats(sl[0:64, 0:64], where=wanted, compute=True).count == 1
        assert f.calls == [(1, 2)]

    def test_cover_the_region(self) -> None:
        with pytest.raises(ValidationError, match="does not cover the region"):
            from_array(np.zeros((4, 4))).stats(where=np.ones((3, 4)))

    def test_cover_by_default_what_is_stored(self, tmp_path: Path) -> None:
        t = world(store=store_of("zarr", tmp_path))
        t.fill(sl[0:32, 0:16], progress=False)
        wanted = np.random.default_rng(0).random((40, 16)) < 0.5
        check(t.stats(where=wanted), t[0:32, 0:16].numpy()[wanted[:32]])
        with pytest.raises(ValidationError, match="does not cover the region"):
            t.stats(where=wanted[:31])
        assert world().stats(where=wanted).count == 0


def _over(wanted: npt.NDArray[np.bool_], pixels: Sequence[range], scale: float, origin: Any) -> npt.NDArray[np.bool_]:
    """Which pixels of a region have one of a mask over them, tried one by one."""
    begins = origin if isinstance(origin, tuple) else (origin, origin)
    spans = [
        [slice(math.floor((i - begin) / scale), math.ceil((i + 1 - begin) / scale)) for i in along]
        for along, begin in zip(pixels, begins, strict=True)
    ]
    return np.array([[wanted[rows, columns].any() for columns in spans[1]] for rows in spans[0]])


def test_what_is_not_stored_of_a_region_is_told(tmp_path: Path) -> None:
    with store_of("zarr", tmp_path) as store:
        window = TensorWindow((16, 16))
        t = InfiniteTensor((None, None), drawn(torch.float32, (16, 16)), window, tile_store=store, tensor_id="t")
        t[0:32, 0:64]
        assert t.stats(sl[0:32, 0:64]).missing == 0
        found = t.stats(sl[8:40, 32:96])
        assert (found.count + found.nan, found.missing) == (24 * 32, 32 * 64 - 24 * 32)
        assert f"{32 * 64 - 24 * 32:,} not stored" in str(found)
        assert t.stats(sl[8:40:2, 32:96]).missing == 16 * 64 - 12 * 32
        assert t.stats().missing == 0
        assert t.stats(sl[0:32, 60:96], compute=True).missing == 0
