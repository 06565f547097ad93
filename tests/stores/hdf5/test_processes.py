"""HDF5 gives a file to one process at a time: a store and a program that writes into the same file take turns."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest

from infinite_tensor import HDF5TileStore, StoreError
from tests.stores.hdf5.files import EXPECTED, make_theirs, pixels, theirs
from tests.support.interpreters import QUIET_FORKS, Team
from tests.support.stores import sample

_kept: list[Any] = []


def write_setting(path: Path) -> None:
    with h5py.File(path, "r+") as h5:
        h5.attrs["SETTINGS"] = "changed"


def keep_open(path: Path, mode: Any) -> None:
    _kept.append(h5py.File(path, mode))


def test_nobody_else_writes_while_a_store_is_open(tmp_path: Path) -> None:
    path = tmp_path / "world.h5"
    make_theirs(path)
    before = theirs(path)
    with Team(1) as team:
        with HDF5TileStore(path, tile_size=8) as store:
            with pytest.raises(BlockingIOError, match="unable to lock file"):
                team.members[0].call(write_setting, path)
            assert pixels(store) == EXPECTED
        assert theirs(path) == before
        team.members[0].call(write_setting, path)
    with HDF5TileStore(path, "r", tile_size=8) as store:
        assert pixels(store) == EXPECTED
    assert theirs(path) == before | {"@SETTINGS": "changed"}


@pytest.mark.parametrize("theirs_in", ["r", "r+"])
@pytest.mark.parametrize("mode", ["a", "r+", "w"])
def test_a_file_that_another_process_has_open_is_refused_and_left_alone(
    mode: Any, theirs_in: str, tmp_path: Path
) -> None:
    path = tmp_path / "world.h5"
    make_theirs(path)
    with Team(1) as team:
        team.members[0].call(keep_open, path, theirs_in)
        before = path.read_bytes()
        with pytest.raises(StoreError, match="is open in another process, but HDF5 allows one at a time"):
            HDF5TileStore(path, mode)
        assert path.read_bytes() == before


class Unlocked(h5py.File):  # type: ignore[misc]
    """A file as h5py opens it under HDF5_USE_FILE_LOCKING=FALSE, which HDF5 reads only once."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"locking": False})


def open_unlocked(path: Path, mode: Any) -> None:
    h5py.File = Unlocked
    with HDF5TileStore(path, mode, tile_size=8) as store:
        pixels(store)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("mode", ["r", "a", "w"])
def test_a_store_is_locked_where_hdf5_is_told_not_to_lock(
    mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "world.h5"
    monkeypatch.setattr(h5py, "File", Unlocked)
    with Team(1) as team:
        with HDF5TileStore(path, tile_size=8) as store:
            pixels(store)
            # A process that has inherited the open file keeps nobody out.
            child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
            child.start()
            with pytest.raises(StoreError, match="is open in another process"):
                team.members[0].call(open_unlocked, path, mode)
        team.members[0].call(open_unlocked, path, mode)
        child.kill()
        with HDF5TileStore(path, "r", tile_size=8) as store:
            team.members[0].call(open_unlocked, path, "r")
            assert pixels(store) == EXPECTED


ENDS = {
    "closes": "store.close()",
    "drops": "del t, store",
    "exits": "sys.exit()",
    "is killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("last", sample(["flush", "close"], "close"))
@pytest.mark.parametrize("end", sample(ENDS, "exits"))
def test_what_is_flushed_after_a_fork_stays_however_the_child_ends(end: str, last: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORKING.replace("END", ENDS[end]).replace("LAST", last), encoding="utf-8")
    # To end as an interpreter does, HDF5 has to be one's own.
    command = [sys.executable, *QUIET_FORKS, str(script), str(tmp_path / "s.h5")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("whole\n", "", 0)


FORKING = """
import os
import sys

import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, TensorWindow

store = HDF5TileStore(sys.argv[1], tile_size=8)
def ones(tensor_id):
    window = TensorWindow((8,))
    return InfiniteTensor((None,), lambda ctx: torch.ones(8), window, tile_store=store, tensor_id=tensor_id)

t, cleared = ones("t"), ones("cleared")
t[0:800]
cleared[0:800]
# Written, and in HDF5's own memory still.
store._contents.tiles.flush()
store.clear_tensor("cleared")
reads, writes = os.pipe()
child = os.fork()
if not child:
    os.read(reads, 1)
    END
    os._exit(0)
t[800:16000]
store.LAST()
os.write(writes, b"-")
os.waitpid(child, 0)
store.close()
with HDF5TileStore(sys.argv[1], "r") as store:
    assert store.verify("t") == []
    assert store.open("t")[0:16000].sum() == 16000
print("whole")
"""


WRITING = """
import os, sys, threading
import torch
from infinite_tensor import HDF5TileStore, noise

with HDF5TileStore(sys.argv[1], tile_size=8) as store:
    t = noise((None, None), seed=1).map(torch.neg, store=store, tensor_id="t")

    def write():
        for i in range(30):
            t[64 * i : 64 * i + 64, 0:64]
            store.flush()

    writing = threading.Thread(target=write)
    writing.start()
    while writing.is_alive():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_a_process_forks_while_another_thread_writes(tmp_path: Path) -> None:
    # In a process of its own, where nothing has imported h5py before the store does.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WRITING, str(tmp_path / "t.h5")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
