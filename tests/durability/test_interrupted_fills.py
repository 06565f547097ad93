"""Ctrl-C in a fill: it stays a KeyboardInterrupt, and says that what is done is kept and how to continue."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorGroup, TensorWindow, TileStore, ZarrTileStore, sl
from tests.support.counting import Counted
from tests.support.interpreters import run

NOTE = r"What it has computed is kept: call fill with the same region again, and it continues from there\."
REGION = sl[0:64]


def line(store: TileStore, name: str, pressed_at: int = 0) -> tuple[InfiniteTensor, Counted]:
    """A tensor, and its ``f``; during one of its calls the user presses Ctrl-C."""

    def ones(_ctx: object) -> torch.Tensor:
        if len(f.calls) == pressed_at:
            signal.raise_signal(signal.SIGINT)
        return torch.ones(4)

    f = Counted(ones)
    return InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store, tensor_id=name), f


@pytest.mark.parametrize("kind", ["memory", "zarr"])
def test_a_fill_that_is_interrupted_says_how_to_continue_and_does(kind: str, tmp_path: Path) -> None:
    store = MemoryTileStore() if kind == "memory" else ZarrTileStore(tmp_path, tile_size=8)
    t, f = line(store, "t", pressed_at=6)
    with pytest.raises(KeyboardInterrupt, match=NOTE):
        t.fill(REGION, progress=False)
    assert len(f.calls) == 6
    t.fill(REGION, progress=False)
    assert len(f.calls) == 17  # The call that was interrupted is made again.


def test_a_group_that_is_interrupted_says_so_too(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=8)
    (a, f), (b, g) = line(store, "a", pressed_at=6), line(store, "b")
    group = TensorGroup({"a": a, "b": b})
    with pytest.raises(KeyboardInterrupt, match=NOTE):
        group.fill(REGION, progress=False)
    group.fill(REGION, progress=False)
    assert (len(f.calls), len(g.calls)) == (17, 16)


def test_an_error_of_f_has_no_such_note() -> None:
    def fails(_ctx: object) -> torch.Tensor:
        raise ArithmeticError

    t = InfiniteTensor((None,), fails, TensorWindow((4,)))
    with pytest.raises(ArithmeticError) as caught:
        t.fill(REGION, progress=False)
    assert not any("was interrupted" in note for note in caught.value.__notes__)


SCRIPT = """
import signal, sys
import torch
from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore, sl
calls = 0
def f(ctx):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        signal.raise_signal(signal.SIGINT)
    return torch.ones(4)
with ZarrTileStore(sys.argv[1], tile_size=8) as store:
    t = InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store, tensor_id="t")
    t.fill(sl[0:64])
    print(calls)
"""


def test_the_user_reads_it_below_the_traceback_and_runs_the_script_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), "6"]
    first = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert first.returncode == -signal.SIGINT
    assert "it continues from there." in first.stderr.splitlines()[-1]
    second = run("-c", SCRIPT, tmp_path / "store", 0)
    assert (second.returncode, second.stdout) == (0, "11\n")
