"""Datasets of patches in the workers of a `DataLoader`, which share a Zarr store."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from infinite_tensor import (
    GridDataset,
    InfiniteTensor,
    PatchDataset,
    TensorWindow,
    ZarrTileStore,
    open_store,
    sl,
)
from infinite_tensor.support.exit import flush_at_termination
from infinite_tensor_stores.zarr.tensor import ZarrTensor
from tests.support.building import built
from tests.support.interpreters import CONTEXT
from tests.support.reference import Index

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    # Later Pythons warn of every fork of a process with threads, which this is about.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

LIMIT = 60.0
ROOT = Path(__file__).parents[2]
REGION = sl[-32:96, 0:128]
WINDOWS_OVERLAP = TensorWindow((16, 16), stride=(8, 8))


class Logged:
    """Tells windows apart, and writes each call to a file of its process in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, ctx: Index) -> torch.Tensor:
        with (self.folder / str(os.getpid())).open("a") as log:
            log.write(f"{ctx}\n")
        return torch.full((16, 16), 100.0 * ctx[0] + ctx[1])

    def calls(self) -> dict[int, Counter[str]]:
        """How often each window was computed, by process."""
        return {int(log.name): Counter(log.read_text().splitlines()) for log in self.folder.iterdir()}

    def forget(self) -> None:
        for log in self.folder.iterdir():
            log.unlink()


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """h5py takes a lock before a fork that it also takes to collect its objects: on another thread, that may hang."""
    gc.collect()


@pytest.fixture
def f(tmp_path: Path) -> Logged:
    return Logged(tmp_path / "calls")


@pytest.fixture
def expected(tmp_path: Path) -> InfiniteTensor:
    return built(Logged(tmp_path / "expected"), WINDOWS_OVERLAP)


def stored(folder: Path, f: Logged, **options: Any) -> InfiniteTensor:
    store = ZarrTileStore(folder / "s.zarr", tile_size=32, **options)
    return built(f, WINDOWS_OVERLAP, store=store, name="t")


class Numbered(Dataset[tuple[int, torch.Tensor]]):
    """Items beside their index, so that it is known in any order."""

    def __init__(self, patches: GridDataset[Any] | PatchDataset[Any]) -> None:
        self.patches = patches

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor]:
        return i, self.patches[i]

    def __getitems__(self, indices: list[int]) -> list[tuple[int, torch.Tensor]]:
        return list(zip(indices, self.patches.__getitems__(indices), strict=True))


def loaded(
    patches: GridDataset[Any] | PatchDataset[Any], method: str | BaseContext, **options: Any
) -> dict[int, torch.Tensor]:
    """All items of an epoch by their index, read by two workers."""
    loader = DataLoader(
        Numbered(patches), batch_size=7, num_workers=2, multiprocessing_context=method, shuffle=True, **options
    )
    items = [item for numbers, patch in loader for item in zip(numbers.tolist(), patch, strict=True)]
    assert len(items) == len(patches)
    return dict(items)


def on_a_grid(t: InfiniteTensor) -> GridDataset[Any]:
    return GridDataset(t, 24, 8, REGION)


def at_random(t: InfiniteTensor) -> PatchDataset[Any]:
    return PatchDataset(t, (16, 24), REGION, seed=4, length=50)


@pytest.mark.parametrize(
    ("make", "method", "kind"),
    [
        (on_a_grid, "fork", "zarr"),
        (on_a_grid, "fork", "h5"),
        (at_random, "fork", "zarr"),
        pytest.param(at_random, CONTEXT, "zarr", id="at_random-forkserver"),
    ],
)
def test_workers_read_what_was_filled_and_compute_nothing(
    make: Callable[[InfiniteTensor], GridDataset[Any] | PatchDataset[Any]],
    method: str | BaseContext,
    kind: str,
    tmp_path: Path,
    f: Logged,
    expected: InfiniteTensor,
) -> None:
    t = built(f, WINDOWS_OVERLAP, store=open_store(tmp_path / f"s.{kind}", tile_size=32), name="t")
    t.fill(REGION)
    f.forget()
    patches = make(t)
    items = loaded(patches, method)
    assert sorted(items) == list(range(len(patches)))
    assert f.calls() == {}
    assert all(torch.equal(patch, expected[patches.region(i)]) for i, patch in items.items())
    t.tile_store.close()


