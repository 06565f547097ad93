"""What a store holds is listed from its documents alone, or not at all: then the store itself has to tell."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, TensorGroup, TensorWindow, ZarrTileStore
from infinite_tensor.tilestore.persistent.sealed import sealed
from infinite_tensor_stores.listing import listing_of

WINDOW = TensorWindow((4, 4))


def ones(_ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(4, 4)


def fill(store: ZarrTileStore | HDF5TileStore) -> None:
    """Two tensors, and a group of them."""
    names = ("b", "a/ü")
    with store:
        tensors = {
            name: InfiniteTensor((8, None), ones, WINDOW, tile_store=store, tensor_id=name, dims=("y", "x"))
            for name in names
        }
        tensors["b"][0:4, 0:4]
        TensorGroup(tensors).save(store, "both")


@pytest.fixture(params=["folder", "file://", "h5"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    place = tmp_path / ("s.h5" if request.param == "h5" else "s")
    fill(HDF5TileStore(place) if request.param == "h5" else ZarrTileStore(place))
    return place.as_uri() if request.param == "file://" else str(place)


def store_at(target: str, mode: str = "r") -> ZarrTileStore | HDF5TileStore:
    return HDF5TileStore(target, mode) if target.endswith(".h5") else ZarrTileStore(target, mode=mode)


def test_it_lists_what_the_store_tells(target: str) -> None:
    found = listing_of(target)
    assert found is not None
    with store_at(target) as store:
        assert list(found.tensors) == store.tensor_ids() == ["a/ü", "b"]
        assert found.groups == store.group_ids() == ["both"]
        for name, definition in found.tensors.items():
            assert {**definition, "digest": ""} == {**store.tensor_definition(name), "digest": ""}


def test_it_lists_what_lies_at_a_url() -> None:
    url = f"memory://{uuid4().hex}"
    fill(ZarrTileStore(url))
    found = listing_of(url)
    assert found is not None
    assert (list(found.tensors), found.groups) == (["a/ü", "b"], ["both"])


def test_a_tensor_that_is_cleared_is_not_listed(target: str) -> None:
    with store_at(target, "r+") as store:
        store.clear_group("both")
        store.clear_tensor("b")
    found = listing_of(target)
    assert found is not None
    assert (list(found.tensors), found.groups) == (["a/ü"], [])


def test_nothing_is_listed_where_there_is_no_store(tmp_path: Path) -> None:
    assert listing_of(str(tmp_path)) is None
    assert listing_of(str(tmp_path / "nothing")) is None
    assert listing_of(str(tmp_path / "nothing.h5")) is None
    assert listing_of(f"memory://{uuid4().hex}") is None
    os.mkfifo(tmp_path / "pipe.h5")
    assert listing_of(str(tmp_path / "pipe.h5")) is None


def change(document: Path, **fields: Any) -> None:
    """Have a definition say something else, with a digest that fits."""
    found = json.loads(document.read_text())
    kept = {key: value for key, value in found["attributes"]["infinite_tensor"].items() if key != "digest"}
    found["attributes"]["infinite_tensor"] = sealed({**kept, **fields})
    document.write_text(json.dumps(found))


@pytest.mark.parametrize("fields", [{"format": 99}, {"shape": ["\x1b[2J", None]}, {"dtype": 1}, {"tile_size": [4]}])
def test_nothing_is_listed_where_a_definition_is_not_one_of_this_version(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    fill(ZarrTileStore(tmp_path))
    change(tmp_path / "t-b" / "zarr.json")
    assert listing_of(str(tmp_path)) is not None
    change(tmp_path / "t-b" / "zarr.json", **fields)
    assert listing_of(str(tmp_path)) is None


def test_nothing_is_listed_where_a_definition_is_damaged(tmp_path: Path) -> None:
    fill(ZarrTileStore(tmp_path))
    document = tmp_path / "t-b" / "zarr.json"
    document.write_text(document.read_text().replace("float32", "float64"))
    assert listing_of(str(tmp_path)) is None


def test_nothing_is_listed_of_a_store_of_a_later_version(tmp_path: Path) -> None:
    fill(ZarrTileStore(tmp_path))
    root = tmp_path / "zarr.json"
    root.write_text(root.read_text().replace('"format": 1', '"format": 2'))
    assert listing_of(str(tmp_path)) is None


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_left_to_the_store(tmp_path: Path) -> None:
    fill(ZarrTileStore(tmp_path / "s"))
    (tmp_path / "s").chmod(0)
    assert listing_of(str(tmp_path / "s")) is None
