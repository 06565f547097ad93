"""The end of a process: what is pending is stored without a thread, and threads that continue can do everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from infinite_tensor import TensorBlob
from tests.behaviour.views.exports.scenes import opened as read
from tests.support.interpreters import run
from tests.support.stores import sample

PLACES = ["world.zarr", "world.h5", "remote"]

_BEGIN = """
import os, sys, threading
import torch
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from zarr.storage import FsspecStore
from infinite_tensor import InfiniteTensor, TensorBlob, TensorWindow, ZarrTileStore, open_store, sl

def opened(place):
    if place == "remote":
        files = AsyncFileSystemWrapper(LocalFileSystem(auto_mkdir=True), asynchronous=True)
        return ZarrTileStore(FsspecStore(files, path=os.path.abspath(place)), tile_size=8)
    return open_store(place, tile_size=8)

def f(ctx):
    sys.stdout.write(f"{ctx}\\n")
    return torch.full((4, 4), sum(ctx), dtype=torch.uint8)

def tensor(store):
    return InfiniteTensor((None, None), f, TensorWindow((4, 4)), dtype="uint8", tile_store=store, tensor_id="t")
"""

_NO_THREADS = """
threading.stack_size(1 << 47)  # more than any process has
try:
    threading.Thread(target=print).start()
except RuntimeError:
    pass
else:
    sys.exit("a thread was started")
"""

_READ = """
t = tensor(opened(sys.argv[1]))
t[0:2, 0:6]
"""

_LATE = """
def work(t):
    t.read(sl[0:16, 0:16], workers=2)
    t.fill(sl[0:8, 16:24], progress=False)
    t.tile_store.flush()
    for form in ("zarr", "npy", "png", "tif"):
        t.export(sl[0:8, 0:8], f"out.{form}", progress=False)
    t[16:18, 0:4]
    sys.stdout.write("done\\n")
"""

_OPENED_BEFORE = """
def late(t):
    threading.main_thread().join()
    work(t)

threading.Thread(target=late, args=[tensor(opened(sys.argv[1]))]).start()
"""

_OPENED_AFTER = """
def late():
    threading.main_thread().join()
    work(tensor(opened(sys.argv[1])))

threading.Thread(target=late).start()
"""


def ended(code: str, place: str, folder: Path) -> list[str]:
    """The lines that an interpreter of its own has printed when it has come to its end."""
    command = [sys.executable, "-c", code, place]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def computed_again(region: str, place: str, folder: Path) -> list[str]:
    """The windows that another process computes for a region."""
    done = run("-c", f"{_BEGIN}tensor(opened(sys.argv[1]))[{region}]", place, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("place", sample(PLACES, "world.zarr"))
def test_what_is_pending_is_stored_where_no_thread_can_be_started(place: str, tmp_path: Path) -> None:
    write = """
blob = TensorBlob.open("rows", "w", dtype="float32", shape=(2,))
blob.write(torch.ones(10, 2))
"""
    assert len(ended(_BEGIN + _READ + write + _NO_THREADS, place, tmp_path)) == 2
    assert computed_again("0:2, 0:6", place, tmp_path) == []
    assert len(TensorBlob.open(tmp_path / "rows")) == 10


@pytest.mark.parametrize(
    ("place", "opening"),
    [
        *(pytest.param(place, _OPENED_BEFORE, marks=pytest.mark.slow) for place in PLACES),
        ("world.zarr", _OPENED_AFTER),
    ],
)
def test_a_thread_that_outlives_the_main_thread_reads_fills_flushes_and_exports(
    place: str, opening: str, tmp_path: Path
) -> None:
    printed = ended(_BEGIN + _LATE + opening, place, tmp_path)
    assert (len(printed), printed[-1]) == (16 + 4 + 1 + 1, "done")
    assert computed_again("0:16, 0:16", place, tmp_path) == []
    assert computed_again("16:18, 0:4", place, tmp_path) == []
    truth = np.add.outer(np.arange(8) // 4, np.arange(8) // 4)
    for form in ("zarr", "npy", "png", "tif"):
        assert np.array_equal(read(tmp_path / f"out.{form}"), truth)
