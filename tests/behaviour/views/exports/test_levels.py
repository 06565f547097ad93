"""Regions as OME-Zarr images with levels: what other programs find in them, and where."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import ome_zarr_models
import pytest
import rasterio
import tensorstore
import torch
import xarray
import zarr

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    TensorGroup,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    from_raster,
    sl,
)
from infinite_tensor.views.face import store_of_levels

Pixels = npt.NDArray[Any]


def at(y: Any, x: Any) -> Any:
    """A pixel of the tensor without end, from arrays of coordinates that are broadcast."""
    return (y * 3 % 7) + (x * 5 % 11)


def unbounded(calls: list[tuple[int, ...]] | None = None, **options: Any) -> InfiniteTensor:
    def f(ctx: Sequence[int]) -> torch.Tensor:
        if calls is not None:
            calls.append(tuple(ctx))
        y, x = (torch.arange(64) + 64 * i for i in ctx)
        window: torch.Tensor = at(y[:, None], x).float()
        return window

    given: dict[str, Any] = {"dims": ("y", "x"), "tensor_id": "world/height"}
    return InfiniteTensor((None, None), f, TensorWindow((64, 64)), **given | options)


def finite(dims: Sequence[str], shape: Sequence[int]) -> InfiniteTensor:
    generator = torch.Generator().manual_seed(0)
    return from_array(torch.randint(0, 50, shape, generator=generator).float(), dims=dims)


def blocks(t: InfiniteTensor, region: Sequence[slice], k: int, space: Sequence[int]) -> tuple[Pixels, list[Pixels]]:
    """A level by the rule: the mean of each block of the region, and where the middles of the blocks are."""
    middles, values = [], []
    for d, part in enumerate(region):
        n = 2**k if d in space else 1
        starts = range(part.start, part.stop, n)
        middles.append(np.array([np.mean(range(a, a + n)) for a in starts]))
        values.append([slice(a - part.start, min(a + n, part.stop) - part.start) for a in starts])
    pixels = t[tuple(region)].numpy()
    out = np.empty([len(parts) for parts in values])
    for index in itertools.product(*map(range, out.shape)):
        out[index] = pixels[tuple(parts[i] for i, parts in zip(index, values, strict=True))].mean()
    return out, middles


def ome_in(target: Path | zarr.Group) -> Any:
    """What a group says, once ome-zarr-models has taken it."""
    group = target if isinstance(target, zarr.Group) else zarr.open_group(target, mode="r")
    ome_zarr_models.open_ome_zarr(group, version="0.5")
    (multiscale,) = cast("Any", group.attrs["ome"])["multiscales"]
    return multiscale


def middles_in(multiscale: Any, k: int, shape: Sequence[int]) -> list[Pixels]:
    """Where the transformations of a level put the middles of its pixels."""
    scale, translation = multiscale["datasets"][k]["coordinateTransformations"]
    return [a * np.arange(n) + b for a, b, n in zip(scale["scale"], translation["translation"], shape, strict=True)]


SCENES: list[tuple[InfiniteTensor, tuple[slice, ...], list[str | None]]] = [
    (unbounded(), (slice(-37, 50), slice(5, 42)), ["space", "space"]),
    (unbounded(dims=None), (slice(-8, -3), slice(1, 2)), ["space", "space"]),
    (finite(("band", "y", "x"), (3, 33, 21)), (slice(1, 3), slice(3, 33), slice(0, 21)), ["channel", "space", "space"]),
    (finite(("z", "y", "x"), (7, 9, 11)), (slice(1, 7), slice(0, 9), slice(3, 11)), ["space"] * 3),
    (finite(("i", "y", "x"), (2, 9, 11)), (slice(0, 2), slice(0, 9), slice(0, 11)), [None, "space", "space"]),
    (
        finite(("c", "z", "y", "x"), (2, 5, 9, 11)),
        (slice(0, 2), slice(1, 5), slice(3, 9), slice(0, 11)),
        ["channel", *["space"] * 3],
    ),
    (
        finite(("t", "c", "z", "y", "x"), (2, 2, 5, 6, 7)),
        (slice(1, 2), slice(0, 2), slice(0, 5), slice(0, 6), slice(1, 7)),
        ["time", "channel", *["space"] * 3],
    ),
]


@pytest.mark.parametrize(("t", "region", "types"), SCENES, ids=lambda each: "".join(getattr(each, "dims", "")))
def test_other_programs_find_the_pixels_of_each_level_where_they_lie(
    t: InfiniteTensor, region: tuple[slice, ...], types: list[str | None], tmp_path: Path
) -> None:
    target = tmp_path / "out.zarr"
    t.export(region, target, pyramid=2, progress=False)
    multiscale = ome_in(target)
    assert multiscale["axes"] == [
        {"name": name} | ({} if kind is None else {"type": kind}) for name, kind in zip(t.dims, types, strict=True)
    ]
    name = "height" if t.tensor_id == "world/height" else "values"
    space = [d for d, kind in enumerate(types) if kind == "space"]
    for k in range(3):
        expected, places = blocks(t, region, k, space)
        with xarray.open_zarr(target / f"s{k}", consolidated=True) as found:
            assert found[name].dims == t.dims
            np.testing.assert_allclose(found[name].to_numpy(), expected, rtol=1e-6)
            for dim, middles in zip(t.dims, places, strict=True):
                assert found[dim].to_numpy().tolist() == middles.tolist()
        for middles, transformed in zip(places, middles_in(multiscale, k, expected.shape), strict=True):
            assert middles.tolist() == transformed.tolist()
        path = str(target / multiscale["datasets"][k]["path"])
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
        np.testing.assert_allclose(tensorstore.open(spec, read=True).result().read().result(), expected, rtol=1e-6)


def test_a_level_of_nearest_pixels_lies_where_these_do(tmp_path: Path) -> None:
    t = unbounded()
    t.export(sl[-37:50, 5:42], tmp_path / "out.zarr", pyramid="nearest", progress=False)
    assert len(ome_in(tmp_path / "out.zarr")["datasets"]) == 1, "it is small enough"
    t.export(sl[-513:513, -2:3], tmp_path / "two.zarr", pyramid="nearest", progress=False)
    multiscale = ome_in(tmp_path / "two.zarr")
    for k in range(3):
        y, x = middles_in(multiscale, k, (-(-1026 // 2**k), -(-5 // 2**k)))
        with xarray.open_zarr(tmp_path / "two.zarr", group=f"s{k}") as found:
            assert np.array_equal(found["height"], at(y[:, None], x))
            assert found["y"].to_numpy().tolist() == y.tolist()
            assert found["x"].to_numpy().tolist() == x.tolist()


def test_nearest_pixels_have_the_coordinates_and_the_place_of_those_that_are_picked(tmp_path: Path) -> None:
    y, x = 10.0 * np.arange(1030), 0.5 * np.arange(5)
    t = from_array(xarray.DataArray(np.add.outer(y, x), {"y": y, "x": x}, ("y", "x")))
    t.export(sl[3:1030, 1:5], tmp_path / "out.zarr", pyramid="nearest", progress=False)
    for k in range(3):
        with xarray.open_zarr(tmp_path / "out.zarr", group=f"s{k}") as found:
            assert np.array_equal(found["values"], np.add.outer(found["y"].to_numpy(), found["x"].to_numpy()))
            middles = middles_in(ome_in(tmp_path / "out.zarr"), k, found["values"].shape)
            assert [found[dim].to_numpy().tolist() for dim in "yx"] == [each.tolist() for each in middles]
    uneven = from_array(xarray.DataArray([[0.0, 1, 2, 3, 4]], {"x": [0.0, 1, 4, 9, 16]}, ("y", "x")))
    assert uneven.coarsen(2, "nearest").to_xarray().x.values.tolist() == [0, 4, 16]
    with rasterio.open(
        tmp_path / "in.tif",
        "w",
        driver="GTiff",
        count=1,
        height=6,
        width=6,
        dtype="uint8",
        transform=rasterio.Affine(10, 0, 500, 0, -10, 900),
    ) as file:
        file.write(np.arange(36, dtype="uint8").reshape(1, 6, 6))
    from_raster(tmp_path / "in.tif").coarsen(2, "nearest").export(..., tmp_path / "out.tif", progress=False)
    with rasterio.open(tmp_path / "out.tif") as coarse, rasterio.open(tmp_path / "in.tif") as fine:
        assert coarse.xy(1, 2) == fine.xy(2, 4)


def test_coordinates_in_even_steps_are_the_units_of_all_levels(tmp_path: Path) -> None:
    pixels = np.arange(2 * 12 * 10, dtype="float32").reshape(2, 12, 10)
    coords = {"c": ["red", "green"], "y": 100 + 0.5 * np.arange(12), "x": 0.25 * np.arange(10)}
    t = from_array(xarray.DataArray(pixels, coords, ("c", "y", "x")))
    t.export(sl[:, 3:12, 1:10], tmp_path / "out.zarr", pyramid=1, progress=False)
    multiscale = ome_in(tmp_path / "out.zarr")
    for k in range(2):
        with xarray.open_zarr(tmp_path / "out.zarr", group=f"s{k}") as found:
            assert found["c"].to_numpy().tolist() == ["red", "green"]
            _, y, x = middles_in(multiscale, k, found["values"].shape)
            np.testing.assert_allclose(found["y"], y)
            np.testing.assert_allclose(found["x"], x)
    downwards = from_array(xarray.DataArray(pixels, coords | {"y": 100 - 0.5 * np.arange(12)}, ("c", "y", "x")))
    downwards.export(sl[:, 3:12, 1:10], tmp_path / "pixels.zarr", pyramid=1, progress=False)
    scale, translation = ome_in(tmp_path / "pixels.zarr")["datasets"][1]["coordinateTransformations"]
    assert scale["scale"] == [1, 2, 2]
    assert translation["translation"] == [0, 3.5, 1.5]


@pytest.mark.parametrize(
    ("said", "unit"),
    [
        ("micrometers", "micrometer"),
        ("\u00b5m", "micrometer"),
        ("\u03bcm", "micrometer"),
        ("nm", "nanometer"),
        ("metre", "meter"),
        ("degrees_north", None),
        (None, None),
    ],
)
def test_axes_have_the_units_of_their_coordinates(said: str | None, unit: str | None, tmp_path: Path) -> None:
    attrs = {} if said is None else {"units": said}
    coords = {dim: xarray.Variable(dim, 0.5 * np.arange(8), attrs) for dim in "yx"}
    t = from_array(xarray.DataArray(np.ones((2, 8, 8), "float32"), coords, ("c", "y", "x")))
    t.export(..., tmp_path / "out.zarr", pyramid=1, progress=False)
    assert [axis.get("unit") for axis in ome_in(tmp_path / "out.zarr")["axes"]] == [None, unit, unit]


def test_nodata_is_left_out_of_levels_and_told_in_each(tmp_path: Path) -> None:
    data = np.arange(36, dtype="int16").reshape(1, 6, 6)
    data[0, 0, 0:3] = -99
    options = {"driver": "GTiff", "count": 1, "height": 6, "width": 6, "dtype": "int16", "nodata": -99}
    with rasterio.open(tmp_path / "in.tif", "w", **options, transform=rasterio.Affine(10, 0, 500, 0, -10, 900)) as file:
        file.write(data)
    t = from_raster(tmp_path / "in.tif")
    t.export(sl[:, 0:6, 0:6], tmp_path / "out.zarr", pyramid=1, progress=False)
    with xarray.open_zarr(tmp_path / "out.zarr", group="s1", mask_and_scale=False) as found:
        assert np.array_equal(found["values"], t.coarsen((1, 2, 2))[...])
        assert found["values"].attrs["_FillValue"] == -99
        assert found["values"][0, 0, 1] == round((3 + 8 + 9) / 3)


def test_a_pixel_that_an_int_picks_has_no_axis(tmp_path: Path) -> None:
    t = finite(("t", "c", "y", "x"), (3, 2, 9, 11))
    t.export(sl[1, :, 1:9, :], tmp_path / "out.zarr", pyramid=1, progress=False)
    assert [axis["name"] for axis in ome_in(tmp_path / "out.zarr")["axes"]] == ["c", "y", "x"]
    with xarray.open_zarr(tmp_path / "out.zarr", group="s1") as found:
        assert np.array_equal(found["values"], from_array(t[1, :, 1:9, :]).coarsen((1, 2, 2))[...])


def test_there_are_no_more_levels_than_down_to_one_pixel(tmp_path: Path) -> None:
    finite(("y", "x"), (5, 3)).export(..., tmp_path / "out.zarr", pyramid=100, progress=False)
    found = zarr.open_group(tmp_path / "out.zarr", mode="r")
    shapes = [cast("zarr.Array[Any]", found[f"s{k}/values"]).shape for k in range(4)]
    assert shapes == [(5, 3), (3, 2), (2, 1), (1, 1)]
    assert len(ome_in(tmp_path / "out.zarr")["datasets"]) == 4


def test_levels_have_the_method_of_those_that_are_stored(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s", tile_size=256) as store:
        t = unbounded(tile_store=store)
        t.pyramid(1, "max")
        t.export(sl[0:2048, 0:1024], tmp_path / "out.zarr", pyramid=2, progress=False)
        assert ome_in(tmp_path / "out.zarr")["type"] == "max"


@pytest.mark.parametrize("store", [{}, {"tile_store": MemoryTileStore(cache_size_bytes="1MB")}], ids=["memory", "1MB"])
def test_levels_call_f_for_no_window_again_and_for_none_beyond_the_region(store: Any, tmp_path: Path) -> None:
    calls: list[tuple[int, ...]] = []
    t, region = unbounded(calls, **store), sl[-301:1748, 100:2148]
    t.export(region, tmp_path / "out.zarr", pyramid=3, progress=False)
    assert sorted(calls) == [*itertools.product(range(-5, 28), range(1, 34))]
    expected, _ = blocks(t, [slice(-301, 1748), slice(100, 2148)], 3, [0, 1])
    with xarray.open_zarr(tmp_path / "out.zarr", group="s3") as found:
        np.testing.assert_allclose(found["height"].to_numpy(), expected, rtol=1e-6)


def test_another_method_than_the_stored_one_leaves_the_store_alone(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s", tile_size=256) as store:
        t = unbounded(tile_store=store)
        t.pyramid(1, "max")
        t.export(sl[0:700, 0:20], tmp_path / "out.zarr", pyramid="min", progress=False)
        with xarray.open_zarr(tmp_path / "out.zarr", group="s1") as found:
            pixels = t[0:700, 0:20].numpy().reshape(350, 2, 10, 2)
            assert np.array_equal(found["height"], pixels.min((1, 3)))
        assert store.tensor_info("world/height/level-1").tiles_complete == 0


@pytest.mark.parametrize(("fill_value", "counts"), [(None, True), (-1, False)])
def test_without_computing_levels_are_those_of_what_is_written(
    fill_value: float | None, counts: bool, tmp_path: Path
) -> None:
    calls: list[tuple[int, ...]] = []
    with ZarrTileStore(tmp_path / "s", tile_size=64) as store:
        t = unbounded(calls, tile_store=store)
        stored = t[0:64, 0:192].numpy()
        before = len(calls)
        options: dict[str, Any] = {"compute": False, "fill_value": fill_value, "progress": False}
        t.export(sl[32:128, 0:256], tmp_path / "out.zarr", pyramid=6, **options)
        assert len(calls) == before
    written = np.full((96, 256), 0 if fill_value is None else fill_value, "float32")
    written[:32, :192] = stored[32:]
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    whole = cast("zarr.Array[Any]", group["s0/height"])
    assert np.array_equal(whole[...], written)
    blocks_of_64 = np.pad(written, ((0, 32), (0, 0)), constant_values=np.nan).reshape(2, 64, 4, 64)
    if not counts:
        blocks_of_64[blocks_of_64 == fill_value] = np.nan
    with np.errstate(invalid="ignore"):
        means = np.nansum(blocks_of_64, (1, 3)) / np.isfinite(blocks_of_64).sum((1, 3))
    level = cast("zarr.Array[Any]", group["s6/height"])
    np.testing.assert_allclose(np.asarray(level[...]), means if counts else np.nan_to_num(means, nan=-1), rtol=1e-5)
    assert level.fill_value == (0 if fill_value is None else fill_value)


def test_an_export_that_was_stopped_among_levels_continues_there(tmp_path: Path) -> None:
    def exported(t: InfiniteTensor, stop_at: str | None) -> None:
        done = 0

        def watch(progress: Any) -> None:
            nonlocal done
            done = progress.done
            if stop_at is not None and any(tmp_path.glob(f".out.zarr.*.partial/{stop_at}")):
                raise KeyboardInterrupt

        t.export(sl[-700:700, 0:1400], tmp_path / "out.zarr", pyramid=2, progress=watch)

    def chunks(folder: str) -> dict[str, int]:
        (root,) = tmp_path.glob(folder)
        return {path.relative_to(root).as_posix(): path.stat().st_mtime_ns for path in root.glob("s*/height/c/*/*")}

    with ZarrTileStore(tmp_path / "s", tile_size=128) as store:
        t = unbounded(tile_store=store)
        with pytest.raises(KeyboardInterrupt):
            exported(t, "s1/height/c/0/0")
        before = chunks(".out.zarr.*.partial")
        assert any(path.startswith("s1") for path in before)
        exported(t, None)
        after = chunks("out.zarr")
        assert before.items() <= after.items()
        whole = t[-700:700, 0:1400].numpy().reshape(350, 4, 350, 4).mean((1, 3))
        with xarray.open_zarr(tmp_path / "out.zarr", group="s2") as found:
            assert np.array_equal(found["height"], whole)


def test_a_view_is_what_an_export_writes(tmp_path: Path) -> None:
    t, region = unbounded(), sl[-36:48, 4:40]
    t.export(region, tmp_path / "out.zarr", pyramid=2, progress=False)
    store = store_of_levels(t, region, t.pyramid(2, store=MemoryTileStore()))
    view, written = zarr.open_group(store, mode="r"), zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert ome_in(view) == ome_in(written)
    members = dict(written.members(max_depth=None))
    assert members.keys() == dict(view.members(max_depth=None)).keys()
    for path, array in members.items():
        if isinstance(array, zarr.Array):
            same = cast("zarr.Array[Any]", view[path])
            assert np.array_equal(same[...], array[...])
            said, expected = same.attrs.asdict(), array.attrs.asdict()
            # Levels of an export begin at its region, so they are other tensors than those of the pyramid.
            if not path.startswith("s0"):
                said.pop("infinite_tensor", None), expected.pop("infinite_tensor", None)
            assert (said, same.chunks) == (expected, array.chunks)
    with xarray.open_zarr(store, group="s1") as found:
        assert found["height"].shape == (42, 18)


def test_a_view_of_what_is_stored_computes_nothing(tmp_path: Path) -> None:
    calls: list[tuple[int, ...]] = []
    with ZarrTileStore(tmp_path / "s", tile_size=64) as store:
        t = unbounded(calls, tile_store=store)
        view = zarr.open_group(store_of_levels(t.stored_only(-1), sl[0:64, 0:64], t.pyramid(1)), mode="r")
        for k in range(2):
            assert (np.asarray(cast("zarr.Array[Any]", view[f"s{k}/height"])[...]) == -1).all()
    assert not calls


def test_dimensions_in_another_order_are_refused_with_what_to_export_instead(tmp_path: Path) -> None:
    t, target = finite(("y", "x", "c"), (40, 30, 3)), tmp_path / "out.zarr"
    instead = r"from_array\(t.to_xarray\(region\).transpose\('c', 'y', 'x'\)\)"
    with pytest.raises(ValidationError, match=instead):
        t.export(..., target, pyramid=1, progress=False)
    turned = from_array(t.to_xarray(sl[5:40, 0:30, :]).transpose("c", "y", "x"))
    turned.export(..., target, pyramid=1, progress=False)
    assert [axis["name"] for axis in ome_in(target)["axes"]] == ["c", "y", "x"]
    with xarray.open_zarr(target, group="s0") as found:
        assert np.array_equal(found["values"], t[5:40].permute(2, 0, 1))


@pytest.mark.parametrize(
    ("dims", "region", "options", "error"),
    [
        (("lat", "lon"), ..., {}, r"rename\(lat=\"y\", lon=\"x\"\)"),
        (("a", "c", "y", "x"), ..., {}, "index other dimensions by ints"),
        (("z", "y", "x"), sl[3, :, :], {}, r"along 'z'.*3:4"),
        (("y",), ..., {}, "must include two of z, y and x"),
        (("y", "x"), ..., {"pyramid": 0}, "pyramid must be a positive int"),
        (("y", "x"), ..., {"pyramid": "median"}, "method must be one of"),
        (("y", "x"), ..., {"format": "tiff"}, "pyramid is only for Zarr"),
    ],
    ids=str,
)
def test_what_has_no_levels_is_refused(
    dims: tuple[str, ...], region: Any, options: dict[str, Any], error: str, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match=error):
        finite(dims, (5,) * len(dims)).export(region, tmp_path / "out.zarr", **{"pyramid": True} | options)
    assert not any(tmp_path.iterdir())


def test_zarr_finds_all_members_of_several_nested_groups(tmp_path: Path) -> None:
    t = finite(("y", "x"), (5, 6))
    TensorGroup({"a": {"one": t}, "b": {"two": t}}, dims=(0, 1)).export(..., tmp_path / "out.zarr", progress=False)
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    paths = [path for path, _ in group.members(max_depth=None)]
    assert sorted(paths) == ["a", "a/one", "a/x", "a/y", "b", "b/two", "b/x", "b/y"]
