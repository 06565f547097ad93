"""The examples as a user runs them: processes of their own, on small input, and each of them twice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.support.interpreters import run

EXAMPLES = Path(__file__).parents[2] / "examples"
HEIGHT, WIDTH, SIGMA = 70, 160, 4.0

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
