"""Sources that share an open file: in forked workers, on threads, and after a pickle."""

from __future__ import annotations

import functools
import gc
import http.server
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import h5py
import numpy as np
import pytest
import tensorstore as ts
import torch
import xarray as xr
import zarr
from torch.utils.data import DataLoader
from zarr.storage import FsspecStore, ObjectStore, ZipStore

from infinite_tensor import GridDataset, InfiniteTensor, StoreError, from_array
from tests.behaviour.pipelines.arrays import numbers, sent
from tests.support.interpreters import CONTEXT
from tests.support.stores import sample

pytestmark = [
    # Later Pythons warn of every fork of a process with threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    # A file that was opened again has nobody who closes it.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

VALUES = numbers((256, 256), "uint16")
EXPECTED = torch.from_numpy(VALUES)


to_close: list[Any] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while to_close:
        to_close.pop().close()
    # h5py takes a lock before a fork that it also takes to collect its objects: on another thread, that may hang.
    gc.collect()


class Seeking:
    """A file format as many are: it seeks in one open file, and reads a row at a time."""

    def __init__(self, file: Any) -> None:
        self.file, self.shape, self.dtype = file, VALUES.shape, VALUES.dtype
        self.ndim, self.lock = 2, threading.Lock()
        to_close.append(file)

    def __getitem__(self, region: tuple[slice, slice]) -> np.ndarray[Any, Any]:
        """Row by row."""
        rows, columns = (range(*each.indices(n)) for each, n in zip(region, self.shape, strict=True))
        return np.stack([self._row(y, columns) for y in rows])

    def _row(self, y: int, columns: range) -> np.ndarray[Any, Any]:
        self.file.seek(2 * (y * self.shape[1] + columns.start))
        return np.frombuffer(self.file.read(2 * len(columns)), self.dtype)


class WithoutPath(Seeking):
    """One whose file cannot be opened again: nothing tells where it is."""

    def __reduce__(self) -> Any:
        raise TypeError("a scanner cannot be pickled")


def raw(folder: Path) -> Path:
    VALUES.tofile(folder / "a.raw")
    return folder / "a.raw"


def hdf5(folder: Path) -> str:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("a", data=VALUES, chunks=(64, 64), compression="gzip")
    return str(folder / "a.h5")


def netcdf(folder: Path, file_format: str = "NETCDF4", kind: str = "u2", **stored: Any) -> str:
    with pytest.importorskip("netCDF4").Dataset(folder / "a.nc", "w", format=file_format) as file:
        file.createDimension("y", 256)
        file.createDimension("x", 256)
        for name, values in (("a", VALUES), ("b", VALUES[::-1])):
            file.createVariable(name, kind, ("y", "x"), **stored)[:] = values.astype(kind)
    return str(folder / "a.nc")


def netcdf3(folder: Path) -> str:
    """The older format, which has no uint16."""
    return netcdf(folder, "NETCDF3_CLASSIC", "i4")


def netcdf4(folder: Path) -> str:
    return netcdf(folder, zlib=True, chunksizes=(32, 32))


def unmasked(path: str, name: str = "a") -> Any:
    file = pytest.importorskip("netCDF4").Dataset(path)
    file.set_auto_mask(False)
    return file[name]


def opened(path: Any, engine: str, **options: Any) -> Any:
    """As xarray opens it; a file that is kept open for long is one that forked workers inherit."""
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
    options |= {"phony_dims": "sort"} if engine == "h5netcdf" else {}
    array = xr.open_dataset(path, cache=False, engine=engine, **options)["a"]
    array[0, 0].compute()
    return array


def zipped(folder: Path) -> Any:
    with ZipStore(folder / "a.zip", mode="w") as store:
        zarr.create_array(store, name="a", data=VALUES, chunks=(64, 64))
    return zarr.open_array(ZipStore(folder / "a.zip", mode="r"), path="a", mode="r")


def tiff(folder: Path) -> Any:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(folder / "a.tif", VALUES, tile=(64, 64))
    store = tifffile.imread(folder / "a.tif", aszarr=True)
    to_close.append(store)
    return zarr.open_array(store, mode="r")


def nifti(folder: Path, name: str) -> Any:
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(VALUES, np.eye(4)), folder / name)
    return nibabel.load(folder / name).dataobj


