from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks import environment, report
from tests.benchmarks.compare import PAGE, main, turns
from tests.benchmarks.curves import CURVES, Curve, exponent
from tests.benchmarks.measuring import HERE, Measurement, Subject, Workers
from tests.benchmarks.rows import ROWS, Row, Target

OURS = Measurement(Subject.OURS, "reading.warm", "zarr")
PEER = Measurement(Subject.PEER, "reading.warm", "hdf5")
FLOOR = Measurement(Subject.FLOOR, "reading.warm_floor", "zarr")


def row(target: Target) -> Row:
    return Row("warm", "a read", OURS, PEER, FLOOR, "clone", target, 100 if target.rate else 0)


@pytest.mark.parametrize(
    ("target", "ours", "met"),
    [
        (Target(of_peer=Fraction(1, 4)), 0.25, True),
        (Target(of_peer=Fraction(1, 4)), 0.26, False),
        (Target(of_floor=Fraction(3, 2)), 0.15, True),
        (Target(of_floor=Fraction(3, 2)), 0.16, False),
        (Target(of_peer=Fraction(1, 4), of_floor=Fraction(3, 2)), 0.2, False),
        (Target(memory=500), 500, True),
        (Target(memory=500), 501, False),
        (Target(rate=200), 0.5, True),
        (Target(rate=200), 0.51, False),
        (Target(), 9.0, None),
    ],
)
def test_a_target_is_met_where_each_of_its_parts_is(target: Target, ours: float, met: bool | None) -> None:
    assert report.is_met(row(target), {OURS: ours, PEER: 1.0, FLOOR: 0.1}) is met


def test_a_row_shows_times_ratios_and_target() -> None:
    shown = report.table([row(Target(of_peer=Fraction(1, 3)))], {OURS: 0.5, PEER: 2.0, FLOOR: 0.0004})
    line = "| a read | 2 s, HDF5 | 500 ms, Zarr | 400 µs, clone | 0.25 | 1250.00 | 1/3 of peer | yes |"
    assert shown.splitlines()[2] == line


def test_a_row_with_a_rate_shows_how_much_a_second_takes() -> None:
    noise = replace(row(Target(rate=200 * 10**6)), peer=None, nbytes=10**8)
    line = "| a read | - | 500 ms, 200 MB/s, Zarr | 250 ms, 400 MB/s, clone | - | 2.00 | 200 MB/s | yes |"
    assert report.table([noise], {OURS: 0.5, FLOOR: 0.25}).splitlines()[2] == line


@pytest.mark.parametrize("power", [0, 0.5, 1])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    sizes = [10, 100, 1000]
    assert math.isclose(exponent(sizes, [3 * size**power for size in sizes]), power, abs_tol=1e-9)


def test_a_cost_that_grows_is_not_flat() -> None:
    points = tuple([Measurement(Subject.OURS, "opening.tiles", "zarr", size) for size in (10, 1000)])
    curve = Curve("curve-tiles", "open", points)
    steady, growing = ({points[0]: 1.0, points[1]: value} for value in (1.0, 10.0))
    assert report.curve_table([curve], steady).endswith("| 0.00 | at most 0.1 | yes |")
    assert report.curve_table([curve], growing).endswith("| 0.50 | at most 0.1 | **no** |")


def test_a_table_replaces_the_one_before_it_on_a_page() -> None:
    page = f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n"
    written = report.inserted(page, "new")
    assert written == f"above\n{report.BEGIN}\n\nnew\n\n{report.END}\nbelow\n"
    assert report.inserted(written, "new") == written


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no"):
        report.inserted("above\nbelow\n", "new")


def test_the_page_of_benchmarks_has_room_for_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "new" in report.inserted(page, "new")


def test_what_several_rows_need_is_measured_once() -> None:
    cells = [cell for case in turns(ROWS, CURVES) for cell in case]
    assert len(cells) == len(set(cells))
    assert {row.ours for row in ROWS} <= set(cells)


def test_each_measurement_names_a_workload_that_exists() -> None:
    ours = {cell.workload for case in turns(ROWS, CURVES) for cell in case if cell.subject is not Subject.TENSORSTORE}
    for workload in ours:
        module, _, name = workload.rpartition(".")
        assert callable(getattr(import_module(f"tests.benchmarks.workloads.{module}"), name))


def test_workloads_of_the_peer_import_only_what_its_environment_has() -> None:
    cells = [cell for case in turns(ROWS, CURVES) for cell in case if cell.subject is Subject.PEER]
    modules = sorted({f"workloads.{cell.workload.rpartition('.')[0]}" for cell in cells})
    without_zarr = f"import importlib, sys; sys.modules['zarr'] = None; [*map(importlib.import_module, {modules})]"
    done = subprocess.run([sys.executable, "-c", without_zarr], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_workloads_import_nothing_of_the_repository_by_name() -> None:
    for module in (HERE / "workloads").glob("*.py"):
        assert "tests." not in module.read_text(encoding="utf-8"), module.name


def test_a_worker_measures_and_says_what_went_wrong(tmp_path: Path) -> None:
    with Workers(tmp_path / "no" / "python") as workers:
        assert 0 < workers.measure(Measurement(Subject.FLOOR, "reading.warm_floor", "zarr")) < math.inf
        with pytest.raises(RuntimeError, match="no_such_workload"):
            workers.measure(Measurement(Subject.FLOOR, "reading.no_such_workload", "zarr"))


def test_an_environment_that_runs_another_package_of_the_name_is_refused() -> None:
    with Workers(Path(sys.executable)) as workers, pytest.raises(RuntimeError, match="runs infinite_tensor from"):
        workers.measure(Measurement(Subject.PEER, "reading.warm", "memory"))


def test_a_folder_of_something_else_is_not_taken_for_the_environment(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(FileExistsError, match="no virtual environment"):
        environment.prepared(tmp_path, environment.of_peer())
    assert (tmp_path / "precious").exists()


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--case", "no-such-case"])
    assert "warm-random" in capsys.readouterr().err
