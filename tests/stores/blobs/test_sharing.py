"""One writer, and readers beside it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import fsspec
import pytest
import torch
import zarr
from zarr.abc.buffer import Buffer
from zarr.storage import MemoryStore

from infinite_tensor import StoreError, TensorBlob
from infinite_tensor.errors import BlobNotFoundError
from infinite_tensor_stores.blobs.writers import FOLDER, RENEWAL, SECONDS, Lease
from infinite_tensor_stores.targets import home_of
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import SHAPE, made, numbered
from tests.support.interpreters import Team
from tests.support.watched import Watched


def hold(target: str, mode: Any) -> int:
    """Open a blob for writing, and keep it open."""
    _held.append(TensorBlob.open(target, mode))
    return len(_held[-1])


_held: list[TensorBlob] = []


# Readers.


def test_a_reader_sees_full_blocks_and_what_is_flushed(place: Place) -> None:
    made(place, 0)
    with place.open("a") as writer:
        writer.write(numbered(3))
        assert len(place.open()) == 0
        writer.write(numbered(8, 3))
        assert torch.equal(place.open().read(), numbered(8))
        writer.flush()
        assert torch.equal(place.open().read(), numbered(11))
    array = zarr.open_array(store=place.target, mode="r")
    assert (array.shape, array.chunks) == ((11, *SHAPE), (4, *SHAPE))
    assert torch.equal(torch.from_numpy(array[:]), numbered(11))


def test_a_reader_learns_of_growth_when_it_refreshes(place: Place) -> None:
    made(place, 6)
    reader = place.open()
    assert torch.equal(reader[-1], numbered(1, 5)[0])
    with place.open("a") as writer:
        writer.write(numbered(6, 6))
        writer.flush()
        assert len(reader) == 6
        assert torch.equal(reader[-1], numbered(1, 5)[0])
        assert reader.refresh() == len(reader) == 12
        assert torch.equal(reader[:], numbered(12))


@pytest.mark.parametrize(
    "reach",
    [
        lambda blob: blob[11],
        lambda blob: blob[5:12],
        lambda blob: blob[[11, 0]],
        lambda blob: blob[torch.ones(12, dtype=torch.bool)],
        lambda blob: blob.read(),
        lambda blob: blob.read(12),
        list,
        lambda blob: blob.seek(12),
        lambda blob: blob.as_tensor(12),
    ],
)
def test_a_reader_looks_again_when_it_is_asked_for_what_lies_behind_its_end(
    folder: Place, reach: Callable[[TensorBlob], Any]
) -> None:
    made(folder, 6)
    reader = folder.open()
    _ = reader[5]
    with folder.open("a") as writer:
        writer.write(numbered(6, 6))
        writer.flush()
        reach(reader)
        assert len(reader) == 12
        assert torch.equal(reader[:], numbered(12))


def test_a_reader_says_that_the_blob_is_gone(filled: Place) -> None:
    reader = filled.open()
    TensorBlob.unlink(filled.target)
    with pytest.raises(BlobNotFoundError, match="there is no blob"):
        reader.refresh()


def test_readers_in_other_processes_see_whole_rows_while_one_writes(folder: Place) -> None:
    made(folder, 0)
    with Team(3) as team:
        lengths = team.together((append, folder.target, 400), (watch, folder.target, 400), (watch, folder.target, 400))
    assert lengths == [400, 400, 400]


def append(target: str, count: int) -> int:
    """Write rows of one number each, flushing now and then, some of them again."""
    with TensorBlob.open(target, "r+") as blob:
        for number in range(count):
            blob.write(torch.full(SHAPE, float(number)))
            if number % 3 == 0:
                blob[number // 2] = float(number // 2)
                blob.flush()
    return count


def watch(target: str, count: int) -> int:
    """Look at all rows until there are so many."""
    blob = TensorBlob.open(target)
    while blob.refresh() < count:
        rows = blob[:]
        assert torch.equal(rows, torch.arange(float(len(rows)))[:, None, None].expand(-1, *SHAPE))
    return len(blob)


def test_threads_share_a_blob_while_one_of_them_writes(place: Place) -> None:
    made(place, 0)
    with place.open("a+", max_cached_blocks=2) as blob:
        blob.write(torch.zeros(SHAPE))

        def read(seed: int) -> int:
            dice, seen = random.Random(seed), 0  # noqa: S311
            while seen < 200:
                seen = len(blob)
                where = [dice.randrange(seen) for _ in range(5)]
                assert torch.equal(blob[where][:, 0, 0], torch.tensor(where, dtype=torch.float32))
                assert blob[where[0]][1, 2] == where[0]
            return seen

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read, seed) for seed in range(4)]
            for number in range(1, 200):
                blob.write(torch.full(SHAPE, float(number)))
                if number % 20 == 0:
                    blob.flush()
            assert [reader.result(60) for reader in readers] == [200] * 4


def test_attributes_that_a_user_adds_to_the_array_stay(local: Place) -> None:
    zarr.open_array(local.target, mode="r+").attrs["model"] = "a"
    with local.open("a") as blob:
        blob.write(numbered(1, 10))
    assert zarr.open_array(local.target, mode="r").attrs["model"] == "a"
    assert torch.equal(local.open().read(), numbered(11))


# A second writer.


@pytest.mark.parametrize("mode", ["a", "r+", "w"])
def test_a_second_writer_is_told_who_writes(filled: Place, mode: Any) -> None:
    for options in ({"shape": 7}, {"dtype": "int8"}):
        with pytest.raises(ValueError, match="mode 'w'"):
            filled.open("a", **options)
    with filled.open("a") as writer:
        with pytest.raises(StoreError, match=r"process \d+ on .* open for writing"):
            filled.open(mode)
        with pytest.raises(StoreError, match="open for writing"):
            TensorBlob.unlink(filled.target)
        writer.write(numbered(1, 10))
    with filled.open("a") as writer:
        assert torch.equal(filled.open().read(), numbered(11))


def test_a_second_writer_in_another_process_is_refused(local: Place) -> None:
    with Team(2) as team:
        first, second = team.members
        assert first.call(hold, local.target, "a") == 10
        with pytest.raises(StoreError, match="open for writing"):
            second.call(hold, local.target, "r+")
        with pytest.raises(StoreError, match="open for writing"):
            local.open("a")


def test_a_writer_that_was_killed_leaves_no_lock_to_a_child_that_lives_on(local: Place) -> None:
    with Team(1) as team:
        child = team.members[0].call(hold_and_fork, local.target)
    try:
        local.open("a").close()
    finally:
        os.kill(child, signal.SIGKILL)


def hold_and_fork(target: str) -> int:
    """Open a blob for writing, and fork a child that lives by then; its process id."""
    hold(target, "a")
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.write(tells, b"1")
        signal.pause()
    os.read(told, 1)
    return child


@pytest.mark.parametrize("round_", range(3))
def test_of_writers_that_begin_at_once_no_two_go_on(folder: Place, round_: int) -> None:
    made(folder, round_)
    with Team(4) as team:
        outcomes = team.together(*[(try_to_hold, folder.target)] * 4)
    assert outcomes.count(True) == 1


def try_to_hold(target: str) -> bool:
    """Whether this process may write."""
    try:
        hold(target, "a")
    except StoreError:
        return False
    return True


# Leases.


def lease(url: str, **options: float) -> Lease:
    return Lease(home_of(url, None, False), **options)


def age(url: str, seconds: float) -> None:
    """Make all leases older."""
    files = fsspec.filesystem("memory")
    for path in files.ls(url.removeprefix("memory://") + f"/{FOLDER}", detail=False):
        found = json.loads(files.cat(path))
        files.pipe(path, json.dumps({**found, "renewed": found["renewed"] - seconds}).encode())


def test_a_lease_that_has_run_out_keeps_nobody_out() -> None:
    url = "memory://lease-1"
    first = lease(url)
    with pytest.raises(StoreError, match="expires 60 s"):
        lease(url)
    age(url, SECONDS + 1)
    second = lease(url)
    second.check()
    first.release()
    second.release()
    assert not fsspec.filesystem("memory").find("lease-1")


def test_a_writer_whose_lease_somebody_has_taken_stores_nothing_more() -> None:
    url = "memory://lease-2/rows"
    rows = numbered(4)
    writer = TensorBlob.open(url, "w", dtype="float32", shape=SHAPE, block_size=4)
    age(url, SECONDS + 1)
    with TensorBlob.open(url, "a") as other:
        other.write(rows)
    stopped = writer._rows._right
    assert isinstance(stopped, Lease)
    stopped._renewed = time.monotonic() - SECONDS
    with pytest.raises(StoreError, match="lease was deleted"):
        writer.write(rows)
    assert len(TensorBlob.open(url)) == 4
    stopped._lost = None
    writer._rows.closed = True


def test_a_lease_is_renewed_while_its_writer_does_nothing() -> None:
    url = "memory://lease-3"
    held = lease(url, renewal=0.02)
    files = fsspec.filesystem("memory")
    (path,) = files.ls("lease-3/writers", detail=False)
    before, deadline = files.cat(path), time.monotonic() + 10
    while files.cat(path) == before:
        assert time.monotonic() < deadline
    held.release()


class Interrupted(Watched):
    """Storage where something happens right before the next request of a kind: "set", "list" or "delete"."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.before: dict[str, Callable[[], object]] = {}

    @asynccontextmanager
    async def under_way(self, request: str, key: str) -> AsyncIterator[None]:
        if request in self.before:
            await asyncio.to_thread(self.before.pop(request))
        async with super().under_way(request, key):
            yield


