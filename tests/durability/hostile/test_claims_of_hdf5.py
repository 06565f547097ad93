"""HDF5 files whose datasets claim far more bytes than are stored: an error, or a warning, and no memory for them."""

from __future__ import annotations

import shutil
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
        return f"t-a/partial/{next(iter(file['t-a/partial']))}"


def test_a_definition_that_claims_to_be_huge_is_damaged(path: Path) -> None:
    claim(path, "t-a/definition", shape=(FAR_TOO_MUCH,), dtype="u1", chunks=(10**6,), compression="gzip")
    with HDF5TileStore(path, mode="r") as store, pytest.raises(StoreError, match=f"{FAR_TOO_MUCH} bytes, but at most"):
        store.open("a")


def test_a_definition_of_huge_chunks_is_damaged(path: Path) -> None:
    claim(path, "t-a/definition", shape=(100,), maxshape=(None,), dtype="u1", chunks=(2**31,))
    with (
        HDF5TileStore(path, mode="r") as store,
        pytest.raises(StoreError, match="a chunk of /t-a/definition: 2147483648 bytes"),
    ):
        store.open("a")


def test_a_definition_that_is_compressed_twice_is_damaged(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["t-a/definition"]
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((100,))
        for _ in range(2):
            created.set_deflate(4)
        h5py.h5d.create(file["t-a"].id, b"definition", h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple((100,)), created)
    with HDF5TileStore(path, mode="r") as store, pytest.raises(StoreError, match="compressed more than once"):
        store.open("a")


def test_a_log_that_claims_to_be_huge_is_computed_again_with_a_warning(path: Path) -> None:
    claim(path, first_part(path), shape=(FAR_TOO_MUCH,), dtype="u1", chunks=(10**6,), compression="gzip")
    with HDF5TileStore(path) as store, pytest.warns(DamagedDataWarning, match=f"{FAR_TOO_MUCH} bytes, but at most"):
        assert tensor_on(store)[16:24].tolist() == [1] * 8


def test_an_index_that_claims_to_be_huge_is_an_error(path: Path) -> None:
    claim(path, "t-a/index", shape=(FAR_TOO_MUCH, 2), maxshape=(None, 2), dtype="i8", chunks=(256, 2))
    claim(path, "t-a/tiles", shape=(FAR_TOO_MUCH, 16), maxshape=(None, 16), dtype="f4", chunks=(1, 16))
    with HDF5TileStore(path, mode="r") as store, pytest.raises(StoreError, match=r"/t-a/index: \d+ bytes"):
        store.open("a")


def test_tiles_in_chunks_that_claim_to_be_huge_are_an_error(path: Path) -> None:
    claim(path, "t-a/tiles", shape=(1, 16), maxshape=(None, 16), dtype="f4", chunks=(2**20, 16))
    with HDF5TileStore(path, mode="r") as store, pytest.raises(StoreError, match=r"a chunk of /t-a/tiles: \d+"):
        store.open("a")


def test_verify_does_not_look_at_slots_that_the_index_does_not_have(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["t-a/tiles"].resize(FAR_TOO_MUCH, axis=0)
    with HDF5TileStore(path, mode="r") as store:
        assert store.verify("a") == []


@pytest.mark.parametrize("name", ["partial", "tiles", "index"])
def test_nothing_is_written_or_deleted_through_a_link_into_another_file(name: str, path: Path) -> None:
    sent = path.with_name("sent.h5")
    shutil.copy(path, sent)
    before = path.read_bytes()
    with h5py.File(sent, "r+") as file:
        del file[f"t-a/{name}"]
        file[f"t-a/{name}"] = h5py.ExternalLink(str(path), f"/t-a/{name}")
    with HDF5TileStore(sent) as store:
        with pytest.raises(StoreError, match=f"/t-a/{name} is missing, or a link to another object"):
            tensor_on(store)[24:32]
        store.verify("a", repair=True)
        store.gc()
        store.clear_tensor("a")
    assert path.read_bytes() == before
