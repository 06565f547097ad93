"""What a user's type checker sees: the program in `user.py` is right, and four mistakes in it are found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Checker: TypeAlias = Callable[[Path], list[tuple[int, str]]]

ROOT = Path(__file__).parents[3]
USER = Path(__file__).with_name("user.py")
MISTAKES = """
def wrong(t: InfiniteTensor, group: TensorGroup) -> None:
    InfiniteTensor((None, None), ones, WINDOW, blend="han")  # a misspelt blend
    t.fill(REGION, worker=2)  # no option of a fill
    InfiniteTensor((None, None), ones, "64x64")  # no window
    group.mean()  # of a tensor
"""


def output_of(*command: str | Path) -> str:
    # In the root: mypy keeps its cache there, without which it takes half a minute.
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def found_by_mypy(path: Path) -> list[tuple[int, str]]:
    output = output_of("mypy", "--strict", "--no-pretty", "--show-error-codes", "--no-error-summary", path)
    return [(int(line), code) for line, code in re.findall(r"\.py:(\d+): error: .*\[([\w-]+)\]$", output, re.MULTILINE)]


def found_by_pyright(path: Path) -> list[tuple[int, str]]:
    config = path.with_name("pyrightconfig.json")
    paths = {"include": [str(path)], "extraPaths": [str(ROOT), str(ROOT / "stores")]}
    config.write_text(json.dumps({"typeCheckingMode": "standard"} | paths), encoding="utf-8")
    output = output_of("basedpyright", "--outputjson", "--level", "error", "--pythonpath", sys.executable, "-p", config)
    found = json.loads(output)["generalDiagnostics"]
    return [(each["range"]["start"]["line"] + 1, each.get("rule", "")) for each in found]


def where_installed(checker: Checker, package: str) -> Any:
    is_missing = pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")
    return pytest.param(checker, marks=is_missing, id=package)


CODES: dict[Checker, list[str]] = {
    found_by_mypy: ["arg-type", "call-arg", "arg-type", "attr-defined"],
    found_by_pyright: ["reportArgumentType", "reportCallIssue", "reportArgumentType", "reportAttributeAccessIssue"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "checker", [where_installed(found_by_mypy, "mypy"), where_installed(found_by_pyright, "basedpyright")]
)
def test_only_mistakes_are_found(checker: Checker, tmp_path: Path) -> None:
    program, path = USER.read_text(encoding="utf-8") + MISTAKES, tmp_path / "user.py"
    path.write_text(program, encoding="utf-8")
    last = len(program.splitlines())
    assert checker(path) == list(zip(range(last - 3, last + 1), CODES[checker], strict=True))
