"""What tiles of the viewer show of a tensor, and what they have computed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
import xarray
import zarr
from zarr.storage import MemoryStore

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, ZarrTileStore, from_array, from_raster, sl
from infinite_tensor.views.painter import Painter, Picture, stored_near
from infinite_tensor.views.plane import Plane, Tile
from tests.support.counting import Counted
from tests.support.reference import Index
from tests.support.watched import Watched


def ramp(ctx: Index) -> torch.Tensor:
    y, x = (torch.arange(256.0) + 256 * i for i in ctx)
    return 1000 * y[:, None] + x


def tensor_of(f: Any, folder: Path, **options: Any) -> InfiniteTensor:
    store = ZarrTileStore(folder / "t.zarr", tile_size=256)
    return InfiniteTensor((None, None), f, TensorWindow((256, 256)), tile_store=store, tensor_id="t", **options)


def plane_of(tensor: InfiniteTensor) -> Plane:
    return Plane.of(tensor.shape, tensor.dims)


def stored(tensor: InfiniteTensor, tiles: Iterable[Tile], plane: Plane | None = None) -> dict[Tile, Picture]:
    found = Painter(tensor).stored(plane or plane_of(tensor), list(tiles))
    return {picture.tile: picture for group in found for picture in group}


def test_what_is_stored_is_shown_and_nothing_is_computed(tmp_path: Path) -> None:
    f = Counted(ramp)
    t = tensor_of(f, tmp_path)
    t.fill(sl[-256:256, 0:256])
    computed = len(f.calls)
    tiles = [Tile(0, row, column) for row in (-1, 0) for column in (0, 1)]
    found = stored(t, tiles)
    assert [found[tile].state for tile in tiles] == ["stored", "partial", "stored", "partial"]
    assert found[tiles[0]].values[3, 5] == t[-253, 5] == found[tiles[0]].values[0, 0] + 3005
    assert np.isnan(found[tiles[1]].values).all()
    assert len(f.calls) == computed


def test_a_far_tile_is_a_mean_of_what_is_stored(tmp_path: Path) -> None:
    t = tensor_of(ramp, tmp_path)
    t.fill(sl[0:512, 0:256])
    picture = stored(t, [Tile(1, 0, 0)])[Tile(1, 0, 0)]
    assert picture.state == "partial"
    assert np.array_equal(picture.values[:, :128], t.coarsen(2)[0:256, 0:128].numpy())
    assert np.isnan(picture.values[:, 128:]).all()


@pytest.mark.parametrize("level", [11, 16])
def test_a_far_tile_reads_only_where_something_is_stored(level: int) -> None:
    """To read all of its pixels would take hours, and at level 16, one pixel of the tile stands for 16 GiB."""
    t = InfiniteTensor((2**25, 2**25), ramp, TensorWindow((256, 256)), tile_store=MemoryTileStore(), tensor_id="t")
    factor = 2**level
    t.fill(sl[2 * factor : 2 * factor + 300, 244 * factor : 244 * factor + 100])
    near, far = Tile(level, 0, 0), Tile(level, 1, 1)
    found = stored(t, [near, far])
    assert [found[tile].state for tile in (near, far)] == ["partial", "partial"]
    assert np.argwhere(np.isfinite(found[near].values)).tolist() == [[2, 244]]
    expected = t[2 * factor : 2 * factor + 512, 244 * factor : 244 * factor + 256].double().mean()
    assert found[near].values[2, 244] == pytest.approx(expected.item(), rel=1e-6)
    assert np.isnan(found[far].values).all()


@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_pixels_between_windows_cost_a_far_tile_nothing() -> None:
    window = TensorWindow((256, 256), (300, 300))
    t = InfiniteTensor((None, None), ramp, window, tile_store=MemoryTileStore(), tensor_id="t")
    far = Tile(16, 0, 0)
    assert stored(t, [far])[far].state == "partial"


def test_a_far_tile_lists_what_is_stored_once() -> None:
    watched = Watched(MemoryStore())
    with ZarrTileStore(watched, tile_size=256) as store:
        t = InfiniteTensor((None, None), ramp, TensorWindow((256, 256)), tile_store=store, tensor_id="t")
        for at in range(0, 2**16, 2**12):
            t[at, at]
        store.flush()
        far, before = Tile(8, 0, 0), watched.requests["list"]
        assert np.isfinite(stored(t, [far])[far].values).sum() == 16
        once = watched.requests["list"] - before
        stored(t, [Tile(8, 5, 5)])
        assert watched.requests["list"] - before - once == once


def test_nodata_is_no_part_of_a_mean() -> None:
    heights = np.full((3, 512, 512), 100, np.float32)
    heights[:, :, ::2] = -9999
    heights[2] = -9999
    depths = xarray.DataArray(heights, dims=("z", "y", "x"), attrs={"_FillValue": np.float32(-9999)})
    t, far = from_array(depths), Tile(1, 0, 0)
    for place, value in ((0, 100), (2, np.nan)):
        plane = plane_of(t).placed([place])
        assert np.array_equal(stored(t, [far], plane)[far].values, np.full((256, 256), value), equal_nan=True)
        assert np.array_equal(Painter(t).computed(plane, far).values, np.full((256, 256), value), equal_nan=True)


def test_a_tile_that_turns_out_not_to_be_labels_is_a_mean_everywhere() -> None:
    pixels = torch.full((4096, 4096), 200, dtype=torch.uint8)
    pixels[:2048, :2048] = torch.tensor([0, 0, 0, 19]).repeat(512).to(torch.uint8)
    far = Tile(4, 0, 0)
    values = stored(from_array(pixels), [far])[far].values
    assert (values[:128, :128] == 4.75).all()
    assert (values[128:] == 200).all()


def test_stored_levels_are_shown_and_their_gaps_filled_from_finer_ones(tmp_path: Path) -> None:
    t = tensor_of(ramp, tmp_path)
    one, two = t.pyramid(2)
    t.fill(sl[0:512, 0:1024], pyramid=True)
    with ZarrTileStore(tmp_path / "t.zarr", mode="r") as store:
        opened = store.open("t")
        tiles, plane = Painter(opened), plane_of(opened)
        assert [level.tensor_id for level in tiles.levels] == ["t", one.tensor_id, two.tensor_id]
        (((picture,),)) = tiles.stored(plane, [Tile(2, 0, 0)])
        found = tiles.filled(plane, picture).values
    assert np.array_equal(found[:128], two[0:128, 0:256].numpy())
    assert np.isnan(found[128:]).all()


def test_levels_from_a_coarser_source_cost_its_pixels(tmp_path: Path) -> None:
    t = tensor_of(ramp, tmp_path)
    t.pyramid(4, sources={4: InfiniteTensor((None, None), ramp, TensorWindow((256, 256)))})
    tiles = Painter(t)
    assert [tiles.scale(plane_of(t), [Tile(level, 0, 0)]) for level in range(7)] == [1, 1, 16, 16, 16, 16, 16]


def test_levels_that_are_coarser_along_z_too_are_shown_at_their_own_place(tmp_path: Path) -> None:
    volume = from_array(torch.arange(8 * 512 * 512).view(8, 512, 512), dims=("z", "y", "x"))
    with ZarrTileStore(tmp_path / "t.zarr") as store:
        t = volume.map(lambda x: x, window=(1, 256, 256), store=store, tensor_id="t")
        t.fill(..., pyramid=True, progress=False)
        (level,) = t.pyramid(1)
        level.fill(..., progress=False)
        plane = plane_of(t).placed([5])
        picture = stored(t, [Tile(1, 0, 0)], plane)[Tile(1, 0, 0)]
        assert picture.state == "stored"
        assert np.array_equal(picture.values, level[2].numpy())


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("form", ["raster", "zarr"])
def test_a_source_that_is_too_large_to_average_is_shown_by_every_nth_pixel(form: str, tmp_path: Path) -> None:
    pixels = np.stack(np.broadcast_arrays(0, *np.mgrid[:700, :1100])).astype("uint16")
    if form == "raster":
        with rasterio.open(tmp_path / "in.tif", "w", "GTiff", 1100, 700, 3, dtype="uint16", tiled=True) as file:
            file.write(pixels)
        t: InfiniteTensor = from_raster(tmp_path / "in.tif")
    else:
        t = from_array(zarr.create_array(MemoryStore(), data=pixels, chunks=(1, 256, 256)), dims=("band", "y", "x"))
    tiles, plane, far = Painter(t), plane_of(t), Tile(2, 0, 1)
    ((picture,),) = tiles.stored(plane, [far])
    assert picture.state == "partial"
    found = tiles.filled(plane, picture)
    assert (found.state, found.values.shape) == ("stored", (175, 19, 3))
    y, x = np.mgrid[:175, 256:275]
    assert np.array_equal(found.values // 4, np.stack(np.broadcast_arrays(0, y, x), -1))


def test_an_error_is_that_of_its_tile(tmp_path: Path) -> None:
    def picky(ctx: Index) -> torch.Tensor:
        if ctx[1] == 1:
            raise RuntimeError("too far <east>")
        return ramp(ctx)

    f = Counted(picky)
    t = tensor_of(f, tmp_path)
    painter = Painter(t)
    west = painter.computed(plane_of(t), Tile(0, 0, 0))
    assert (west.state, west.range) == ("computed", (0.0, 255255.0))
    with pytest.raises(RuntimeError, match="too far <east>"):
        painter.computed(plane_of(t), Tile(0, 0, 1))


def test_labels_keep_their_numbers_and_others_become_means() -> None:
    labels = np.zeros((512, 512), np.uint8)
    labels[::2, 1::2] = 5
    labels[1::2] = 7
    found = Painter(from_array(labels))
    plane = Plane.of((512, 512), ("y", "x"))
    (picture,) = next(found.stored(plane, [Tile(1, 0, 0)]))
    assert found.labels
    assert set(picture.values.ravel()) == {7.0}
    found = Painter(from_array(labels * 20))
    (picture,) = next(found.stored(plane, [Tile(1, 0, 0)]))
    assert not found.labels
    assert set(picture.values.ravel()) == {95.0}


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int16, torch.int64, torch.bfloat16, torch.float64, torch.complex64]
)
def test_values_are_those_of_the_tensor_whatever_its_dtype(dtype: torch.dtype) -> None:
    t = from_array(torch.arange(-6, 6).view(3, 4).to(dtype))
    (picture,) = next(Painter(t).stored(plane_of(t), [Tile(0, 0, 0)]))
    expected = t[...].abs() if dtype.is_complex else t[...]
    assert picture.values.tolist() == expected.tolist()
    assert picture.state == "stored"


def test_colours_come_last_and_a_channel_alone_has_no_third_axis() -> None:
    t = from_array(torch.arange(3 * 4 * 5, dtype=torch.uint8).view(3, 4, 5), dims=("c", "y", "x"))
    plane = plane_of(t)
    (picture,) = next(Painter(t).stored(plane, [Tile(0, 0, 0)]))
    assert np.array_equal(picture.values, t[...].permute(1, 2, 0).numpy())
    alone = Plane(plane.shape, plane.rows, plane.columns, (2, None, None))
    (picture,) = next(Painter(t).stored(alone, [Tile(0, 0, 0)]))
    assert np.array_equal(picture.values, t[2].numpy())


def test_nan_that_is_stored_is_not_missing(tmp_path: Path) -> None:
    t = tensor_of(lambda _ctx: torch.full((256, 256), torch.nan), tmp_path)
    t.fill(sl[0:256, 0:256])
    picture = stored(t, [Tile(0, 0, 0)])[Tile(0, 0, 0)]
    assert (picture.state, picture.range) == ("stored", None)


def test_a_page_opens_at_the_stored_tile_nearest_to_0(tmp_path: Path) -> None:
    t = tensor_of(ramp, tmp_path)
    assert stored_near(t, plane_of(t)) == (0.0, 0.0)
    t.fill(sl[25600:26112, -512:-256])
    t.fill(sl[256_000:256_256, 0:256])
    assert stored_near(t, plane_of(t)) == (25600 + 128, -512 + 128)
    t.fill(sl[0:256, 0:256])
    assert stored_near(t, plane_of(t)) == (0.0, 0.0)