def read_pickled(content: bytes) -> torch.Tensor:
    """All of a tensor, as it comes out of its pickle."""
    values: torch.Tensor = pickle.loads(content)[...]  # noqa: S301  (our own)
    return values


class Quiet(http.server.SimpleHTTPRequestHandler):
    """It keeps connections open, and says nothing about its requests."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        """Nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL of the folder."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


FILES: dict[str, Callable[[Path], Any]] = {
    "an object that seeks": lambda folder: Seeking(raw(folder).open("rb")),
    "an object that seeks, without buffer": lambda folder: Seeking(raw(folder).open("rb", buffering=0)),
    "an object that seeks, over fsspec": lambda folder: Seeking(fsspec.open(str(raw(folder))).open()),
    "h5py": lambda folder: h5py.File(hdf5(folder))["a"],
    "xarray by h5netcdf": lambda folder: opened(hdf5(folder), "h5netcdf"),
    "xarray over fsspec": lambda folder: opened(fsspec.open(hdf5(folder)).open(), "h5netcdf"),
    "netCDF4": lambda folder: unmasked(netcdf4(folder)),
    "netCDF 3": lambda folder: unmasked(netcdf3(folder)),
    "xarray of netCDF4": lambda folder: opened(netcdf4(folder), "netcdf4"),
    "xarray of netCDF 3": lambda folder: opened(netcdf3(folder), "netcdf4"),
    "xarray of netCDF 3 by scipy": lambda folder: opened(netcdf3(folder), "scipy"),
    "xarray of netCDF 3 over fsspec": lambda folder: opened(fsspec.open(netcdf3(folder)).open(), "scipy"),
    "dask of netCDF 3": lambda folder: opened(netcdf3(folder), "netcdf4", chunks={"y": 64}),
    "dask of an object that seeks": lambda folder: da.from_array(Seeking(raw(folder).open("rb")), chunks=64),
    "Zarr in a folder": lambda folder: zarr.create_array(folder / "a.zarr", data=VALUES, chunks=(64, 64)),
    "Zarr in a zip": zipped,
    "Zarr in memory": lambda _folder: zarr.create_array({}, data=VALUES, chunks=(64, 64)),
    "tifffile's aszarr": tiff,
    "nibabel": lambda folder: nifti(folder, "a.nii"),
}


def patches(t: InfiniteTensor) -> torch.Tensor:
    """All of `t`, read by forked workers in patches."""
    dataset = GridDataset(t, (32, 32))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=60)
    read = torch.cat(list(loader)).reshape(8, 8, 32, 32)
    return read.permute(0, 2, 1, 3).reshape(256, 256)


def refused(t: InfiniteTensor) -> str:
    """What forked workers say that cannot read it."""
    try:
        patches(t)
    except StoreError as error:
        # The frames in it hold the loader: the workers of one that is collected later take their time to end.
        return str(error.with_traceback(None))
    raise AssertionError("it was read")


def right(t: InfiniteTensor) -> torch.Tensor:
    return EXPECTED.to(t.dtype)


SOME = ("Zarr in a folder", "Zarr in a zip", "h5py", "netCDF4", "xarray of netCDF4", "dask of an object that seeks")


@pytest.mark.parametrize("kind", sample(FILES, *SOME))
def test_forked_workers_read_what_the_file_holds(kind: str, tmp_path: Path) -> None:
    t = from_array(FILES[kind](tmp_path), chunks=32)
    assert t[7, 7] == VALUES[7, 7]
    assert torch.equal(patches(t), right(t))
    assert torch.equal(t[...], right(t))


