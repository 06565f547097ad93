"""Nothing in a store remembers a tensor that has been cleared."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import MemoryTileStore, TensorWindow, TileStore, ZarrTileStore
from tests.support.building import built, store_of
from tests.support.dict_store import DictTileStore

NAME = "remembered"
OVERLAP = TensorWindow((4,), stride=2)
_ELSEWHERE = types.ModuleType | types.FunctionType | types.FrameType | type

MAKE: dict[str, Callable[[Path], TileStore]] = {
    **{kind: partial(store_of, kind) for kind in ("memory", "zarr", "zarr behind a URL", "hdf5")},
    "limited memory": lambda _folder: MemoryTileStore(cache_size_windows=3),
    "dict": lambda _folder: DictTileStore({}, tile_size=8),
}


def held_by(owner: object) -> Iterator[object]:
    """Everything that is kept alive by an object, but what modules, classes and functions hold anyway."""
    met, rest = {id(owner)}, [owner]
    while rest:
        value = rest.pop()
        yield value
        # Keys that are str are no business of the garbage collector.
        for inner in [*gc.get_referents(value), *(list(value) if isinstance(value, dict) else [])]:
            if id(inner) not in met and not isinstance(inner, _ELSEWHERE):
                met.add(id(inner))
                rest.append(inner)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_store_holds_nothing_of_a_cleared_tensor(make: Callable[[Path], TileStore], tmp_path: Path) -> None:
    def use() -> weakref.ref[Any]:
        t = built(lambda _ctx: torch.ones(4), OVERLAP, store=store, name=NAME)
        t[0:20]
        store.flush()
        t.fill(slice(30, 50))
        # Parts are added to, and read back.
        t.clear_cache()
        t[18:24]
        store.clear_tensor(NAME)
        return weakref.ref(t)

    with make(tmp_path) as store:
        tensor = use()
        gc.collect()
        assert tensor() is None
        assert [value for value in held_by(store) if isinstance(value, str | bytes) and NAME in str(value)] == []


def test_a_cleared_tensor_leaves_no_layout_to_the_next_one_of_its_id() -> None:
    store = MemoryTileStore()
    old = built(lambda _ctx: torch.ones(4), OVERLAP, store=store, name=NAME)
    expected = old.plan(slice(0, 8))
    store.clear_tensor(NAME)
    assert old.plan(slice(0, 8)) == expected
    window = TensorWindow((4, 4), stride=2)
    new = built(lambda _ctx: torch.ones(4, 4), window, store=store, name=NAME)
    for _ in range(2):
        assert new[0:8, 0:8].unique().tolist() == [4]


def test_a_fill_that_finds_its_tensor_cleared_tells_of_no_negative_number(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=4) as store:

        def f(ctx: tuple[int, ...]) -> torch.Tensor:
            if ctx == (8,):
                store.clear_tensor(NAME)
            return torch.ones(4)

        t = built(f, 4, store=store, name=NAME)
        assert t.fill(slice(0, 32)).tensors[0].tiles == 8
        assert t.fill(slice(32, 40)).tensors[0].tiles >= 0
