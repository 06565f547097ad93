from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.benchmarks.predict import Run, check_labels, main, memory_limit, run_once, table
from tests.benchmarks.workloads.sliding import CASES, Case, measured

TINY = CASES["classes-1536"].tiny


def labels_of(subject: str, case: Case, folder: Path) -> np.ndarray:
    found = measured(subject, case, folder / subject)
    assert found["windows"] == len(case.corners)
    labels: np.ndarray = np.load(folder / subject / "labels.npy")
    return labels


def changed(labels: np.ndarray, by: int) -> np.ndarray:
    """The same with another label at one pixel."""
    other = labels.copy()
    other[20, 30] = (int(other[20, 30]) + by) % 100
    return other


class Twice(nn.Module):
    """Each class stands there twice, with the same score."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.scores = nn.Conv2d(channels, classes // 2, 3, padding=1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.scores(batch)] * 2, 1)


@pytest.mark.parametrize("name", CASES)
def test_ours_and_the_loop_store_the_same_labels(name: str, tmp_path: Path) -> None:
    case = CASES[name].tiny
    ours, theirs = (labels_of(subject, case, tmp_path) for subject in ("ours", "loop"))
    assert ours.shape == case.extents
    assert len(np.unique(ours)) > 1
    check_labels(case, ours, theirs, "the loop")


def test_labels_may_differ_where_two_scores_are_a_near_tie(tmp_path: Path) -> None:
    case = replace(TINY, network=Twice)
    labels = labels_of("loop", case, tmp_path)
    check_labels(case, labels, changed(labels, 50), "the loop")


def test_labels_that_differ_elsewhere_or_often_are_an_error(tmp_path: Path) -> None:
    labels = labels_of("loop", TINY, tmp_path)
    with pytest.raises(RuntimeError, match=r"the loop stores another label than ours at \[20, 30\]"):
        check_labels(TINY, labels, changed(labels, 1), "the loop")
    with pytest.raises(RuntimeError, match="at 1600 of 1600 pixels"):
        check_labels(TINY, labels, labels + 1, "the loop")


def test_a_process_that_runs_other_windows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="loop ran 16 windows, not 81"):
        run_once("loop", "unet", replace(CASES["unet"].tiny, size=8), None, tmp_path)


def test_the_smoke_measures_without_installing_monai(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent, written = tmp_path / "none", tmp_path / "runs.json"
    main(["--smoke", "--runs=1", "--cases=volume", f"--environment={absent}", f"--json={written}"])
    said = capsys.readouterr()
    row = said.out.splitlines()[-1].split(" | ")
    assert row[:2] == [f"| {CASES['volume'].tiny.title}", "64"]
    assert (row[3], row[5], row[8]) == ("-", "-", "-")
    assert "MONAI is left out" in said.err
    assert not absent.exists()
    assert [run["subject"] for run in json.loads(written.read_text())["runs"]] == ["ours", "loop", "net"]


def runs(seconds: Mapping[str, list[float]], memory: int) -> list[Run]:
    return [Run("a", who, each, each, memory, 121, 121) for who, some in seconds.items() for each in some]


def test_the_table_has_a_row_for_each_case() -> None:
    measured = [
        replace(run, case=name) for name in CASES for run in runs({"ours": [2.0], "loop": [2.0], "net": [1.0]}, 0)
    ]
    rows = table(CASES, measured).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [f"| {case.title}" for case in CASES.values()]


def test_a_row_shows_medians_and_what_is_reached() -> None:
    case = {"a": CASES["classes-1536"]}
    seconds = {"ours": [9.0, 2.1, 2.2], "monai": [2.0, 2.0, 9.0], "loop": [2.5, 2.5, 1.0], "net": [1.1, 1.1, 1.1]}
    cells = "121 | 2.2 s | 2 s | 2.5 s | 1.10 | 0.88 | 300 MB | 300 MB | 300 MB | 300 MB | 519 MB | 50 % | yes |"
    assert table(case, runs(seconds, 3 * 10**8)).splitlines()[2] == f"| {case['a'].title} | {cells}"
    slower = seconds | {"monai": [1.9, 1.9, 1.9]}
    assert table(case, runs(slower, 3 * 10**8)).endswith("| **no** |")


def test_more_memory_than_allowed_is_not_met() -> None:
    case = {"a": CASES["classes-1536"]}
    seconds = {who: [1.0] for who in ("ours", "monai", "loop", "net")}
    of_ours = [replace(run, memory=2 * 10**9) if run.subject == "ours" else run for run in runs(seconds, 10**6)]
    assert table(case, of_ours).endswith("| **no** |")
    assert table(case, runs(seconds, 10**6)).endswith("| yes |")


def test_memory_may_grow_by_a_strip_along_the_shorter_side() -> None:
    wide = replace(CASES["classes-1536"], extents=(1536, 8192))
    strip, batch = 256 * 1536 * 100 * 4, 4 * 256**2 * 100 * 4
    assert memory_limit(wide) == pytest.approx(1.3 * strip + 3 * batch)
    assert memory_limit(wide, net=10**9) == pytest.approx(1.3 * strip + 10**9)
