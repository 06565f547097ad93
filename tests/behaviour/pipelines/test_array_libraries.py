"""`from_array` with arrays of h5py, Dask, xarray, tensorstore, astropy, netCDF4, nibabel and scipy."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import dask.array as da
import h5py
import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import torch
import xarray as xr
import zarr
from PIL import Image
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from infinite_tensor import ValidationError, from_array
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


def in_tensorstore(place: str, dtype: str, shape: tuple[int, ...], chunks: tuple[int, ...] | None = None) -> Any:
    layout = chunks and ts.ChunkLayout(chunk_shape=chunks)
    options: Any = {"create": True, "dtype": ts.dtype(dtype), "shape": shape, "chunk_layout": layout}
    return ts.open({"driver": "zarr3", "kvstore": place}, **options).result()


def values_in_tensorstore(folder: Path) -> Any:
    store = in_tensorstore(f"file://{folder / 'a.ts'}/", "uint16", VALUES.shape, (16, 16))
    store[...] = VALUES
    return store


class Noting(WrapperStore[Any]):
    """Notes the chunks that are read, those that are not stored too; xarray opens a copy of it."""

    chunks: ClassVar[list[str]] = []

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        if "c/" in key:
            self.chunks.append(key)
        return await super().get(key, *args, **options)


@pytest.fixture
def chunks_read() -> Iterator[list[str]]:
    """What `Noting` notes."""
    Noting.chunks.clear()
    yield Noting.chunks
    Noting.chunks.clear()


def in_xarray(folder: Path) -> Any:
    zarr.create_array(folder / "x.zarr", name="a", data=VALUES, chunks=(16, 16), dimension_names=("y", "x"))
    return xr.open_zarr(folder / "x.zarr", chunks=None, consolidated=False)["a"]


ARRAYS = {
    "zarr": lambda folder: zarr.create_array(folder / "a.zarr", data=VALUES, chunks=(16, 16)),
    "h5py": in_hdf5,
    "dask": lambda _folder: in_dask(VALUES, chunks=(16, 32)),
    "dask, of blocks of any size": lambda _folder: in_dask(VALUES, chunks=((10, 40, 10), (5, 65))),
    "xarray": lambda _folder: xr.DataArray(VALUES, dims=("y", "x")),
    "xarray of dask": lambda _folder: xr.DataArray(in_dask(VALUES, chunks=(16, 32)), dims=("y", "x")),
    "xarray in a file": in_xarray,
    "tensorstore": values_in_tensorstore,
}


@pytest.fixture(params=ARRAYS)
def array(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return ARRAYS[request.param](tmp_path)


def test_it_is_read_bit_by_bit(array: Any) -> None:
    assert_reads(from_array(array), EXPECTED)
    assert_reads(from_array(array, chunks=13), EXPECTED)


def test_the_same_content_in_blocks_of_one_size_is_the_same_source(array: Any) -> None:
    dims = ("y", "x")
    assert from_array(array, dims, chunks=30).to_json() == from_array(VALUES, dims, chunks=30).to_json()


def corner(t: Any) -> Any:
    return t[50:, 60:]


@pytest.fixture(scope="module")
def child() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, CONTEXT) as pool:
        yield pool


def test_another_process_opens_it_by_its_pickle(array: Any, child: ProcessPoolExecutor) -> None:
    t = from_array(array)
    assert torch.equal(child.submit(corner, t).result(), EXPECTED[50:, 60:])
    assert sent(sent(t)).to_json() == t.to_json()


def test_chunks_of_every_library_are_followed(tmp_path: Path) -> None:
    how: dict[str, Any] = {"shape": (4000, 4000), "chunks": (1000, 2000), "dtype": "uint8"}
    lazy, file = da.zeros(**how), h5py.File(tmp_path / "a.h5", "w")
    written = (zarr.create_array({}, **how), file.create_dataset("a", **how), in_tensorstore("memory://", **how))
    for array in (*written, lazy, xr.DataArray(lazy)):
        assert from_array(array, name="a").output_window.size == how["chunks"]


# Chunks are read once.

CHUNKED = {
    "cubes": ((64, 256, 256), (64, 64, 64)),
    "columns": ((2048, 2048), (2048, 16)),
    "one large chunk": ((5000, 4000), (5000, 4000)),
    "large chunks": ((3000, 8000), (3000, 5000)),
}


@pytest.mark.parametrize("kind", CHUNKED)
def test_a_digest_and_a_read_of_all_decode_each_chunk_once(kind: str, tmp_path: Path, chunks_read: list[str]) -> None:
    shape, chunks = CHUNKED[kind]
    array = zarr.create_array(Noting(LocalStore(tmp_path / "a.zarr")), shape=shape, chunks=chunks, dtype="u1")
    t = from_array(array)
    assert t.version
    assert len(chunks_read) == len(set(chunks_read)) == array.nchunks
    chunks_read.clear()
    assert not t[...].any()
    assert len(chunks_read) == len(set(chunks_read)) == array.nchunks


@pytest.mark.parametrize("chunks", [(8192, 50), (500, 500), (1, 8200)])
def test_a_chunk_that_holds_samples_is_decoded_once(
    chunks: tuple[int, ...], tmp_path: Path, chunks_read: list[str]
) -> None:
    store = Noting(LocalStore(tmp_path / "a.zarr"))
    assert from_array(zarr.create_array(store, shape=(8192, 8200), chunks=chunks, dtype="u1")).version
    assert len(chunks_read) == len(set(chunks_read)) >= 64


def test_what_stands_in_a_row_in_a_file_of_the_other_order_is_read_at_once() -> None:
    class Proxy(Recorded):
        """As nibabel has them."""

        order = "F"

    array = Proxy(numbers((128, 128, 60, 4), "uint8"))
    t = from_array(array)
    assert t.output_window.size == (128, 128, 60, 1)
    array.regions.clear()
    assert t.version
    assert array.elements == array.values.size


# Of one library each.


def test_of_a_dask_array_only_the_blocks_that_are_needed_are_computed() -> None:
    array = Recorded(numbers((40, 40)))
    t = from_array(in_dask(array, chunks=10, meta=np.empty((0, 0), np.float32)), chunks=10, name="a")
    t[12:25, 7]
    assert {(y.start, x.start) for y, x in array.regions} == {(10, 0), (20, 0)}


def test_a_dask_array_of_unknown_extents_is_refused_with_what_tells_them() -> None:
    array = in_dask(VALUES, chunks=16)
    some = array[array[:, 0] > 0]
    with pytest.raises(ValidationError, match="compute_chunk_sizes"):
        from_array(some)
    some.compute_chunk_sizes()
    assert torch.equal(from_array(some)[...], torch.from_numpy(VALUES[VALUES[:, 0] > 0]))


def test_an_xarray_gives_its_dims(tmp_path: Path) -> None:
    array = xr.DataArray(VALUES, dims=("lat", "lon"), coords={"lat": np.linspace(0, 1, 60)})
    assert from_array(array).dims == ("lat", "lon")
    assert from_array(array, dims=("y", "x")).dims == ("y", "x")
    assert from_array(ARRAYS["xarray in a file"](tmp_path)).dims == ("y", "x")


def test_a_coordinate_of_xarray_is_read_as_any_other_array(tmp_path: Path) -> None:
    dataset = xr.Dataset({"a": (("lat", "lon"), VALUES)}, {"lat": np.linspace(0, 1, 60)})
    dataset.to_zarr(tmp_path / "a.zarr", consolidated=False)
    for each in (dataset, xr.open_zarr(tmp_path / "a.zarr", consolidated=False)):
        t = from_array(each["lat"])
        assert t.dims == ("lat",)
        assert_reads(t, torch.from_numpy(np.linspace(0, 1, 60)))
        assert_reads(sent(t), t[...])


def test_one_time_step_of_a_lazy_xarray_is_read_of_few_chunks(chunks_read: list[str]) -> None:
    store, values = Noting(MemoryStore()), numbers((64, 181, 360), "uint8")
    encoding = {"t2m": {"chunks": (1, 181, 360)}}
    xr.Dataset({"t2m": (("time", "lat", "lon"), values)}).to_zarr(store, encoding=encoding, consolidated=False)
    t2m = xr.open_zarr(store, chunks=None, consolidated=False)["t2m"]
    t = from_array(t2m.transpose("lat", "time", "lon"), name="t2m")
    assert t.output_window.size == (181, 16, 360)
    chunks_read.clear()
    assert torch.equal(t[:, 5], torch.from_numpy(values[5]))
    assert len(chunks_read) == 16


DAYS = np.array(["2026-01-01", "2026-01-03"], "M8[s]")
TABLE = np.rec.fromarrays([VALUES, VALUES > 7], dtype=[("height", "u2"), ("high", bool)])


@pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize(
    ("a", "advice"),
    [
        *((each, "astype") for each in (DAYS, xr.DataArray(DAYS), in_dask(DAYS, chunks=1))),
        *((each, "height") for each in (TABLE, in_dask(TABLE, chunks=20))),
        *((np.ones(3, dtype), "astype") for dtype in (ml_dtypes.int4, ml_dtypes.float8_e5m2, np.longdouble)),
        (ts.array(np.ones(3, ml_dtypes.int4)), "astype"),
    ],
    ids=lambda each: type(each).__module__,
)
def test_dates_tables_and_dtypes_of_some_libraries_are_refused(a: Any, advice: str) -> None:
    with pytest.raises(ValidationError, match=advice):
        from_array(a)


def test_one_field_of_a_table_of_hdf5_is_read_by_the_chunks_of_the_table(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", shape=9_000_000, dtype=[("x", "f8"), ("y", "i4")], chunks=(100_000,))
    t = from_array(h5py.File(tmp_path / "a.h5")["a"].fields("x"))
    assert t.output_window.size == (100_000,)
    assert list(t.f.stamps) == [str(tmp_path / "a.h5")]  # type: ignore[union-attr]


def test_an_empty_dataset_of_hdf5_is_refused(tmp_path: Path) -> None:
    file = h5py.File(tmp_path / "a.h5", "w")
    with pytest.raises(ValidationError, match="empty"):
        from_array(file.create_dataset("a", data=h5py.Empty("f4")))
    with pytest.raises(ValidationError, match="element"):
        from_array(file.create_dataset("b", shape=(0, 3), dtype="f4"))


def test_masked_blocks_of_dask_are_refused_where_an_element_is_masked() -> None:
    masked = da.ma.masked_less(in_dask(VALUES, chunks=16), 100)
    t = from_array(masked)
    with pytest.raises(ValidationError, match="filled"):
        t[...]
    assert_reads(from_array(da.ma.filled(masked, 100)), torch.from_numpy(np.maximum(VALUES, 100)))


def test_a_tensorstore_may_begin_anywhere() -> None:
    store = ts.array(VALUES).translate_to[(-5, 7)]
    assert store.origin == (-5, 7)
    assert_reads(from_array(store), EXPECTED)


def test_a_tensorstore_may_be_of_bfloat16() -> None:
    values = torch.rand(6, 7).to(torch.bfloat16)
    store = in_tensorstore("memory://", "bfloat16", (6, 7))
    store[...] = values.view(torch.uint16).numpy().view(store.dtype.numpy_dtype)
    assert_reads(from_array(store), values)
    assert from_array(store).version == from_array(values).version


# Objects that have an array, and are none.


HOLDERS: dict[str, Callable[[Path], Any]] = {
    "an image of nibabel": lambda _folder: pytest.importorskip("nibabel").Nifti1Image(VALUES, np.eye(4)),
    "a file of HDF5": lambda folder: in_hdf5(folder).file,
    "an image of pillow": lambda _folder: Image.fromarray(VALUES),
    "a memoryview": lambda _folder: VALUES.data,
    "a list": lambda _folder: VALUES.tolist(),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_an_object_that_has_an_array_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"numpy.asarray\(a\)"):
        from_array(HOLDERS[kind](tmp_path))


# Of astropy, netCDF4, nibabel and scipy, where these are installed.

NUMBERS = np.arange(48, dtype=np.float32).reshape(6, 8)


def test_masks_of_astropy_are_refused() -> None:
    masked = pytest.importorskip("astropy.utils.masked").Masked
    nddata = pytest.importorskip("astropy.nddata")
    mask = NUMBERS > 40
    for a in (masked(NUMBERS, mask), nddata.CCDData(NUMBERS, mask=mask, unit="adu")):
        with pytest.raises(ValidationError, match="filled"):
            from_array(a)[...]
    for a in (masked(NUMBERS), nddata.CCDData(NUMBERS, unit="adu"), masked(NUMBERS, mask).filled(0) + NUMBERS * mask):
        assert_reads(from_array(a), torch.from_numpy(NUMBERS))


def test_another_mask_of_an_array_that_a_function_holds_is_noticed() -> None:
    masked = pytest.importorskip("astropy.utils.masked").Masked

    def fingerprint(held: Any) -> Any:
        t = from_array(NUMBERS, dims=("y", "x")).map(lambda x: x * float(held.filled(1).sum()), window=4)
        return t.to_json()["functions"]

    assert fingerprint(masked(NUMBERS, NUMBERS > 3)) == fingerprint(masked(NUMBERS, NUMBERS > 3))
    assert fingerprint(masked(NUMBERS, NUMBERS > 3)) != fingerprint(masked(NUMBERS, NUMBERS > 4))


def a_netcdf4_file(folder: Path) -> Any:
    netcdf4 = pytest.importorskip("netCDF4")
    with netcdf4.Dataset(folder / "a.nc", "w") as file:
        file.createDimension("y", 600)
        file.createDimension("x", 800)
        values = np.arange(480_000).reshape(600, 800)
        file.createVariable("plain", "i4", ("y", "x"), chunksizes=(600, 50))[...] = values
        file.createVariable("masked", "i4", ("y", "x"), fill_value=-1)[...] = np.ma.masked_less(values, 9)
        scaled = file.createVariable("scaled", "i4", ("y", "x"))
        scaled.scale_factor, scaled.add_offset = 0.5, 1.0
        scaled[...] = values
    return netcdf4.Dataset(folder / "a.nc")


def test_a_variable_of_netcdf4_without_masked_elements_is_read_chunk_by_chunk(tmp_path: Path) -> None:
    t = from_array(a_netcdf4_file(tmp_path)["plain"])
    assert t.output_window.size == (600, 400)
    assert torch.equal(t[...], torch.arange(480_000, dtype=torch.int32).reshape(600, 800))


def test_a_variable_of_netcdf4_with_masked_elements_is_refused_until_its_file_is_read_as_it_is(tmp_path: Path) -> None:
    variable = a_netcdf4_file(tmp_path)["masked"]
    with pytest.raises(ValidationError, match="set_auto_mask"):
        from_array(variable)[...]
    variable.set_auto_mask(False)
    assert from_array(variable)[0, 7:11].tolist() == [-1, -1, 9, 10]


def test_a_scaled_variable_of_netcdf4_has_the_dtype_of_its_values(tmp_path: Path) -> None:
    t = from_array(a_netcdf4_file(tmp_path)["scaled"])
    assert torch.equal(t[...], torch.arange(480_000, dtype=torch.float64).reshape(600, 800))


@pytest.mark.parametrize("name", ["scaled.nii", "scaled.nii.gz"])
def test_a_scaled_image_of_nibabel_has_the_dtype_of_its_values(name: str, tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.random.default_rng(0).normal(size=(20, 18, 16)).astype("f4"), np.eye(4))
    image.set_data_dtype("int16")
    nibabel.save(image, tmp_path / name)
    proxy = nibabel.load(tmp_path / name).dataobj
    assert proxy.dtype == np.int16
    t = from_array(proxy)
    assert t.dtype is torch.float64
    expected = np.asarray(proxy)
    assert_reads(t, torch.from_numpy(expected.copy()))
    assert t.version == from_array(expected).version


def test_sparse_arrays_of_scipy_are_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for a in (sparse.csr_array(NUMBERS), sparse.csr_matrix(NUMBERS), sparse.coo_matrix(NUMBERS)):
        with pytest.raises(ValidationError, match="todense"):
            from_array(a)
        assert_reads(from_array(a.todense()), torch.from_numpy(NUMBERS))
