"""kill -9 while windows are dropped: nothing that is left stands on pixels that are computed again."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.durability.crash.victims import Done
from tests.durability.crash.witness import Witness
from tests.support.interpreters import enter_child
from tests.support.moments import NEVER, Kill, before

OLD, NEW = 10.0, 20.0
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


def _filled(folder: Path) -> Witness:
    """A store that was filled before the number in the file changed. Tiles 0 to 4, and logs of some at the ends."""
    folder.mkdir(exist_ok=True)
    number = folder / "number"
    number.write_text(str(OLD))
    with open_tiles(folder / "store") as store:
        for tensor in build(store, number):
            tensor[0:END]
    number.write_text(str(NEW))
    return Witness(folder / "store")


def _see_killed(witness: Witness, kill: Kill) -> None:
    assert witness.see(invalidate, kill) == -signal.SIGKILL


@pytest.mark.parametrize("order", ["top first", "ground first"])
@pytest.mark.parametrize("name", ["top", "mid", "ground"])
@pytest.mark.parametrize("number", [1, 2])
def test_what_is_left_after_a_kill_fits_together(tmp_path: Path, name: str, number: int, order: str) -> None:
    witness = _filled(tmp_path)
    _see_killed(witness, before("os.remove", rf"^t-{name}/tiles-\w+/c/", number))
    with open_tiles(witness.path) as store:
        tensors = build(store, tmp_path / "number")
        for tensor in tensors if order == "ground first" else reversed(tensors):
            tensor[0:END]
        ground, mid, top = (tensor[0:END] for tensor in tensors)
    assert torch.equal(mid, ground + 1)
    assert torch.equal(top, mid + 1)


@pytest.mark.parametrize("name", ["top", "mid", "ground"])
def test_a_second_call_does_the_rest(tmp_path: Path, name: str) -> None:
    witness = _filled(tmp_path)
    _see_killed(witness, before("os.remove", rf"^t-{name}/tiles-\w+/c/", 2))
    with open_tiles(witness.path) as store:
        for tensor in build(store, tmp_path / "number"):
            tensor[0:END]
    assert witness.see(invalidate, NEVER) == 0
    with open_tiles(witness.path) as store:
        for above, tensor in enumerate(build(store, tmp_path / "number")):
            assert tensor[WRONG].unique().tolist() == [NEW + above]
            assert tensor[END - 1] == OLD + above
