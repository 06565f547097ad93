"""A prediction has the bits of one run on a Dask cluster, in shards and on threads, for a network too
whose bits depend on the size of its batch."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from infinite_tensor import InfiniteTensor, ZarrTileStore, predict
from tests.support.clusters import cluster
from tests.support.interpreters import Team

SHAPE, SIDE, STRIDE, BATCH = (3, 90, 117), 16, 8, 4
WINDOWS = 11 * 14
"""They begin every 8 pixels, until one reaches the end."""
TILE = 24
"""Nine windows begin in a tile: whoever computes one tile has one window left after two batches."""
CHANNELS = 5


class Net(nn.Module):
    """Mixes all pixels of a window, and notes for each call the process and the first pixels of the windows."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, CHANNELS, 3, padding=1))
            self.mix = nn.Linear(CHANNELS * SIDE**2, CHANNELS * SIDE**2)
        self.log = log

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The scores of each pixel."""
        with self.log.open("a") as log:
            log.write(" ".join(map(str, (os.getpid(), *batch[:, 0, 0, 0].tolist()))) + "\n")
        scores: torch.Tensor = self.mix(self.layers(batch).flatten(1)).unflatten(1, (CHANNELS, SIDE, SIDE))
        return scores


def image() -> torch.Tensor:
    """Pixels of which no two are alike in a channel, so that the first one tells a window."""
    count = SHAPE[1] * SHAPE[2]
    orders = [torch.randperm(count, generator=torch.Generator().manual_seed(seed)) for seed in range(SHAPE[0])]
    return torch.stack(orders).reshape(SHAPE) / count


def fill(log: Path, path: Path, options: dict[str, Any]) -> None:
    """A run, or the part of one that `options` say."""
    with ZarrTileStore(path, tile_size=TILE) as store:
        predict(Net(log), image(), store, window=(SIDE, SIDE), overlap=0.5, progress=False, **options)


@dataclass(frozen=True)
class Calls:
    """What a log tells.

    Attributes
    ----------
    sizes : set of int
        Of all batches.
    processes : dict of str to Counter
        How often each of some processes computed each window, the copies in a batch not counted.
    """

    sizes: set[int]
    processes: dict[str, Counter[str]]

    @classmethod
    def of(cls, log: Path) -> Calls:
        sizes, processes = set[int](), dict[str, Counter[str]]()
        for process, *windows in map(str.split, log.read_text().splitlines()):
            sizes.add(len(windows))
            if process not in processes and len({*windows}) == 1:
                # The call that shows whether a window depends on its batch.
                windows.clear()
            processes.setdefault(process, Counter()).update({*windows})
        return cls(sizes, processes)

    @property
    def windows(self) -> Counter[str]:
        """How often each was computed by anybody."""
        return sum(self.processes.values(), Counter())


# One thread, as in the other processes: networks may round otherwise on several threads of torch.
@pytest.fixture(autouse=True)
def _the_size_of_a_batch_matters(one_thread: None, tmp_path: Path) -> None:  # noqa: ARG001
    net = Net(tmp_path / "tried").eval()
    windows = image().unfold(1, SIDE, STRIDE).unfold(2, SIDE, STRIDE)[:, 0, :BATCH].movedim(0, 1)
    with torch.inference_mode():
        together, alone = net(windows), torch.cat([net(window.unsqueeze(0)) for window in windows])
    torch.testing.assert_close(together, alone)
    if torch.equal(together, alone):
        pytest.skip("on this machine the network gives the same bits alone and in a batch of four")


def check(log: Path, path: Path, tmp_path: Path) -> Calls:
    """Hold what is stored against one run, and all calls against what is promised of each; these calls."""
    fill(tmp_path / "one", tmp_path / "one.zarr", {})
    one = Calls.of(tmp_path / "one")
    assert (one.sizes, len(one.windows), {*one.windows.values()}) == ({BATCH}, WINDOWS, {1})
    calls = Calls.of(log)
    with ZarrTileStore(path, mode="r") as store, ZarrTileStore(tmp_path / "one.zarr", mode="r") as truth:
        found, expected = (each.open("prediction") for each in (store, truth))
        assert isinstance(found, InfiniteTensor)
        assert isinstance(expected, InfiniteTensor)
        # It is opened without `f`: all of it is stored.
        assert torch.equal(found[...], expected[...])
    assert calls.sizes == {BATCH}
    assert {*calls.windows} == {*one.windows}
    return calls


def test_on_a_cluster(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "store.zarr"
    with cluster() as client:
        client.run(torch.set_num_threads, 1)
        fill(log, path, {"client": client})
    calls = check(log, path, tmp_path)
    assert len(calls.processes) == 3
    # The first batch tells this process what to expect; workers compute its windows again.
    assert calls.processes.pop(str(os.getpid())).total() == BATCH
    # Those on the border of shards of one tile are computed by each of these.
    assert calls.windows.total() < 2.5 * WINDOWS


def test_in_shards_of_several_processes(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "store.zarr"
    with Team(3) as team:
        team.together(*((fill, log, path, {"shard": (rank, 3)}) for rank in range(3)))
    calls = check(log, path, tmp_path)
    assert len(calls.processes) == 3
    # Those on the border of two shards may be computed by both.
    assert all({*windows.values()} == {1} for windows in calls.processes.values())
    assert calls.windows.total() < 1.5 * WINDOWS


def test_on_threads(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "store.zarr"
    fill(log, path, {"workers": 2})
    assert {*check(log, path, tmp_path).windows.values()} == {1}
