"""kill -9 in the middle of a masked fill: what is known of tiles that the mask takes is kept, and of no others."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from infinite_tensor import InfiniteTensor, Mask, MemoryTileStore, TensorWindow, ZarrTileStore, sl
from tests.durability.crash.victims import Called, Flushed
from tests.durability.crash.witness import Witness
from tests.support.counting import Constant, Counted
from tests.support.files_of_a_store import Files
from tests.support.interpreters import enter_child
from tests.support.reference import Index, same_bits
from tests.support.stores import sample

TILE = 8
REGION = sl[0:48, 0:48]
WANTED = np.random.default_rng(3).random((6, 6)) < 0.4
WHERE = Mask(WANTED, scale=TILE)


def made(store: ZarrTileStore | MemoryTileStore, f: Counted) -> InfiniteTensor:
    window = TensorWindow((8, 8), stride=4, offset=-2)
    return InfiniteTensor((None, None), f, window, tile_store=store, tensor_id="t", blend="gaussian")


def fill_until_killed(sending: Connection, path: Path, calls: int) -> None:
    """Fill with the mask; before one more window is computed than `calls`, all is stored, and the process killed."""
    enter_child()
    store = ZarrTileStore(path, tile_size=TILE)
    beside = InfiniteTensor((None, None), Constant(), TensorWindow((4, 4)))

    def told(ctx: Index) -> None:
        if len(f.calls) > calls:
            # A read from within hands over what has been computed.
            _ = beside[0:4, 0:4]
            store.flush()
            sending.send(Flushed())
            os.kill(os.getpid(), signal.SIGKILL)
        sending.send(Called((0, ctx)))

    f = Counted(Constant((8, 8)), told)
    made(store, f).fill(REGION, where=WHERE, progress=False)


@pytest.mark.parametrize("calls", sample([1, 10, 30, 60], 10, 60))
def test_a_masked_fill_goes_on_after_a_kill_and_nothing_is_left_beside_it(tmp_path: Path, calls: int) -> None:
    path = tmp_path / "store"
    witness = Witness(path)
    assert witness.see(fill_until_killed, calls) == -signal.SIGKILL
    flushed = [ctx for _, ctx in witness.flushed]
    found = Files(path).tensors["t"]
    origin = [n // TILE for n in found.definition["origin"]]
    taken = {"/".join(str(i + n) for i, n in zip(tile, origin, strict=True)) for tile in np.argwhere(WANTED)}
    assert found.logs
    assert found.logs | found.chunks <= taken
    with ZarrTileStore(path) as store:
        f = Counted(Constant((8, 8)))
        t = made(store, f)
        t.fill(REGION, where=WHERE, progress=False)
        assert len(flushed) == calls
        assert f.counts.keys().isdisjoint(flushed)
        info = store.tensor_info("t")
        assert (info.tiles_complete, info.tiles_partial) == (int(WANTED.sum()), 0)
        assert same_bits(t[REGION], made(MemoryTileStore(), f)[REGION])
    assert Files(path).leavings == []