@pytest.mark.parametrize(("write", "read"), [(raw, Seeking), (hdf5, lambda file: opened(file, "h5netcdf"))])
def test_forked_workers_leave_the_position_of_the_file_that_is_open(write: Any, read: Any, tmp_path: Path) -> None:
    file = fsspec.open(str(write(tmp_path))).open()
    t = from_array(read(file), chunks=32)
    assert t[7, 7] == VALUES[7, 7]
    position = file.tell()
    assert torch.equal(patches(t), EXPECTED)
    assert file.tell() == position


def test_forked_workers_read_zarr_over_http(served: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=VALUES, chunks=(64, 64))
    array = zarr.open_array(FsspecStore.from_url(f"{served}/a.zarr", read_only=True), mode="r")
    assert np.array_equal(array[...], VALUES)  # its connections stay open
    assert torch.equal(patches(from_array(array, name="a")), EXPECTED)


def in_obstore(folder: Path) -> Any:
    from obstore.store import LocalStore as Folder  # noqa: PLC0415

    return zarr.create_array(ObjectStore(Folder(str(folder))), name="a", data=VALUES, chunks=(64, 64))


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: WithoutPath(raw(folder).open("rb")),
        lambda folder: h5py.File(fsspec.open(hdf5(folder)).open())["a"],
        lambda _folder: ts.array(VALUES),
        in_obstore,
    ],
)
def test_forked_workers_refuse_what_they_cannot_open_again(make: Callable[[Path], Any], tmp_path: Path) -> None:
    t = from_array(make(tmp_path), chunks=64)
    assert t[7, 7] == VALUES[7, 7]
    assert "spawn" in refused(t)


# Threads.


def assert_read_together(arrays: list[tuple[Any, torch.Tensor]], rounds: int = 4) -> None:
    """Threads read a tensor each, over and over, and get what the file holds."""
    tensors = [from_array(array, chunks=32, name=f"{i}") for i, (array, _) in enumerate(arrays)]
    for _ in range(rounds):
        for t in tensors:
            t.clear_cache()
        with ThreadPoolExecutor(len(arrays)) as threads:
            read = list(threads.map(lambda t: t[...], tensors))
        for got, (_, expected) in zip(read, arrays, strict=True):
            assert torch.equal(got, expected.to(got.dtype))


class Rows(Seeking):
    """Some rows of a file that another object reads too."""

    def __getitem__(self, region: tuple[slice, slice]) -> np.ndarray[Any, Any]:
        """From the last row on."""
        return np.stack([self._row(255 - y, range(*region[1].indices(256))) for y in range(*region[0].indices(256))])


def test_threads_read_two_arrays_of_one_file_object(tmp_path: Path) -> None:
    file = raw(tmp_path).open("rb")
    assert_read_together([(Seeking(file), EXPECTED), (Rows(file), EXPECTED.flip(0))])


def test_threads_read_two_variables_of_netcdf4(tmp_path: Path) -> None:
    path = netcdf4(tmp_path)
    assert_read_together([(unmasked(path, "a"), EXPECTED), (unmasked(path, "b"), EXPECTED.flip(0))] * 2, rounds=12)


def test_threads_read_netcdf4_by_itself_and_within_others(tmp_path: Path) -> None:
    path = netcdf4(tmp_path)
    by_dask = opened(path, "netcdf4", chunks={})
    by_xarray = opened(path, "netcdf4")
    assert_read_together([(unmasked(path, "b"), EXPECTED.flip(0)), (by_xarray, EXPECTED), (by_dask, EXPECTED)])


# Pickles.


@pytest.mark.parametrize("kind", FILES)
def test_a_pickle_opens_the_file_again(kind: str, tmp_path: Path) -> None:
    t = from_array(FILES[kind](tmp_path), chunks=64, name="a")
    content = pickle.dumps(t)
    # xarray reads such a file whole.
    assert kind in ("Zarr in memory", "xarray of netCDF 3 over fsspec") or len(content) < 20_000
    assert torch.equal(read_pickled(content), right(t))