def failing(error: Exception) -> Callable[[], None]:
    """What raises this error."""

    def fail() -> None:
        raise error

    return fail


def stall(held: Lease, objects: dict[str, Buffer]) -> None:
    """Make a lease as old as that of a process that was suspended."""
    found = json.loads(objects[held._key].to_bytes())
    aged = json.dumps({**found, "renewed": found["renewed"] - SECONDS - 1}).encode()
    objects[held._key] = type(objects[held._key]).from_bytes(aged)
    held._renewed -= SECONDS + 1


def test_an_attempt_to_open_takes_no_right_from_a_writer_that_renews_its_lease_meanwhile() -> None:
    memory = MemoryStore()
    writer, newcomer = Lease(home_of(memory, None, False)), Interrupted(memory)
    newcomer.before["list"] = writer._renew
    with pytest.raises(StoreError, match="has it open for writing"):
        Lease(home_of(newcomer, None, False))
    assert not newcomer.before
    writer.check()
    writer._renewed -= SECONDS
    writer.check()
    writer.release()


@pytest.mark.parametrize("begins", ["stalled", "in time"])
@pytest.mark.parametrize("listing", ["works", "fails once"])
def test_of_a_writer_that_stalls_while_it_renews_its_lease_and_its_successor_one_goes_on(
    begins: str, listing: str
) -> None:
    objects: dict[str, Buffer] = {}
    memory = MemoryStore(objects)
    storage = Interrupted(memory)
    stalled, successors = Lease(home_of(storage, None, False)), list[Lease]()

    def succeed() -> None:
        if begins == "in time":
            stall(stalled, objects)
        successors.append(Lease(home_of(memory, None, False)))

    if begins == "stalled":
        stall(stalled, objects)
    storage.before["set"] = succeed
    if listing == "fails once":
        storage.before["list"] = failing(OSError("no answer"))
        with pytest.raises(OSError, match="no answer"):
            stalled._renew()
    else:
        stalled._renew()
    with pytest.raises(StoreError, match="has taken over"):
        stalled.check()
    (successor,) = successors
    successor.check()
    assert list(objects) == [successor._key]
    stalled.release()
    successor.release()
    assert not objects


