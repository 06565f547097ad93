"""File systems without hard links or locks, or that sync no folder: all works, and what is weaker is told once."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import h5py
import numpy as np
import pytest
import torch
from fsspec.asyn import AsyncFileSystem

from infinite_tensor import HDF5TileStore, StoreError, TensorBlob, TensorGroup, ValidationError, ZarrTileStore
from infinite_tensor.errors import WeakerStorageWarning

# Inside: what has been told once.
from infinite_tensor.support import disks
from tests.behaviour.views.exports.scenes import REGION, names_in, opened, pattern, plane, truth
from tests.stores.blobs.rows import SHAPE, numbered
from tests.support.counting import Counted

EXPORTS = ["zarr", "npy", "png", "tif"]
LINKS, LOCKS = "this file system has no hard links", "this file system has no locks"
FOLDERS = "this file system cannot sync folders"
NO_LINKS = ["EPERM", "ENOTSUP", "ENOSYS", "EINVAL"]
NO_LOCKS = ["ENOSYS", "ENOLCK", "EOPNOTSUPP"]
NO_SYNC = ["EINVAL", "ENOTSUP", "ENOSYS", "EBADF"]


def without_links(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """As SMB, exFAT and FUSE."""
    monkeypatch.setattr(os, "link", _refusing(code))


def without_locks(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """As Lustre, and NFS that is mounted so."""
    monkeypatch.setattr(fcntl, "flock", _refusing(code))


def without_synced_folders(monkeypatch: pytest.MonkeyPatch, code: str = "EINVAL") -> None:
    """As CIFS."""
    synchronize, refuse = os.fsync, _refusing(code)

    def sync(descriptor: int) -> None:
        (refuse if stat.S_ISDIR(os.fstat(descriptor).st_mode) else synchronize)(descriptor)

    monkeypatch.setattr(os, "fsync", sync)


def _refusing(code: str) -> Callable[..., Any]:
    def refuse(*_arguments: object, **_options: object) -> None:
        number = getattr(errno, code)
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "_told", set())


@pytest.fixture
def told() -> Iterator[Callable[[], list[str]]]:
    """How what was warned of begins, each once."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield lambda: [
            str(each.message).partition(", so")[0] for each in found if each.category is WeakerStorageWarning
        ]


def export(folder: Path, form: str, *, overwrite: bool = False) -> None:
    plane().export(REGION, folder / f"out.{form}", overwrite=overwrite, progress=False)


def check_exported(folder: Path, form: str) -> None:
    assert np.array_equal(opened(folder / f"out.{form}"), truth())
    assert names_in(folder) == [f"out.{form}"]


@pytest.mark.parametrize("code", NO_LINKS)
def test_a_store_without_hard_links_is_created_filled_and_found(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    without_links(monkeypatch, code)
    f = Counted(pattern)
    for _ in range(2):
        with ZarrTileStore(tmp_path / "s", tile_size=8) as store:
            t = plane(f, tile_store=store)
            # Each leaves a part in the logs of incomplete tiles.
            for part in (slice(-5, 0), slice(0, 2), slice(2, 9)):
                t[part, REGION[1]]
                store.flush()
        document = tmp_path / "s" / "t-world=2Fheight" / "zarr.json"
        before = document.read_bytes()
        # Of another process.
        with pytest.raises(FileExistsError):
            disks.give_name(tmp_path / "s" / "zarr.json", document, tmp_path / "s")
        assert document.read_bytes() == before
    with ZarrTileStore(tmp_path / "s", mode="r") as store:
        assert np.array_equal(plane(f, tile_store=store)[REGION], truth())
    assert set(f.counts.values()) == {1}
    assert told() == [f"{tmp_path / 's'}: {LINKS}"]


def save(folder: Path, _form: str, *, overwrite: bool = False) -> None:
    group = TensorGroup({"a": plane(), "deep": {"b": plane(tensor_id="b")}})
    group.save_tensordict(REGION, folder / "out", overwrite=overwrite)


@pytest.mark.parametrize("form", [*EXPORTS, ""])
@pytest.mark.parametrize(
    ("without", "code"),
    [*((without_links, code) for code in NO_LINKS), *((without_synced_folders, code) for code in NO_SYNC)],
)
def test_exports_and_saved_groups_need_neither_links_nor_synced_folders_and_replace_nothing(
    form: str,
    without: Callable[..., None],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[[], list[str]],
) -> None:
    without(monkeypatch, code)
    write = export if form else save
    write(tmp_path, form)
    with pytest.raises(ValidationError, match="already"):
        write(tmp_path, form)
    if without is without_synced_folders:
        write(tmp_path, form, overwrite=True)
        assert all(each.endswith(FOLDERS) for each in told())
        assert told()
    else:
        # Folders are renamed, and need no links.
        assert len(told()) == (form not in ("zarr", ""))
    if form:
        check_exported(tmp_path, form)
    assert len(names_in(tmp_path)) == 1


@pytest.mark.parametrize("code", NO_LOCKS)
def test_a_blob_without_locks_is_written_by_one_process_at_a_time(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch, code)
    place = tmp_path / "blob"
    with pytest.warns(WeakerStorageWarning, match=rf"{place}: {LOCKS}, so a writer that was killed .* for 60 s"):
        blob = TensorBlob.open(place, "w", dtype="float32", shape=SHAPE, block_size=4)
    blob.write(numbered(10))
    with pytest.raises(StoreError, match=r"process \d+ on .* has it open for writing"):
        TensorBlob.open(place, "a")
    blob.close()
    with TensorBlob.open(place, "a+") as again:
        again.write(numbered(3, 10))
        assert torch.equal(again[:], numbered(13))
    TensorBlob.unlink(place)
    assert not place.exists()
    with pytest.raises(FileNotFoundError):
        TensorBlob.open(place)


def test_a_tensor_is_cleared_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch, "ENOLCK")
    with ZarrTileStore(tmp_path / "s", tile_size=8) as store:
        plane(tile_store=store)[0:8, 0:8]
        with pytest.warns(WeakerStorageWarning, match=f"{tmp_path / 's'}: {LOCKS}"):
            store.clear_tensor("world/height")
        assert list(store) == []


