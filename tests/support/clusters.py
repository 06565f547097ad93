"""A chain of tensors that tells who computes what, and a Dask cluster of processes to fill it on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import dask
import torch
from distributed import Client, LocalCluster

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore
from tests.support.interpreters import CONTEXT

_LOG = "computed"
_MET = "met"


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


def with_ends(store: TileStore, folder: Path) -> InfiniteTensor:
    """A weighted mean of clipped windows, which read beyond the ends of another tensor; it notes its windows too."""
    window = TensorWindow((16, 16), stride=(12, 12))
    shape = (70, 90)
    image = InfiniteTensor(shape, _noted(folder, 0), window, tile_store=store, tensor_id="level-0", edge="clip")
    return InfiniteTensor(
        shape,
        _noted(folder, 1),
        window,
        args=[image],
        args_windows=[window.padded(2)],
        args_padding=[("wrap", "reflect")],
        edge="clip",
        blend="hann",
        tile_store=store,
        tensor_id="level-1",
    )


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
def cluster(workers: int = 2) -> Iterator[Client]:
    """Worker processes on this machine, of one thread each."""
    address = {"host": "127.0.0.1", "scheduler_port": 0, "dashboard_address": "127.0.0.1:0"}
    # Forked by the server of the tests, where everything has been imported.
    ensure_running()
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": CONTEXT.get_start_method()}),
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, **address) as nodes,
        Client(nodes) as client,
    ):
        yield client


@contextmanager
def more_workers(client: Client, folder: Path, workers: int) -> Iterator[None]:
    """Have so many workers once the first of them has begun with a window; see `meeting`."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            if list(folder.glob(f"{_MET}-*")):
                assert client.cluster is not None
                client.cluster.scale(workers)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def meeting(folder: Path, workers: int) -> Callable[..., torch.Tensor]:
    """An ``f`` that waits until as many workers are in it, in vain after a minute; windows of 16x16 pixels."""

    def f(_ctx: tuple[int, ...]) -> torch.Tensor:
        (folder / f"{_MET}-{os.getpid()}").touch()
        deadline = time.monotonic() + 60
        while len(list(folder.glob(f"{_MET}-*"))) < workers:
            if time.monotonic() > deadline:
                raise TimeoutError("some workers have been given nothing to do")
            threading.Event().wait(0.02)
        return torch.ones(16, 16)

    return f


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