BY_PATH = ["Zarr in a folder", "Zarr in a zip", "nibabel"]


@pytest.mark.parametrize(
    ("kind", "pickled_here"), [*itertools.product(BY_PATH, [True, False]), ("h5py", True), ("netCDF4", True)]
)
def test_a_relative_path_means_the_same_file_in_another_folder(
    kind: str, pickled_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    t = from_array(FILES[kind](Path()), chunks=64, name="a")
    content = pickle.dumps(t) if pickled_here else None
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert torch.equal(read_pickled(content or pickle.dumps(t)), right(t))
    assert torch.equal(t[...], right(t))


def test_a_zarr_array_that_is_gone_is_an_error_and_not_fill_values(tmp_path: Path) -> None:
    content = pickle.dumps(from_array(FILES["Zarr in a folder"](tmp_path), name="a"))
    (tmp_path / "a.zarr").rename(tmp_path / "b.zarr")
    with pytest.raises(StoreError, match="opened again"):
        read_pickled(content)
    zarr.create_array(tmp_path / "a.zarr", data=VALUES[1:], chunks=(64, 64))
    with pytest.raises(StoreError, match="255"):
        read_pickled(content)


def test_a_zarr_array_in_memory_of_fsspec_says_that_it_cannot_be_pickled() -> None:
    store = FsspecStore.from_url("memory://reopened")
    t = from_array(zarr.create_array(store, data=VALUES, chunks=(64, 64), overwrite=True), chunks=32)
    with pytest.raises(pickle.PicklingError, match="memory"):
        pickle.dumps(t)
    assert torch.equal(patches(t), EXPECTED)


def test_a_zip_that_was_written_to_is_not_emptied(tmp_path: Path) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        t = from_array(zarr.create_array(store, name="a", data=VALUES, chunks=(64, 64)), name="a")
        content = pickle.dumps(t)
    assert torch.equal(read_pickled(content), EXPECTED)


def test_an_hdf5_dataset_behind_links_to_another_file_stays_itself(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "outer.h5", "w") as outer, h5py.File(tmp_path / "inner.h5", "w") as inner:
        inner["group/a"], inner["soft"] = VALUES, VALUES + 1
        outer["external"] = h5py.ExternalLink("inner.h5", "group/a")
        outer["folder"] = h5py.ExternalLink("inner.h5", "group")
        outer["soft"], outer["soft folder"] = h5py.SoftLink("/external"), h5py.SoftLink("/folder")
    with h5py.File(tmp_path / "outer.h5") as file:
        for name in ("external", "soft", "soft folder/a"):
            assert torch.equal(sent(from_array(file[name], name="a"))[...], EXPECTED)


def test_an_hdf5_file_in_memory_is_not_the_one_of_its_name(tmp_path: Path) -> None:
    path = hdf5(tmp_path)
    with h5py.File(path, "w", driver="core", backing_store=False) as file:
        file["a"] = VALUES + 1
        t = from_array(file["a"], name="a")
        with pytest.raises(pickle.PicklingError, match="in memory"):
            pickle.dumps(t)
    with h5py.File(path, driver="core") as file:
        assert torch.equal(sent(from_array(file["a"], name="a"))[...], EXPECTED)


def test_an_hdf5_file_that_was_replaced_is_not_the_one_that_is_open(tmp_path: Path) -> None:
    with h5py.File(hdf5(tmp_path)) as file:
        (tmp_path / "a.h5").rename(tmp_path / "old.h5")
        hdf5(tmp_path)
        with pytest.raises(pickle.PicklingError, match="not the open file"):
            pickle.dumps(from_array(file["a"], name="a"))


def test_an_hdf5_file_that_is_being_written_is_opened_so_again(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as writer:
        writer["a"] = VALUES
        writer.swmr_mode = True
        with h5py.File(tmp_path / "a.h5", swmr=True) as reader:
            content = pickle.dumps(from_array(reader["a"], name="a"))
        with ProcessPoolExecutor(1, CONTEXT) as child:
            assert torch.equal(child.submit(read_pickled, content).result(), EXPECTED)


def test_a_netcdf4_variable_stays_as_it_was_told_to_be(tmp_path: Path) -> None:
    dataset = pytest.importorskip("netCDF4").Dataset
    with dataset(tmp_path / "a.nc", "w") as file:
        group = file.createGroup("inner")
        group.createDimension("x", 3)
        variable = group.createVariable("a", "i2", ("x",))
        variable.scale_factor = 0.5
        variable.set_auto_scale(False)
        variable[:] = [1, 2, 3]
    raw_values = dataset(tmp_path / "a.nc")["inner/a"]
    raw_values.set_auto_maskandscale(False)
    assert sent(from_array(raw_values))[...].tolist() == [1, 2, 3]


def test_a_netcdf4_file_in_memory_is_not_the_one_of_its_name(tmp_path: Path) -> None:
    path = netcdf4(tmp_path)
    with pytest.importorskip("netCDF4").Dataset(path, memory=Path(path).read_bytes()) as file:
        file.set_auto_mask(False)
        with pytest.raises(pickle.PicklingError, match="is not the open file"):
            pickle.dumps(from_array(file["a"], name="a"))


def test_what_lies_in_an_array_of_dask_is_pickled_by_its_file(tmp_path: Path) -> None:
    data = h5py.File(hdf5(tmp_path))["a"]
    offset = 0
    t = from_array(da.from_array(data, chunks=64).map_blocks(lambda block: block + offset), name="a")
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert torch.equal(child.submit(read_pickled, pickle.dumps(t)).result(), EXPECTED)


def test_what_cannot_be_pickled_says_so_within_an_array_too(tmp_path: Path) -> None:
    scanner, within = (WithoutPath(raw(tmp_path).open("rb")) for _ in range(2))
    for array in (scanner, da.from_array(within, chunks=64)):
        t = from_array(array, name="a")
        with pytest.raises(pickle.PicklingError, match="from_array"):
            pickle.dumps(t)


# Memory maps.


MAPS: dict[str, Callable[[Path], Any]] = {
    "torch": lambda folder: torch.from_file(str(raw(folder)), shared=True, size=VALUES.size, dtype=torch.uint16),
    "a view in torch": lambda folder: MAPS["torch"](folder).view(256, 256)[3:, ::2].T,
    "numpy": lambda folder: np.memmap(raw(folder), "uint16", "r", shape=VALUES.shape),
    "a view in numpy": lambda folder: np.asarray(np.memmap(raw(folder), "uint16", "r", 512, (255, 256))[5:])[::-2, 5:],
}


@pytest.mark.parametrize("kind", MAPS)
def test_memory_maps_are_pickled_by_their_file(kind: str, tmp_path: Path) -> None:
    array = MAPS[kind](tmp_path)
    content = pickle.dumps(from_array(array, name="a"))
    assert len(content) < 10_000
    # torch does not compare these integers.
    assert np.array_equal(pickle.loads(content)[...].numpy(), np.asarray(array))  # noqa: S301  (our own)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_was_changed_in_memory_alone_is_pickled_by_value(library: str, tmp_path: Path) -> None:
    array: Any = np.memmap(raw(tmp_path), "uint16", "c", shape=VALUES.shape)
    if library == "torch":
        array = torch.from_file(str(raw(tmp_path)), size=VALUES.size, dtype=torch.uint16).view(256, 256)
    array[200, 3] = 77
    assert sent(from_array(array, name="a"))[200, 3] == 77


def test_a_memory_map_of_a_file_that_is_gone_is_pickled_by_value(tmp_path: Path) -> None:
    t = from_array(np.memmap(raw(tmp_path), "uint16", "r", shape=VALUES.shape), name="a")
    (tmp_path / "a.raw").unlink()
    assert torch.equal(sent(t)[...], EXPECTED)
