"""A store as a collection of its tensors: their number, their ids, which it holds, and what its repr lists of them."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
import torch
from zarr.storage import MemoryStore

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    StoreError,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
)
from tests.support.building import line
from tests.support.dict_store import DictTileStore
from tests.support.stores import sample
from tests.support.watched import Watched

KINDS = ("memory", "zarr", "hdf5", "dict")


def made(store: TileStore, *names: str, version: int = 0) -> None:
    for name in names:
        line(store, tensor_id=name, version=version)


def opened(kind: str, folder: Path) -> TileStore:
    if kind == "zarr":
        return ZarrTileStore(folder / "s.zarr")
    if kind == "hdf5":
        return HDF5TileStore(folder / "s.h5")
    return MemoryTileStore() if kind == "memory" else DictTileStore({})


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    return opened(request.param, tmp_path)


def test_a_store_is_a_collection_of_ids(store: TileStore) -> None:
    assert len(store) == 0
    assert store
    name = uuid4()
    made(store, "b", "a", str(name))
    assert len(store) == 3
    assert store.tensor_ids() == [*store] == sorted(["a", "b", str(name)])
    assert "a" in store
    assert name in store
    assert not any(given in store for given in ("c", "", 5, None, ("a",), b"a", "\ud800"))


@pytest.mark.parametrize("kind", sample(["memory", "zarr", "hdf5"]))
def test_what_is_stored_at_a_far_place_is_found_again(kind: str, tmp_path: Path) -> None:
    window, far = TensorWindow((4, 4)), 10**12
    with opened(kind, tmp_path) as store:
        t = InfiniteTensor((None, 10), lambda _: torch.ones(4, 4), window, tile_store=store, tensor_id="t", edge="clip")
        assert store.extent("t") is None
        t[far : far + 4, :], t[far + 5000, :]
        store.flush()
        rows, columns = store.extent("t") or ()
        assert (columns.start, columns.stop) == (0, 10)
        tile = 2**15  # or less
        assert far - tile < rows.start <= far < far + 5000 < rows.stop <= far + 5000 + tile
        with pytest.raises(StoreError, match="no tensor 'u'"):
            store.extent("u")


def test_a_closed_store_tells_of_no_tensors(store: TileStore) -> None:
    made(store, "a")
    store.close()
    for ask in (lambda: len(store), lambda: list(store), lambda: "a" in store):
        with pytest.raises(StoreError, match="is closed"):
            ask()


@pytest.mark.parametrize("kind", sample(["zarr", "hdf5", "dict"]))
def test_tensors_of_an_earlier_store_object_are_found(kind: str, tmp_path: Path) -> None:
    storage: dict[object, object] = {}
    for names in (("a",), ()):
        with DictTileStore(storage) if kind == "dict" else opened(kind, tmp_path) as store:
            made(store, *names)
            assert "a" in store


def test_errors_and_the_str_of_a_store_list_nothing() -> None:
    inner = Watched(MemoryStore())
    store = ZarrTileStore(inner, tile_size=4)
    made(store, *(f"t{number}" for number in range(30)))
    before = inner.requests["list"]
    with pytest.raises(ValidationError, match="already contains a tensor 't3' with another definition") as caught:
        made(store, "t3", version=1)
    assert "t7" not in f"{caught.value}{store}{store.open('t1')!r}"
    with pytest.raises(ValidationError, match=r"output_window must be .*, got ZarrTileStore\("):
        InfiniteTensor((None,), lambda _: torch.ones(4), store)  # type: ignore[arg-type]
    assert repr(store) == str(store)
    assert inner.requests["list"] == before


def test_to_look_for_an_id_lists_nothing() -> None:
    inner = Watched(MemoryStore())
    store = ZarrTileStore(inner, tile_size=4)
    made(store, "a")
    before = inner.requests["list"]
    assert "a" in ZarrTileStore(inner)
    assert "b" not in store
    # One is the look for strangers where the root is opened.
    assert inner.requests["list"] - before <= 1


def test_an_unknown_id_among_many_is_a_short_error(store: TileStore) -> None:
    made(store, *(f"t{number:02}" for number in range(30)))
    with pytest.raises(StoreError, match=r"contains no tensor 'x'; it contains \['t00', .*'t11'\] and 18 more$"):
        store.open("x")
