"""Many readers of one face: threads, event loops, processes, Dask, and functions that read Zarr themselves."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import torch
import xarray
import zarr
from distributed import Client
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

from infinite_tensor import InfiniteTensor, TileStore, ValidationError, ZarrTileStore, sl
from tests.behaviour.views import shown
from tests.behaviour.views.shown import ramp, ramp_of
from tests.support.clusters import cluster
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.interpreters import DEADLINE, Team, run
from tests.support.interrupts import finishes, interrupted_by_a_timer
from tests.support.reference import Index
from tests.support.stores import sample

REGION = sl[-8:24, -8:24]
TRUTH = ramp_of(range(-8, 24), range(-8, 24))
SOME = sl[0:4, 0:4]
READERS = 32


def tensor_of(f: Callable[..., Any] = ramp, store: TileStore | None = None) -> InfiniteTensor:
    return shown.tensor_of(f) if store is None else shown.tensor_of(f, tile_store=store)


def face_of(f: Callable[..., Any] = ramp) -> zarr.Array[Any]:
    return tensor_of(f).as_zarr(REGION)


def at_once(work: Callable[[], Any], readers: int = READERS) -> list[Any]:
    """What many threads return that begin together."""
    barrier = threading.Barrier(readers)

    def begin(_number: int) -> Any:
        barrier.wait(DEADLINE)
        return work()

    with ThreadPoolExecutor(readers) as threads:
        return list(threads.map(begin, range(readers), timeout=DEADLINE))


class Held:
    """An ``f`` that says when it has begun, and waits until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.add = 0.0

    def __call__(self, ctx: Index) -> torch.Tensor:
        pixels = ramp(ctx) + self.add
        self.begun.set()
        assert self.may_end.wait(DEADLINE)
        return pixels


def test_no_chunk_is_computed_twice_by_many_readers() -> None:
    f = Counted(ramp)
    face = face_of(f)
    for read in at_once(lambda: face[...]):
        assert np.array_equal(read, TRUTH)
    assert set(f.counts.values()) == {1}


class CountingStore(DictTileStore):
    """Notes which tiles are read from storage."""

    def __init__(self, storage: dict[Any, Any], **options: Any) -> None:
        self.reads: Counter[Index] = Counter()
        super().__init__(storage, **options)

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        self.reads.update(tile_indices)
        return super()._read_tiles(tensor_id, tile_indices)


def test_no_chunk_is_read_twice_from_storage_by_many_readers() -> None:
    storage: dict[Any, Any] = {}
    f = Counted(ramp)
    with DictTileStore(storage, tile_size=4) as filled:
        tensor_of(f, filled)[REGION]
    store = CountingStore(storage)
    face = tensor_of(f, store).as_zarr(REGION)
    for read in at_once(lambda: face[...]):
        assert np.array_equal(read, TRUTH)
    assert len(store.reads) == 64
    assert set(store.reads.values()) == {1}
    assert set(f.counts.values()) == {1}


async def is_told_at_once(face: zarr.Array[Any]) -> bool:
    asked = asyncio.create_task(face.store.get("height/c/0/0", default_buffer_prototype()))
    await asyncio.sleep(0)
    return asked.done()


def test_a_tile_in_memory_is_told_at_once() -> None:
    """Not on another thread, which takes several times as long."""
    face = tensor_of().as_zarr(SOME)
    face[...]
    assert sync(is_told_at_once(face))


def test_an_event_loop_never_waits_for_a_store_that_a_thread_uses() -> None:
    t = tensor_of()
    face = t.as_zarr(SOME)
    before = face[...]
    contents: Any = t.tile_store._contents
    with ThreadPoolExecutor(1) as threads:
        with contents.tiles.lock:
            assert not threads.submit(lambda: sync(is_told_at_once(face))).result(DEADLINE)
        assert np.array_equal(face[...], before)


def test_who_asks_after_an_invalidation_gets_new_pixels() -> None:
    f = Held()
    t = tensor_of(f)
    face = t.as_zarr(REGION)
    with ThreadPoolExecutor(2) as threads:
        early = threads.submit(lambda: face[8, 8])
        assert f.begun.wait(DEADLINE)
        f.add = 1.0
        t.invalidate(REGION)
        late = threads.submit(lambda: face[8, 8])
        f.may_end.set()
        assert early.result(DEADLINE) == 0
        assert late.result(DEADLINE) == 1
    assert face[8, 8] == 1


ROWS = [row % 100 for row in range(-2, 6)]


def test_an_f_reads_any_zarr_array() -> None:
    stored = zarr.array(np.arange(10000.0).reshape(100, 100), chunks=(10, 10))
    face = face_of(lambda ctx: torch.full((4, 4), float(np.asarray(stored[ctx[0] % 100, ctx[1] % 100]))))
    assert face[9, 13] == stored[0, 1]
    assert np.array_equal(face[...], np.kron(np.asarray(stored[...])[np.ix_(ROWS, ROWS)], np.ones((4, 4))))


