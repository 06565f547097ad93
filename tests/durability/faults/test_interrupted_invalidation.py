"""Ctrl-C in the middle of an invalidation: once it has been repeated, what is stored from then on is found again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
import torch

from infinite_tensor import HDF5TileStore, MemoryTileStore, ZarrTileStore
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.durability.faults.conftest import pair
from tests.support.chain import Chain
from tests.support.interrupts import NewLines, interrupted_where

STORES: dict[str, Callable[[Path], PersistentTileStore]] = {
    "zarr": lambda path: ZarrTileStore(path / "t.zarr", tile_size=16),
    "hdf5": lambda path: HDF5TileStore(path / "t.h5", tile_size=16),
}


def pixels(chain: Chain) -> torch.Tensor:
    """Of tiles that stay partial, each stored as a log."""
    read: torch.Tensor = chain.slope[0:20, 0:4]
    return read


def in_the_stores(code: CodeType) -> bool:
    return "infinite_tensor_stores" in code.co_filename


def where_tiles_are_deleted(code: CodeType) -> bool:
    return in_the_stores(code) and "delete_tiles" in code.co_qualname


@pytest.mark.parametrize(
    "chosen", [where_tiles_are_deleted, pytest.param(in_the_stores, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("kind", STORES)
def test_what_is_stored_after_an_interrupted_invalidation_is_found_again(
    kind: str, chosen: Callable[[CodeType], bool], tmp_path: Path
) -> None:
    lines, expected, interrupted = NewLines(), pixels(pair(MemoryTileStore())), True
    while interrupted:
        interrupted = False
        with STORES[kind](tmp_path) as store:
            chain = pair(store)
            pixels(chain)
            store.flush()
            try:
                with interrupted_where(lines, chosen):
                    chain.slope.invalidate()
            except KeyboardInterrupt:
                interrupted = True
                chain.slope.invalidate()
            pixels(chain)
        with STORES[kind](tmp_path) as store:
            again = pair(store)
            assert torch.equal(pixels(again), expected)
            assert not again.calls
    assert len(lines) > 3
