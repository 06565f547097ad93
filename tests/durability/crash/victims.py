"""What the processes do that are going to be killed. Each tells its parent what it does."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from infinite_tensor import InfiniteTensor, TensorGroup, TensorWindow, ZarrTileStore
from tests.support.chain import MAP, NAMES, STAGES, TILE, Chain, Window, open_chain_store, random_box
from tests.support.interpreters import enter_child
from tests.support.moments import Kill
from tests.support.reference import Index, region


@dataclass(frozen=True)
class Called:
    """A window is about to be computed."""

    window: Window


@dataclass(frozen=True)
class Flushed:
    """A flush has returned: whatever was computed before is stored."""


@dataclass(frozen=True)
class Clearing:
    """A stage is about to be cleared."""

    stage: int


@dataclass(frozen=True)
class Idle:
    """Everything is stored, and nothing happens any more."""


@dataclass(frozen=True)
class Done:
    """The end, after so many changes to the folder of the store."""

    changes: int


def fill_at_random(sending: Connection, path: Path, seed: int) -> None:
    """Read regions all over the chain, and flush now and then, for ever."""
    enter_child()
    rng = random.Random(seed)  # noqa: S311
    store = open_chain_store(path, **_random_options(rng))
    chain = Chain(store, lambda window: sending.send(Called(window)))
    while True:
        _read_at_random(chain, rng)
        if rng.random() < 0.5:
            store.flush()
            sending.send(Flushed())


def fill_and_idle(sending: Connection, path: Path, seed: int) -> None:
    """Read some regions all over the chain, flush, and wait to be killed."""
    enter_child()
    rng = random.Random(seed)  # noqa: S311
    store = open_chain_store(path, **_random_options(rng))
    chain = Chain(store, lambda window: sending.send(Called(window)))
    for _ in range(rng.randint(1, 8)):
        _read_at_random(chain, rng)
    store.flush()
    sending.send(Flushed())
    sending.send(Idle())
    threading.Event().wait()


def _read_at_random(chain: Chain, rng: random.Random) -> None:
    stage = rng.randrange(len(STAGES))
    _ = chain.tensors[stage][region(random_box(rng, stage))]


def _random_options(rng: random.Random) -> dict[str, Any]:
    """Limits that make tiles go to storage early, late, and again and again."""
    return {"cache_size_tiles": rng.choice([None, 2, 20]), "flush_interval": rng.choice([0.0, 0.02, 30.0])}


def do_everything(sending: Connection, path: Path, kill: Kill) -> None:
    """Do, one after the other, all that changes a store, the same every time, unless killed before."""
    enter_child()
    changes = kill.arm(path)

    def read(tensor: InfiniteTensor, *pixels: slice) -> None:
        _ = tensor[pixels]
        store.flush()
        sending.send(Flushed())

    store = open_chain_store(path)
    chain = Chain(store, lambda window: sending.send(Called(window)))
    ground, _, chart, haze, _ = chain.tensors
    # Logs of partial tiles begin, grow and are finished.
    for end in (3, 6, 9, 15):
        read(ground, slice(0, 9), slice(0, end))
    read(chart, slice(None), slice(-6, 6), slice(-3, 6))
    for end in (3, 9, 15):
        read(haze, slice(None), slice(0, end))
    sending.send(Clearing(MAP))
    store.clear_tensor(NAMES[MAP])
    read(chain.made(MAP), slice(None), slice(-3, 9), slice(0, 9))
    store.gc()
    store.close()
    sending.send(Done(changes()))


def collect_garbage(sending: Connection, path: Path, kill: Kill) -> None:
    """Clean a store up, unless killed before."""
    enter_child()
    changes = kill.arm(path)
    with open_chain_store(path) as store:
        store.gc()
    sending.send(Done(changes()))


def create_all(path: Path, kill: Kill) -> None:
    """Create a store with a tensor and a group in it, unless killed before."""
    enter_child()
    kill.arm(path)
    with ZarrTileStore(path, tile_size=TILE) as store:
        TensorGroup({"t": zeros_in(store)}).save(store, "g")


def zeros_in(store: ZarrTileStore) -> InfiniteTensor:
    """A tensor of overlapping windows."""
    return InfiniteTensor((None, None), _zeros, TensorWindow((4, 4), stride=3), tile_store=store, tensor_id="t")


def empty(path: Path, kill: Kill) -> None:
    """Open a store in mode 'w', unless killed before."""
    enter_child()
    kill.arm(path)
    ZarrTileStore(path, mode="w").close()


def _zeros(_ctx: Index) -> torch.Tensor:
    return torch.zeros(4, 4)
