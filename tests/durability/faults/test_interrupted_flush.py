"""Ctrl-C while a store is flushed: nothing is lost, nothing hangs, and the next flush stores it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from zarr.abc.buffer import Buffer
from zarr.abc.store import Store
from zarr.storage import MemoryStore

from infinite_tensor import HDF5TileStore, StoreError, ZarrTileStore
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor.tilestore.writer import Writer
from tests.durability.faults.conftest import check_stored, pair
from tests.support.chain import Chain
from tests.support.faulty_store import FaultyStore, Outage, writes
from tests.support.interrupts import finishes, press_ctrl_c

_PATIENCE = 30.0


class Gated(MemoryStore):
    """Tells when a part of a partial tile is being written, and writes it once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = threading.Event(), threading.Event()

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if "/partial-" in key:
            self.begun.set()
            assert await asyncio.to_thread(self.gate.wait, _PATIENCE)
        await super().set_if_not_exists(key, value)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to a thread are POSIX")
def test_ctrl_c_while_a_flush_waits_for_storage() -> None:
    storage = Gated()
    store = ZarrTileStore(storage, tile_size=64)
    chain = pair(store)
    pixels = chain.slope[0:20, 0:20]
    calls = chain.calls.copy()
    here = threading.get_ident()

    def ctrl_c() -> None:
        if storage.begun.wait(_PATIENCE):
            signal.pthread_kill(here, signal.SIGINT)

    watcher = threading.Thread(target=ctrl_c)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    watcher.join()
    assert torch.equal(chain.slope[0:20, 0:20], pixels)
    assert chain.calls == calls
    storage.gate.set()
    store.close()
    check_stored(ZarrTileStore(storage, tile_size=64), pixels)


@pytest.mark.parametrize("kind", ["zarr", "hdf5"])
def test_ctrl_c_before_a_flush_waits_loses_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage()
    open_again = opener(kind, FaultyStore(MemoryStore(), outage), tmp_path / "t.h5")
    store = open_again()
    chain = pair(store)
    outage.hits = writes
    chain.slope[0:40, 0:20]
    with contextlib.suppress(StoreError):
        # So that there is something to try again.
        store.flush()
    outage.stop()
    pixels, calls = chain.slope[0:50, 0:20], chain.calls.copy()
    retry = Writer.retry

    def interrupted(self: Writer[Any, Any], write: Any) -> None:
        press_ctrl_c()
        retry(self, write)

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "retry", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.flush()
    finishes(partial(check_usable, chain, store, pixels, open_again))
    assert chain.calls == calls


def opener(kind: str, storage: Store, path: Path) -> Callable[[], PersistentTileStore]:
    """Opens one store again and again."""
    if kind == "zarr":
        return partial(ZarrTileStore, storage, tile_size=16)
    return partial(HDF5TileStore, path, tile_size=16)


def check_usable(
    chain: Chain, store: PersistentTileStore, pixels: torch.Tensor, open_again: Callable[[], PersistentTileStore]
) -> None:
    """What was computed is there, before and after it is stored."""
    assert torch.equal(chain.slope[0:50, 0:20], pixels)
    store.close()
    with open_again() as stored:
        check_stored(stored, pixels)
