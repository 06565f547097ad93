"""Place and meaning of rasters and DataArrays travel with what is computed from them, into stores and files."""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
import xarray
import zarr
from PIL import Image
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.rpc import RPC

from infinite_tensor import (
    InfiniteTensor,
    MeaningLostWarning,
    TileStore,
    ValidationError,
    from_array,
    from_image,
    from_raster,
    map_windows,
    open_store,
    predict,
    sl,
)
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.meaning import Attribute, Meaning, Tag, joined_meaning
from tests.support.dict_store import DictTileStore
from tests.support.interpreters import CONTEXT
from tests.support.sqlite_store import SQLiteTileStore
from tests.support.stores import sample

UTM = CRS.from_epsg(32633)
TRANSFORM = rasterio.Affine(10, 0, 500_000, 0, -20, 4_600_000)
ROWS, COLUMNS = 48, 64


def middles(transform: Any, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Where the middles of pixels are: x and y."""
    y, x = np.mgrid[:rows, :columns] + 0.5
    a, b, c, d, e, f = transform[:6]
    return np.stack([a * x + b * y + c, d * x + e * y + f])


def world(transform: Any = TRANSFORM) -> np.ndarray[Any, Any]:
    """Two bands, which hold where the middles of their pixels are."""
    return middles(transform, ROWS, COLUMNS)


RPCS = RPC(100, 200, 40, 1, [0.0] * 20, [0.0] * 20, 24.0, 20.0, 14, 1, [0.0] * 20, [0.0] * 20, 32.0, 30.0)


def saved(path: Path, pixels: np.ndarray[Any, Any], **options: Any) -> Path:
    count, height, width = pixels.shape
    profile = {"driver": "GTiff", "dtype": pixels.dtype.name, "crs": UTM, "transform": TRANSFORM} | options
    with rasterio.open(path, "w", count=count, height=height, width=width, **profile) as file:
        file.write(pixels)
    return path


@pytest.fixture
def raster(tmp_path: Path) -> InfiniteTensor:
    return from_raster(saved(tmp_path / "world.tif", world()))


def assert_is_where_it_says(path: Path) -> None:
    """The pixels of a file hold where their middles are."""
    with rasterio.open(path) as file:
        assert file.crs == UTM
        assert np.allclose(file.read(), middles(file.transform, file.height, file.width), rtol=0, atol=1e-6)


def halved(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(x, 2)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.interpolate(x[None], scale_factor=2, mode="bilinear", align_corners=False)[0]


class Middle(torch.nn.Module):
    """One result a window: the mean of its pixels, which is where its middle is."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.mean((-2, -1))


def exported_elsewhere(store: str, path: str) -> None:
    with open_store(store, mode="r") as opened:
        opened.open("out").export(sl[:, 2:9, 1:11], path)


# Place.


@pytest.mark.parametrize("name", ["out.zarr", "out.h5"])
def test_a_stored_map_is_where_the_raster_is_in_another_process(
    name: str, raster: InfiniteTensor, tmp_path: Path
) -> None:
    store = open_store(tmp_path / name)
    t = raster.map(halved, halo=2, scale=Fraction(1, 2), window=16, store=store, tensor_id="out")
    t.fill(..., progress=False)
    store.close()
    with ProcessPoolExecutor(1, CONTEXT) as child:
        child.submit(exported_elsewhere, str(tmp_path / name), str(tmp_path / "out.tif")).result()
    assert_is_where_it_says(tmp_path / "out.tif")


@pytest.mark.parametrize(
    ("net", "overlap"),
    [(torch.nn.AvgPool2d(2), 0.5), (torch.nn.Identity(), 0.5), (Middle(), 0.0), (Middle(), 0.5)],
    ids=["half", "same", "one", "one, of windows that overlap"],
)
def test_a_prediction_is_where_the_raster_is(net: Any, overlap: float, raster: InfiniteTensor, tmp_path: Path) -> None:
    t: Any = predict(net.double(), raster, tmp_path / "s.zarr", window=16, overlap=overlap, progress=False, edge="drop")
    t.export(..., tmp_path / "out.tif")
    assert_is_where_it_says(tmp_path / "out.tif")


def test_outputs_of_a_group_have_each_their_place(raster: InfiniteTensor, tmp_path: Path) -> None:

    def net(batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"fine": batch, "coarse": halved(batch)}

    group: Any = predict(net, raster, window=16, overlap=0, progress=False)
    for name in ("fine", "coarse"):
        group[name].export(sl[:, 4:20, 8:30], tmp_path / f"{name}.tif")
        assert_is_where_it_says(tmp_path / f"{name}.tif")
    group.export(sl[8:20, 8:20], tmp_path / "out.zarr")
    with xarray.open_zarr(tmp_path / "out.zarr", decode_coords="all") as found:
        for each in found.data_vars.values():
            y, x = each.dims[1:]
            assert np.array_equal(each[0], np.broadcast_to(found[x], each[0].shape))
            assert np.array_equal(each[1], np.broadcast_to(found[y].to_numpy()[:, None], each[1].shape))
            assert CRS.from_wkt(found[each.encoding["grid_mapping"]].attrs["crs_wkt"]) == UTM


@pytest.mark.parametrize("other", ["copy.zarr", "copy.h5"])
def test_a_copy_keeps_it(other: str, raster: InfiniteTensor, tmp_path: Path) -> None:
    t = raster.map(lambda x: x, window=16, store=tmp_path / "out.zarr", tensor_id="out")
    t.fill(..., progress=False)
    t.tile_store.copy("out", tmp_path / other, progress=False)
    with open_store(tmp_path / other) as store:
        store.open("out").export(sl[:, 4:20, 8:30], tmp_path / "out.tif")
    assert_is_where_it_says(tmp_path / "out.tif")


def test_it_is_neither_compared_nor_part_of_an_id(tmp_path: Path) -> None:
    here = from_raster(saved(tmp_path / "a.tif", world()))
    there = from_raster(saved(tmp_path / "b.tif", world(), transform=rasterio.Affine(1, 0, 7, 0, -1, 9)))
    nowhere = from_array(world(), dims=("band", "y", "x"), chunks=here.output_window.size)

    def mapped(t: InfiniteTensor) -> InfiniteTensor:
        return t.map(halved, scale=0.5, window=16, store=tmp_path / "out.zarr")

    made = [mapped(here)]
    with pytest.warns(MeaningLostWarning, match="transform"):
        made.append(mapped(there))
    made.append(mapped(nowhere))
    assert len({t.tensor_id for t in made}) == 1
    # What is given now holds, and what is stored where nothing is given.
    for t, a in zip(made, (20, 2, 20), strict=True):
        t.export(..., tmp_path / "out.tif", overwrite=True)
        with rasterio.open(tmp_path / "out.tif") as file:
            assert file.transform.a == a


@pytest.mark.parametrize("name", sample(["out.zarr", "out.h5", "memory://later", "sqlite"], "out.zarr", "out.h5"))
def test_what_inputs_say_later_is_stored_too(name: str, tmp_path: Path) -> None:
    def mapped(store: TileStore, pixels: Any) -> InfiniteTensor:
        return from_array(pixels, dims=("y", "x")).map(lambda x: x, store=store, tensor_id="out")

    def opened() -> TileStore:
        path = name if ":" in name else tmp_path / name
        return SQLiteTileStore(path) if name == "sqlite" else open_store(path)

    pixels = np.arange(12.0).reshape(3, 4)
    named = xarray.DataArray(pixels, dims=("y", "x"), attrs={"units": "m", "limits": (0, np.nan)})
    placed = named.assign_coords(crs=((), 0, {"crs_wkt": "UTM"}))
    for array in (pixels, named, named.assign_coords(y=[5.0, 6, 7]), placed, named):
        with opened() as store:
            mapped(store, array)
    with opened() as store:
        found = store.open("out").to_xarray()
        assert found.attrs["units"] == "m"
        assert (found["y"].values.tolist(), found["crs"].attrs["crs_wkt"]) == ([5, 6, 7], "UTM")
        before = store.tensor_definition("out")
        with pytest.warns(MeaningLostWarning, match="'y' as stored"):
            other = mapped(store, named.assign_coords(y=[1.0, 2, 3]))
        assert other.to_xarray()["y"].values.tolist() == [1, 2, 3]
        assert store.tensor_definition("out") == before


def test_a_fact_that_a_newer_version_wrote_stays_when_another_is_added(tmp_path: Path) -> None:
    def mapped(store: TileStore, attrs: dict[str, str]) -> None:
        array = xarray.DataArray(np.zeros((3, 4)), dims=("y", "x"), attrs=attrs)
        from_array(array).map(lambda x: x, store=store, tensor_id="out")

    with open_store(tmp_path / "out.zarr") as store:
        mapped(store, {"units": "m"})
        old = contents_of(store).stored("out")
        meaning = copy.deepcopy(old.fields["meaning"])
        new = {"kind": "colour of the sea", "called": "blue", "value": 3}
        meaning["facts"].append(new)
        contents_of(store).storage.documents.replace(old, {"meaning": meaning})
    with open_store(tmp_path / "out.zarr") as store:
        mapped(store, {"long_name": "depth"})
        facts = store.tensor_definition("out")["meaning"]["facts"]
        assert new in facts
        assert {fact["called"] for fact in facts} == {"units", "blue", "long_name"}


# What files say beside that.


def described(path: Path) -> Path:
    """A raster that says all that a TIFF can say of bands of numbers."""
    pixels = np.arange(2 * ROWS * COLUMNS, dtype="int16").reshape(2, ROWS, COLUMNS)
    with rasterio.open(saved(path, pixels, crs=None, transform=None, nodata=-5), "r+") as file:
        file.scales, file.offsets, file.units, file.descriptions = (0.1, 2), (5, 0), ("K", "m"), ("warmth", "height")
    return path


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_what_a_raster_says_of_its_bands_is_in_its_export(tmp_path: Path) -> None:
    t = from_raster(described(tmp_path / "in.tif"))
    t.export(sl[:, 1:9, 2:11], tmp_path / "out.tif")
    t.export(sl[1, 1:9, 2:11], tmp_path / "one.tif")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert (file.nodata, file.scales, file.offsets) == (-5, (0.1, 2), (5, 0))
        assert (file.units, file.descriptions) == (("K", "m"), ("warmth", "height"))
    with rasterio.open(tmp_path / "one.tif") as file:
        assert (file.nodata, file.scales, file.offsets) == (-5, (2,), (0,))
        assert (file.units, file.descriptions) == (("m",), ("height",))


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_what_does_not_hold_of_what_is_computed_is_told_once(tmp_path: Path) -> None:
    t = from_raster(described(tmp_path / "in.tif"))
    same = t.map(lambda x: x + 1, window=16)
    fewer = same.map(lambda x: x[0], window=16, channels=(), store=tmp_path / "out.zarr", tensor_id="out")
    with pytest.warns(MeaningLostWarning, match=r"same.tif is without nodata, scale, offset: ") as told:
        same.export(..., tmp_path / "same.tif")
    assert len(told) == 1
    with rasterio.open(tmp_path / "same.tif") as file:
        assert (file.nodata, file.scales, file.descriptions) == (None, (1, 1), ("warmth", "height"))
    fewer.fill(..., progress=False)
    # Its pixels are another quantity, of which nothing of this was ever true.
    with open_store(tmp_path / "out.zarr", mode="r") as store:
        store.open("out").export(..., tmp_path / "fewer.tif")


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_other_nodata_in_each_band_is_kept_where_one_is_written(tmp_path: Path) -> None:
    bands = [saved(tmp_path / f"{n}.tif", np.zeros((1, ROWS, COLUMNS), "int16"), nodata=n) for n in (3, 4)]
    inner = "".join(
        f'<VRTRasterBand dataType="Int16" band="{at}"><NoDataValue>{at + 2}</NoDataValue><SimpleSource>'
        f"<SourceFilename>{path}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>"
        for at, path in enumerate(bands, 1)
    )
    vrt = tmp_path / "both.vrt"
    vrt.write_text(f'<VRTDataset rasterXSize="{COLUMNS}" rasterYSize="{ROWS}">{inner}</VRTDataset>')
    t = from_raster(vrt)
    t.export(sl[1, :, :], tmp_path / "one.tif")
    with rasterio.open(tmp_path / "one.tif") as file:
        assert file.nodata == 4
    with pytest.warns(MeaningLostWarning, match="out.tif is without nodata: "):
        t.export(..., tmp_path / "out.tif")
    assert t.to_xarray().attrs["nodatavals"] == [3, 4]


def test_a_colour_map_is_kept(tmp_path: Path) -> None:
    path = saved(tmp_path / "in.tif", np.ones((1, ROWS, COLUMNS), "uint8"))
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {0: (0, 0, 0, 255), 1: (255, 128, 0, 255)})
    t = from_raster(path)
    t.export(sl[0, 1:9, 2:11], tmp_path / "out.tif")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.colormap(1)[1] == (255, 128, 0, 255)
    with pytest.warns(MeaningLostWarning, match=r"out.png is without colour map: "):
        t.export(..., tmp_path / "out.png")


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("crs", [UTM, CRS()])
def test_ground_control_points_and_rational_polynomials_move_with_pixels(crs: CRS, tmp_path: Path) -> None:
    points = [GroundControlPoint(r, c, 14 + c, 40 - r, 0) for r, c in ((0, 0), (0, 64), (48, 0), (48, 64))]
    path = saved(tmp_path / "in.tif", world(), crs=None, transform=None)
    with rasterio.open(path, "r+") as file:
        file.gcps, file.rpcs = (points, crs), RPCS
    t = from_raster(path).map(halved, scale=0.5, window=16)
    t.export(sl[:, 2:, 4:], tmp_path / "out.tif")
    with rasterio.open(tmp_path / "out.tif") as file:
        found, of_them = file.gcps
        assert of_them == (crs or None)
        assert [(p.row, p.col, p.x, p.y) for p in found] == [(p.row / 2 - 2, p.col / 2 - 4, p.x, p.y) for p in points]
        # The middle of the first pixel is 0: that of row 2 of the half is 4.5 before.
        assert (file.rpcs.line_off, file.rpcs.line_scale) == ((24 - 4.5) / 2, 10)
        assert (file.rpcs.samp_off, file.rpcs.samp_scale) == ((32 - 8.5) / 2, 15)


