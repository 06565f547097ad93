"""Sources whose files are deleted while a tensor reads from them: a missing chunk of Zarr reads as a fill value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import numpy as np
import pytest
import tensorstore as ts
import torch
import xarray as xr
import zarr
from zarr.storage import LocalStore, WrapperStore

from infinite_tensor import MemoryTileStore, StoreError, from_array, from_raster

VALUES = np.full((256, 256), 5, np.float32)
IN_NETCDF = "file://{}#mode=nczarr,file"


def in_zarr(folder: Path, **options: Any) -> Any:
    return zarr.create_array(folder, data=VALUES, chunks=(32, 32), **options)


def in_mapper(folder: Path) -> Any:
    in_zarr(folder)
    return zarr.open_array(fsspec.filesystem("file").get_mapper(str(folder)), mode="r")


def in_tensorstore(folder: Path) -> Any:
    in_zarr(folder)
    return ts.open({"driver": "zarr3", "kvstore": f"file://{folder}/"}, open=True).result()


def in_dask(*arrays: Any) -> Any:
    dask: Any = da
    return dask.concatenate([dask.from_array(each) for each in arrays]) + 1


def in_netcdf(folder: Path) -> Any:
    netcdf = pytest.importorskip("netCDF4")
    with netcdf.Dataset(IN_NETCDF.format(folder), "w") as file:
        file.createDimension("y", 256)
        file.createDimension("x", 256)
        file.createVariable("a", "f4", ("y", "x"), chunksizes=(32, 32))[:] = VALUES
    return netcdf.Dataset(IN_NETCDF.format(folder))["a"]


def in_xarray(folder: Path, **options: Any) -> Any:
    xr.Dataset({"a": (("y", "x"), VALUES)}).to_zarr(folder, consolidated=False, encoding={"a": {"chunks": (32, 32)}})
    return xr.open_zarr(folder, consolidated=False, **options)["a"]


def netcdf_in_xarray(folder: Path) -> Any:
    in_netcdf(folder)
    return xr.open_dataset(IN_NETCDF.format(folder), engine="netcdf4", cache=False)["a"]


SOURCES: dict[str, Callable[[Path], Any]] = {
    "zarr": in_zarr,
    "zarr, version 2": lambda folder: in_zarr(folder, zarr_format=2, fill_value=None),
    "zarr, in shards, of NaN": lambda folder: in_zarr(folder, shards=(64, 64), fill_value=float("nan")),
    "zarr over a mapper": in_mapper,
    "tensorstore": in_tensorstore,
    "dask": lambda folder: in_dask(in_zarr(folder)),
    "dask over two": lambda folder: in_dask(in_zarr(folder / "a"), in_zarr(folder / "b")),
    "xarray": lambda folder: in_xarray(folder, chunks=None),
    "xarray of dask": in_xarray,
    "netCDF4": in_netcdf,
    "xarray of netCDF4": netcdf_in_xarray,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_read_of_a_source_that_is_gone_is_an_error_and_stores_nothing(kind: str, tmp_path: Path) -> None:
    source = from_array(SOURCES[kind](tmp_path / "a"), chunks=32, name="a")
    result = source.map(lambda x: x * 2, store=MemoryTileStore(), tensor_id="m", window=(32, 32), version=1)
    there = result[:32, :32].clone()
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="vanished"):
        result.fill(..., progress=False)
    assert torch.equal(result[:32, :32], there)
    assert set(result.stored_only(-1)[...].unique().tolist()) <= {-1, there[0, 0].item()}


class Counting(WrapperStore[Any]):
    """Counts what is asked for."""

    count = 0

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        Counting.count += 1
        return await super().get(key, *args, **options)


def test_chunks_that_are_there_cost_no_further_request(tmp_path: Path) -> None:
    array = zarr.create_array(Counting(LocalStore(tmp_path)), data=VALUES, chunks=(32, 32))
    t = from_array(array, chunks=32, name="a")
    begin = Counting.count
    assert (t[...] == 5).all()
    assert Counting.count - begin == array.nchunks


@pytest.mark.slow
def test_of_many_folders_only_those_of_a_block_are_asked(tmp_path: Path) -> None:
    t = from_array(in_dask(*[in_zarr(tmp_path / str(number)) for number in range(3)]), chunks=32, name="a")
    (tmp_path / "2").rename(tmp_path / "elsewhere")
    assert (t[:512] == 6).all()
    with pytest.raises(StoreError, match="vanished"):
        t[512:]


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_raster_in_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    in_zarr(tmp_path / "a", zarr_format=2)
    t = from_raster(tmp_path / "a", chunks=32, name="a")
    assert (t[0, :32, :32] == 5).all()
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="No such file"):
        t[0, 64:, 64:]
