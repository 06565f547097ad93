"""What the processes do that are killed while they drop what is wrong."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.durability.crash.victims import Done
from tests.support.interpreters import enter_child
from tests.support.kills import Kill

END = 24
WRONG = slice(5, 17)


def build(store: ZarrTileStore, number: Path) -> list[InfiniteTensor]:
    """`ground` is the number in a file everywhere; each of the next two is one more than the one before."""
    window = TensorWindow((3,), stride=2)

    def read(_ctx: tuple[int, ...]) -> torch.Tensor:
        return torch.full((3,), float(number.read_text()))

    def add(_ctx: tuple[int, ...], region: torch.Tensor) -> torch.Tensor:
        return region + 1

    tensors = [
        InfiniteTensor(
            (None,), read, window, tile_store=store, tensor_id="ground", blend=torch.maximum, blend_init=float("-inf")
        )
    ]
    for name in ("mid", "top"):
        tensors.append(
            InfiniteTensor(
                (None,), add, TensorWindow((5,)), tensors[-1:], [TensorWindow((5,))], tile_store=store, tensor_id=name
            )
        )
    return tensors


def open_tiles(path: Path) -> ZarrTileStore:
    """The store of the three."""
    return ZarrTileStore(path, tile_size=4)


def invalidate(sending: Connection, path: Path, kill: Kill) -> None:
    """Drop a part of `ground` and what is downstream, unless killed before."""
    enter_child()
    changes = kill.arm(path)
    with open_tiles(path) as store:
        build(store, path.parent / "number")[0].invalidate(WRONG)
    sending.send(Done(changes()))
