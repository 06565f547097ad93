from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.predict import check_labels, main, run_once
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


@pytest.mark.parametrize("name", CASES)
def test_ours_and_the_loop_store_the_same_labels(name: str, tmp_path: Path) -> None:
    case = CASES[name].tiny
    ours, theirs = (labels_of(subject, case, tmp_path) for subject in ("ours", "loop"))
    assert ours.shape == case.extents
    assert len(np.unique(ours)) > 1
    check_labels(case, ours, theirs, "the loop")


def test_labels_that_differ_elsewhere_or_often_are_an_error(tmp_path: Path) -> None:
    labels = labels_of("loop", TINY, tmp_path)
    with pytest.raises(RuntimeError, match=r"the loop stores another label than ours at \[20, 30\]"):
        check_labels(TINY, labels, changed(labels, 1), "the loop")
    with pytest.raises(RuntimeError, match="at 1600 of 1600 pixels"):
        check_labels(TINY, labels, labels + 1, "the loop")


@pytest.mark.slow
def test_a_process_that_runs_other_windows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="loop ran 16 windows, not 81"):
        run_once("loop", "unet", replace(CASES["unet"].tiny, size=8), None, tmp_path)


@pytest.mark.slow
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