@pytest.mark.parametrize("method", ["fork", pytest.param(CONTEXT, id="forkserver")])
def test_each_worker_computes_a_window_once_and_what_it_computed_is_stored_after_the_epoch(
    method: str | BaseContext, tmp_path: Path, f: Logged, expected: InfiniteTensor
) -> None:
    # Tiles become complete only where all of their windows are needed: most of this is kept in partial ones.
    patches = PatchDataset(stored(tmp_path, f), 8, REGION, length=60)
    items = loaded(patches, method)
    assert all(torch.equal(patch, expected[patches.region(i)]) for i, patch in items.items())
    calls = f.calls()
    assert len(calls) == 2
    assert os.getpid() not in calls
    assert all(set(counts.values()) == {1} for counts in calls.values())
    f.forget()

    again = PatchDataset(stored(tmp_path, f), 8, REGION, length=60)
    for i, patch in enumerate(again.__getitems__(range(60))):
        assert torch.equal(patch, items[i])
    assert f.calls() == {}


def test_workers_that_live_on_share_what_the_others_have_stored(tmp_path: Path, f: Logged) -> None:
    # A window fills a tile, so it is stored at once, not only when its worker ends.
    store = ZarrTileStore(tmp_path / "s.zarr", tile_size=16)
    t = built(f, (16, 16), store=store, name="t")
    loader = DataLoader(GridDataset(t, 16, region=sl[0:64, 0:64]), num_workers=2, persistent_workers=True)
    first = list(loader)
    assert sum(sum(counts.values()) for counts in f.calls().values()) == 16
    ahead = {patch.mean().item() for patch in first}
    assert {patch.mean().item() for patch in loader} == ahead
    assert sum(sum(counts.values()) for counts in f.calls().values()) == 16


SCRIPT = """
import sys
from pathlib import Path
from torch.utils.data import DataLoader
from tests.behaviour.test_data_loaders import Logged, REGION, stored
from infinite_tensor import PatchDataset
folder = Path(sys.argv[1])
patches = PatchDataset(stored(folder, Logged(folder / "calls")), 8, REGION, length=60)
loader = DataLoader(patches, batch_size=6, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
for batch in loader:
    pass
"""


def test_workers_that_a_script_leaves_behind_have_stored_what_they_handed_out(tmp_path: Path, f: Logged) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f.calls()
    f.forget()
    PatchDataset(stored(tmp_path, f), 8, REGION, length=60).__getitems__(range(60))
    assert f.calls() == {}


def test_a_handler_that_is_there_already_is_left_in_place() -> None:
    def own(_number: int, _frame: FrameType | None) -> None: ...

    before = signal.signal(signal.SIGTERM, own)
    try:
        flush_at_termination()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_than_the_main_one_sets_no_handler() -> None:
    thread = threading.Thread(target=flush_at_termination)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_process_that_a_worker_forks_can_be_terminated() -> None:
    worker = os.fork()
    if not worker:
        flush_at_termination()
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            os.write(writes, b"ready")
            threading.Event().wait(LIMIT)
            os._exit(1)
        # A signal that comes before the child runs Python is lost.
        os.read(reads, 5)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        os._exit(0 if os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM else 1)
    assert os.waitpid(worker, 0)[1] == 0


def test_a_child_waits_for_no_writer_of_its_parent(tmp_path: Path, f: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, go_on = threading.Event(), threading.Event()
    write = ZarrTensor.write_partials

    def held(*given: Any) -> None:
        writing.set()
        assert go_on.wait(LIMIT)
        write(*given)

    monkeypatch.setattr(ZarrTensor, "write_partials", held)
    t = stored(tmp_path, f)
    t[0:8, 0:8]
    del t
    gc.collect()
    assert writing.wait(LIMIT)
    child = multiprocessing.get_context("fork").Process(target=int, daemon=True)
    child.start()
    child.join(10)
    ended = not child.is_alive()
    child.kill()
    go_on.set()
    assert ended


@pytest.mark.parametrize("world_size", [2, 3])
def test_shares_of_a_distributed_sampler_are_disjoint_and_complete(world_size: int, tmp_path: Path, f: Logged) -> None:
    patches = GridDataset(stored(tmp_path, f), 16, region=sl[0:96, 0:96])
    assert len(patches) == 36
    corners = Counter[tuple[int, int]]()
    for rank in range(world_size):
        sampler: DistributedSampler[torch.Tensor] = DistributedSampler(patches, world_size, rank, seed=1)
        for batch in DataLoader(Numbered(patches), batch_size=5, sampler=sampler):
            for i, patch in zip(batch[0].tolist(), batch[1], strict=True):
                assert torch.equal(patch, patches[i])
                rows, columns = patches.region(i)
                corners[rows.start, columns.start] += 1
    assert corners == Counter((y, x) for y in range(0, 96, 16) for x in range(0, 96, 16))