def test_what_is_malformed_in_a_store_is_lost_and_told(tmp_path: Path) -> None:
    with rasterio.open(saved(tmp_path / "in.tif", np.zeros((1, 32, 40), np.uint8)), "r+") as file:
        file.rpcs = RPCS
    entries: dict[Any, Any] = {}
    with DictTileStore(entries) as store:
        from_raster(tmp_path / "in.tif").map(lambda x: x, store=store, tensor_id="out").fill(..., progress=False)
    (key,) = [key for key in entries if "definition" in key]
    definition = json.loads(entries[key])
    del definition["meaning"]["facts"][0]["rpcs"]["lat_off"]
    entries[key] = json.dumps(definition)
    t = DictTileStore(entries).open("out")
    with pytest.warns(MeaningLostWarning, match="out.tif is without place ''"):
        t.export(..., tmp_path / "out.tif")


def test_the_mask_of_a_raster_is_in_its_export(tmp_path: Path) -> None:
    path, mask = saved(tmp_path / "in.tif", world()), np.zeros((ROWS, COLUMNS), "uint8")
    mask[5:30, 20:50] = 255
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(mask)
    t = from_raster(path)
    t.export(sl[:, 2:40, 10:60], tmp_path / "out.tif")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert np.array_equal(file.read_masks(1), mask[2:40, 10:60])
    assert not (tmp_path / "out.tif.msk").exists()
    with pytest.warns(MeaningLostWarning, match="map.tif is without mask: "):
        t.map(halved, scale=0.5, window=16).export(..., tmp_path / "map.tif")


