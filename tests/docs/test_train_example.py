"""The example that trains a network, as a user runs it, for a moment; and that it learns."""

from __future__ import annotations

import importlib
import itertools
import math
import re
from collections.abc import Iterator

import pytest
import torch

from infinite_tensor import PatchDataset, ZarrTileStore, sl
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


def test_it_tells_how_the_error_changes(runs: Runs) -> None:
    told = re.findall(r"^ +([\d.]+) s, step (\d+): off by ([\d.]+) m$", runs.printed[0], re.MULTILINE)
    assert told
    steps = [int(step) for _, step, _ in told]
    assert steps == sorted(set(steps))


def test_the_picture_shows_land_with_noise_cleaned_and_as_it_is(runs: Runs) -> None:
    found = re.search(r"land never seen: off by ([\d.]+) m with noise, by ([\d.]+) m without", runs.printed[0])
    assert found
    assert math.isclose(float(found[1]), 60, rel_tol=0.05)
    first, second = runs.pictures
    assert first.shape == (320, 3 * 320 + 2 * 8, 3)
    assert (first[:, 320:328] == 255).all()
    assert (first[:, 656:] == second[:, 656:]).all()
    assert (first[:, 328:648] != first[:, 656:]).any()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the example itself, whose workers want the other processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_network_learns(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("train")
    torch.manual_seed(0)
    heights = ZarrTileStore(runs.folder / "train.zarr", mode="r").open("heights")
    patches = PatchDataset(heights, 32, sl[0:SIZE, 0:SIZE], length=1000)
    training = example.train(example.Denoiser(), patches, math.inf)
    errors = [off for _, off in itertools.islice(training, 80)]
    training.close()
    assert sum(errors[-10:]) < 0.8 * sum(errors[:10])


def test_help_explains_where_the_land_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr("sys.argv", ["train", "--help"])
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module("train").arguments()
    assert "a path or URL of a Zarr store" in " ".join(capsys.readouterr().out.split())
