"""The spelling of version 0.2 works, and says what the new one is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import HDF5TileStore, MemoryTileStore, TensorWindow, ValidationError, ZarrTileStore
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.support.building import built, store_of

WINDOW = TensorWindow((4, 4))


def f(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((4, 4), float(sum(ctx)))


@pytest.fixture(params=["memory", "zarr", "hdf5"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """With methods that type checkers do not know of."""
    return store_of(request.param, tmp_path, None)


def test_get_or_create_makes_a_tensor_once(store: Any) -> None:
    with pytest.warns(DeprecationWarning, match="get_or_create"):
        t = store.get_or_create("t", (None, None), f, WINDOW, tile_size=8)
    assert t[0:8, 4].tolist() == [1] * 4 + [2] * 4
    with pytest.warns(DeprecationWarning, match="get_or_create"):
        again = store.get_or_create("t", (None, None), f, WINDOW, tile_size=8)
    assert again is t
    with pytest.warns(DeprecationWarning, match="get_or_create"), pytest.raises(ValidationError, match="stride"):
        store.get_or_create("t", (None, None), f, TensorWindow((4, 4), stride=2), tile_size=8)


def test_get_or_create_chains(store: Any) -> None:
    with pytest.warns(DeprecationWarning, match="get_or_create"):
        options = {"args": (store.get_or_create(None, (None, None), f, WINDOW),), "args_windows": (WINDOW,)}
        both = store.get_or_create(
            7, (None, None), lambda _contexts, a: [x + 1 for x in a], WINDOW, **options, batch_size=2
        )
    assert both.tensor_id == "7"
    assert both[0:8, 0].tolist() == [1] * 4 + [2] * 4


def test_tile_size_holds_for_one_tensor_and_direct_ignores_it(tmp_path: Path) -> None:
    store: Any = ZarrTileStore(tmp_path, tile_size=16)
    with pytest.warns(DeprecationWarning, match="get_or_create"):
        store.get_or_create("a", (None, None), f, WINDOW, tile_size=8)
        store.get_or_create("b", (None, None), f, WINDOW, tile_size=8, cache_method="direct")
    assert [store.tensor_info(name).definition["tile_size"] for name in "ab"] == [[8, 8], [16, 16]]


def test_cache_limit_bounds_a_memory_store() -> None:
    def limit_after(**options: object) -> int | None:
        store: Any = MemoryTileStore()
        with pytest.warns(DeprecationWarning, match="get_or_create"):
            store.get_or_create("t", (None, None), f, WINDOW, **options)
        limit: int | None = store.cache_size_bytes
        return limit

    assert limit_after() is None
    assert limit_after(cache_method="direct") == 10 * 2**20
    assert limit_after(cache_method="direct", cache_limit=None) is None
    assert limit_after(cache_method="direct", cache_limit=4096) == 4096
    for wrong in ({"cache_method": "other"}, {"cache_limit": -1}):
        with pytest.raises(ValidationError, match="cache_"):
            limit_after(**wrong)


def test_clear_direct_caches(store: Any) -> None:
    t = built(f, WINDOW, store=store)
    before = t[0:4, 0:4]
    with pytest.warns(DeprecationWarning, match=r"use store.clear_cache"):
        store.clear_direct_caches()
    assert torch.equal(t[0:4, 0:4], before)


def test_a_limit_of_zero_evicts_what_a_tensor_caches() -> None:
    store: Any = MemoryTileStore()
    calls: list[tuple[int, ...]] = []

    def counted(ctx: tuple[int, ...]) -> torch.Tensor:
        calls.append(ctx)
        return torch.ones(4, 4)

    t = built(counted, WINDOW, store=store, name="7")
    for limit, expected in ((None, 1), (10**6, 1), (0, 2)):
        t[0:4, 0:4]
        with pytest.warns(DeprecationWarning, match=r"use store.clear_cache"):
            store.evict_cache_for(7, limit)
        t[0:4, 0:4]
        assert len(calls) == expected
    with pytest.warns(DeprecationWarning, match=r"use store.clear_cache"):
        store.evict_cache_for("never made", 0)


@pytest.mark.parametrize("make", [ZarrTileStore, HDF5TileStore])
def test_tile_cache_size_is_cache_size_tiles(make: Callable[..., PersistentTileStore], tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="use cache_size_tiles="):
        store = make(tmp_path / "s", tile_cache_size=3)
    assert store._contents.tiles.entries.max_items == 3


class Derived(ZarrTileStore):
    """A store of a user, with a constructor of its own."""

    def __init__(self, target: Path, **options: Any) -> None:
        super().__init__(target, **options)


def test_tile_cache_size_makes_a_store_of_the_class_that_is_called(tmp_path: Path) -> None:
    make: Callable[..., PersistentTileStore] = Derived
    with pytest.warns(DeprecationWarning, match="use cache_size_tiles=") as warned:
        store = make(tmp_path / "s", tile_cache_size=3)
    assert type(store) is Derived
    assert store._contents.tiles.entries.max_items == 3
    assert [warning.filename for warning in warned] == [__file__]
    assert str(inspect.signature(Derived)).startswith("(target: 'Path', **options")
    assert "read_only" in inspect.signature(PersistentTileStore).parameters
