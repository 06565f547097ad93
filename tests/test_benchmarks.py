"""The benchmarks run: each measures something small."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from zarr.storage import MemoryStore

from benchmarks import report, simulate
from benchmarks.compare import PAGE, turns
from benchmarks.curves import CURVES
from benchmarks.measuring import Measurement, Subject, Workers
from benchmarks.predict import check_labels
from benchmarks.rows import ROWS, Row
from benchmarks.workloads.sliding import CASES, measured
from infinite_tensor import ZarrTileStore


def test_each_row_and_curve_has_its_workload_and_a_line_on_the_page() -> None:
    cells = [cell for case in turns(ROWS, CURVES) for cell in case]
    for cell in cells:
        module, _, name = cell.workload.rpartition(".")
        if cell.subject is not Subject.TENSORSTORE:
            assert callable(getattr(import_module(f"benchmarks.workloads.{module}"), name))
    values = dict.fromkeys(cells, 0.5)
    tables = f"{report.table(ROWS, values)}\n{report.curve_table(CURVES, values)}"
    assert tables.count("\n") == len(ROWS) + len(CURVES) + 3
    assert tables in report.inserted(PAGE.read_text(encoding="utf-8"), tables)


def test_a_row_shows_times_ratios_and_whether_each_part_of_its_target_is_met() -> None:
    ours, peer, floor = (Measurement(each, "w", "zarr") for each in (Subject.OURS, Subject.PEER, Subject.FLOOR))
    values = {ours: 0.5, peer: 2.0, floor: 0.0004}
    found = report.table([Row("c", "a read", ours, peer, floor, "clone", "1/3 of peer, 2 of floor")], values)
    line = found.splitlines()[2]
    assert line.endswith("| 500 ms, Zarr | 400 µs, clone | 0.25 | 1250.00 | 1/3 of peer, 2 of floor | **no** |")


@pytest.mark.slow
def test_a_worker_measures_and_says_what_went_wrong(tmp_path: Path) -> None:
    with Workers(tmp_path / "no" / "python") as workers:
        for subject, workload in ((Subject.OURS, "reading.warm"), (Subject.FLOOR, "reading.warm_floor")):
            assert 0 < workers.measure(Measurement(subject, workload, "zarr")) < math.inf
        with pytest.raises(RuntimeError, match="no_such_workload"):
            workers.measure(Measurement(Subject.FLOOR, "reading.no_such_workload", "zarr"))


def test_the_loop_stores_the_labels_of_predict(tmp_path: Path) -> None:
    case = CASES["classes-1536"].tiny
    labels = {}
    for subject in ("ours", "loop"):
        assert measured(subject, case, tmp_path / subject)["windows"] == len(case.corners)
        labels[subject] = np.load(tmp_path / subject / "labels.npy")
    assert len(np.unique(labels["ours"])) > 1
    check_labels(case, labels["ours"], labels["loop"], "the loop")
    with pytest.raises(RuntimeError, match="other labels"):
        check_labels(case, labels["ours"], labels["loop"] + 1, "the loop")


def test_a_prediction_counts_the_windows_and_tiles_of_a_fill() -> None:
    work = simulate.Work(0.01, tile=256, window=128, stride=128, halo=16, depth=3, side=1024)
    with ZarrTileStore(MemoryStore(), tile_size=work.tile) as store:
        filled = simulate.chain(work, store)[-1].fill((slice(0, work.side),) * 2, progress=False)
        infos = [store.tensor_info(name) for name in store.tensor_ids()]
    found = simulate.predict(work, simulate.Fleet(1))
    assert found.windows == filled.windows
    assert found.puts == sum(info.tiles_complete + info.tiles_partial for info in infos)
    shards = simulate.predict(replace(work, side=8192), simulate.Fleet(16, "shards"))
    assert shards.seconds < simulate.predict(replace(work, side=8192), simulate.Fleet(1)).seconds
