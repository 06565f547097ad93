"""What the processes do that are killed while they fill, save and export a group."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from tensordict import TensorDict

from infinite_tensor import (
    FunctionChangedWarning,
    InfiniteTensor,
    Output,
    TensorGroup,
    TensorWindow,
    TileStore,
    ZarrTileStore,
    sl,
)
from tests.durability.crash.victims import Called, Done, Flushed
from tests.support.interpreters import enter_child
from tests.support.kills import Kill

OUTPUTS = {
    "rgb": Output(
        (3, None, None), torch.float32, TensorWindow((3, 6, 6), stride=(3, 4, 4), dimension_map=(None, 0, 1))
    ),
    "mask": Output((None, None), torch.bool, TensorWindow((4, 4))),
}
READ = [sl[0:8, 0:8], sl[0:8, 4:14], sl[-4:8, 0:14]]
"""What is read, with a flush after each."""
EXPORTED = [sl[0:8, 0:14], sl[0:8, 0:6]]
"""What the first export holds, and the one that takes its place."""


def build(store: TileStore, called: Callable[[tuple[int, int]], object]) -> TensorGroup:
    """An image whose windows overlap, and a mask."""

    def f(ctx: tuple[int, int]) -> TensorDict:
        called(ctx)
        picture = torch.arange(108.0).reshape(3, 6, 6) + 100 * ctx[0] + ctx[1]
        return TensorDict({"rgb": picture, "mask": picture[0, :4, :4] % 3 == 0})

    with warnings.catch_warnings():
        # What it calls differs, what it computes does not.
        warnings.simplefilter("ignore", FunctionChangedWarning)
        return InfiniteTensor.from_multi(f, OUTPUTS, tile_store=store, tensor_id="world")


def open_tiles(path: Path) -> ZarrTileStore:
    """The store of the group."""
    return ZarrTileStore(path / "store", tile_size=8)


def do_everything(sending: Connection, path: Path, kill: Kill) -> None:
    """Fill, save and export a group, the same every time, unless killed before."""
    enter_child()
    changes = kill.arm(path)
    with open_tiles(path) as store:
        group = build(store, lambda ctx: sending.send(Called((0, ctx))))
        for region in READ:
            group[region]
            store.flush()
            sending.send(Flushed())
        group.save(store, "saved")
        for region in EXPORTED:
            for name, form in (("memmap", "memmap"), ("file.h5", "h5")):
                group.save_tensordict(region, path / name, format=form, overwrite=(path / name).exists())
    sending.send(Done(changes()))
