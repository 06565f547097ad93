"""The example that draws a world from one network, as a user runs it, twice."""

from __future__ import annotations

import pytest

from tests.docs.test_examples import EXAMPLES, Runs, calls, run_twice

SIZE, GAP = 128, 8
SCRIPT = EXAMPLES / "world.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_twice(tmp_path_factory.mktemp("world"), SCRIPT, "--size", SIZE, "--store", "world.zarr")


def test_the_network_runs_once_for_height_biome_and_colour(runs: Runs) -> None:
    # Windows -1 to 2 of either direction touch the picture, and read of windows -1 and 0 of the noise.
    assert [calls(printed) for printed in runs.printed] == [4 * 4 + 2 * 2, 0]


def test_the_picture_shows_the_three_side_by_side_and_is_the_same_from_the_store(runs: Runs) -> None:
    first, second = runs.pictures
    assert first.shape == (SIZE, 3 * SIZE + 2 * GAP, 3)
    assert (first == second).all()
    height, biome, colour = (first[:, at : at + SIZE] for at in (0, SIZE + GAP, 2 * (SIZE + GAP)))
    assert (height[..., 0] == height[..., 2]).all()
    assert len({tuple(pixel) for pixel in biome.reshape(-1, 3).tolist()}) in range(2, 9)
    # The sea is dark and blue in all three.
    sea = (biome == (28, 58, 112)).all(axis=-1)
    assert sea.any()
    assert height[sea].mean() < height[~sea].mean()
    assert (colour[sea][:, 2] > colour[sea][:, 0]).mean() > 0.99
