"""Signal handlers that use a store in the middle of what its thread is doing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, StoreError, sl
from tests.durability.faults.conftest import check_stored, pair
from tests.durability.faults.subjects import STORES, Rows, rows, values
from tests.support.building import line
from tests.support.chain import Chain
from tests.support.dict_store import DictTileStore
from tests.support.interrupts import LIBRARY, alarms_handled_by, finishes, handled, lines_seen
from tests.support.reference import Index


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
    store, calls = Interrupted(), []
    chain = pair(store)

    def f(_ctx: Index) -> torch.Tensor:
        CALLS[name](chain, store)
        calls.append(name)
        return torch.ones(4)

    assert line(store, f)[0:8].tolist() == [1] * 8
    assert calls == [name] * 2


def test_a_handler_may_flush_another_store_and_another_thread_may_flush_this_one() -> None:
    store, other = Interrupted(), DictTileStore({}, tile_size=16)
    chain = pair(store)
    pair(other).slope[0:8, 0:8]

    def handle() -> None:
        store.handler = lambda: None
        other.flush()
        finishes(store.flush)

    store.handler = handle
    chain.slope[0:20, 0:20]
    assert other.tensor_info("slope").tiles_partial


# Blobs.

CHANGES: dict[str, Callable[[Rows], object]] = {
    "write": lambda case: case.blob.write(rows([7])),
    "extend": lambda case: case.blob.extend(case.other),
    "overwrite": lambda case: case.blob.__setitem__(0, rows([7])),
    "truncate": lambda case: case.blob.truncate(1),
    "flush": lambda case: case.blob.flush(),
    "close": lambda case: case.blob.close(),
    "tensor": lambda case: case.blob.as_tensor(),
}


@pytest.mark.parametrize("turn", range(len(Rows.USES)))
def test_a_handler_that_changes_a_blob_in_the_middle_of_a_call_is_refused(turn: int, tmp_path: Path) -> None:
    case, refused = Rows("blob", tmp_path), list[str]()
    act = case.action(turn, np.random.default_rng(0))

    def handler(_number: int, _frame: FrameType | None) -> None:
        for name, change in CHANGES.items():
            with pytest.raises(StoreError, match="signal handler"):
                change(case)
            refused.append(name)
        assert values(case.blob[:1]) == [0]

    def in_a_call(_frame: FrameType) -> None:
        if not refused and any(blob._rows.lock._is_owned() for blob in (case.blob, case.other)):  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)

    def is_inside(frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        return file.startswith(LIBRARY) and file.endswith(("blobs/blocks.py", "blobs/rows.py"))

    with handled(signal.SIGTERM, handler), lines_seen(is_inside, in_a_call):
        act()
    assert refused in ([], list(CHANGES))
    case.check()
    case.end()


# Flushes that are requested.


def test_a_flush_that_was_requested_comes_after_the_batch() -> None:
    store = DictTileStore({}, tile_size=16)
    logged: list[bool] = []

    def f(ctx: Index) -> torch.Tensor:
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
    t: InfiniteTensor = line(store)
    reads = iter(t.iter_regions(regions)) if streams else (t[region] for region in regions)
    next(reads)
    store.request_flush()
    assert ("t", "partial", (0,)) not in store.storage
    next(reads)
    assert ("t", "partial", (0,)) in store.storage


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
@pytest.mark.parametrize("kind", STORES)
def test_a_signal_every_30_ms_that_asks_for_a_flush(kind: str, tmp_path: Path) -> None:
    store, true, requests = STORES[kind](tmp_path), pair(MemoryTileStore()), 0
    top, y = pair(store).slope, 0

    def request() -> None:
        nonlocal requests
        requests += 1
        store.request_flush()

    with alarms_handled_by(request):
        signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
        while requests < 25:
            assert torch.equal(top[y : y + 30, 0:30], true.slope[y : y + 30, 0:30])
            y += 17
    top[0:1, 0:1]
    store.close()
    if not kind.startswith("memory"):
        check_stored(STORES[kind](tmp_path), true.slope[0:y, 0:30])
