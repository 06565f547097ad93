"""Signal handlers that use a store in the middle of what its thread is doing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.lru import LRU
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.durability.faults.conftest import check_stored, pair
from tests.support.building import line
from tests.support.chain import Chain
from tests.support.dict_store import DictTileStore
from tests.support.interrupts import alarms_handled_by, press_ctrl_c

STORES: dict[str, Callable[[Path], PersistentTileStore]] = {
    "zarr": lambda path: ZarrTileStore(path / "t.zarr", tile_size=16, cache_size_bytes=3000),
    "hdf5": lambda path: HDF5TileStore(path / "t.h5", tile_size=16, cache_size_bytes=3000),
}


class Interrupted(DictTileStore):
    """Runs functions in the middle of a look into storage and of a flush, as a signal handler would."""

    def __init__(self) -> None:
        self.handler: Callable[[], object] = lambda: None
        self.in_flush: Callable[[], object] = lambda: None
        super().__init__({}, tile_size=16)

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        self.handler()
        return super()._read_tiles(tensor_id, tile_indices)

    def _flush_backend(self) -> None:
        self.in_flush()


CALLS: dict[str, Callable[[Chain, Interrupted], object]] = {
    "flush": lambda _, store: store.flush(),
    "read": lambda chain, _: chain.slope[0:4, 0:4],
    "read of an arg": lambda chain, _: chain.ground[0:4, 0:4],
    "stream": lambda chain, _: list(chain.slope.iter_regions([sl[0:4, 0:4]])),
    "fill": lambda chain, _: chain.slope.fill((slice(0, 4), slice(0, 4)), progress=False),
    "clear_cache": lambda chain, _: chain.slope.clear_cache(),
    "clear_tensor": lambda _, store: store.clear_tensor("slope"),
    "invalidate": lambda chain, _: chain.ground.invalidate((slice(0, 4), slice(0, 4))),
    "close": lambda _, store: store.close(),
}


@pytest.mark.parametrize("where", ["handler", "in_flush"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_the_middle_of_a_read_or_a_flush_is_refused_at_once(name: str, where: str) -> None:
    store, refused = Interrupted(), []
    chain = pair(store)

    def call() -> None:
        with pytest.raises(StoreError, match="request_flush"):
            CALLS[name](chain, store)
        refused.append(name)

    setattr(store, where, call)
    pixels = chain.slope[0:20, 0:20]
    store.flush()
    setattr(store, where, lambda: None)
    assert refused
    expected = pair(MemoryTileStore()).slope[0:20, 0:20]
    assert torch.equal(pixels, expected)
    assert torch.equal(chain.slope[0:20, 0:20], expected)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("clear_tensor", "invalidate", "close")])
def test_an_f_may_make_any_call(name: str) -> None:
    store, made = Interrupted(), []
    chain = pair(store)

    def f(_ctx: tuple[int, ...]) -> torch.Tensor:
        CALLS[name](chain, store)
        made.append(name)
        return torch.ones(4)

    t = InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store, tensor_id="t")
    assert t[0:8].tolist() == [1] * 8
    assert made == [name] * 2


def test_a_handler_may_flush_another_store() -> None:
    store, other = Interrupted(), DictTileStore({}, tile_size=16)
    chain, apart = pair(store), pair(other)
    apart.slope[0:8, 0:8]
    store.handler = other.flush
    chain.slope[0:20, 0:20]
    assert other.tensor_info("slope").tiles_partial


def test_a_call_that_was_interrupted_leaves_the_thread_free_for_others() -> None:
    store = Interrupted()
    chain = pair(store)

    def interrupts() -> None:
        store.handler = lambda: None
        press_ctrl_c()

    store.handler = interrupts
    with pytest.raises(KeyboardInterrupt):
        chain.slope[0:20, 0:20]
    store.handler = lambda: None
    store.flush()
    assert torch.equal(chain.slope[0:20, 0:20], pair(MemoryTileStore()).slope[0:20, 0:20])


def test_a_flush_that_was_requested_comes_after_the_batch() -> None:
    store = DictTileStore({}, tile_size=16)
    logged: list[bool] = []

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        logged.append(("t", "partial", (0,)) in store.storage)
        if ctx == (0,):
            store.request_flush()
        return torch.ones(4)

    # Four windows to a tile: the one tile stays in progress.
    line(store, f)[0:12]
    assert logged == [False, True, True]


@pytest.mark.parametrize("streams", [False, True])
def test_a_flush_that_was_requested_comes_with_the_next_read_or_regions_of_a_stream(*, streams: bool) -> None:
    store, regions = DictTileStore({}, tile_size=16), [sl[0:12], sl[0:8]]
    t = line(store)
    reads = iter(t.iter_regions(regions)) if streams else (t[region] for region in regions)
    next(reads)
    store.request_flush()
    assert ("t", "partial", (0,)) not in store.storage
    next(reads)
    assert ("t", "partial", (0,)) in store.storage


def test_a_store_in_memory_takes_a_request() -> None:
    store = MemoryTileStore()
    store.request_flush()
    assert pair(store).slope[0:4, 0:4].shape == (4, 4)


@contextmanager
def every(seconds: float, handler: Callable[[], object]) -> Iterator[None]:
    """Call a function from a signal handler again and again."""
    with alarms_handled_by(handler):
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        yield


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
@pytest.mark.parametrize("kind", STORES)
def test_a_signal_every_30_ms_that_asks_for_a_flush(kind: str, tmp_path: Path) -> None:
    store, true, requests = STORES[kind](tmp_path), pair(MemoryTileStore()), 0
    top = pair(store).slope

    def request() -> None:
        nonlocal requests
        requests += 1
        store.request_flush()

    y = 0
    with every(0.03, request):
        while requests < 25:
            assert torch.equal(top[y : y + 30, 0:30], true.slope[y : y + 30, 0:30])
            y += 17
    top[0:1, 0:1]
    store.close(discard=True)
    check_stored(STORES[kind](tmp_path), true.slope[0:y, 0:30])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
@pytest.mark.parametrize("kind", STORES)
def test_a_signal_every_30_ms_that_flushes_and_reads(kind: str, tmp_path: Path) -> None:
    store, true, told = STORES[kind](tmp_path), pair(MemoryTileStore()), []
    chain = pair(store)
    expected = true.slope[0:6, 0:6]
    chain.slope[0:6, 0:6]

    def handler() -> None:
        for call in (store.flush, lambda: torch.equal(chain.slope[0:6, 0:6], expected)):
            try:
                told.append(call() is not False)
            except StoreError as error:
                told.append("request_flush" in str(error))

    y = 0
    with every(0.03, handler):
        while len(told) < 50:
            assert torch.equal(chain.slope[y : y + 30, 0:30], true.slope[y : y + 30, 0:30])
            y += 17
    assert all(told)
    store.close()
    check_stored(STORES[kind](tmp_path), true.slope[0:y, 0:30])


def test_a_store_of_another_thread_is_free_during_a_read() -> None:
    store, raised = Interrupted(), list[Any]()
    chain = pair(store)
    store_of_all: TileStore = store

    def flush() -> None:
        try:
            store_of_all.flush()
        except StoreError as error:
            raised.append(error)

    def handler() -> None:
        store.handler = lambda: None
        thread = threading.Thread(target=flush)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()

    store.handler = handler
    chain.slope[0:20, 0:20]
    assert not raised


@pytest.mark.parametrize("kind", STORES)
def test_a_flush_in_the_middle_of_what_a_fill_does_before_it_computes_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it would wait for the writer, and the writer for the lock that this thread holds."""
    store, refused, lend = STORES[kind](tmp_path), list[bool](), LRU.lend

    def flush(self: LRU[Any, Any], held: threading.Lock, room: int) -> None:
        with pytest.raises(StoreError, match="request_flush"):
            store.flush()
        refused.append(True)
        lend(self, held, room)

    chain = pair(store)
    window = TensorWindow((8, 8), stride=6)
    other = InfiniteTensor(
        (None, None), lambda _ctx, region: region, window, [chain.ground], [window], tile_store=MemoryTileStore()
    )
    monkeypatch.setattr(LRU, "lend", flush)
    other.fill((slice(0, 20), slice(0, 20)), progress=False)
    assert refused
