"""Who is measured at what, and the processes that do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGES = (ROOT, ROOT / "stores")
"""Folders of the packages of this repository."""


class Subject(StrEnum):
    """What runs a workload. Each is a process of its own."""

    PEER = "peer"
    OURS = "ours"
    FLOOR = "floor"
    """A floor that needs no package but those of this repository."""
    TENSORSTORE = "tensorstore"
    """A floor that runs in the peer's environment."""


@dataclass(frozen=True)
class Measurement:
    """One cell of the table.

    Attributes
    ----------
    subject : Subject
        Who runs it.
    workload : str
        Module and function in `workloads`.
    variant : str
        The store.
    size : int
        How many, for workloads that scale.
    alone : bool
        Whether it takes a fresh process, since it looks at all the memory that its process ever held.
    """

    subject: Subject
    workload: str
    variant: str
    size: int = 0
    alone: bool = False


class Workers:
    """The processes of all subjects, each started when it is first needed, and ended with this context.

    Parameters
    ----------
    python : path
        The interpreter of the environment with the peer and tensorstore.
    """

    def __init__(self, python: Path) -> None:
        self._python = python
        self._running: dict[Subject, _Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for worker in self._running.values():
                stack.callback(worker.stop)

    def measure(self, measurement: Measurement) -> float:
        """Run it once. Returns seconds, or bytes; RuntimeError if it fails or gives wrong pixels."""
        if not measurement.alone:
            if measurement.subject not in self._running:
                self._running[measurement.subject] = self._started(measurement.subject)
            return self._running[measurement.subject].run(measurement)
        worker = self._started(measurement.subject)
        try:
            return worker.run(measurement)
        finally:
            worker.stop()

    def _started(self, subject: Subject) -> _Worker:
        if subject in (Subject.PEER, Subject.TENSORSTORE):
            return _Worker(self._python, variables(), self._python.parents[1])
        return _Worker(Path(sys.executable), variables(*PACKAGES), ROOT)


def variables(*folders: Path) -> dict[str, str]:
    """The environment variables of a process that is measured: one thread, and packages from these folders first."""
    # The repository's own package must not come in the way of the peer's, which has the same name.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = {"PYTHONPATH": os.pathsep.join(map(str, folders))} if folders else {}
    # torch.set_num_threads holds for the thread that calls it; a subject may run f on others.
    return kept | path | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Worker:
    """A process that runs `workloads.worker`, and whose package `infinite_tensor` must lie in `home`."""

    def __init__(self, python: Path, environment: Mapping[str, str], home: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "workloads.worker"],
            cwd=HERE,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        package = Path(self._answer()["package"])
        if not package.is_relative_to(home):
            self.stop()
            raise RuntimeError(f"{python} runs infinite_tensor from {package}, not from {home}")

    def run(self, measurement: Measurement) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(measurement)) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(f"{measurement} fails:\n{answer['error']}")
        return float(answer["value"])

    def stop(self) -> None:
        """End the process once it has deleted what it made."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with status {self._process.wait()}; it says why above")
        answer: dict[str, Any] = json.loads(line)
        return answer
