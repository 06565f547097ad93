"""A relative path means the same place from whatever folder it is used later, in other processes too."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from zarr.storage import FsspecStore, LocalStore

from infinite_tensor import HDF5TileStore, StoreError, TensorBlob, TileStore, ValidationError, ZarrTileStore, open_store
from infinite_tensor.tilestore import Garbage
from tests.support.building import line

OPENERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "Zarr": ("s.zarr", ZarrTileStore),
    "Zarr, a Path": ("s.zarr", lambda target, **options: ZarrTileStore(Path(target), **options)),
    "Zarr, a file:// URL": ("s.zarr", lambda target, **options: ZarrTileStore(f"file://{target}", **options)),
    "Zarr, a LocalStore": ("s.zarr", lambda target, **options: ZarrTileStore(LocalStore(target), **options)),
    "HDF5": ("s.h5", HDF5TileStore),
    "HDF5, a Path": ("s.h5", lambda target, **options: HDF5TileStore(Path(target), **options)),
    "HDF5, a file:// URL": ("s.h5", lambda target, **options: HDF5TileStore(f"file://{target}", **options)),
    "open_store, Zarr": ("s.zarr", open_store),
    "open_store, HDF5": ("s.h5", open_store),
}


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture(params=OPENERS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def opened(kind: str, **options: Any) -> TileStore:
    target, open_it = OPENERS[kind]
    store: TileStore = open_it(target, tile_size=8, **options)
    return store


def test_a_store_is_where_it_was_opened(tmp_path: Path, kind: str) -> None:
    store = opened(kind)
    line(store, tensor_id="ones")[0:20]
    pickled, place = pickle.dumps(store), str(tmp_path / "here" / OPENERS[kind][0])
    store.close()
    os.chdir(tmp_path / "elsewhere")
    assert store.address is not None
    assert store.address.removeprefix("file://") == place
    assert place in repr(store)
    # Closed and opened again, unpickled, and by its address.
    for again in (store, pickle.loads(pickled), open_store(place, mode="r")):  # noqa: S301  (our own)
        with again:
            assert again.tensor_ids() == ["ones"]
            assert again.open("ones")[0:20].sum() == 20
    assert list(Path.cwd().iterdir()) == []


def test_opening_creates_nothing_until_the_first_write(kind: str) -> None:
    with opened(kind) as store, opened(kind) as another:
        assert (store.tensor_ids(), store.group_ids(), store.gc()) == ([], [], Garbage())
        store.flush()
        with pytest.raises(StoreError, match="there is no store"):
            opened(kind, mode="r")
        pickled = pickle.dumps(store)
        assert list(Path.cwd().iterdir()) == []
        store.close()
        with store:
            line(store, tensor_id="ones")[0:20]
            store.flush()
            assert another.tensor_ids() == ["ones"]
            assert another.open("ones")[0:20].sum() == 20
    with pickle.loads(pickled) as again:  # noqa: S301  (our own)
        assert again.tensor_ids() == ["ones"]


@pytest.mark.parametrize("kind", ["Zarr", "HDF5"])
def test_a_place_where_nothing_can_be_created_is_refused_at_once(kind: str) -> None:
    target, open_it = OPENERS[kind]
    Path("file").touch()
    with pytest.raises(StoreError, match="Not a directory"):
        open_it(f"file/{target}")


@pytest.mark.parametrize("target", ["blob", Path("blob"), "file://blob"], ids=["str", "Path", "file:// URL"])
def test_a_blob_is_where_it_was_opened(tmp_path: Path, target: Any) -> None:
    place = str(tmp_path / "here" / "blob")
    with TensorBlob.open(target, "w", dtype="float32", shape=(2,)) as blob:
        blob.write(torch.ones(3, 2))
    reader = TensorBlob.open(target)
    pickled = pickle.dumps(reader)
    os.chdir(tmp_path / "elsewhere")
    assert reader.name == place
    assert reader[0].sum() == 2
    assert place in repr(reader)
    assert pickle.loads(pickled)[2].sum() == 2  # noqa: S301  (our own)
    assert list(Path.cwd().iterdir()) == []


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with ZarrTileStore("~/s.zarr") as store:
        assert store.address == str(tmp_path / "s.zarr")


@pytest.mark.parametrize("name", ["run#1.zarr", "run?1.zarr", "run 1.zarr"])
@pytest.mark.parametrize("url", ["file://{}", "file://localhost{}"])
def test_a_file_url_names_the_whole_path(tmp_path: Path, url: str, name: str) -> None:
    path = tmp_path / name
    with ZarrTileStore(url.format(path), tile_size=8) as store:
        line(store, tensor_id="ones")[0:20]
    assert (path / "zarr.json").is_file()
    with ZarrTileStore(path, mode="r") as store:
        assert store.tensor_ids() == ["ones"]


@pytest.mark.parametrize("open_it", [ZarrTileStore, HDF5TileStore, open_store, TensorBlob.open])
@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("file://me:secret@/data/x.zarr", "login"),
        (Path("s3://KEY:secret@bucket/x.zarr"), "pathlib"),
        ("s3:/bucket/x.zarr", "pathlib"),
        ("~nobody-of-this-name/x.zarr", "no home directory"),
    ],
)
def test_what_only_looks_like_a_path_is_refused(open_it: Callable[..., Any], target: Any, word: str) -> None:
    with pytest.raises(ValidationError, match=word) as raised:
        open_it(target)
    assert "secret" not in str(raised.value)
    assert list(Path.cwd().iterdir()) == []


def test_a_slash_at_the_end_of_a_path_of_a_file_system_says_nothing() -> None:
    plain = FsspecStore.from_url("memory://places/slash")
    with ZarrTileStore(FsspecStore(plain.fs, path=f"{plain.path}/"), tile_size=8) as store:
        line(store, tensor_id="ones")[0:8]
        store.flush()
        assert store.tensor_info("ones").tiles_complete == 1
    with ZarrTileStore(plain, mode="r") as store:
        assert store.open("ones")[0:8].sum() == 8


@pytest.mark.parametrize("name", ["x.h5", "x.hdf5", "x.hdf", "X.HDF"])
def test_a_file_is_opened_as_hdf5_by_its_name(name: str) -> None:
    with open_store(name, "w") as store:
        assert isinstance(store, HDF5TileStore)
    assert Path(name).is_file()
