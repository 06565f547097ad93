"""A chain of tensors that tells who computes what, and a Dask cluster of processes to fill it on."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from distributed import Client, LocalCluster

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore

_LOG = "computed"


def chain(store: TileStore, folder: Path, depth: int = 3) -> InfiniteTensor:
    """Tensors with halos and windows that overlap; each window that is computed leaves a line in a file."""
    window = TensorWindow((16, 16), stride=(12, 12))
    halo = TensorWindow((20, 20), stride=12, offset=-2)
    t = InfiniteTensor((None, None), _noted(folder, 0), window, tile_store=store, tensor_id="level-0")
    for number in range(1, depth):
        t = InfiniteTensor(
            (None, None),
            _noted(folder, number),
            window,
            args=[t],
            args_windows=[halo],
            tile_store=store,
            tensor_id=f"level-{number}",
        )
    return t


def _noted(folder: Path, number: int) -> Callable[..., torch.Tensor]:
    # A function within a function: it is sent by its code.
    def f(ctx: tuple[int, ...], *regions: torch.Tensor) -> torch.Tensor:
        with (folder / f"{_LOG}-{number}").open("a") as log:
            log.write(f"{ctx}\n")
        if not regions:
            return torch.arange(256.0).reshape(16, 16) + 100 * ctx[0] + ctx[1]
        return regions[0][2:-2, 2:-2] + regions[0][4:, :-4]

    return f


def computed(folder: Path, depth: int = 3) -> list[Counter[str]]:
    """How often each window has been computed, per tensor."""
    logs = (folder / f"{_LOG}-{number}" for number in range(depth))
    return [Counter(log.read_text().splitlines()) if log.exists() else Counter() for log in logs]


@contextmanager
def cluster() -> Iterator[Client]:
    """Two worker processes on this machine."""
    address = {"host": "127.0.0.1", "scheduler_port": 0, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, **address) as nodes, Client(nodes) as client:
        yield client


@contextmanager
def one_worker_killed(client: Client, folder: Path, after: int) -> Iterator[None]:
    """Kill a worker process when so many windows of the last tensor have been computed."""
    victim = next(iter(client.run(os.getpid).values()))
    killed, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            if computed(folder)[-1].total() >= after:
                os.kill(victim, signal.SIGKILL)
                killed.set()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert killed.is_set()
