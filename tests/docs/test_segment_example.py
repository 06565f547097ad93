"""The example that segments a photograph, as a user runs it: on a part, and killed three times."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

from infinite_tensor import ZarrTileStore
from tests.docs.test_examples import EXAMPLES
from tests.support.interpreters import run

WINDOWS = 11 * 8
"""Of 1024 pixels, 768 apart, over 8000 x 6000."""

TOLD = """
import functools, sys
sys.path.insert(0, sys.argv.pop(1))
import segment

class Told(segment.Segmenter):
    def forward(self, pixels):
        scores = super().forward(pixels)
        print("called", flush=True)
        return scores

segment.Segmenter = Told
segment.predict = functools.partial(segment.predict, batch_size=1)
segment.main()
"""
"""The example, with a network that tells of each window that it has computed."""


@dataclass(frozen=True)
class Ran:
    """How often a run has called the network, and how it ended."""

    calls: int
    code: int


def run_until(calls: int | None, folder: Path, *arguments: object) -> Ran:
    """Run the example, and kill it once the network has been called so often."""
    command = [sys.executable, "-c", TOLD, EXAMPLES, "--steps", 10, *arguments]
    counted = 0
    with subprocess.Popen([*map(str, command)], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            counted += line == "called\n"
            if line == "called\n" and counted == calls:
                os.kill(process.pid, signal.SIGKILL)
    return Ran(counted, process.returncode)


def missing(store: Path) -> int:
    """How many windows a process that comes later does not find."""
    with ZarrTileStore(store, mode="r") as opened:
        return opened.open("prediction").plan(...).tensors[-1].windows


def labels_in(store: Path) -> torch.Tensor:
    with ZarrTileStore(store, mode="r") as opened:
        stored: torch.Tensor = opened.open("prediction")[...]
    return stored


def test_a_part_is_segmented(tmp_path: Path) -> None:
    done = run("-c", TOLD, EXAMPLES, "--steps", 1, "--size", 1000, "--output", "part.png", cwd=tmp_path)
    # Four tiles of 768 x 768 pixels hold the part. Windows 3 to 5 from the top, 2 to 4 from the left touch these.
    assert (done.returncode, done.stdout.count("called\n")) == (0, 9)
    with Image.open(tmp_path / "part.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_three_kills_cost_no_more_than_the_windows_that_were_not_stored(tmp_path: Path) -> None:
    killed, left = list[Ran](), [WINDOWS]
    for calls in (41, 23, 17):
        killed.append(run_until(calls, tmp_path))
        left.append(missing(tmp_path / "segment.zarr"))
    last, idle = run_until(None, tmp_path), run_until(None, tmp_path)
    assert [ran.code for ran in (*killed, last, idle)] == [*[-signal.SIGKILL] * 3, 0, 0]

    stored = sum(before - after for before, after in itertools.pairwise(left))
    not_stored = sum(ran.calls for ran in killed) - stored
    repeated = sum(ran.calls for ran in (*killed, last)) - WINDOWS
    assert repeated <= not_stored
    assert (last.calls, idle.calls) == (left[-1], 0)
    # Otherwise nothing would be shown.
    assert 0 < left[-1] < WINDOWS
    assert left == sorted(left, reverse=True)

    whole = run_until(None, tmp_path, "--store", "whole.zarr", "--output", "whole.png")
    assert whole.calls == WINDOWS
    assert torch.equal(labels_in(tmp_path / "segment.zarr"), labels_in(tmp_path / "whole.zarr"))
    assert (tmp_path / "segment.png").read_bytes() == (tmp_path / "whole.png").read_bytes()
