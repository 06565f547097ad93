"""The command line, called in this process or as one of its own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Inside: the command line in this process.
from infinite_tensor.cli.running import run
from tests.support.interpreters import start

COMMAND = [sys.executable, "-m", "infinite_tensor.cli"]
AS_A_SCRIPT = ["-c", "from infinite_tensor.cli import main; main()"]
"""The command for one of the `interpreters`."""
PATIENCE = 120.0


@dataclass(frozen=True)
class Outcome:
    """How a command has ended, and what it has printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """``cli("ls", path)`` is what ``infinite-tensor ls path`` does, in this process and without a terminal."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        self._capsys.readouterr()
        code = run(list(map(str, arguments)))
        return Outcome(code, *self._capsys.readouterr())


def in_a_process(*arguments: object, stdout: str | None = None, **environment: str) -> Outcome:
    """What a process of its own does, which has no terminal."""
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder, name) for name in ("stdout", "stderr")]
        variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | environment
        streams = [os.devnull, stdout or printed[0], printed[1]]
        wait = start([*AS_A_SCRIPT, *arguments], streams, environment=variables)
        return Outcome(wait(PATIENCE), *(path.read_text() if path.exists() else "" for path in printed))
