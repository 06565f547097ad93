"""The example that trains a network, as a user runs it, for a moment; and that it learns."""

from __future__ import annotations

import math
import re

import pytest

from tests.docs.test_examples import EXAMPLES, Runs, calls, pixels_of, succeeds

SIZE = 128
SCRIPT = EXAMPLES / "train.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """One that fills the store, and one that finds it filled."""
    folder = tmp_path_factory.mktemp("train")
    outputs = [folder / "first.png", folder / "second.png"]
    printed = [
        succeeds(SCRIPT, "--size", SIZE, "--seconds", seconds, "--output", output, cwd=folder)
        for seconds, output in zip((2, 0), outputs, strict=True)
    ]
    return Runs(folder, printed, [pixels_of(output) for output in outputs])


def test_the_land_is_computed_once(runs: Runs) -> None:
    first, second = map(calls, runs.printed)
    assert first > 0
    assert second == 0


def test_the_picture_shows_land_with_noise_cleaned_and_as_it_is(runs: Runs) -> None:
    found = re.search(r"land never seen: off by ([\d.]+) m with noise, by ([\d.]+) m without", runs.printed[0])
    assert found
    assert math.isclose(float(found[1]), 60, rel_tol=0.05)
    first, second = runs.pictures
    assert first.shape == (320, 3 * 320 + 2 * 8, 3)
    assert (first[:, 320:328] == 255).all()
    assert (first[:, 656:] == second[:, 656:]).all()
    assert (first[:, 328:648] != first[:, 656:]).any()
