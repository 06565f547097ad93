"""The examples as a user runs them: processes of their own, on small input, and each of them twice."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from infinite_tensor import TensorBlob, ZarrTileStore
from tests.support.interpreters import run

EXAMPLES = Path(__file__).parents[2] / "examples"
HEIGHT, WIDTH = 70, 160

Pixels = npt.NDArray[np.uint8]


def succeeds(*arguments: object, cwd: Path) -> str:
    done = run(*arguments, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def calls(printed: str) -> int:
    found = re.match(r"(\d+) calls of f in ", printed)
    assert found, printed
    return int(found[1])


def pixels_of(path: Path) -> Pixels:
    with Image.open(path) as picture:
        assert (picture.format, picture.mode) == ("PNG", "RGB")
        return np.array(picture)


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise over a gradient, so that every pixel is told from its neighbours."""
    noise = np.random.default_rng(0).integers(0, 128, (HEIGHT, WIDTH, 3))
    ramp = np.linspace(0, 127, WIDTH).astype(int)[None, :, None]
    path = tmp_path_factory.mktemp("input") / "photograph.png"
    Image.fromarray((noise + ramp).astype(np.uint8)).save(path)
    return path


FAR = ("terrain.py", "--x", 50_000_000, "--y", -123_456_789, "--size", 96)
# Two windows hold the blurred picture; their margins need 3x4 of the blur before, and those 5x6 of the plane. Windows
# -1 to 2 of the world touch the picture, and read of windows -1 and 0 of the noise.
TWICE: dict[str, tuple[tuple[str | int, ...], int]] = {
    "blur.zarr": (("blur.py", "photograph", "--store", "blur.zarr"), 2 + 12 + 30),
    "blur.h5": (("blur.py", "photograph", "--store", "blur.h5"), 2 + 12 + 30),
    "terrain": (FAR, 14),
    "features": (("features.py", "--size", 32, "--widths", 256, 16, 64), 4),
    "world": (("world.py", "--size", 128, "--store", "world.zarr"), 4 * 4 + 2 * 2),
    "train": (("train.py", "--size", 128, "--seconds", 0), 7),
}
"""Examples with their arguments, and how often they call f."""


@pytest.mark.parametrize("name", TWICE)
def test_a_second_run_computes_nothing_and_draws_the_same(name: str, photograph: Path, tmp_path: Path) -> None:
    (script, *arguments), count = TWICE[name]
    command = [EXAMPLES / str(script), *(photograph if each == "photograph" else each for each in arguments)]
    printed = [succeeds(*command, "--output", output, cwd=tmp_path) for output in ("first.png", "second.png")]
    assert [*map(calls, printed)] == [count, 0]
    first, second = (pixels_of(tmp_path / output) for output in ("first.png", "second.png"))
    assert first.std() > 5
    assert (first == second).all()


def test_neighbouring_terrain_from_another_store_continues_the_picture(tmp_path: Path) -> None:
    script, _, x, *rest = FAR
    pictures = []
    for moved, store in ((0, "terrain.zarr"), (32, "terrain.h5")):
        command = [EXAMPLES / str(script), "--x", int(x) + moved, *rest, "--store", store, "--output", f"{store}.png"]
        succeeds(*command, cwd=tmp_path)
        pictures.append(pixels_of(tmp_path / f"{store}.png"))
    assert (pictures[1][:, :-32] == pictures[0][:, 32:]).all()
    assert (pictures[1][:, -32:] != pictures[0][:, :32]).any()


# Embeddings.


QUERY = "parse command line arguments"


def nearest(printed: str) -> list[str]:
    return re.findall(r"^  \d\.\d\d  (\S+)$", printed, re.MULTILINE)


def test_each_run_goes_on_where_the_one_before_it_ended(tmp_path: Path) -> None:
    first = succeeds(EXAMPLES / "embeddings.py", "--most", 130, "--query", QUERY, cwd=tmp_path)
    assert first.startswith("0 entries were there, 130 are new\n")
    assert nearest(first)[0] == "argparse"
    # As a run leaves it that is killed between the two flushes.
    with TensorBlob.open(tmp_path / "embeddings" / "names", "a") as names:
        names.truncate(100)
    second = succeeds(EXAMPLES / "embeddings.py", "--most", 50, "--count", 3, "--query", QUERY, cwd=tmp_path)
    assert second.startswith("100 entries were there, 50 are new\n")
    assert nearest(second) == nearest(first)[:3]


# Segment: on a part of a photograph, and killed three times.


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


@pytest.mark.slow
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
