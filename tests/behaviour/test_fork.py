"""Forked and spawned children of a process that has used its stores."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import queue
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType
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
)
from tests.support.building import built, store_of
from tests.support.counting import Constant, Counted
from tests.support.reference import Index
from tests.support.stores import sample

LIMIT = 60.0
"""Seconds after which a child is taken to hang."""

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    # Later Pythons warn of every fork of a process with threads, which this is about.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """h5py takes a lock before a fork that it also takes to collect its objects: on another thread, that may hang."""
    gc.collect()


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked child; whatever goes wrong there fails the test."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            work()
            os.write(writes, b"done")
        except BaseException:  # noqa: BLE001  (it goes to the parent)
            os.write(writes, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writes)
    try:
        ready, _, _ = select.select([reads], [], [], LIMIT)
        told = os.read(reads, 4096).decode() if ready else "it hangs"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
    assert told == "done", told


value = Constant((8, 8))


def shifted(_ctx: Index, region: torch.Tensor) -> torch.Tensor:
    return region + 0.5


def make(store: TileStore, f: Callable[[Index], torch.Tensor] = value) -> InfiniteTensor:
    """A chain of two over `store`; the windows of the first overlap."""
    window = TensorWindow((8, 8), stride=(4, 4))
    source = built(f, window, store=store, name="source")
    return built(shifted, (8, 8), source, store=store, name="shifted")


EXPECTED = make(MemoryTileStore())


@pytest.fixture
def store(tmp_path: Path) -> ZarrTileStore:
    return ZarrTileStore(tmp_path, tile_size=16)


@pytest.fixture
def t(store: ZarrTileStore) -> InfiniteTensor:
    return make(store)


@pytest.mark.parametrize("kind", ["zarr", "memory"])
def test_a_forked_child_reads_and_computes(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path, 16)
    t = make(store)
    t[0:40, 0:40]
    store.flush()

    def work() -> None:
        assert torch.equal(t[0:40, 0:40], EXPECTED[0:40, 0:40])
        assert torch.equal(t[20:80, 0:40], EXPECTED[20:80, 0:40])
        store.flush()

    in_child(work)
    assert torch.equal(t[0:80, 0:40], EXPECTED[0:80, 0:40])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zarr", "memory"])
def test_a_fork_between_any_two_lines_of_a_store_leaves_the_child_one_that_works(kind: str, tmp_path: Path) -> None:
    limited = {"zarr": lambda: ZarrTileStore(tmp_path, tile_size=16, cache_size_tiles=2)}
    store = limited.get(kind, lambda: MemoryTileStore(cache_size_windows=2))()
    t = make(store)
    t[0:8, 0:8]
    lines: queue.Queue[object] = queue.Queue()
    seen, go = set(), threading.Semaphore(0)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        here = frame.f_code.co_filename, frame.f_lineno
        if "tilestore" not in here[0]:
            return None
        if event == "line" and here not in seen:
            seen.add(here)
            lines.put(here)
            go.acquire()
        return trace

    def read() -> None:
        sys.settrace(trace)
        t[20:40, 0:20]
        sys.settrace(None)
        lines.put(None)

    def work() -> None:
        assert torch.equal(t[0:40, 0:40], EXPECTED[0:40, 0:40])

    reader = threading.Thread(target=read)
    reader.start()
    while lines.get() is not None:
        in_child(work)
        go.release()
    reader.join()


def test_what_a_forked_child_flushes_is_stored(tmp_path: Path, store: ZarrTileStore, t: InfiniteTensor) -> None:
    t[0:8, 0:8]

    def work() -> None:
        t[100:140, 0:20]
        store.flush()

    in_child(work)
    store.close()
    stored = ZarrTileStore(tmp_path, mode="r").open("shifted")
    assert torch.equal(stored[100:140, 0:20], EXPECTED[100:140, 0:20])


def test_what_waits_to_be_stored_at_a_fork_is_left_to_the_parent(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=64)
    f = Counted(value)
    t = make(store, f)
    t[0:8, 0:8]

    def work() -> None:
        store.flush()
        assert store.tensor_info("source").tiles_partial == 0

    in_child(work)
    before = len(f.calls)
    store.close()
    again = make(ZarrTileStore(tmp_path, tile_size=64), f)
    assert torch.equal(again[0:8, 0:8], EXPECTED[0:8, 0:8])
    assert len(f.calls) == before


@pytest.mark.parametrize("kind", sample(["zarr", "memory"], "zarr"))
def test_forks_in_the_middle_of_reads_by_other_threads_leave_children_that_work(kind: str, tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=16, cache_size_tiles=3) if kind == "zarr" else MemoryTileStore()
    t = make(store)
    # torch makes what a function needs at its first call, behind locks that a fork leaves taken.
    t[0:20, 0:20]
    over = threading.Event()

    def busy(row: int) -> None:
        while not over.is_set():
            t[row : row + 20, 0:20]
            row += 17

    threads = [threading.Thread(target=busy, args=(1000 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()

    def work() -> None:
        assert torch.equal(t[0:60, 0:20], EXPECTED[0:60, 0:20])
        assert torch.equal(t[5000:5020, 0:20], EXPECTED[5000:5020, 0:20])
        store.flush()

    try:
        for _ in range(8):
            in_child(work)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_child_forked_while_a_network_is_inspected_builds_its_tensor(tmp_path: Path) -> None:
    begun, forked = threading.Event(), threading.Event()

    class Slow(torch.nn.Module):
        """Takes long to tell what it is."""

        def get_extra_state(self) -> int:
            begun.set()
            forked.wait(LIMIT)
            return 0

    def make_with(net: torch.nn.Module, name: str) -> None:
        built(lambda ctx: net(torch.ones(4) * ctx[0]), 4, store=ZarrTileStore(tmp_path / name), name="t")

    thread = threading.Thread(target=make_with, args=(Slow(), "a.zarr"))
    thread.start()
    begun.wait(LIMIT)
    try:
        in_child(lambda: make_with(torch.nn.Identity(), "b.zarr"))
    finally:
        forked.set()
        thread.join()


def test_a_forked_child_reads_an_hdf5_file_and_is_refused_to_write(tmp_path: Path) -> None:
    store = HDF5TileStore(tmp_path / "s.h5", tile_size=16)
    t = make(store)
    t[0:48, 0:48]
    store.flush()
    store.clear_cache("source")

    def work() -> None:
        assert torch.equal(t[0:48, 0:48], EXPECTED[0:48, 0:48])
        t[100:132, 0:32]
        with pytest.raises(StoreError, match="opened before this process was forked"):
            store.flush()

    in_child(work)
    store.close()


def test_a_read_goes_on_in_a_child_that_its_f_forks(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=4)
    children: list[int] = []

    def f(ctx: Index) -> torch.Tensor:
        if not children:
            children.append(os.fork())
        return torch.full((4,), float(ctx[0]))

    t = built(f, TensorWindow((4,), stride=2), store=store, name="t")
    pixels = t[0:16]
    if not children[0]:
        os._exit(0 if pixels.tolist() == [2.0 * (x // 2) - 1 for x in range(16)] else 1)
    assert os.waitpid(children[0], 0)[1] == 0


@pytest.mark.parametrize("method", sample(["fork", "spawn", "forkserver"], "fork"))
def test_a_process_pool_shares_a_tensor(method: str, store: ZarrTileStore, t: InfiniteTensor) -> None:
    t[0:40, 0:40]
    store.flush()
    with multiprocessing.get_context(method).Pool(_count(method)) as pool:
        found = pool.starmap(_read, [(t, row) for row in range(0, 80, 20)])
    for row, pixels in zip(range(0, 80, 20), found, strict=True):
        assert torch.equal(torch.tensor(pixels), EXPECTED[row : row + 20, 0:40])


def _count(method: str | BaseContext) -> int:
    """How many processes: an interpreter that is started takes seconds to import torch, and one shows what two do."""
    return 1 if method == "spawn" else 2


def _read(t: InfiniteTensor, row: int) -> list[list[float]]:
    pixels: list[list[float]] = t[row : row + 20, 0:40].tolist()
    t.tile_store.flush()
    return pixels


class TestPickling:
    def test_a_tensor_is_pickled_by_reference(self, store: ZarrTileStore, t: InfiniteTensor) -> None:
        expected = t[0:200, 0:200]
        source = built(Counted(value), (8, 8), store=store, name="t")
        source[0:32, 0:32]
        store.flush()
        data = pickle.dumps(t)
        assert len(data) < 5000
        again = pickle.loads(data)  # noqa: S301
        counted = pickle.loads(pickle.dumps(source))  # noqa: S301
        computed = len(counted.f.calls)
        counted[0:32, 0:32]
        assert len(counted.f.calls) == computed
        assert again.tensor_id == "shifted"
        assert again.args[0].tile_store is again.tile_store
        assert again.tile_store is not store
        assert torch.equal(again[0:200, 0:200], expected)

    def test_a_pickled_store_keeps_its_options_and_never_deletes(self, tmp_path: Path) -> None:
        limits: dict[str, Any] = {"cache_size_bytes": 10**6, "cache_size_tiles": 7, "flush_interval": 5.0}
        store = ZarrTileStore(tmp_path, mode="w", tile_size=(4, 8), compressors=None, **limits)
        built(value, (8, 8), store=store, name="t")[0:8, 0:8]
        store.flush()
        again = pickle.loads(pickle.dumps(store))  # noqa: S301
        assert again.tensor_ids() == ["t"]
        assert again.tile_size == (4, 8)
        assert (again._contents.tiles.entries.max_bytes, again._contents.tiles.entries.max_items) == (10**6, 7)
        assert again._contents.tiles.flush_interval == 5.0

    def test_an_hdf5_file_that_is_closed_is_opened_by_the_other_process(self, tmp_path: Path) -> None:
        store = HDF5TileStore(tmp_path / "s.h5", compression="gzip", compression_opts=2, tile_size=16)
        expected = make(store)[0:16, 0:16]
        data = pickle.dumps(store)
        store.close()
        again = pickle.loads(data)  # noqa: S301
        assert again._backend._filters == store._backend._filters
        assert torch.equal(again.open("shifted")[0:16, 0:16], expected)

    def test_a_tensor_in_memory_comes_without_its_windows(self) -> None:
        t = make(MemoryTileStore(cache_size_windows=50))
        t[0:8, 0:8]
        again = pickle.loads(pickle.dumps(t))  # noqa: S301
        assert again.tile_store.cache_size_windows == 50
        assert again.tile_store.tensor_info("shifted").tiles_complete == 0
        assert torch.equal(again[0:8, 0:8], t[0:8, 0:8])

    def test_tensors_that_are_pickled_together_share_what_they_shared(self) -> None:
        f = Counted(value)
        source = built(f, (8, 8))
        pair = [built(shifted, (8, 8), source) for _ in range(2)]
        first, second = pickle.loads(pickle.dumps(pair))  # noqa: S301
        first[0:8, 0:8]
        second[0:8, 0:8]
        assert len(first.args[0].f.calls) == 1

    @pytest.mark.parametrize("depth", [400, pytest.param(1500, marks=pytest.mark.slow)])
    def test_a_chain_of_any_depth_can_be_pickled(self, depth: int) -> None:
        t = built(value, (8, 8))
        for _ in range(depth):
            t = built(shifted, (8, 8), t)
        again = pickle.loads(pickle.dumps(t))  # noqa: S301
        assert again[0, 0].item() == depth / 2

    def test_a_tensor_that_was_opened_without_f_stays_without(self, store: ZarrTileStore, t: InfiniteTensor) -> None:
        expected = t[0:8, 0:8]
        store.flush()
        again = pickle.loads(pickle.dumps(store.open("shifted")))  # noqa: S301
        assert again.f is None
        assert torch.equal(again[0:8, 0:8], expected)

    def test_a_store_that_is_gone_is_an_error_in_the_other_process(self, tmp_path: Path) -> None:
        store = ZarrTileStore(tmp_path / "a", tile_size=16)
        data = pickle.dumps(make(store))
        store.close()
        (tmp_path / "a").rename(tmp_path / "b")
        with pytest.raises(StoreError, match="there is no store"):
            pickle.loads(data)  # noqa: S301
