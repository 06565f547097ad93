"""Our side of the table under pytest-benchmark: `pytest -m benchmark tests/benchmarks`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from tests.benchmarks.measuring import Measurement
from tests.benchmarks.rows import ROWS
from tests.benchmarks.workloads.stage import Stage

pytest.importorskip("pytest_benchmark", reason="the extra bench is not installed")
from pytest_benchmark.fixture import BenchmarkFixture

T = TypeVar("T")

CASES = {row.ours: row.case for row in ROWS if not row.ours.alone}


class BenchmarkStage(Stage):
    """Has pytest-benchmark hold the clock."""

    def __init__(self, measurement: Measurement, scratch: Path, kept: Path, benchmark: BenchmarkFixture) -> None:
        super().__init__(measurement.variant, measurement.size, scratch, kept)
        self._benchmark = benchmark
        self.timings = 0

    def timed(self, function: Callable[[], T], *, per: int = 1, rounds: int = 1) -> T:
        self.timings += 1
        self._benchmark.extra_info["per"] = per
        result: T = self._benchmark.pedantic(  # type: ignore[no-untyped-call]
            function, rounds=rounds, iterations=1
        )
        return result


def _name_of(measurement: Measurement) -> str:
    size = f"-{measurement.size}" if measurement.size else ""
    return f"{CASES[measurement]}-{measurement.variant}{size}"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def kept() -> Iterator[Path]:
    # Not pytest's folder, which stays behind: a million files may lie in here.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.benchmark
@pytest.mark.parametrize("measurement", CASES, ids=_name_of)
def test_speed(measurement: Measurement, kept: Path, tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    module, _, name = measurement.workload.rpartition(".")
    benchmark.group = CASES[measurement]
    workload = getattr(import_module(f"tests.benchmarks.workloads.{module}"), name)
    stage = BenchmarkStage(measurement, tmp_path, kept, benchmark)
    workload(stage)
    assert stage.timings == 1
