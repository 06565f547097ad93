"""Sources that are too large to be looked at whole: what is noticed of a change in memory and in a file."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import obstore.store
import pytest
import rasterio
import tensorstore as ts
import torch
import xarray as xr
import zarr
from PIL import Image
from zarr.storage import MemoryStore, ObjectStore

from infinite_tensor import (
    FunctionChangedWarning,
    InfiniteTensor,
    TensorBlob,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    from_image,
    from_raster,
)
from infinite_tensor.pipelines.readers import Reader
from infinite_tensor.pipelines.sources import Source
from infinite_tensor.values.arrays import Stamps, stamps_of_place

SHAPE = (8200, 8200)
"""Of uint8, just beyond 64 MiB; no sample lies in the box below."""
BOX = np.s_[1960:2050, 5000:5040]
WINDOW = TensorWindow((100, 100))


def values() -> np.ndarray[Any, Any]:
    return np.arange(SHAPE[0], dtype=np.uint8)[:, None] + np.arange(SHAPE[1], dtype=np.uint8)


def edit(array: Any) -> None:
    box = 255 - np.asarray(array[BOX])
    array[BOX] = torch.from_numpy(box) if isinstance(array, torch.Tensor) else box
    written(array)


def stamps_of(t: InfiniteTensor) -> dict[str, str]:
    assert isinstance(t.f, Source)
    return t.f.stamps


def assert_same_but_for_stamps(before: InfiniteTensor, after: InfiniteTensor) -> None:
    assert before.version == after.version
    assert stamps_of(before).keys() == stamps_of(after).keys()
    assert stamps_of(before) != stamps_of(after)


# In memory.


def in_memory(array: Any) -> Any:
    return zarr.create_array(MemoryStore(), data=array, chunks=(2048, 2048))


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, xr.DataArray, in_memory])
def test_any_other_pixel_of_a_large_array_in_memory_is_another_source(kind: Callable[[Any], Any]) -> None:
    array = kind(values())
    before = from_array(array, chunks=1000)
    assert before.version == from_array(values(), chunks=1000).version
    edit(array)
    assert from_array(array, chunks=1000).version != before.version
    assert stamps_of(before) == {}


def test_an_edited_array_in_memory_never_gets_pixels_from_before(tmp_path: Path) -> None:
    array = values()
    halved(from_array(array), tmp_path / "store")
    edit(array)
    with pytest.raises(ValidationError, match=r"args\[0\].digest: stored"):
        halved(from_array(array), tmp_path / "store")


# In files.


def in_npy(folder: Path) -> Any:
    np.save(folder / "a.npy", values())
    return np.load(folder / "a.npy", mmap_mode="r+")


def in_torch_file(folder: Path) -> Any:
    values().tofile(folder / "a.bin")
    size = SHAPE[0] * SHAPE[1]
    return torch.from_file(str(folder / "a.bin"), shared=True, size=size, dtype=torch.uint8).reshape(SHAPE)


def in_zarr(folder: Path, store: Any = None) -> Any:
    return zarr.create_array(store or str(folder), name="a", data=values(), chunks=(1024, 1024))


def in_zarr_of_fsspec(folder: Path) -> Any:
    return in_zarr(folder, f"memory://{folder.name}")


def in_obstore(folder: Path) -> Any:
    return in_zarr(folder, ObjectStore(obstore.store.LocalStore(folder)))


def in_hdf5(folder: Path) -> Any:
    return h5py.File(folder / "a.h5", "w").create_dataset("a", data=values(), chunks=(1024, 1024))


def in_tensorstore(folder: Path) -> Any:
    in_zarr(folder)
    return ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "a")}}).result()


def written(array: Any) -> None:
    """Whatever waits is in the file, and its time has gone on."""
    places: list[Any] = [array, getattr(array, "file", None)]
    for each in places:
        if hasattr(each, "flush"):
            each.flush()


FILES = [in_npy, in_torch_file, in_zarr, in_zarr_of_fsspec, in_obstore, in_hdf5, in_tensorstore]


@pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.__name__)
def test_an_edit_between_the_samples_of_a_file_changes_its_stamp(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    array = kind(tmp_path)
    written(array)
    before, again = from_array(array), from_array(array)
    (name,) = stamps_of(before)
    assert "a" in name
    assert stamps_of(before) == stamps_of(again)
    assert before.version
    edit(array)
    assert_same_but_for_stamps(before, from_array(array))


def test_a_lazy_array_of_xarray_has_the_stamp_of_its_file(tmp_path: Path) -> None:
    xr.Dataset({"a": (("y", "x"), values())}).to_zarr(tmp_path / "a.zarr", zarr_format=2)
    array = xr.open_zarr(tmp_path / "a.zarr", chunks=None)["a"]
    assert list(stamps_of(from_array(array))) == [str(tmp_path / "a.zarr" / "a")]


def empty_raster(path: Path) -> None:
    options = {"transform": rasterio.Affine(10, 0, 500_000, 0, -10, 0), "sparse_ok": True}
    with rasterio.open(path, "w", driver="GTiff", dtype="uint8", count=1, height=8200, width=8200, **options):
        pass


def test_a_raster_has_the_stamps_of_the_files_that_hold_its_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    empty_raster(path)
    before = stamps_of(from_raster(path))
    assert list(before) == [str(path)]
    (tmp_path / "a.tif.aux.xml").write_text("<PAMDataset/>")
    assert stamps_of(from_raster(path)) == before
    with rasterio.open(path, "r+") as raster:
        raster.write(np.full((90, 40), 7, np.uint8), 1, window=rasterio.windows.Window(5000, 1960, 40, 90))
    assert stamps_of(from_raster(path)) != before


def test_a_mosaic_changes_with_the_files_that_it_is_made_of(tmp_path: Path) -> None:
    part, mosaic = tmp_path / "part.tif", tmp_path / "a.vrt"
    empty_raster(part)
    mosaic.write_text(
        '<VRTDataset rasterXSize="8200" rasterYSize="8200"><GeoTransform>500000, 10, 0, 0, 0, -10</GeoTransform>'
        '<VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
        '<SourceFilename relativeToVRT="1">part.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource>'
        "</VRTRasterBand></VRTDataset>"
    )
    before = stamps_of(from_raster(mosaic))
    assert list(before) == [str(mosaic)]
    os.utime(part, ns=(0, 1))
    assert stamps_of(from_raster(mosaic)) != before


def test_a_large_image_has_the_stamp_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bmp"
    Image.fromarray(values()).save(path)
    before = from_image(path)
    with path.open("r+b") as file:
        file.seek(-1960 * 8200 - 3000, os.SEEK_END)
        file.write(bytes(40))
    assert stamps_of(before).keys() == {str(path)}
    assert_same_but_for_stamps(before, from_image(path))


def test_a_blob_has_another_stamp_when_rows_are_overwritten(tmp_path: Path) -> None:
    with TensorBlob.open(tmp_path / "a", mode="w+", shape=(8200,), dtype=torch.uint8) as blob:
        blob.write(torch.from_numpy(values()))
        before = from_array(blob)
        assert before.version
        rows = values()
        edit(rows)
        blob.seek(1960)
        blob.write(rows[1960:2050])
        assert_same_but_for_stamps(before, from_array(blob))


class Placed(Reader):
    shape = SHAPE
    dtype = torch.uint8

    def _read(self, _region: Any) -> torch.Tensor:
        raise NotImplementedError

    def _stamps(self) -> Stamps:
        return stamps_of_place("memory://who:secret@host/a")


def test_a_stamp_shows_no_login() -> None:
    fsspec.filesystem("memory").pipe_file("/who:secret@host/a", b"a")
    (name,) = Placed().stamps()
    assert name == "memory://***@host/a"


def test_small_files_and_named_sources_have_no_stamp(tmp_path: Path) -> None:
    np.save(tmp_path / "small.npy", values()[:100])
    assert stamps_of(from_array(np.load(tmp_path / "small.npy", mmap_mode="r"))) == {}
    assert stamps_of(from_array(in_npy(tmp_path), name="scan 7")) == {}


def test_too_many_files_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_tensor.values.arrays._MOST_FILES", 10)
    assert stamps_of(from_array(in_zarr(tmp_path))) == {}


# What is computed from them.


def halved(source: InfiniteTensor, path: Path) -> list[str]:
    """Store a corner of half of each pixel, which is computed once; the warnings."""
    with ZarrTileStore(path) as store, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options: dict[str, Any] = {"tile_store": store, "tensor_id": "halved"}
        InfiniteTensor(SHAPE, lambda _ctx, part: part / 2, WINDOW, [source], [WINDOW], **options)[:10, :10]
    assert {each.category for each in caught} <= {FunctionChangedWarning}
    return [str(each.message) for each in caught]


def test_an_edited_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    array = in_npy(tmp_path)
    written(array)
    assert halved(from_array(array), tmp_path / "store") == []
    assert halved(from_array(array), tmp_path / "store") == []
    edit(array)
    (told,) = halved(from_array(array), tmp_path / "store")
    assert f"'{tmp_path / 'a.npy'}' has changed since" in told
    assert "store.clear_tensor('halved', dependants=True)" in told
    assert "name=" in told


def test_a_copy_with_its_times_is_the_same_file_and_one_without_is_told(tmp_path: Path) -> None:
    written(in_npy(tmp_path))
    halved(from_array(np.load(tmp_path / "a.npy", mmap_mode="r")), tmp_path / "store")
    for copy, told in ((shutil.copy2, 0), (shutil.copy, 1)):
        path = copy(tmp_path / "a.npy", tmp_path / f"{copy.__name__}.npy")
        found = halved(from_array(np.load(path, mmap_mode="r")), tmp_path / "store")
        assert len(found) == told
        assert all(str(path) in each for each in found)


def test_the_id_that_map_makes_follows_a_file_wherever_it_lies(tmp_path: Path) -> None:
    def ids(path: Path | str) -> str:
        source = from_array(np.load(path, mmap_mode="r"), dims=("y", "x"))
        return source.map(lambda x: x // 2, store=tmp_path / "store").tensor_id

    array = in_npy(tmp_path)
    written(array)
    before = ids(tmp_path / "a.npy")
    assert ids(shutil.copy2(tmp_path / "a.npy", tmp_path / "b.npy")) == before
    edit(array)
    assert ids(tmp_path / "a.npy") != before


# Arrays that f holds.


def of_held(path: Path, array: Any) -> list[str]:
    """What is told where a stored tensor is built again whose ``f`` reads from an array that it holds."""

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        return torch.as_tensor(np.asarray(array[8 * ctx[0] : 8 * ctx[0] + 8, :8]))

    with ZarrTileStore(path) as store, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        InfiniteTensor((16, 8), f, TensorWindow((8, 8)), dtype=torch.uint8, tile_store=store, tensor_id="t")[:]
    return [str(each.message) for each in told]


@pytest.mark.parametrize("kind", [in_npy, in_hdf5, in_zarr], ids=lambda kind: kind.__name__)
def test_a_large_array_that_f_holds_is_known_by_its_stamp(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    array = kind(tmp_path)
    written(array)
    assert of_held(tmp_path / "store", array) == []
    assert of_held(tmp_path / "store", array) == []
    edit(array)
    (line,) = of_held(tmp_path / "store", array)
    assert "`array`, a variable around `f` has changed since" in line


def test_a_small_memory_map_that_f_holds_is_seen_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values()[:100])
    array = np.load(tmp_path / "a.npy", mmap_mode="r+")
    assert of_held(tmp_path / "store", array) == []
    os.utime(tmp_path / "a.npy", ns=(1, 1))
    assert of_held(tmp_path / "store", array) == []
    array[50, 50] += 1
    assert "`array`, a variable around `f`, has changed" in "".join(of_held(tmp_path / "store", array))
