"""The example that draws the weights of a module from an infinite field, as a user runs it, twice."""

from __future__ import annotations

import importlib
import re

import pytest
import torch

from tests.docs.test_examples import EXAMPLES, Runs, calls, run_twice
from tests.support.interpreters import run

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


def test_a_wider_network_comes_closer(runs: Runs) -> None:
    found = errors(runs.printed[0])
    assert list(found) == [16, 64, 256]
    assert found[16] > found[64] > found[256]


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


def test_it_refuses_a_store_that_holds_other_waves(runs: Runs) -> None:
    done = run(SCRIPT, *OPTIONS, "--seed", 1, cwd=runs.folder)
    assert done.returncode == 1
    assert "version.seed: stored 0, given 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_explains_where_the_waves_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr("sys.argv", ["features", "--help"])
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module("features").arguments()
    assert "a path or URL of a Zarr store" in " ".join(capsys.readouterr().out.split())
