"""What is filled, by whom, where to, and what things cost there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore
from infinite_tensor_stores.zarr_objects import DEFAULT_CONCURRENCY

Function: TypeAlias = Callable[..., torch.Tensor]

_DTYPES = {1: torch.uint8, 2: torch.float16, 4: torch.float32, 8: torch.float64}


@dataclass(frozen=True)
class Work:
    """What is filled: a square of a chain in which each tensor reads the one before it.

    Attributes
    ----------
    side, tile, window, stride, halo : int
        In pixels per dimension; each window reads `halo` pixels more than it writes on every side.
    depth : int
        How many tensors.
    itemsize : int
        Bytes of a pixel.
    ratio : float
        How many times smaller compression makes a tile.
    call_seconds : float
        What one call of ``f`` takes.
    on_cpu : bool
        Whether ``f`` keeps a core busy.
    stored : bool
        Whether tensors upstream are stored as well, or kept in memory by whoever computes them.
    """

    side: int
    tile: int = 512
    window: int = 512
    stride: int = 512
    halo: int = 0
    depth: int = 1
    itemsize: int = 4
    ratio: float = 1.1
    call_seconds: float = 0.0
    on_cpu: bool = True
    stored: bool = True

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile, not compressed."""
        return self.tile**2 * self.itemsize

    @property
    def shares_tiles(self) -> bool:
        """Whether a tile takes several windows, so that it may be stored in part."""
        return self.window > self.stride or self.stride != self.tile

    @property
    def spills(self) -> bool:
        """Whether windows reach beyond the tile that they begin in."""
        return self.window > self.stride or self.tile % self.stride > 0


@dataclass(frozen=True)
class Costs:
    """What this library takes on a machine, in seconds; nothing of it waits for anything but a core.

    Attributes
    ----------
    window, arg, tile : float
        Around a call of ``f``, per arg that it reads, and per tile that is begun: on the thread that runs ``f``.
    byte : float
        Per byte of a window that is copied into tiles or out of them, on the same thread.
    store, encode : float
        Per tile that is looked up and stored, and per byte of it, in the background.
    fetch, decode : float
        Per tile that is read back, and per byte of it.
    """

    window: float = 7e-6
    arg: float = 20e-6
    tile: float = 40e-6
    byte: float = 0.6e-9
    store: float = 400e-6
    encode: float = 3e-9
    fetch: float = 250e-6
    decode: float = 1.2e-9


@dataclass(frozen=True)
class Storage:
    """Where tiles go.

    Attributes
    ----------
    latency : float
        Seconds that a request takes beside its bytes.
    bandwidth : float
        Bytes per second and process.
    puts, gets : float
        Requests per second that a prefix takes.
    prefixes : int
        Over how many the keys of a tensor are spread by now.
    concurrency : int
        Requests of one call that are under way at a time.
    listing : float
        Seconds that it takes to list 1,000 keys.
    """

    latency: float = 0.0
    bandwidth: float = math.inf
    puts: float = math.inf
    gets: float = math.inf
    prefixes: int = 1
    concurrency: int = DEFAULT_CONCURRENCY
    listing: float = 0.0

    def rounds(self, requests: float) -> float:
        """Seconds to wait for the answers of one call."""
        return math.ceil(requests / self.concurrency) * self.latency


@dataclass(frozen=True)
class Fleet:
    """Who fills.

    Attributes
    ----------
    how : str
        "shards": each process a share of the region, one process the whole; "cluster": tasks, tensor by tensor.
    processes, threads, cores : int
        Processes, and threads that run ``f`` and cores in each.
    task_seconds : float
        What the scheduler of a cluster takes for a task.
    """

    how: Literal["shards", "cluster"] = "shards"
    processes: int = 1
    threads: int = 1
    cores: int = 2
    task_seconds: float = 0.001


def chain(work: Work, store: TileStore, f: Function | None = None) -> list[InfiniteTensor]:
    """The tensors that `work` means, sources first."""
    out = TensorWindow((work.window, work.window), stride=work.stride)
    size = work.window + 2 * work.halo
    reads = TensorWindow((size, size), stride=work.stride, offset=-work.halo)
    tensors: list[InfiniteTensor] = []
    for number in range(work.depth):
        kept = work.stored or number == work.depth - 1
        tensors.append(
            InfiniteTensor(
                (None, None),
                f or _never_called,
                out,
                dtype=_DTYPES[work.itemsize],
                args=tensors[-1:],
                args_windows=[reads] if tensors else [],
                tile_store=store if kept else None,
                tensor_id=f"t{number}" if kept else None,
            )
        )
    return tensors


def _never_called(*_args: object) -> torch.Tensor:
    raise AssertionError("a plan computes nothing")
