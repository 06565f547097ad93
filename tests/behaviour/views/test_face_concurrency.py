"""Many readers of one face: threads, event loops, processes, Dask, and functions that read Zarr themselves."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import torch
import zarr
from distributed import Client

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore, ZarrTileStore, sl
from infinite_tensor.views.requests import _PLACES
from tests.support.clusters import cluster
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.interpreters import DEADLINE, Team, run
from tests.support.reference import Index

WINDOW = TensorWindow((4, 4))
REGION = sl[-8:24, -8:24]
READERS = 32


def ramp(ctx: Index) -> torch.Tensor:
    y, x = (torch.arange(4.0) + 4 * i for i in ctx)
    return 1000 * y[:, None] + x


def pixel(y: int, x: int) -> float:
    return 1000.0 * y + x


TRUTH = np.array([[pixel(y, x) for x in range(-8, 24)] for y in range(-8, 24)], np.float32)


def tensor_of(f: Callable[..., Any] = ramp, store: TileStore | None = None) -> InfiniteTensor:
    store = store or DictTileStore({}, tile_size=4)
    return InfiniteTensor((None, None), f, WINDOW, tile_store=store, tensor_id="t")


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


def test_no_chunk_is_computed_twice_by_many_readers() -> None:
    f = Counted(ramp)
    face = face_of(f)
    for read in at_once(lambda: face[...]):
        assert np.array_equal(read, TRUTH)
    assert set(f.counts.values()) == {1}


def test_readers_of_the_same_chunk_take_one_place_together() -> None:
    other = threading.Event()

    def f(ctx: Index) -> torch.Tensor:
        if ctx == (0, 0):
            assert other.wait(DEADLINE)
        else:
            other.set()
        return ramp(ctx)

    face = face_of(f)
    with ThreadPoolExecutor(READERS) as threads:
        same = [threads.submit(lambda: face[8:12, 8:12]) for _ in range(2 * _PLACES)]
        time.sleep(0.2)
        assert face[12, 12] == pixel(4, 4)
        assert all(np.array_equal(each.result(DEADLINE), TRUTH[8:12, 8:12]) for each in same)


def test_an_f_reads_any_zarr_array() -> None:
    stored = zarr.array(np.arange(10000.0).reshape(100, 100), chunks=(10, 10))
    face = face_of(lambda ctx: torch.full((4, 4), float(stored[ctx[0] % 100, ctx[1] % 100])))
    assert face[9, 13] == stored[0, 1]
    assert face[...].shape == (32, 32)


def test_an_f_reads_the_face_that_it_computes() -> None:
    faces: list[zarr.Array[Any]] = []

    def f(ctx: Index) -> torch.Tensor:
        # Each row of windows follows from the one before.
        return torch.ones(4, 4) if ctx[0] < -1 else torch.tensor(faces[0][4 * ctx[0] + 4 : 4 * ctx[0] + 8, 8:12]) + 1

    faces.append(face_of(f))
    for read in at_once(lambda: faces[0][...]):
        assert np.array_equal(read[:, 0], np.repeat(np.arange(1, 9), 4))


def test_readers_of_a_chain_of_faces_do_not_wait_for_each_other() -> None:
    below = face_of()
    middle = face_of(lambda ctx: torch.tensor(below[abs(ctx[0]), :4]).expand(4, 4))
    top = face_of(lambda ctx: torch.tensor(middle[abs(ctx[1]), :4]).expand(4, 4))
    reads = at_once(lambda: top[...])
    assert all(np.array_equal(read, reads[0]) for read in reads)


def _with_one_of_everything() -> list[bool]:
    """What reads return where zarr has one thread, and asks for one chunk at a time."""
    with zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1}):
        face = face_of()
        same = [np.array_equal(read, TRUTH) for read in at_once(lambda: face[...])]
        test_an_f_reads_any_zarr_array()
        test_an_f_reads_the_face_that_it_computes()
        test_readers_of_a_chain_of_faces_do_not_wait_for_each_other()
    return same


def test_it_works_with_one_of_everything_in_zarr() -> None:
    with Team(1) as team:
        assert all(team.members[0].call(_with_one_of_everything))


def test_what_f_raises_arrives_as_itself() -> None:
    class OwnError(Exception):
        pass

    raised = OwnError("no weights yet")
    broken = [True]

    def f(ctx: Index) -> torch.Tensor:
        if broken[0]:
            raise raised
        return ramp(ctx)

    face = face_of(f)
    with pytest.raises(OwnError) as found:
        face[...]
    assert found.value is raised
    broken[0] = False
    assert np.array_equal(face[...], TRUTH)


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError, GeneratorExit, SystemExit])
def test_what_would_end_an_event_loop_is_told_as_another_error(error: type[BaseException]) -> None:
    def f(_ctx: Index) -> torch.Tensor:
        raise error

    with pytest.raises(RuntimeError) as found:
        face_of(f)[...]
    chain = [found.value, found.value.__cause__, getattr(found.value.__cause__, "__cause__", None)]
    assert any(isinstance(each, error) for each in chain)


def test_it_is_read_within_event_loops() -> None:
    face = face_of()

    async def read() -> None:
        assert np.array_equal(face[...], TRUTH)
        whole, corner = await asyncio.gather(
            face._async_array.getitem(...), face._async_array.getitem((slice(0, 3), slice(0, 3)))
        )
        assert np.array_equal(whole, TRUTH)
        assert np.array_equal(corner, TRUTH[:3, :3])

    asyncio.run(read())
    asyncio.run(read())


def test_a_reader_that_gives_up_leaves_the_others_their_chunk() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def f(ctx: Index) -> torch.Tensor:
        begun.set()
        assert may_end.wait(DEADLINE)
        return ramp(ctx)

    face = face_of(f)

    async def read() -> Any:
        impatient = asyncio.create_task(face._async_array.getitem((0, 0)))
        patient = asyncio.create_task(face._async_array.getitem((0, 1)))
        await asyncio.to_thread(begun.wait, DEADLINE)
        impatient.cancel()
        may_end.set()
        return await patient

    assert asyncio.run(read()) == pixel(-8, -7)


def test_it_is_pickled_with_its_tensor(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=4) as store:
        face = tensor_of(store=store).as_zarr(REGION)
        sent = pickle.loads(pickle.dumps(face))
        assert sent.store == face.store
        assert np.array_equal(sent[...], TRUTH)


def test_faces_differ_by_what_they_show() -> None:
    t = tensor_of()
    assert t.as_zarr(REGION).store == t.as_zarr(REGION).store
    assert t.as_zarr(REGION).store != t.as_zarr(sl[0:8, 0:8]).store


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster() as running:
        yield running


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes", "distributed"])
@pytest.mark.parametrize("way", ["face", "to_dask"])
def test_dask_computes_it(scheduler: str, way: str, client: Client, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=4) as store:
        t = tensor_of(store=store)
        array = dask.array.from_array(t.as_zarr(REGION)) if way == "face" else t.to_dask(REGION)
        options = {"scheduler": client if scheduler == "distributed" else scheduler}
        assert np.array_equal(array.compute(**options), TRUTH)
        assert float((array + 1).sum().compute(**options)) == float((TRUTH + 1).sum(dtype=np.float64))


_EXITING = """
import sys, threading, time
import torch
from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore, sl

def f(ctx):
    print(ctx, flush=True)
    time.sleep(0.5)
    return torch.ones(4, 4)

store = ZarrTileStore(sys.argv[1], tile_size=4)
t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store, tensor_id="t")
face = t.as_zarr(sl[0:400, 0:400])
reader = threading.Thread(target=lambda: face[...], daemon=True)
reader.start()
while not t.coverage(sl[0:400, 0:400]).any():
    time.sleep(0.05)
"""


def test_a_process_ends_without_the_chunks_that_wait(tmp_path: Path) -> None:
    done = run("-c", _EXITING, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= 4 * _PLACES
    with ZarrTileStore(tmp_path) as store:
        assert store.verify("t") == []