RGB = ["red", "green", "blue"]


@pytest.mark.parametrize(
    ("dtype", "colours"),
    [
        ("uint16", [*RGB, "alpha"]),
        ("uint8", ["gray", "alpha"]),
        ("uint8", RGB[::-1]),
        ("uint8", [*RGB, "undefined"]),
        *[(dtype, ["gray", "undefined", "undefined", "undefined"]) for dtype in ("uint8", "float32")],
        ("uint8", ["gray", "undefined", "undefined"]),
        ("uint8", ["alpha"]),
    ],
    ids=str,
)
def test_bands_stay_what_they_are(dtype: str, colours: list[str], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 200, (len(colours), ROWS, COLUMNS)).astype(dtype)
    how = {"photometric": "RGB" if colours[:3] == RGB else "MINISBLACK", "alpha": "NO"}
    with rasterio.open(saved(tmp_path / "in.tif", pixels, **how), "r+") as file:
        file.colorinterp = [ColorInterp[each] for each in colours]
        file.update_tags(AREA_OR_POINT="Point", sensor="S2")
        for band in file.indexes:
            file.update_tags(band, wave=str(400 + band))
    t = from_raster(tmp_path / "in.tif")
    kept = t.map(torch.Tensor.double, dtype="float64", window=16, store=tmp_path / "s.zarr", tensor_id="kept")
    last = sl[-1:, 4:, 8:]
    t.export(sl[:, 4:, 8:], tmp_path / "region.tif")
    t.export(last, tmp_path / "last.tif")
    with warnings.catch_warnings():
        warnings.simplefilter("error", MeaningLostWarning)
        kept.export(..., tmp_path / "kept.tif")
        from_array(t.to_xarray(sl[:, 4:, 8:])).export(..., tmp_path / "array.tif")
    for name, kind in (("region", dtype), ("kept", "float64"), ("array", dtype)):
        with rasterio.open(tmp_path / f"{name}.tif") as file:
            assert ([each.name for each in file.colorinterp], file.dtypes[0]) == (colours, kind), name
            assert (file.tags()["AREA_OR_POINT"], file.tags()["sensor"]) == ("Point", "S2")
            assert [file.tags(band)["wave"] for band in file.indexes] == [str(401 + b) for b in range(len(colours))]
    with rasterio.open(tmp_path / "last.tif") as file:
        # A file of one undefined band calls it grey.
        assert [each.name for each in file.colorinterp] == [colours[-1].replace("undefined", "gray")]
        assert (file.tags(1)["wave"], file.transform.f) == (str(400 + len(colours)), TRANSFORM.f - 4 * 20)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_picture_has_its_alpha_and_the_order_of_its_colours(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 200, (8, 9, 4), dtype="uint8")
    for mode, depth in (("RGBA", 4), ("LA", 2)):
        Image.fromarray(pixels[..., :depth]).save(tmp_path / f"{mode}.png")
        from_image(tmp_path / f"{mode}.png").export(..., tmp_path / f"{mode}.tif")
        with rasterio.open(tmp_path / f"{mode}.tif") as file:
            assert [each.name for each in file.colorinterp] == {4: [*RGB, "alpha"], 2: ["gray", "alpha"]}[depth]
            assert np.array_equal(file.read().transpose(1, 2, 0), pixels[..., :depth])
    for name, colours in (("bgra", [*RGB[::-1], "alpha"]), ("nir", [*RGB, "undefined"])):
        with rasterio.open(saved(tmp_path / f"{name}.tif", pixels.transpose(2, 0, 1)), "r+") as file:
            file.colorinterp = [ColorInterp[each] for each in colours]
    from_raster(tmp_path / "bgra.tif").export(..., tmp_path / "bgra.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "bgra.png")), pixels[..., [2, 1, 0, 3]])
    with pytest.raises(ValidationError, match="alpha"):
        from_raster(tmp_path / "nir.tif").export(..., tmp_path / "nir.png")


# xarray.


def weather() -> xarray.DataArray:
    """Numbers that are 1000 * lat + lon, at uneven times."""
    lat, lon = np.linspace(60, 40, 41), np.arange(0, 32, 0.5, dtype="float32")
    times = np.array(["2020-01-01", "2020-02-05T12"], "datetime64[ns]")
    return xarray.DataArray(
        1000 * lat[:, None] + lon + np.zeros((2, 1, 1)),
        {
            "time": times,
            "lat": ("lat", lat, {"units": "degrees_north"}),
            "lon": ("lon", lon, {"units": "degrees_east"}),
            "station": ("time", ["north", "süd"]),
            "height": 2.0,
        },
        ("time", "lat", "lon"),
        attrs={"units": "K", "long_name": "warmth", "levels": np.array([1, 2])},
    )


def assert_same_coordinates(found: xarray.DataArray, expected: xarray.DataArray) -> None:
    assert {*found.coords} == {*expected.coords}
    for name, coordinate in expected.coords.items():
        assert found[name].dims == coordinate.dims
        assert np.array_equal(found[name], coordinate)
        assert {k: v for k, v in found[name].attrs.items() if k != "dtype"} == coordinate.attrs


@pytest.mark.parametrize("name", ["out.zarr", "out.h5"])
def test_a_stored_map_of_a_data_array_has_its_coordinates(name: str, tmp_path: Path) -> None:
    given = weather()
    with open_store(tmp_path / name) as store:
        t = from_array(given).map(lambda x: x, window=(2, 16, 16), halo=(0, 1, 1), store=store, tensor_id="out")
        t.fill(..., progress=False)
    with open_store(tmp_path / name, mode="r") as store:
        found = store.open("out").to_xarray()
        assert_same_coordinates(found, given)
        assert found.attrs == {"units": "K", "long_name": "warmth", "levels": [1, 2]}
        assert (found.sel(lat=50, lon=3) == given.sel(lat=50, lon=3)).all()
        assert found.sel(time="2020-02-05T12", lat=50, lon=3) == 50_003


def test_views_and_files_of_it_have_them_too(tmp_path: Path) -> None:
    given, region = weather(), sl[:, 4:20, 2:30]
    t, part = from_array(given, name="weather"), given[region]
    assert_same_coordinates(t.to_xarray(region), part)
    t.export(region, tmp_path / "out.zarr")
    for place in (tmp_path / "out.zarr", t.as_zarr(region).store):
        with xarray.open_zarr(place) as found:
            (array,) = found.data_vars.values()
            assert_same_coordinates(array, part)
            assert array.attrs["units"] == "K"
    t.export(sl[1, 4:20, 2:30], tmp_path / "one.zarr")
    with xarray.open_zarr(tmp_path / "one.zarr") as found:
        assert found["time"] == given["time"][1]
        assert found["station"] == "süd"


def test_what_is_made_of_an_export_says_its_own_origin(tmp_path: Path) -> None:
    from_array(np.ones((20, 30)), dims=("y", "x")).export(sl[5:, 7:], tmp_path / "first.zarr")
    with xarray.open_zarr(tmp_path / "first.zarr") as found:
        t = from_array(found["values"]).map(lambda x: x, window=8, store=tmp_path / "own.zarr", tensor_id="own")
    t.export(sl[1:, 2:], tmp_path / "second.zarr")
    own = {"tensor_id": "own", "origin": [-1, -2]}
    for array in (zarr.open_array(tmp_path / "second.zarr" / "own"), t.as_zarr(sl[1:, 2:])):
        assert array.attrs["infinite_tensor"] == own
    assert "infinite_tensor" not in t.to_xarray().attrs


def test_a_coordinate_that_cannot_have_its_name_beside_an_array_is_not_dropped_in_silence(tmp_path: Path) -> None:
    given = xarray.DataArray(np.ones((4, 5)), {"height": 2.0, "m/s": ("y", np.arange(4))}, ("y", "x"))
    t = from_array(given).map(lambda x: x, window=4, store=tmp_path / "own.zarr", tensor_id="height")
    with pytest.warns(MeaningLostWarning, match="out.zarr is without coordinate 'm/s': "):
        t.export(..., tmp_path / "out.zarr")
    for place in (tmp_path / "out.zarr", t.as_zarr().store):
        with xarray.open_zarr(place) as found:
            assert found["height"].shape == (4, 5)
            assert found["height"].coords["height_"] == 2.0


@pytest.mark.parametrize("scale", [Fraction(1, 2), 2])
def test_coordinates_of_another_scale_are_those_of_the_middles_of_pixels(scale: Any) -> None:
    fn = halved if scale < 1 else doubled
    t = from_array(weather()[:, :40]).map(fn, window=(8, 8), scale=scale, halo=2, dims=("lat", "lon"))
    found = t.to_xarray(sl[:, 4:12, 4:12])
    # The function is linear, and the numbers say where they are.
    assert np.allclose(found[0], 1000 * found["lat"] + found["lon"], rtol=0, atol=1e-3)
    assert found["lat"].attrs == {"units": "degrees_north"}
    assert np.array_equal(found["time"], weather()["time"])


@pytest.mark.parametrize("has_middles", [True, False])
def test_the_transform_that_rioxarray_writes_is_not_that_of_other_pixels(has_middles: bool, tmp_path: Path) -> None:
    said = {"crs_wkt": UTM.to_wkt(), "GeoTransform": "500000.0 10.0 0.0 4600000.0 0.0 -20.0"}
    x, y = middles(TRANSFORM, 1, COLUMNS)[0, 0], middles(TRANSFORM, ROWS, 1)[1, :, 0]
    coords = {"spatial_ref": ((), 0, said)} | ({"y": y, "x": x} if has_middles else {})
    t = from_array(xarray.DataArray(world(), coords, ("band", "y", "x"))).map(halved, scale=0.5, window=16)
    with contextlib.nullcontext() if has_middles else pytest.warns(MeaningLostWarning, match="is without transform"):
        assert t.to_xarray()["spatial_ref"].attrs == {"crs_wkt": UTM.to_wkt()}
    if has_middles:
        t.export(..., tmp_path / "out.tif")
        assert_is_where_it_says(tmp_path / "out.tif")
    else:
        with pytest.warns(MeaningLostWarning, match="out.zarr is without transform"):
            t.export(..., tmp_path / "out.zarr")


def test_coordinates_in_even_steps_are_the_transform_of_a_tiff(tmp_path: Path) -> None:
    given = weather()
    given = given.assign_coords(spatial_ref=((), 0, {"crs_wkt": CRS.from_epsg(4326).to_wkt()}))
    t = from_array(given).map(lambda x: x, window=(16, 16), dims=("lat", "lon"))
    t.export(sl[:, 10:20, 20:30], tmp_path / "out.tif")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.crs == CRS.from_epsg(4326)
        assert file.transform.almost_equals(rasterio.Affine(0.5, 0, 9.75, 0, -0.5, 55.25))
        assert (file.units, file.tags()["long_name"]) == (("K", "K"), "warmth")
        assert [name[:16] for name in file.descriptions] == ["2020-01-01T00:00", "2020-02-05T12:00"]
        assert [file.tags(band)["station"] for band in (1, 2)] == ["north", "süd"]


@pytest.mark.parametrize("name", ["a:b", "a=b", "ns", "bidx", "A"])
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_an_attribute_is_in_a_tiff_as_it_is_or_told(name: str, tmp_path: Path) -> None:
    given = xarray.DataArray(np.ones((4, 5)), dims=("y", "x"), attrs={"a": "first", name: "second"})
    with pytest.warns(MeaningLostWarning, match=f"out.tif is without attribute '{name}': "):
        from_array(given).export(..., tmp_path / "out.tif")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.tags() == {"a": "first"}


@pytest.mark.parametrize("nodata", [np.nan, -9999.0])
def test_what_numbers_of_a_data_array_stand_for_is_kept(nodata: float, tmp_path: Path) -> None:
    given = weather()[0].drop_vars(("time", "station")).assign_attrs(_FillValue=nodata)
    given[3, 4] = nodata
    t = from_array(given)
    assert np.array_equal(t.to_xarray().attrs["_FillValue"], nodata, equal_nan=True)
    t.export(..., tmp_path / "out.tif")
    with rasterio.open(tmp_path / "out.tif") as file:
        assert np.array_equal(file.nodata, nodata, equal_nan=True)
    t.export(..., tmp_path / "out.zarr")
    with xarray.open_zarr(tmp_path / "out.zarr") as found:
        (array,) = found.data_vars.values()
        assert np.isnan(array[3, 4])


def test_inputs_that_do_not_agree_lose_what_they_do_not_agree_about() -> None:
    here, there = weather(), weather().assign_coords(lat=np.linspace(50, 30, 41)).assign_attrs(units="m")
    tensors = [from_array(each) for each in (here, there)]
    with pytest.warns(MeaningLostWarning, match="about attribute 'units', coordinate 'lat', so the tensor keeps none"):
        both = map_windows(lambda a, b: a * b, *tensors, window=(2, 16, 16))
    found = both.to_xarray()
    assert np.array_equal(found["lat"], np.arange(41))
    assert np.array_equal(found["lon"], here["lon"])
    assert found.attrs == {"long_name": "warmth", "levels": [1, 2]}


def test_a_meaning_that_lacks_nothing_of_another_stays_the_same_object() -> None:
    # So that a definition that says nothing new is not written again.
    meaning = Meaning([Attribute("units", "m")])
    assert joined_meaning(meaning, Meaning([Attribute("units", "m")])) is meaning
    assert joined_meaning(meaning, Meaning([Tag("sensor", "MSI")])) is not meaning
