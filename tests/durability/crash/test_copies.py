"""kill -9 in the middle of a copy: the original is as it was, and the copy continues and becomes the same."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, StoreError, TensorWindow, ZarrTileStore, open_store, sl
from tests.durability.crash.witness import Witness
from tests.support.chain import Scrambled
from tests.support.counting import Counted
from tests.support.interpreters import enter_child
from tests.support.moments import NEVER, Kill, Moment
from tests.support.reference import same_bits
from tests.support.stores import sample

WINDOW = TensorWindow((6, 6), stride=4)
REGION = sl[-16:64, 0:64]


def made(store: Any, f: Any, name: str, *args: InfiniteTensor) -> InfiniteTensor:
    windows = [WINDOW] * len(args)
    return InfiniteTensor((None, None), f, WINDOW, args, windows, tile_store=store, tensor_id=name)


def functions() -> list[Counted]:
    return [Counted(Scrambled(number, (6, 6), torch.float32)) for number in range(2)]


def chain(store: Any, f: list[Counted]) -> InfiniteTensor:
    return made(store, f[1], "top", made(store, f[0], "below"))


def copying(sending: Connection, target: Path, arguments: tuple[Path, Kill]) -> None:
    """Copy the chain, and tell of it as it goes."""
    enter_child()
    source, kill = arguments
    kill.arm(target)
    with ZarrTileStore(source, mode="r") as store:
        sending.send("begun")
        store.copy("top", target, upstream=True, progress=lambda progress: sending.send(progress.done))


def run(source: Path, target: Path, kill: Kill = NEVER, delay: float | None = None) -> int:
    """Copy in a process; it is killed `delay` seconds after it has begun, or kills itself. Its exit code."""
    return Witness(target).see(copying, (source, kill), None if delay is None else 1, delay or 0.0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with ZarrTileStore(tmp_path / "source", tile_size=8) as store:
        chain(store, functions())[REGION]
    return tmp_path / "source"


def expected_of(source: Path) -> Any:
    with ZarrTileStore(source, mode="r") as store:
        return store.open("top")[REGION]


def check_partly_copied(source: Path, target: Path) -> None:
    """Whatever is there is right: what is missing is computed, and gives the bits of the original."""
    with open_store(target, mode="r") as store:
        # Nothing that is there is damaged, and every tensor that is there is whole in what it says of itself.
        for tensor_id in store:
            assert store.verify(tensor_id) == []
        if "top" in store:
            assert "below" in store
        assert same_bits(chain(store, functions())[REGION], expected_of(source))


def check_finished(source: Path, target: Path) -> None:
    f = functions()
    with open_store(target) as store:
        assert same_bits(chain(store, f)[REGION], expected_of(source))
        assert [each.calls for each in f] == [[], []]
        with ZarrTileStore(source, mode="r") as original:
            for name in ("below", "top"):
                found, wanted = store.tensor_info(name), original.tensor_info(name)
                assert (found.tiles_complete, found.tiles_partial) == (wanted.tiles_complete, 0)
                assert store.verify(name) == original.verify(name) == []


SOME = [
    *(Kill(Moment("", "", number)) for number in (1, 5, 30, 240)),
    *(Kill(Moment("os.rename", "", number), torn=True) for number in (2, 40)),
    Kill(Moment("os.link", "", 2), torn=True),
]
"""By default."""


@pytest.mark.parametrize(
    "kill",
    [
        *sample([Kill(Moment("", "", number)) for number in (1, 2, 3, 5, 8, 13, 30, 160, 240)], *SOME),
        *sample([Kill(Moment("os.rename", "", number), torn=True) for number in (1, 2, 3, 40)], *SOME),
        *sample([Kill(Moment("os.link", "", number), torn=True) for number in (1, 2, 3)], *SOME),
    ],
    ids=str,
)
def test_a_copy_that_dies_before_one_of_its_changes_continues(source: Path, tmp_path: Path, kill: Kill) -> None:
    target = tmp_path / "target"
    assert run(source, target, kill) == -signal.SIGKILL
    if (target / "zarr.json").exists():
        check_partly_copied(source, target)
    assert run(source, target) == 0
    check_finished(source, target)


def test_a_copy_that_is_run_again_after_a_kill_moves_only_what_is_missing(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert run(source, target, Kill(Moment("", r"t-below/tiles-.*/c/", 70))) == -signal.SIGKILL
    with ZarrTileStore(target) as store:
        there = store.tensor_info("below").tiles_complete
    assert there > 0
    with ZarrTileStore(source, mode="r") as store:
        below, _ = store.copy("top", target, upstream=True, progress=False).tensors
        assert below.there == there
        assert below.tiles == store.tensor_info("below").tiles_complete - there


def test_a_copy_into_hdf5_that_is_killed_leaves_a_file_that_is_right_or_does_not_open(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target.h5"
    for delay in (0.02, 0.05, 0.1):
        run(source, target, delay=delay)
        try:
            with open_store(target) as store:
                assert [damage for name in store for damage in store.verify(name)] == []
        except StoreError:
            target.unlink(missing_ok=True)
    assert run(source, target) == 0
    check_finished(source, target)
