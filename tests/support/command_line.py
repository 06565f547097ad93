"""The command line, called in this process or as one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from infinite_tensor.cli.running import run

COMMAND = [sys.executable, "-m", "infinite_tensor.cli"]


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


def in_a_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a process of its own does, which has no terminal."""
    command = [*COMMAND, *map(str, arguments)]
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | environment
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=variables, timeout=120, check=False
    )
