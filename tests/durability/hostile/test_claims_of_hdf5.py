"""HDF5 files whose datasets claim far more bytes than are stored: an error, or a warning, and no memory for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from infinite_tensor import DamagedDataWarning, HDF5TileStore, InfiniteTensor, StoreError, TensorWindow

FAR_TOO_MUCH = 2**45
"""Bytes that no machine has."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a complete tile and a log."""
    path = tmp_path / "store.h5"
    with HDF5TileStore(path, tile_size=16) as store:
        tensor_on(store)[0:24]
    return path


def tensor_on(store: HDF5TileStore) -> InfiniteTensor:
    return InfiniteTensor((None,), lambda _ctx: torch.ones(8), TensorWindow((8,)), tile_store=store, tensor_id="a")


def claim(path: Path, name: str, **options: Any) -> None:
    """Put another dataset, of which nothing is stored, in the place of one."""
    with h5py.File(path, "r+") as file:
        del file[name]
        file.create_dataset(name, **options)


def first_part(path: Path) -> str:
    with h5py.File(path, "r") as file:
        return next(f"infinite_tensor/t-a/{name}" for name in file["infinite_tensor/t-a"] if name.endswith(".part0"))


def compress_twice(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["infinite_tensor/t-a/definition"]
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((100,))
        for _ in range(2):
            created.set_deflate(4)
        kind, space = h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple((100,))
        h5py.h5d.create(file["infinite_tensor/t-a"].id, b"definition", kind, space, created)


HUGE: dict[str, Any] = {"shape": (FAR_TOO_MUCH,), "dtype": "u1", "chunks": (10**6,), "compression": "gzip"}
CHUNKS: dict[str, Any] = {"shape": (100,), "maxshape": (None,), "dtype": "u1", "chunks": (2**31,)}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda path: claim(path, "infinite_tensor/t-a/definition", **HUGE), f"{FAR_TOO_MUCH} bytes"),
        (lambda path: claim(path, "infinite_tensor/t-a/definition", **CHUNKS), "2147483648 bytes"),
        (compress_twice, "compressed more than once"),
    ],
)
def test_a_definition_that_claims_to_be_huge_is_damaged(change: Callable[[Path], None], word: str, path: Path) -> None:
    change(path)
    with HDF5TileStore(path, mode="r") as store, pytest.raises(StoreError, match=word):
        store.open("a")


def test_a_log_that_claims_to_be_huge_is_computed_again_with_a_warning(path: Path) -> None:
    claim(path, first_part(path), **HUGE)
    with HDF5TileStore(path) as store, pytest.warns(DamagedDataWarning, match=f"{FAR_TOO_MUCH} bytes"):
        assert tensor_on(store)[16:24].tolist() == [1] * 8


@pytest.mark.parametrize(
    "claims",
    [
        {"shape": (FAR_TOO_MUCH,), "chunks": (16,)},
        {"shape": (16,), "chunks": (2**29,), "maxshape": (None,)},
        {"shape": (16,), "chunks": (16,)},
    ],
    ids=["shape", "chunks", "nothing is stored"],
)
def test_a_tile_that_claims_to_be_huge_is_computed_again_with_a_warning(claims: dict[str, Any], path: Path) -> None:
    claim(path, "infinite_tensor/t-a/0", dtype="f4", **claims)
    with HDF5TileStore(path) as store:
        assert len(store.verify("a")) == 1
        with pytest.warns(DamagedDataWarning, match=r"tile \(0,\) of tensor 'a' is damaged"):
            assert tensor_on(store)[0:16].tolist() == [1] * 16


@pytest.mark.parametrize("name", ["", "/0", "/1.part0"])
def test_nothing_is_written_or_deleted_through_a_link_into_another_file(name: str, path: Path) -> None:
    sent = path.with_name("sent.h5")
    shutil.copy(path, sent)
    before = path.read_bytes()
    with h5py.File(sent, "r+") as file:
        del file[f"infinite_tensor/t-a{name}"]
        file[f"infinite_tensor/t-a{name}"] = h5py.ExternalLink(str(path), f"/infinite_tensor/t-a{name}")
    with HDF5TileStore(sent) as store:
        assert tensor_on(store)[0:32].tolist() == [1] * 32
        store.flush()
        store.verify("a", repair=True)
        store.gc()
        store.clear_tensor("a")
    assert path.read_bytes() == before
