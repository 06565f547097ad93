"""The examples as a user runs them: processes of their own, on small input, and each of them twice."""

from __future__ import annotations

import importlib
import itertools
import math
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


@dataclass(frozen=True)
class Runs:
    """What two equal runs printed, and the pictures that they wrote."""

    folder: Path
    printed: list[str]
    pictures: list[Pixels]


def run_twice(folder: Path, *command: object) -> Runs:
    outputs = [folder / "first.png", folder / "second.png"]
    printed = [succeeds(*command, "--output", output, cwd=folder) for output in outputs]
    return Runs(folder, printed, [pixels_of(output) for output in outputs])


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise over a gradient, so that every pixel is told from its neighbours."""
    noise = np.random.default_rng(0).integers(0, 128, (HEIGHT, WIDTH, 3))
    ramp = np.linspace(0, 127, WIDTH).astype(int)[None, :, None]
    path = tmp_path_factory.mktemp("input") / "photograph.png"
    Image.fromarray((noise + ramp).astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="module", params=["blur.zarr", "blur.h5"])
def blurred(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, photograph: Path) -> Runs:
    folder = tmp_path_factory.mktemp("blur")
    return run_twice(folder, EXAMPLES / "blur.py", photograph, "--store", request.param)


def test_blur_computes_each_window_once_and_then_none(blurred: Runs) -> None:
    # Two windows hold the picture; their margins need 3x4 of the blur before, and those 5x6 of the plane; the image is
    # read where it lies.
    assert [calls(printed) for printed in blurred.printed] == [2 + 12 + 30, 0]


def test_blur_draws_the_same_picture_from_the_store(blurred: Runs) -> None:
    assert (blurred.pictures[0] == blurred.pictures[1]).all()


FAR = ("--x", 50_000_000, "--y", -123_456_789)
SIZE = 96


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_twice(tmp_path_factory.mktemp("far"), EXAMPLES / "terrain.py", *FAR, "--size", SIZE)


def test_terrain_far_from_the_origin_is_computed_once(far: Runs) -> None:
    first, second = map(calls, far.printed)
    assert first > 0
    assert second == 0
    assert far.pictures[0].shape == (SIZE, SIZE, 3)
    assert far.pictures[0].std() > 5
    assert (far.pictures[0] == far.pictures[1]).all()


def test_neighbouring_terrain_from_another_store_continues_the_picture(far: Runs, tmp_path: Path) -> None:
    shift = SIZE // 3
    place = ("--x", FAR[1] + shift, "--y", FAR[3], "--size", SIZE, "--store", "terrain.h5")
    assert calls(succeeds(EXAMPLES / "terrain.py", *place, cwd=tmp_path)) > 0
    neighbour = pixels_of(tmp_path / "terrain.png")
    assert (neighbour[:, :-shift] == far.pictures[0][:, shift:]).all()
    assert (neighbour[:, -shift:] != far.pictures[0][:, :shift]).any()


# Features.


FEATURES_SIZE = 32
FEATURES_OPTIONS = ("--size", FEATURES_SIZE, "--widths", 256, 16, 64)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_twice(tmp_path_factory.mktemp("features"), EXAMPLES / "features.py", *FEATURES_OPTIONS)


def test_the_waves_are_drawn_once(features: Runs) -> None:
    assert [calls(printed) for printed in features.printed] == [4, 0]


def errors(printed: str) -> dict[int, float]:
    told = re.findall(r"^(\d+) waves: off by ([\d.]+) of 255$", printed, re.MULTILINE)
    return {int(width): float(error) for width, error in told}


def test_the_picture_shows_the_photograph_and_what_each_network_paints(features: Runs) -> None:
    first, second = features.pictures
    assert first.shape == (FEATURES_SIZE, 4 * FEATURES_SIZE + 3 * 8, 3)
    assert (first[:, FEATURES_SIZE : FEATURES_SIZE + 8] == 255).all()
    assert (first == second).all()
    # The last one is painted from the checkpoint.
    photograph, painted = first[:, :FEATURES_SIZE].astype(float), first[:, -FEATURES_SIZE:].astype(float)
    assert abs(((photograph - painted) ** 2).mean() ** 0.5 - errors(features.printed[0])[256]) < 0.5


def test_the_checkpoint_holds_what_was_learnt_and_no_waves(features: Runs) -> None:
    state = torch.load(features.folder / "features.pt", weights_only=True)
    assert set(state) == {"mix.weight", "mix.bias", "field._extra_state"}
    assert state["field._extra_state"]["tensor_id"] == "waves"


# World.


WORLD_SIZE, GAP = 128, 8


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    options = ("--size", WORLD_SIZE, "--store", "world.zarr")
    return run_twice(tmp_path_factory.mktemp("world"), EXAMPLES / "world.py", *options)


def test_the_network_runs_once_for_height_biome_and_colour(world: Runs) -> None:
    # Windows -1 to 2 of either direction touch the picture, and read of windows -1 and 0 of the noise.
    assert [calls(printed) for printed in world.printed] == [4 * 4 + 2 * 2, 0]


def test_the_picture_shows_the_three_side_by_side_and_is_the_same_from_the_store(world: Runs) -> None:
    first, second = world.pictures
    assert first.shape == (WORLD_SIZE, 3 * WORLD_SIZE + 2 * GAP, 3)
    assert (first == second).all()
    height, biome, colour = (first[:, at : at + WORLD_SIZE] for at in (0, WORLD_SIZE + GAP, 2 * (WORLD_SIZE + GAP)))
    assert (height[..., 0] == height[..., 2]).all()
    assert len({tuple(pixel) for pixel in biome.reshape(-1, 3).tolist()}) in range(2, 9)
    # The sea is dark and blue in all three.
    sea = (biome == (28, 58, 112)).all(axis=-1)
    assert sea.any()
    assert height[sea].mean() < height[~sea].mean()
    assert (colour[sea][:, 2] > colour[sea][:, 0]).mean() > 0.99


# Train.


TRAIN_SIZE = 128


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """One that fills the store, and one that finds it filled."""
    folder = tmp_path_factory.mktemp("train")
    outputs = [folder / "first.png", folder / "second.png"]
    printed = [
        succeeds(EXAMPLES / "train.py", "--size", TRAIN_SIZE, "--seconds", seconds, "--output", output, cwd=folder)
        for seconds, output in zip((2, 0), outputs, strict=True)
    ]
    return Runs(folder, printed, [pixels_of(output) for output in outputs])


def test_the_land_is_computed_once(train: Runs) -> None:
    first, second = map(calls, train.printed)
    assert first > 0
    assert second == 0


def test_the_picture_shows_land_with_noise_cleaned_and_as_it_is(train: Runs) -> None:
    found = re.search(r"land never seen: off by ([\d.]+) m with noise, by ([\d.]+) m without", train.printed[0])
    assert found
    assert math.isclose(float(found[1]), 60, rel_tol=0.05)
    first, second = train.pictures
    assert first.shape == (320, 3 * 320 + 2 * 8, 3)
    assert (first[:, 320:328] == 255).all()
    assert (first[:, 656:] == second[:, 656:]).all()
    assert (first[:, 328:648] != first[:, 656:]).any()


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


def test_the_search_finds_what_a_search_in_memory_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("embeddings")
    example.collect(tmp_path, 300)
    wanted = example.embedded("decode base64")
    scores = TensorBlob.open(tmp_path / "vectors").read().float() @ wanted
    names = TensorBlob.open(tmp_path / "names")
    expected = [bytes(names[at].tolist()).decode().strip() for at in scores.topk(4).indices.tolist()]
    found = example.search(tmp_path, "decode base64", 4)
    assert [name for _, name in found] == expected
    assert torch.allclose(torch.tensor([cosine for cosine, _ in found]), scores.topk(4).values, atol=1e-4)


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