def test_a_writer_looks_again_soon_enough_for_clocks_and_requests_that_take_40_s_together() -> None:
    memory = MemoryStore()
    storage = Interrupted(memory)
    writer, looked = Lease(home_of(storage, None, False)), threading.Event()
    storage.before["set"] = looked.set
    writer._renewed = time.monotonic() - RENEWAL
    writer.check()
    assert not looked.is_set()
    writer._renewed = time.monotonic() - (SECONDS - 40)
    writer.check()
    assert looked.is_set()
    writer.release()


@pytest.mark.parametrize("error", [OSError("no answer"), RuntimeError("no answer")], ids=["OSError", "another"])
def test_a_lease_is_renewed_after_a_renewal_that_failed(error: Exception) -> None:
    storage, tried, renewed = Interrupted(MemoryStore()), threading.Event(), threading.Event()

    def fail() -> None:
        storage.before["set"] = renewed.set
        tried.set()
        raise error

    held = Lease(home_of(storage, None, False), renewal=0.02)
    storage.before["set"] = fail
    assert tried.wait(10)
    assert renewed.wait(10)
    held.check()
    held.release()


# Blobs that nobody closes.


def test_a_blob_that_is_dropped_is_stored_and_can_be_written_again(place: Place) -> None:
    made(place, 0)
    blob = place.open("a")
    blob.write(numbered(5))
    del blob
    gc.collect()
    with place.open("a+") as blob:
        assert torch.equal(blob[:], numbered(5))


@pytest.mark.slow
def test_blobs_that_are_open_at_the_end_of_their_process_are_stored(folder: Place) -> None:
    made(folder, 0)
    packed = f"{folder.target}-packed"
    program = (
        "import sys, torch\nfrom infinite_tensor import TensorBlob\n"
        "blob = TensorBlob.open(sys.argv[1], 'a')\nblob.write(torch.ones(5, 2, 3))\n"
        "packed = TensorBlob.open(sys.argv[2], 'w', compressors='auto', dtype='float32', shape=(2, 3))\n"
        "packed.write(torch.ones(5, 2, 3))\n"
    )
    command = [sys.executable, "-c", program, folder.target, packed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert folder.open().read().sum() == TensorBlob.open(packed).read().sum() == 30
