"""Storage that cannot be reached: a StoreError, never a tensor that seems to be empty."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import torch
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from infinite_tensor import InfiniteTensor, StoreError, TensorWindow, ZarrTileStore
from tests.durability.faults.conftest import check_stored, pair
from tests.support.faulty_store import ERRORS, OTHERS, READS, ClientError, Faults, FaultyStore, Outage


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


# The storage that fails does fail, and only as it is told.


PROTOTYPE = default_buffer_prototype()
VALUE = PROTOTYPE.buffer.from_bytes(b"0123456789")


def got(store: FaultyStore, key: str) -> bytes | None:
    found = sync(store.get(key, PROTOTYPE))
    return None if found is None else found.to_bytes()


def listed(names: AsyncIterator[str]) -> list[str]:
    async def collect() -> list[str]:
        return [name async for name in names]

    return sync(collect())


def failing(kind: str) -> tuple[FaultyStore, Outage]:
    """A store with one object, all of whose operations meet one kind of fault; and what stops that."""
    outage = Outage(kind, ClientError)
    store = FaultyStore(MemoryStore({"key": VALUE}), outage)
    outage.hits = lambda _operation, _key: True
    return store, outage


def test_reads_raise_lose_hide_and_truncate() -> None:
    for kind in ("raise", "raise after"):
        with pytest.raises(ClientError, match="injected into get of key"):
            got(failing(kind)[0], "key")
    assert {kind: got(failing(kind)[0], "key") for kind in ("delay", "truncate", "hide")} == {
        "delay": b"0123456789",
        "truncate": b"01234",
        "hide": None,
    }


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (lambda store: store.set("new", VALUE), {"key"}, {"key", "new"}),
        (lambda store: store.set_if_not_exists("new", VALUE), {"key"}, {"key", "new"}),
        (lambda store: store.delete("key"), {"key"}, set()),
        (lambda store: store.delete_dir(""), {"key"}, set()),
        (lambda store: store.clear(), {"key"}, set()),
    ],
)
def test_changes_raise_before_or_after_they_are_made(
    change: Callable[[FaultyStore], Coroutine[Any, Any, None]], before: set[str], after: set[str]
) -> None:
    for kind, left in {"raise": before, "raise after": after}.items():
        store, outage = failing(kind)
        with pytest.raises(ClientError):
            sync(change(store))
        outage.stop()
        assert set(listed(store.list())) == left


def test_listings_raise() -> None:
    store, _ = failing("raise after")
    for names in (store.list(), store.list_prefix(""), store.list_dir("")):
        with pytest.raises(ClientError):
            listed(names)


def test_one_seed_does_the_same_again_whatever_the_order_and_the_incarnation() -> None:
    keys = [f"t-a/tiles-%s/c/{number}" for number in range(200)]

    def drawn(keys: list[str], incarnation: str) -> dict[str, str | None]:
        faults = Faults(7, 0.5)
        met = {key: faults.draw("get", key % incarnation, READS) for key in keys}
        assert sum(faults.injected.values()) == sum(fault is not None for fault in met.values())
        return {key: None if fault is None else fault.kind for key, fault in met.items()}

    first = drawn(keys, "0123456789abcdef")
    assert first == drawn(keys[::-1], "fedcba9876543210")
    assert set(first.values()) == {*READS, None}


def test_nothing_fails_once_faults_are_stopped_or_paused() -> None:
    faults = Faults(0, 1.0)
    assert faults.draw("set", "key", OTHERS) is not None
    with faults.paused():
        assert faults.draw("set", "key", OTHERS) is None
    assert faults.draw("set", "key", OTHERS) is not None
    faults.stop()
    assert faults.draw("set", "key", OTHERS) is None
