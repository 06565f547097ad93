"""What users write on a command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from infinite_tensor import sl
from infinite_tensor.cli.arguments import FLOATS, INTS, NAMES, PADDING, REFERENCE, REGION, SHARD
from infinite_tensor.cli.output import jsonable
from infinite_tensor.cli.running import commands
from tests.support.command_line import CommandLine

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0:64,0:64", sl[0:64, 0:64]),
        ("-64:-32, 5", sl[-64:-32, 5]),
        ("...,::-1", sl[..., ::-1]),
        (":", sl[:]),
        ("[1_000:2_000]", sl[1000:2000]),
        (" ( 3 , -1:1:2 ) ", sl[3, -1:1:2]),
    ],
)
def test_a_region_is_what_stands_between_brackets(text: str, meant: object) -> None:
    assert REGION(text) == meant


@pytest.mark.parametrize("text", ["", "0:a", "1.5", "0:1:2:3", "0:64,", "0-64"])
def test_what_is_no_region_is_told_with_an_example(text: str, cli: CommandLine) -> None:
    found = cli("read", "s", "t", f"--region={text}")
    assert found.code == 2
    assert f'{text!r} is not a valid region: write it as in "0:64,-32:32"' in found.err


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [
        (INTS, "256", 256),
        (INTS, "256,128", (256, 128)),
        (FLOATS, "0.5", 0.5),
        (SHARD, "0/4", (0, 4)),
        (NAMES, "c, y,x", ("c", "y", "x")),
        (PADDING, "reflect", "reflect"),
        (PADDING, "constant:0", ("constant", 0.0)),
        (PADDING, "constant:-0.5", ("constant", -0.5)),
    ],
)
def test_an_argument_is_taken_as_the_library_takes_it(kind: Any, text: str, meant: object) -> None:
    assert kind(text) == meant
    assert type(kind(text)) is type(meant)


@pytest.mark.parametrize(("kind", "text"), [(INTS, "1.5"), (FLOATS, "a"), (SHARD, "0-4"), (PADDING, "constant:a")])
def test_what_is_no_such_argument_is_told(kind: Any, text: str) -> None:
    with pytest.raises(click.BadParameter, match=re.escape(repr(text))):
        kind(text)


@pytest.mark.usefixtures("cli")
def test_a_reference_is_what_a_file_or_a_module_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_helper.py").write_text("class A:\n    b = 3\n")
    # A file finds what lies beside it.
    (tmp_path / "some_user.py").write_text("from some_helper import A\n")
    for file in (tmp_path / "some_helper.py", tmp_path / "some_user.py"):
        assert REFERENCE(f"{file}:A.b") == 3
        assert REFERENCE(f"{file}:A") is REFERENCE(f"{file}:A")
    (tmp_path / "some_module.py").write_text("x = 4\n")
    monkeypatch.chdir(tmp_path)
    assert REFERENCE("some_module:x") == 4


def test_what_is_not_found_is_told_with_what_there_is(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "some_world.py").write_text("import os\nfrom os.path import join\nheight = 1\n")
    for given, told in [
        ("nothing.py:x", "there is no file 'nothing.py'"),
        ("no_such_module:x", "there is no module 'no_such_module'"),
        (f"{tmp_path / 'some_world.py'}:x", "has no 'x'; it has os, join, height"),
        ("world.py", "is not a reference"),
        (".:x", "is not a reference"),
        ("some/world:x", "is not a reference"),
    ]:
        found = cli("fill", "--module", given)
        assert (found.code, told in found.err) == (2, True), found.err


def test_a_number_that_json_lacks_is_its_name() -> None:
    assert jsonable([float("nan"), float("-inf"), 1j]) == ["NaN", "-Infinity", [0.0, 1.0]]


@pytest.mark.parametrize("name", commands.commands)
def test_every_command_has_help_that_fits_a_terminal_and_json_and_is_on_the_page(
    name: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for found in (cli(name, "--help"), cli("--help")):
        assert found.code == 0
        assert max(map(len, found.out.splitlines())) <= 80
    assert "--json" in cli(name, "--help").out
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert f"infinite-tensor {name} " in page
