"""Copies of tensors that somebody clears, creates again or invalidates meanwhile, in this process or in another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    StoreError,
    TensorWindow,
    TileStore,
    ZarrTileStore,
    sl,
)
from tests.support.counting import Constant
from tests.support.stores import sample

REGION = sl[0:60, 0:60]
TILE_SIZE = 3
"""The size of a tile: 400 of them cover the region, of which 256 are moved at a time."""

Opens = Callable[[Path], TileStore]


def opens_zarr(path: Path) -> TileStore:
    return ZarrTileStore(path / "s.zarr", tile_size=TILE_SIZE)


def opens_hdf5(path: Path) -> TileStore:
    return HDF5TileStore(path / "s.h5", tile_size=TILE_SIZE)


def opens_memory(_path: Path) -> TileStore:
    return MemoryTileStore(tile_size=TILE_SIZE)


def made(store: TileStore) -> InfiniteTensor:
    return InfiniteTensor((None, None), Constant((6, 6)), TensorWindow((6, 6)), tile_store=store, tensor_id="t")


def sevens(store: TileStore) -> InfiniteTensor:
    return InfiniteTensor(
        (None, None),
        lambda _ctx: torch.full((6, 6), 7.0),
        TensorWindow((6, 6)),
        tile_store=store,
        tensor_id="t",
        version=7,
    )


class Once:
    """A progress that does something when it is told for the first time, after some tiles and before the others."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action: Callable[[], object] | None = action

    def __call__(self, _progress: object) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


def recreates(store: TileStore) -> Callable[[], None]:
    def recreate() -> None:
        store.clear_tensor("t")
        sevens(store)[REGION]
        store._contents.flush()

    return recreate


@pytest.fixture(
    params=sample([opens_zarr, opens_hdf5, opens_memory], opens_zarr, opens_memory), ids=["zarr", "hdf5", "memory"]
)
def opens(request: pytest.FixtureRequest) -> Opens:
    found: Opens = request.param
    return found


# In this process.


@pytest.mark.parametrize("opens", [opens_zarr, opens_hdf5], ids=["zarr", "hdf5"])
def test_another_tensor_that_takes_the_place_of_the_copy_shows_none_of_it(tmp_path: Path, opens: Opens) -> None:
    store, copy = ZarrTileStore(tmp_path / "source.zarr", tile_size=TILE_SIZE), opens(tmp_path)
    made(store)[REGION]

    def recreate() -> None:
        copy.clear_tensor("t")
        sevens(copy)

    with pytest.raises(StoreError, match="'t' was cleared or invalidated while it was copied"):
        store.copy("t", copy, progress=Once(recreate))
    assert sevens(copy)[REGION].unique().tolist() == [7.0]


def test_what_takes_the_place_of_the_original_is_not_copied(tmp_path: Path, opens: Opens) -> None:
    store = opens(tmp_path)
    expected = made(store)[REGION]
    for name, change in (("a", lambda: store.open("t").invalidate(sl[0:6, 0:6])), ("b", recreates(store))):
        copy = ZarrTileStore(tmp_path / name, tile_size=TILE_SIZE)
        with pytest.raises(StoreError, match="'t' was cleared or invalidated while it was copied"):
            store.copy("t", copy, progress=Once(change))
        assert torch.equal(made(copy)[REGION], expected)


def test_an_upstream_tensor_that_is_cleared_before_its_turn_is_not_created_again(tmp_path: Path) -> None:
    store = opens_zarr(tmp_path)
    window = TensorWindow((6, 6))
    above = InfiniteTensor(
        (None, None), lambda _ctx, below: below, window, [made(store)], [window], tile_store=store, tensor_id="above"
    )
    above[REGION]

    def clear() -> None:
        store.clear_tensor("above")

    with pytest.raises(StoreError, match="'above' was cleared"):
        store.copy("above", tmp_path / "copy.zarr", upstream=True, progress=Once(clear))
    assert store.tensor_ids() == ["t"]


# In another process: its store objects know nothing of those here.


@pytest.mark.parametrize("opens", [opens_zarr, opens_hdf5], ids=["zarr", "hdf5"])
def test_an_original_that_is_gone_leaves_what_would_be_overwritten(tmp_path: Path, opens: Opens) -> None:
    store, copy = opens(tmp_path), ZarrTileStore(tmp_path / "copy.zarr", tile_size=TILE_SIZE)
    made(store)[REGION]
    store._contents.flush()
    opens(tmp_path).clear_tensor("t")
    sevens(copy)[REGION]
    with pytest.raises(StoreError, match="is gone: it has been cleared"):
        store.copy("t", copy, overwrite=True, progress=False)
    assert copy.open("t")[REGION].unique().tolist() == [7.0]


@pytest.mark.parametrize("opens", [opens_zarr, opens_hdf5], ids=["zarr", "hdf5"])
def test_a_copy_that_another_store_object_clears_does_not_return(tmp_path: Path, opens: Opens) -> None:
    store, copy = ZarrTileStore(tmp_path / "source.zarr", tile_size=TILE_SIZE), opens(tmp_path)
    made(store)[0:30, 0:30]
    other = opens(tmp_path)
    with pytest.raises(StoreError, match="cleared and recreated elsewhere"):
        # All tiles have been moved when it is told.
        store.copy("t", copy, progress=Once(recreates(other)))
    assert sevens(other)[REGION].unique().tolist() == [7.0]


@pytest.mark.parametrize("opens", [opens_zarr, opens_hdf5], ids=["zarr", "hdf5"])
def test_a_copy_that_another_store_object_has_cleared_is_not_created_beside_what_is_known_of_it(
    tmp_path: Path, opens: Opens
) -> None:
    store, copy = ZarrTileStore(tmp_path / "source.zarr", tile_size=TILE_SIZE), opens(tmp_path)
    made(store)[REGION]
    store.copy("t", copy, progress=False)
    known = copy.open("t")
    opens(tmp_path).clear_tensor(known.tensor_id)
    with pytest.raises(StoreError, match=r"its pixels in memory with clear_tensor\('t'\)"):
        store.copy("t", copy, progress=False)
    copy.clear_tensor("t")
    assert store.copy("t", copy, progress=False).tiles == 400
