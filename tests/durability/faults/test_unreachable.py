"""Storage that cannot be reached: a StoreError, never a tensor that seems to be empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import zarr
from zarr.storage import MemoryStore

from infinite_tensor import InfiniteTensor, StoreError, TensorWindow, ZarrTileStore
from tests.durability.faults.conftest import check_stored, pair
from tests.support.faulty_store import ERRORS, OTHERS, READS, FaultyStore, Outage


def everything(_operation: str, _key: str) -> bool:
    return True


def keys_of(storage: MemoryStore) -> dict[str, bytes]:
    return {key: value.to_bytes() for key, value in storage._store_dict.items()}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error("").__class__.__name__)
@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "w-"])
def test_whatever_opening_meets_is_a_store_error(mode: Any, error: Callable[[str], BaseException]) -> None:
    storage, outage = MemoryStore(), Outage(error=error)
    pair(ZarrTileStore(storage)).slope[0:4, 0:4]
    before = keys_of(storage)
    outage.hits = everything
    with pytest.raises(StoreError, match="faulty"):
        ZarrTileStore(FaultyStore(storage, outage), mode=mode)
    assert keys_of(storage) == before


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error("").__class__.__name__)
def test_a_read_that_cannot_reach_its_tiles_names_them_and_computes_nothing(
    error: Callable[[str], BaseException],
) -> None:
    storage, outage = MemoryStore(), Outage(error=error)
    with ZarrTileStore(storage, tile_size=16) as first:
        pixels = pair(first).slope[0:32, 0:16]
    chain = pair(ZarrTileStore(FaultyStore(storage, outage), tile_size=16))
    outage.hits = lambda operation, _key: operation == "get"
    with pytest.raises(StoreError, match=r"faulty.* could not read tile \(0, 0\) and 1 more of tensor 'slope'"):
        chain.slope[0:32, 0:16]
    assert not chain.calls
    outage.stop()
    assert torch.equal(chain.slope[0:32, 0:16], pixels)
    assert not chain.calls


CALLS: dict[str, Callable[[ZarrTileStore], object]] = {
    "tensor_ids": lambda store: store.tensor_ids(),
    "tensor_definition": lambda store: store.tensor_definition("slope"),
    "tensor_info": lambda store: store.tensor_info("slope"),
    "open": lambda store: store.open("slope"),
    "verify": lambda store: store.verify("slope"),
    "repair": lambda store: store.verify("slope", repair=True),
    "gc": lambda store: store.gc(),
    "clear_tensor": lambda store: store.clear_tensor("slope"),
    "register": pair,
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_that_cannot_reach_storage_raises_a_store_error_and_changes_nothing(call: str) -> None:
    storage, outage = MemoryStore(), Outage()
    with ZarrTileStore(storage, tile_size=16) as first:
        pixels = pair(first).slope[0:32, 0:16]
    before = keys_of(storage)
    store = ZarrTileStore(FaultyStore(storage, outage), tile_size=16)
    outage.hits = everything
    with pytest.raises(StoreError, match="faulty"):
        CALLS[call](store)
    assert keys_of(storage) == before
    outage.stop()
    check_stored(store, pixels)


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("kind", sorted({*READS, *OTHERS}))
def test_a_fault_while_a_tensor_is_created_leaves_none_or_a_whole_one(kind: str, number: int) -> None:
    storage, outage, operations = MemoryStore(), Outage(kind), 0
    store = ZarrTileStore(FaultyStore(storage, outage), tile_size=16)

    def hits(_operation: str, _key: str) -> bool:
        nonlocal operations
        operations += 1
        return operations == number

    window = TensorWindow((8, 8), stride=6)

    def made(store: ZarrTileStore) -> InfiniteTensor:
        return InfiniteTensor(
            (None, None), lambda _ctx: torch.ones(8, 8), window, tile_store=store, tensor_id="t", version=1
        )

    outage.hits = hits
    try:
        made(store)
    except StoreError:
        assert kind != "delay"
    outage.stop()
    assert made(store)[0:16, 0:16].max() == 4
    store.flush()
    with ZarrTileStore(storage, mode="r") as again:
        assert again.open("t")[0:16, 0:16].max() == 4
        array = zarr.open_array(storage, path=again.tensor_info("t").location, mode="r")
    assert array.chunks == (16, 16)
