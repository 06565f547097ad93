"""The storage that fails does fail, and only as it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from zarr.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from infinite_tensor_stores.loop import sync
from tests.support.faulty_store import OTHERS, READS, ClientError, Faults, FaultyStore, Outage

PROTOTYPE = default_buffer_prototype()
VALUE = PROTOTYPE.buffer.from_bytes(b"0123456789")


def got(store: FaultyStore, key: str) -> bytes | None:
    found = sync(store.get, key, PROTOTYPE)
    return None if found is None else found.to_bytes()


def listed(names: AsyncIterator[str]) -> list[str]:
    async def collect() -> list[str]:
        return [name async for name in names]

    return sync(collect)


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
            sync(change, store)
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