@pytest.mark.parametrize("code", [code for code in NO_LOCKS if code != "ENOSYS"])
def test_an_hdf5_file_is_opened_without_locks(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    class Unlocked(h5py.File):  # type: ignore[misc]
        def __init__(self, path: Path, mode: str, **options: Any) -> None:
            if "driver" not in options and options.get("locking") is not False:
                raise OSError(getattr(errno, code), f"unable to lock file, errno = {getattr(errno, code)}")
            super().__init__(path, mode, **options)

    monkeypatch.setattr(h5py, "File", Unlocked)
    without_locks(monkeypatch, code)
    for _ in range(2):
        with HDF5TileStore(tmp_path / "store.h5") as store:
            assert plane(tile_store=store)[0:8, 0:8].shape == (8, 8)
    assert told() == [f"{tmp_path}: {LOCKS}"]


def test_another_error_of_a_call_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch, "EIO")
    with pytest.raises(StoreError, match="Input/output error"):
        TensorBlob.open(tmp_path / "blob", "w", dtype="float32", shape=SHAPE)
    without_links(monkeypatch, "EIO")
    with pytest.raises(StoreError, match="Input/output error"):
        ZarrTileStore(tmp_path / "s", mode="w")


# File systems of fsspec.


class Files(AsyncFileSystem):  # type: ignore[misc]
    """Files in memory that may know no exclusive creation; how often each was written."""

    protocol = "weak"
    cachable = False
    written: ClassVar[Counter[str]] = Counter()

    def __init__(self, exclusive: bool, **options: Any) -> None:
        super().__init__(**options)
        self.exclusive = exclusive
        self.files: dict[str, bytes] = CONTENT

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if self.exclusive and mode == "create" and path in self.files:
            raise FileExistsError(path)
        self.written[path] += 1
        self.files[path] = value

    async def _cat_file(self, path: str, **_: Any) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(await self._cat_file(path)), "type": "file"}

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        inside = {name[len(path) + 1 :].split("/")[0]: name for name in self.files if name.startswith(f"{path}/")}
        found = [
            {
                "name": f"{path}/{name}",
                "size": len(self.files[key]),
                "type": "file" if key == f"{path}/{name}" else "directory",
            }
            for name, key in inside.items()
        ]
        return found if detail else [each["name"] for each in found]


CONTENT: dict[str, bytes] = {}


@pytest.fixture
def weak_files() -> dict[str, bytes]:
    fsspec.register_implementation("weak", Files, clobber=True)
    CONTENT.clear()
    Files.written.clear()
    return CONTENT


def test_a_file_system_that_ignores_exclusive_creation_overwrites_no_definition(
    weak_files: dict[str, bytes], told: Callable[[], list[str]]
) -> None:
    f = Counted(pattern)
    for _ in range(2):
        with ZarrTileStore("weak://s", tile_size=8, storage_options={"exclusive": False}) as store:
            assert np.array_equal(plane(f, tile_store=store)[REGION], truth())
    assert set(f.counts.values()) == {1}
    assert told() == ["RemoteHome(Files, 's'): this file system cannot create files exclusively"]
    before = weak_files["s/zarr.json"]
    with ZarrTileStore("weak://s", storage_options={"exclusive": False}) as store:
        assert store._home.create({"zarr.json": b"of another process"}) == [False]
    assert weak_files["s/zarr.json"] == before


@pytest.mark.usefixtures("weak_files")
def test_nothing_is_told_where_a_file_system_creates_exclusively(told: Callable[[], list[str]]) -> None:
    with ZarrTileStore("weak://s", tile_size=8, storage_options={"exclusive": True}) as store:
        assert np.array_equal(plane(tile_store=store)[REGION], truth())
    assert not told()
    assert set(Files.written.values()) == {1}


@pytest.mark.usefixtures("weak_files")
def test_a_file_system_that_cannot_copy_gets_the_content_again() -> None:
    with ZarrTileStore("weak://s", storage_options={"exclusive": True}) as store:
        store._home.put({"a": b"content"})
        store._home.copy({"a": "b/c"})
        assert store._home.get(["a", "b/c"]) == [b"content"] * 2