@pytest.mark.slow
def test_an_f_reads_the_face_that_it_computes() -> None:
    faces: list[zarr.Array[Any]] = []

    def f(ctx: Index) -> torch.Tensor:
        # Each row of windows follows from the one before.
        return torch.ones(4, 4) if ctx[0] < -1 else torch.tensor(faces[0][4 * ctx[0] + 4 : 4 * ctx[0] + 8, 8:12]) + 1

    faces.append(face_of(f))
    for read in at_once(lambda: faces[0][...]):
        assert np.array_equal(read[:, 0], np.repeat(np.arange(1, 9), 4))


@pytest.mark.slow
def test_readers_of_a_chain_of_faces_do_not_wait_for_each_other() -> None:
    below = face_of()
    middle = face_of(lambda ctx: torch.tensor(below[abs(ctx[0]), :4]).expand(4, 4))
    top = face_of(lambda ctx: torch.tensor(middle[abs(ctx[1]), :4]).expand(4, 4))
    reads = at_once(lambda: top[...])
    assert all(np.array_equal(read, reads[0]) for read in reads)


def test_an_f_that_reads_the_chunk_that_it_computes_is_told_so() -> None:
    faces: list[zarr.Array[Any]] = []

    def f(ctx: Index) -> torch.Tensor:
        return torch.tensor(faces[0][4 * ctx[0] + 8 : 4 * ctx[0] + 12, 4 * ctx[1] + 8 : 4 * ctx[1] + 12])

    faces.append(face_of(f))
    with pytest.raises(ValidationError, match="would need itself"):
        faces[0][...]


def test_an_f_reads_the_face_on_threads_of_its_own() -> None:
    """They are not recognized as part of an f, and more requests wait for them than there are processors."""
    faces: list[zarr.Array[Any]] = []
    full = threading.Barrier(READERS)

    def f(ctx: Index) -> torch.Tensor:
        if ctx[0] < 0:
            return torch.ones(4, 4)
        full.wait(DEADLINE)
        with ThreadPoolExecutor(1) as threads:
            return torch.tensor(threads.submit(lambda: faces[0][:4, :4]).result()) + 1

    faces.append(tensor_of(f).as_zarr(sl[-8:24, 0 : 4 * READERS]))
    asked = [threading.Thread(target=faces[0].__getitem__, args=((8, 4 * i),), daemon=True) for i in range(READERS)]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert np.array_equal(faces[0][8:12], np.full((4, 4 * READERS), 2))


def _with_one_of_everything() -> list[bool]:
    """What reads return where zarr has one thread, and asks for one chunk at a time."""
    with zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1}):
        face = face_of()
        same = [np.array_equal(read, TRUTH) for read in at_once(lambda: face[...])]
        test_an_f_reads_any_zarr_array()
        test_an_f_reads_the_face_that_it_computes()
        test_readers_of_a_chain_of_faces_do_not_wait_for_each_other()
    return same


@pytest.mark.slow
def test_it_works_with_one_of_everything_in_zarr() -> None:
    with Team(1) as team:
        assert all(team.members[0].call(_with_one_of_everything))


class OwnError(Exception):
    """Of a user."""


@pytest.mark.parametrize(
    "error",
    [
        *(OwnError, TimeoutError, KeyError, FileNotFoundError, StopAsyncIteration, EOFError),
        concurrent.futures.CancelledError,
    ],
)
def test_what_f_raises_arrives_as_itself_and_the_next_read_is_right(error: type[Exception]) -> None:
    raised: Exception | None = error("from f")

    def f(ctx: Index) -> torch.Tensor:
        if raised is not None:
            raise raised
        return ramp(ctx)

    face = face_of(f)
    for read in (lambda: face[...], lambda: asyncio.run(in_a_loop(face))):
        with pytest.raises(error) as found:
            read()
        assert found.value is raised
    raised = None
    assert np.array_equal(face[...], TRUTH)


async def in_a_loop(face: zarr.Array[Any]) -> Any:
    return await face.async_array.getitem(...)


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError, GeneratorExit, SystemExit])
def test_what_would_end_an_event_loop_is_told_as_another_error(error: type[BaseException]) -> None:
    def f(_ctx: Index) -> torch.Tensor:
        raise error

    with pytest.raises(RuntimeError) as found:
        face_of(f)[...]
    chain = [found.value, found.value.__cause__, getattr(found.value.__cause__, "__cause__", None)]
    assert any(isinstance(each, error) for each in chain)


def test_a_reader_that_gives_up_leaves_the_others_their_chunk() -> None:
    f = Held()
    face = face_of(f)

    async def read() -> Any:
        impatient = asyncio.create_task(face.async_array.getitem((0, 0)))
        patient = asyncio.create_task(face.async_array.getitem((0, 1)))
        await asyncio.to_thread(f.begun.wait, DEADLINE)
        impatient.cancel()
        f.may_end.set()
        return await patient

    assert asyncio.run(read()) == -8007


