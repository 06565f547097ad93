"""Storage that cannot be reached: a StoreError, never a tensor that seems to be empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import zarr
from zarr.storage import MemoryStore

from infinite_tensor import InfiniteTensor, StoreError, ZarrTileStore
from tests.support.faulty_store import ERRORS, OTHERS, READS, FaultyStore, Outage
from tests.support.noise_chain import WINDOW, Chain


def everything(_operation: str, _key: str) -> bool:
    return True


def keys_of(storage: MemoryStore) -> dict[str, bytes]:
    return {key: value.to_bytes() for key, value in storage._store_dict.items()}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error("").__class__.__name__)
@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "w-"])
def test_whatever_opening_meets_is_a_store_error(mode: str, error: Callable[[str], BaseException]) -> None:
    storage, outage = MemoryStore(), Outage(error=error)
    Chain(ZarrTileStore(storage)).top[0:4, 0:4]
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
        pixels = Chain(first).top[0:32, 0:16]
    chain = Chain(ZarrTileStore(FaultyStore(storage, outage), tile_size=16))
    outage.hits = lambda operation, _key: operation == "get"
    with pytest.raises(StoreError, match=r"faulty.* could not read tile \(0, 0\) and 1 more of tensor 'top'"):
        chain.top[0:32, 0:16]
    assert not chain.calls
    outage.stop()
    assert torch.equal(chain.top[0:32, 0:16], pixels)
    assert not chain.calls


CALLS: dict[str, Callable[[ZarrTileStore], object]] = {
    "tensor_ids": lambda store: store.tensor_ids(),
    "tensor_definition": lambda store: store.tensor_definition("top"),
    "tensor_info": lambda store: store.tensor_info("top"),
    "open": lambda store: store.open("top"),
    "verify": lambda store: store.verify("top"),
    "repair": lambda store: store.verify("top", repair=True),
    "gc": lambda store: store.gc(),
    "clear_tensor": lambda store: store.clear_tensor("top"),
    "register": Chain,
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_that_cannot_reach_storage_raises_a_store_error_and_changes_nothing(call: str) -> None:
    storage, outage = MemoryStore(), Outage()
    with ZarrTileStore(storage, tile_size=16) as first:
        pixels = Chain(first).top[0:32, 0:16]
    before = keys_of(storage)
    store = ZarrTileStore(FaultyStore(storage, outage), tile_size=16)
    outage.hits = everything
    with pytest.raises(StoreError, match="faulty"):
        CALLS[call](store)
    assert keys_of(storage) == before
    outage.stop()
    again = Chain(store)
    assert torch.equal(again.top[0:32, 0:16], pixels)
    assert not again.calls


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("kind", sorted({*READS, *OTHERS}))
def test_a_fault_while_a_tensor_is_created_leaves_none_or_a_whole_one(kind: str, number: int) -> None:
    storage, outage, operations = MemoryStore(), Outage(kind), 0
    store = ZarrTileStore(FaultyStore(storage, outage), tile_size=16)

    def hits(_operation: str, _key: str) -> bool:
        nonlocal operations
        operations += 1
        return operations == number

    def made(store: ZarrTileStore) -> InfiniteTensor:
        return InfiniteTensor(
            (None, None), lambda _ctx: torch.ones(8, 8), WINDOW, tile_store=store, tensor_id="t", version=1
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
