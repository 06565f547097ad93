"""`from_array` with arrays of h5py, Dask, xarray and tensorstore."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import tensorstore as ts
import torch
import xarray as xr
import zarr
from torch.utils.data import DataLoader

from infinite_tensor import PatchDataset, TensorWindow, ValidationError, from_array, sl
from tests.behaviour.pipelines.arrays import Recorded, assert_reads, numbers, sent
from tests.support.interpreters import CONTEXT

VALUES = numbers((60, 70), "uint16")
EXPECTED = torch.from_numpy(VALUES)

in_dask: Any = da.from_array
"""Dask has no annotations."""


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """h5py takes a lock before a fork that it also takes to collect its objects: on another thread, that may hang."""
    gc.collect()


def in_hdf5(folder: Path) -> Any:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("group/a", data=VALUES, chunks=(16, 16), compression="gzip")
    return h5py.File(folder / "a.h5")["group/a"]


def in_tensorstore(folder: Path) -> Any:
    store = ts.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "a.ts")}},
        create=True,
        dtype=ts.uint16,
        shape=VALUES.shape,
        chunk_layout=ts.ChunkLayout(chunk_shape=(16, 16)),
    ).result()
    store[...] = VALUES
    return store


ARRAYS = {
    "zarr": lambda folder: zarr.create_array(folder / "a.zarr", data=VALUES, chunks=(16, 16)),
    "h5py": in_hdf5,
    "dask": lambda _folder: in_dask(VALUES, chunks=(16, 32)),
    "dask, of blocks of any size": lambda _folder: in_dask(VALUES, chunks=((10, 40, 10), (5, 65))),
    "xarray": lambda _folder: xr.DataArray(VALUES, dims=("y", "x")),
    "xarray of dask": lambda _folder: xr.DataArray(in_dask(VALUES, chunks=(16, 32)), dims=("y", "x")),
    "xarray in a file": lambda folder: xr.open_zarr(_as_dataset(folder), chunks=None, consolidated=False)["a"],
    "tensorstore": in_tensorstore,
}


def _as_dataset(folder: Path) -> Path:
    path = folder / "x.zarr"
    group = zarr.create_group(path)
    group.create_array("a", data=VALUES, chunks=(16, 16), dimension_names=("y", "x"))
    return path


@pytest.fixture(params=ARRAYS)
def array(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return ARRAYS[request.param](tmp_path)


def test_it_is_read_bit_by_bit(array: Any) -> None:
    assert_reads(from_array(array), EXPECTED)
    assert_reads(from_array(array, chunks=13), EXPECTED)


def test_several_threads_read_it(array: Any) -> None:
    assert torch.equal(from_array(array, chunks=8).read(sl[:, :], workers=4), EXPECTED)


def test_the_same_content_in_blocks_of_one_size_is_the_same_source(array: Any) -> None:
    dims = ("y", "x")
    assert from_array(array, dims, chunks=30).to_json() == from_array(VALUES, dims, chunks=30).to_json()


def corner(t: Any) -> torch.Tensor:
    part: torch.Tensor = t[50:, 60:]
    return part


def test_another_process_opens_it_by_its_pickle(array: Any) -> None:
    t = from_array(array)
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert torch.equal(child.submit(corner, t).result(), EXPECTED[50:, 60:])
    assert sent(sent(t)).to_json() == t.to_json()


@pytest.mark.parametrize("kind", [kind for kind in ARRAYS if kind != "tensorstore"])
# Later Pythons warn of every fork of a process with threads.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_workers_of_a_data_loader_read_it(kind: str, tmp_path: Path) -> None:
    t = from_array(ARRAYS[kind](tmp_path), chunks=16)
    t[0, 0]
    patches = PatchDataset(t, 20, sl[:, :], length=6, seed=1)
    loader = DataLoader(patches, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert torch.equal(torch.cat(list(loader)), torch.stack([patches[i] for i in range(6)]))


@pytest.mark.parametrize(
    ("kind", "block"),
    [
        ("zarr", (60, 70)),
        ("h5py", (60, 70)),
        ("dask", (60, 70)),
        ("xarray of dask", (60, 70)),
        ("tensorstore", (60, 70)),
    ],
)
def test_small_chunks_are_joined(kind: str, block: tuple[int, ...], tmp_path: Path) -> None:
    assert from_array(ARRAYS[kind](tmp_path)).output_window == TensorWindow(block)


def test_chunks_of_every_library_are_followed(tmp_path: Path) -> None:
    shape, chunks = (4000, 4000), (1000, 2000)
    file = h5py.File(tmp_path / "a.h5", "w")
    lazy = da.zeros(shape, chunks=chunks, dtype="uint8")
    store = ts.open(
        {"driver": "zarr3", "kvstore": {"driver": "memory"}},
        create=True,
        dtype=ts.uint8,
        shape=shape,
        chunk_layout=ts.ChunkLayout(chunk_shape=chunks),
    ).result()
    for array in (
        zarr.create_array({}, shape=shape, chunks=chunks, dtype="uint8"),
        file.create_dataset("a", shape=shape, chunks=chunks, dtype="uint8"),
        lazy,
        xr.DataArray(lazy),
        store,
    ):
        assert from_array(array, name="a").output_window.size == chunks


def test_arrays_without_chunks_are_cut_as_any_other(tmp_path: Path) -> None:
    file = h5py.File(tmp_path / "a.h5", "w")
    for array in (file.create_dataset("a", data=VALUES), ts.array(VALUES), xr.DataArray(VALUES)):
        assert from_array(array).output_window.size == VALUES.shape


# Of one library each.


def test_an_hdf5_dataset_is_pickled_by_path_and_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.arange(10**6)
    t = from_array(h5py.File(tmp_path / "a.h5")["a"])
    assert len(pickle.dumps(t)) < 10_000
    assert sent(t)[77] == 77


def test_an_hdf5_dataset_in_memory_cannot_be_pickled_and_says_so() -> None:
    file = h5py.File("nowhere.h5", "w", driver="core", backing_store=False)
    file["a"] = np.arange(10)
    with pytest.raises(pickle.PicklingError, match=r"cannot be pickled: h5py objects.*give from_array something that"):
        pickle.dumps(from_array(file["a"]))


@pytest.mark.parametrize("dtype", ["bool", ">f4", ">i8", "float16", "complex64"])
def test_hdf5_keeps_its_dtypes(dtype: str, tmp_path: Path) -> None:
    values = np.arange(24).reshape(4, 6).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = values
        assert_reads(from_array(file["a"]), torch.from_numpy(values.astype(values.dtype.newbyteorder("="))))


def test_of_a_dask_array_only_the_blocks_that_are_needed_are_computed() -> None:
    array = Recorded(numbers((40, 40)))
    t = from_array(in_dask(array, chunks=10, meta=np.empty((0, 0), np.float32)), chunks=10, name="a")
    t[12:25, 7]
    assert {(y.start, x.start) for y, x in array.regions} == {(10, 0), (20, 0)}


def test_a_dask_array_of_unknown_extents_is_refused_with_what_tells_them() -> None:
    array = in_dask(VALUES, chunks=16)
    some = array[array[:, 0] > 0]
    with pytest.raises(ValidationError, match=r"shape \(nan, 70\).* call a.compute_chunk_sizes\(\) first"):
        from_array(some)
    some.compute_chunk_sizes()
    assert torch.equal(from_array(some)[...], torch.from_numpy(VALUES[VALUES[:, 0] > 0]))


def test_an_xarray_gives_its_dims(tmp_path: Path) -> None:
    array = xr.DataArray(VALUES, dims=("lat", "lon"), coords={"lat": np.linspace(0, 1, 60)})
    assert from_array(array).dims == ("lat", "lon")
    assert from_array(array, dims=("y", "x")).dims == ("y", "x")
    assert from_array(ARRAYS["xarray in a file"](tmp_path)).dims == ("y", "x")


def test_an_xarray_of_dates_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"give a.view\('int64'\)"):
        from_array(xr.DataArray(np.array(["2026-01-01"], "M8[ns]")))


def test_a_tensorstore_may_begin_anywhere() -> None:
    store = ts.array(VALUES).translate_to[(-5, 7)]
    assert store.origin == (-5, 7)
    assert_reads(from_array(store), EXPECTED)


def test_a_tensorstore_may_be_of_bfloat16() -> None:
    values = torch.rand(6, 7).to(torch.bfloat16)
    store = ts.open(
        {"driver": "zarr3", "kvstore": {"driver": "memory"}}, create=True, dtype=ts.bfloat16, shape=(6, 7)
    ).result()
    store[...] = values.view(torch.uint16).numpy().view(store.dtype.numpy_dtype)
    assert_reads(from_array(store), values)
    assert from_array(store).version == from_array(values).version