def test_a_chunk_may_be_ready_after_the_loop_that_asked_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    f = Held()
    face = face_of(f)

    async def give_up() -> None:
        asked = asyncio.create_task(face.async_array.getitem((0, 0)))
        await asyncio.to_thread(f.begun.wait, DEADLINE)
        asked.cancel()

    asyncio.run(give_up())
    f.may_end.set()
    assert np.array_equal(face[...], TRUTH)
    assert caplog.records == []


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to a thread are POSIX")
def test_ctrl_c_in_a_read_leaves_the_next_one_right() -> None:
    interrupted, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def f(ctx: Index) -> torch.Tensor:
        if not interrupted.is_set():
            # Not while zarr holds a lock of its own, which an interrupt would leave taken.
            while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:
                interrupted.wait(0.001)
            signal.pthread_kill(main, signal.SIGINT)
            assert interrupted.wait(DEADLINE)
        return ramp(ctx)

    counted = Counted(f)
    face = face_of(counted)
    with pytest.raises(KeyboardInterrupt):
        face[8, 8]
    interrupted.set()
    for _ in range(2):
        assert np.array_equal(face[...], TRUTH)
    assert set(counted.counts.values()) == {1}


# Python itself drops an exception that comes in a callback of the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
@pytest.mark.parametrize("turns", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_ctrl_c_in_a_loop_of_ones_own_leaves_the_next_read_right(turns: int) -> None:
    face, draw, interrupts = tensor_of().as_zarr(sl[0:16_000, 0:4]), np.random.default_rng(turns), 0
    with interrupted_by_a_timer() as is_interrupted:
        for row in range(1, turns + 1):
            loop = asyncio.new_event_loop()
            asked = face.store.get(f"height/c/{row}/0", default_buffer_prototype())
            interrupts += is_interrupted(draw.uniform(1e-5, 2e-3), partial(loop.run_until_complete, asked))
            close(loop)
            finishes(partial(check_rows, face, 4 * row))
    assert interrupts > turns // 10


def close(loop: asyncio.AbstractEventLoop) -> None:
    """As `asyncio.run` closes its own."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
        with suppress(asyncio.CancelledError, KeyboardInterrupt):
            loop.run_until_complete(task)
    loop.close()


def check_rows(face: zarr.Array[Any], at: int) -> None:
    assert np.array_equal(face[at : at + 4], ramp_of(range(at, at + 4), range(4)))


def test_it_is_pickled_with_its_tensor(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=4) as store:
        face = tensor_of(store=store).as_zarr(REGION)
        sent = pickle.loads(pickle.dumps(face))  # noqa: S301  (our own)
        assert sent.store == face.store
        assert np.array_equal(sent[...], TRUTH)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster() as running:
        yield running


WAYS: dict[str, Callable[[InfiniteTensor], Any]] = {
    "face": lambda t: dask.array.from_array(t.as_zarr(REGION)),
    "to_dask": lambda t: t.to_dask(REGION),
    "to_xarray": lambda t: t.to_xarray(REGION).chunk({"y": 8}),
    "open_zarr": lambda t: xarray.open_zarr(t.as_zarr(REGION).store, chunks={})["height"],
}


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes", "distributed"])
@pytest.mark.parametrize("way", sample(WAYS, "to_dask"))
def test_dask_computes_it(scheduler: str, way: str, client: Client, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=4) as store:
        array = WAYS[way](tensor_of(store=store))
        options: Any = {"scheduler": client if scheduler == "distributed" else scheduler}
        # Processes that are forked from one that has imported everything.
        with dask.config.set({"multiprocessing.context": "forkserver"}):
            assert np.array_equal(array.compute(**options), TRUTH)
            assert float((array + 1).sum().compute(**options)) == float((TRUTH + 1).sum(dtype=np.float64))


_EXITING = """
import sys, threading, time
from concurrent.futures import CancelledError
import torch
from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore, sl

begun = threading.Event()

def f(ctx):
    sys.stdout.write(f"{ctx}\\n")
    begun.set()
    time.sleep(0.5)  # The main thread ends meanwhile.
    return torch.ones(4, 4)

def read():
    try:
        face[...]
    except CancelledError:
        sys.stderr.write("cancelled\\n")  # print writes the end of a line on its own

store = ZarrTileStore(sys.argv[1], tile_size=4)
t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store, tensor_id="t")
face = t.as_zarr(sl[0:400, 0:400])
threading.Thread(target=read).start()  # The interpreter waits for it.
begun.wait()
"""


def test_a_process_ends_without_the_chunks_that_wait(tmp_path: Path) -> None:
    done = run("-c", _EXITING, tmp_path)
    assert done.returncode == 0, done.stderr
    assert 0 < len(done.stdout.splitlines()) < 100
    assert done.stderr == "cancelled\n"
    with ZarrTileStore(tmp_path) as store:
        assert store.verify("t") == []
        assert store.tensor_info("t").tiles_complete == len(done.stdout.splitlines())
