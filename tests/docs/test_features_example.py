"""The example that draws the weights of a module from an infinite field, as a user runs it, twice."""

from __future__ import annotations

import re

import pytest
import torch

from tests.docs.test_examples import EXAMPLES, Runs, calls, run_twice

SIZE = 32
SCRIPT = EXAMPLES / "features.py"
OPTIONS = ("--size", SIZE, "--widths", 256, 16, 64)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_twice(tmp_path_factory.mktemp("features"), SCRIPT, *OPTIONS)


def test_the_waves_are_drawn_once(runs: Runs) -> None:
    assert [calls(printed) for printed in runs.printed] == [4, 0]


def errors(printed: str) -> dict[int, float]:
    told = re.findall(r"^(\d+) waves: off by ([\d.]+) of 255$", printed, re.MULTILINE)
    return {int(width): float(error) for width, error in told}


def test_the_picture_shows_the_photograph_and_what_each_network_paints(runs: Runs) -> None:
    first, second = runs.pictures
    assert first.shape == (SIZE, 4 * SIZE + 3 * 8, 3)
    assert (first[:, SIZE : SIZE + 8] == 255).all()
    assert (first == second).all()
    # The last one is painted from the checkpoint.
    photograph, painted = first[:, :SIZE].astype(float), first[:, -SIZE:].astype(float)
    assert abs(((photograph - painted) ** 2).mean() ** 0.5 - errors(runs.printed[0])[256]) < 0.5


def test_the_checkpoint_holds_what_was_learnt_and_no_waves(runs: Runs) -> None:
    state = torch.load(runs.folder / "features.pt", weights_only=True)
    assert set(state) == {"mix.weight", "mix.bias", "field._extra_state"}
    assert state["field._extra_state"]["tensor_id"] == "waves"
