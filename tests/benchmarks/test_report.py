from __future__ import annotations

import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks import report
from tests.benchmarks.compare import PAGE, main, turns
from tests.benchmarks.curves import CURVES
from tests.benchmarks.measuring import HERE, Measurement, Subject, Workers
from tests.benchmarks.rows import ROWS, Row

OURS = Measurement(Subject.OURS, "reading.warm", "zarr")
PEER = Measurement(Subject.PEER, "reading.warm", "hdf5")
FLOOR = Measurement(Subject.FLOOR, "reading.warm_floor", "zarr")


def row(target: str) -> Row:
    return Row("warm", "a read", OURS, PEER, FLOOR, "clone", target, 100 if target.endswith("MB/s") else 0)


@pytest.mark.parametrize(
    ("target", "ours", "met"),
    [
        ("1/4 of peer", 0.25, True),
        ("1/4 of peer", 0.26, False),
        ("1.5 of floor", 0.15, True),
        ("1.5 of floor", 0.16, False),
        ("1/4 of peer, 1.5 of floor", 0.2, False),
        ("500 MB", 500e6, True),
        ("500 MB", 501e6, False),
        ("200 MB/s", 0.5e-6, True),
        ("200 MB/s", 0.51e-6, False),
        ("", 9.0, None),
    ],
)
def test_a_target_is_met_where_each_of_its_parts_is(target: str, ours: float, met: bool | None) -> None:
    assert report.is_met(row(target), {OURS: ours, PEER: 1.0, FLOOR: 0.1}) is met


def test_a_row_shows_times_ratios_and_target() -> None:
    shown = report.table([row("1/3 of peer")], {OURS: 0.5, PEER: 2.0, FLOOR: 0.0004})
    line = "| a read | 2 s, HDF5 | 500 ms, Zarr | 400 µs, clone | 0.25 | 1250.00 | 1/3 of peer | yes |"
    assert shown.splitlines()[2] == line


def test_the_page_of_benchmarks_has_room_for_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "new" in report.inserted(page, "new")


def test_each_measurement_names_a_workload_that_exists() -> None:
    ours = {cell.workload for case in turns(ROWS, CURVES) for cell in case if cell.subject is not Subject.TENSORSTORE}
    for workload in ours:
        module, _, name = workload.rpartition(".")
        assert callable(getattr(import_module(f"tests.benchmarks.workloads.{module}"), name))


@pytest.mark.slow
def test_workloads_of_the_peer_import_only_what_its_environment_has() -> None:
    cells = [cell for case in turns(ROWS, CURVES) for cell in case if cell.subject is Subject.PEER]
    modules = sorted({f"workloads.{cell.workload.rpartition('.')[0]}" for cell in cells})
    without_zarr = f"import importlib, sys; sys.modules['zarr'] = None; [*map(importlib.import_module, {modules})]"
    done = subprocess.run([sys.executable, "-c", without_zarr], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_workloads_import_nothing_of_the_repository_by_name() -> None:
    for module in (HERE / "workloads").glob("*.py"):
        assert "tests." not in module.read_text(encoding="utf-8"), module.name


@pytest.mark.slow
def test_a_worker_measures_and_says_what_went_wrong(tmp_path: Path) -> None:
    with Workers(tmp_path / "no" / "python") as workers:
        assert 0 < workers.measure(Measurement(Subject.FLOOR, "reading.warm_floor", "zarr")) < math.inf
        with pytest.raises(RuntimeError, match="no_such_workload"):
            workers.measure(Measurement(Subject.FLOOR, "reading.no_such_workload", "zarr"))


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--case", "no-such-case"])
    assert "warm-random" in capsys.readouterr().err
