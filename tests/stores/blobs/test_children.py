"""Blobs in forked and spawned processes: as datasets, and by themselves."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from infinite_tensor import StoreError, TensorBlob
from infinite_tensor.errors import BlobModeError
from tests.behaviour.test_fork import LIMIT, in_child
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import blocks_held, made, numbered
from tests.support.interpreters import CONTEXT, Team


@pytest.mark.parametrize(
    ("context", "mode"), [("fork", "r"), ("fork", "r+"), (CONTEXT, "r+")], ids=["fork-r", "fork-r+", "forkserver-r+"]
)
def test_a_data_loader_reads_a_blob_with_several_workers(folder: Place, context: str | BaseContext, mode: str) -> None:
    rows = made(folder, 23)
    with folder.open(mode) as blob:
        _ = blob[0]
        loader = DataLoader(blob, batch_size=5, shuffle=True, num_workers=2, multiprocessing_context=context)
        found = torch.cat(list(loader))
        assert torch.equal(found[found[:, 0, 0].argsort()], rows)


def test_a_forked_child_reads_what_waits_and_does_not_write(filled: Place) -> None:
    blob = filled.open("r+")
    blob.write(numbered(2, 40))

    def child() -> None:
        assert not blob.writable()
        # Rows that wait are kept while nothing is committed.
        assert blob.refresh() == len(blob) == 10
        assert torch.equal(blob[:2], numbered(2, 40))
        for attempt in (blob.flush, lambda: blob.write(numbered(1))):
            with pytest.raises(BlobModeError, match="forked process"):
                attempt()
        blob.close()

    in_child(child)
    with pytest.raises(StoreError, match="open for writing"):
        filled.open("a")
    assert blob.write(numbered(1, 42)) == 1
    blob.close()
    assert torch.equal(filled.open()[:3], numbered(3, 40))


@pytest.mark.parametrize("look", ["refreshes", "reads"])
def test_a_forked_child_follows_what_the_writer_commits_later(local: Place, look: str) -> None:
    processes = multiprocessing.get_context("fork")
    seen, committed = processes.Event(), processes.Event()
    with local.open("r+") as blob:
        blob.seek(0, os.SEEK_END)
        blob.write(numbered(1, 10))

        def child() -> None:
            assert torch.equal(blob[10], numbered(1, 10)[0])
            seen.set()
            assert committed.wait(LIMIT)
            if look == "refreshes":
                assert blob.refresh() == len(blob) == 14
            else:
                assert torch.equal(blob[0], numbered(1)[0])
            assert torch.equal(blob[:], torch.cat([numbered(2), numbered(12, 50)]))

        process = processes.Process(target=child)
        process.start()
        assert seen.wait(LIMIT)
        blob.truncate(2)
        blob.seek(2)
        blob.write(numbered(12, 50))
        blob.flush()
        committed.set()
        process.join(LIMIT)
        assert process.exitcode == 0


@pytest.mark.slow
def test_a_thread_that_outlives_the_main_thread_writes_on_and_all_of_it_is_stored(folder: Place) -> None:
    script = f"""
import threading
ended = threading.Event()
threading._register_atexit(ended.set)  # called after that of the library, which is registered later
import torch
from infinite_tensor import TensorBlob
blob = TensorBlob.open({folder.target!r}, "w", dtype="float32", shape=(2, 3), block_size=4)
def last():
    ended.wait()
    blob.write(torch.ones(3, 2, 3))
threading.Thread(target=last).start()
blob.write(torch.zeros(2, 2, 3))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LIMIT)
    assert folder.open()[:][:, 0, 0].tolist() == [0, 0, 1, 1, 1]


def test_a_lock_ends_with_its_owner_though_a_child_lives_on(local: Place) -> None:
    blob = local.open("a")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.read(reading, 1)
        os._exit(0)
    try:
        blob.close()
        local.open("a").close()
    finally:
        os.write(writing, b"x")
        assert os.waitpid(child, 0)[1] == 0
        os.close(reading)
        os.close(writing)


def test_a_pickled_blob_is_one_for_reading_at_the_same_row(local: Place) -> None:
    with local.open("r+") as blob:
        blob.seek(8)
        blob.write(numbered(4, 50))
        blob.seek(9)
        copy = pickle.loads(pickle.dumps(blob))  # noqa: S301  (our own)
        assert (copy.mode, copy.tell(), len(copy)) == ("r", 9, 12)
        assert torch.equal(copy.read(), numbered(3, 51))


def test_a_blob_in_memory_cannot_be_pickled() -> None:
    blob = TensorBlob.open("memory://unpicklable/rows", "w", dtype="int8", shape=1)
    with pytest.raises(pickle.PicklingError, match="in the memory of this process"):
        pickle.dumps(blob)


def test_a_blob_with_a_limit_holds_no_more_blocks(place: Place) -> None:
    made(place, 50)
    blob = place.open(max_cached_blocks=3)
    for index in (slice(None), list(range(49, -1, -1)), 7, 33):
        _ = blob[index]
        assert blocks_held(blob) <= 3
    with place.open("r+", max_cached_blocks=2) as writer:
        for number in range(0, 50, 3):
            writer[number] = 0
            assert blocks_held(writer) <= 4
    assert blob.refresh() == 50
    assert blob[:].reshape(50, -1).sum(1).count_nonzero() == 33


def resident(kind: str) -> int:
    """Bytes of this process that are in memory: RssAnon, RssFile."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


def measured(target: str, options: dict[str, Any]) -> int:
    """By how much memory grows while 64 MiB are written in batches, read in pieces, and row by row."""
    torch.set_num_threads(1)
    batch = torch.rand(256, 1024)
    with TensorBlob.open(target, "w+", dtype="float32", shape=1024, max_cached_blocks=2, **options) as blob:
        blob.write(batch)
        before, most = resident("VmRSS"), 0
        for _ in range(64):
            blob.write(batch)
            most = max(most, resident("VmRSS"))
        for number in range(0, len(blob), 64):
            _ = blob[number : number + 64], blob[number * 7919 % len(blob)]
            most = max(most, resident("VmRSS"))
    return most - before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by Linux")
@pytest.mark.parametrize("options", [{}, {"compressors": None, "block_size": 512}], ids=["default", "small"])
def test_memory_does_not_grow_with_a_blob(tmp_path: Path, options: dict[str, Any]) -> None:
    with Team(1) as team:
        grown = team.members[0].call(measured, str(tmp_path / "blob"), options)
    assert grown < 40 * 2**20
