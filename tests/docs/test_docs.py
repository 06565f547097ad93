"""Every code block of the README and the docs runs, and so does every example in a docstring."""

from __future__ import annotations

import ast
import doctest
import io
import pkgutil
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import infinite_tensor
import infinite_tensor_stores
from infinite_tensor import TensorWindow, WeightedMean

# Inside: the command line in this process, and all bits of weights.
from infinite_tensor.cli.running import run
from infinite_tensor.values.weights import KINDS, weights_over
from tests.support.pictures import is_drawn
from tests.support.s3_server import ADMIN, READER, running
from tests.support.slurm import sbatch

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if page.exists()]
LANGUAGES = {"python", "pycon", "bash", "console", "text"}
COMPARED = {"dask", "monai", "ome_zarr", "ome_zarr_models", "torchio"}
"""Packages that not everybody has who runs the tests. A block that needs one begins with ``<!-- needs: monai -->``."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

_FENCE = re.compile(
    r"(?:^ *<!-- (?:not run: (?P<reason>[^\n]+)|needs: (?P<needs>\w+)|slow: (?P<slow>s3)|file: (?P<file>\S+)) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_PICTURE = re.compile(r"\]\(images/(?P<name>[\w-]+\.\w+)\)")
_SNIPPET = re.compile(r'^--8<-- "(?P<path>[^"]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced code block; `line` is the one of its opening fence.

    `reason` is why it cannot run, `needs` a package, `slow` the server without which it does not run, `file` the file
    that it is saved as, in place of being run.
    """

    page: Path
    line: int
    language: str
    code: str
    reason: str | None
    needs: str | None
    slow: str | None
    file: str | None

    def run(self, names: dict[str, Any]) -> None:
        if self.file is not None:
            Path(self.file).write_text(self.code, encoding="utf-8")
        elif self.language == "python":
            source = "\n" * self.line + self.code
            exec(compile(source, str(self.page), "exec"), names)  # noqa: S102  (what the page shows is what runs)
        elif self.language == "pycon":
            test = doctest.DocTestParser().get_doctest(self.code, {}, self.page.name, str(self.page), self.line)
            test.globs = names
            check(test)
        elif self.language == "console":
            for command, printed in commands_in(self.code):
                found = output_of(command)
                assert doctest.OutputChecker().check_output(printed, found, FLAGS), f"$ {command}\n{found}"


def commands_in(code: str) -> Iterator[tuple[str, str]]:
    """The commands of ours and of SLURM in a block, each with what it prints according to the page."""
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, printed = part.replace("\\\n", "").partition("\n")
        if command.startswith(("infinite-tensor ", "sbatch ")):
            yield command, printed


def output_of(command: str) -> str:
    """What a command prints; one of ours on both of its streams."""
    program, *arguments = shlex.split(command)
    if program == "sbatch":
        return sbatch(*arguments)
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        run(arguments)
    return printed.getvalue()


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("indent")) + 1
        code = _SNIPPET.sub(lambda snippet: (ROOT / snippet["path"]).read_text(encoding="utf-8"), found["code"])
        indent = len(found["indent"])
        code = "".join(row[indent:] if row.strip() else row for row in code.splitlines(keepends=True))
        yield Block(page, line, found["language"].strip(), code, *found.group("reason", "needs", "slow", "file"))


def check(test: doctest.DocTest) -> None:
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append, clear_globs=False)
    assert result.attempted
    assert not result.failed, "".join(report)


class AnotherDevice(TorchFunctionMode):
    """What `torch.set_default_device` does, for the library alone: its own tensors must say where they are.

    Tensors of a module are where torch puts parameters too.
    """

    def __torch_function__(self, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        # torch.compile cannot trace the name of a caller.
        name = "" if torch.compiler.is_compiling() else sys._getframe(1).f_globals.get("__name__", "")
        ours = name.startswith("infinite_tensor") and not name.startswith("infinite_tensor.modules")
        with torch.device("meta") if ours else nullcontext():
            return func(*args, **kwargs or {})


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, slow: bool) -> None:
    """Run the blocks of a page in order, those that are slow too if you say so."""
    monkeypatch.chdir(folder)
    # What a page saves as a file can be imported.
    monkeypatch.syspath_prepend(folder)
    # A module of that name, so that what a page defines can be pickled.
    module = ModuleType("__page__")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    missing = set()
    try:
        for block in blocks_of(page):
            if block.needs and find_spec(block.needs) is None:
                missing.add(block.needs)
            elif block.reason is None and (slow or block.slow is None):
                with AnotherDevice():
                    block.run(module.__dict__)
    finally:
        # Workers of a DataLoader end at once here, but take seconds when a collection of garbage finds them later.
        # torch.compile removes its own names, which begin with an underscore.
        for name in [name for name in module.__dict__ if not name.startswith("_")]:
            del module.__dict__[name]
        # Another page may save another file under the same name.
        for name, found in list(sys.modules.items()):
            if str(getattr(found, "__file__", None)).startswith(f"{folder}/"):
                del sys.modules[name]
    written = [folder / name for name in _PICTURE.findall(page.read_text(encoding="utf-8"))]
    assert [path.name for path in written if path.exists() and not is_drawn(path)] == []
    if missing:
        pytest.skip(f"has run, but for the blocks that need {', '.join(sorted(missing))}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch, slow=False)


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.slow == "s3" for block in blocks_of(page))], ids=lambda page: page.name
)
def test_slow_blocks_of_a_page_run_on_an_s3_server(
    page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path_factory.mktemp("s3")) as server:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "READER_KEY", "READER_SECRET", "AWS_ENDPOINT_URL")
        for name, value in zip(names, (*ADMIN, *READER, server.url), strict=True):
            monkeypatch.setenv(name, value)
        run_page(page, tmp_path, monkeypatch, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_is_a_block_in_a_known_language(page: Path) -> None:
    blocks = list(blocks_of(page))
    assert {block.language for block in blocks} <= LANGUAGES
    assert {block.needs for block in blocks} <= {None, *COMPARED}
    assert 2 * len(blocks) == len(re.findall(r"^ *(?:```|~~~)", page.read_text(encoding="utf-8"), re.MULTILINE))


def docstring_examples() -> dict[str, doctest.DocTest]:
    names = {"torch": torch} | {name: getattr(infinite_tensor, name) for name in infinite_tensor.__all__}
    found = {}
    for package in (infinite_tensor, infinite_tensor_stores):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for test in doctest.DocTestFinder(exclude_empty=True).find(import_module(module.name), extraglobs=names):
                if test.examples:
                    found[test.name] = test
    return found


EXAMPLES = docstring_examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_in_a_docstring_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(EXAMPLES[name])


def test_code_is_at_most_80_columns_wide() -> None:
    """So much fits beside the menus of the site on a screen of 1280 pixels."""
    blocks = [(page.name, found) for page in PAGES for found in _FENCE.finditer(page.read_text(encoding="utf-8"))]
    rows = [(name, row.removeprefix(found["indent"])) for name, found in blocks for row in found["code"].splitlines()]
    for name, test in EXAMPLES.items():
        rows += [(name, f">>> {row}") for example in test.examples for row in example.source.splitlines()]
        rows += [(name, row) for example in test.examples for row in example.want.splitlines()]
    assert [(where, row) for where, row in rows if len(row) > 80] == []


def test_every_example_is_in_the_gallery() -> None:
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert [path.name for path in ROOT.glob("examples/*.py") if f'--8<-- "examples/{path.name}"' not in gallery] == []


def test_nothing_tells_anybody_to_install_the_package_of_another_library() -> None:
    """Which has this project's name in the package registry."""
    other = re.compile(r"infinite[-_]tensor\[\w|\binstall\b[^\n]*?[ \"']infinite[-_]tensor\b|upgrade infinite")
    paths = [
        *PAGES,
        *(path for folder in ("infinite_tensor", "stores", "examples") for path in ROOT.glob(f"{folder}/**/*.py")),
    ]
    assert [path.name for path in paths if other.search(path.read_text(encoding="utf-8"))] == []


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The names of the functions and classes of a module."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.ClassDef))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(2,), (5, 8), (31, 64, 7), (40_000,)], ids=str)
def test_the_page_on_blending_gives_all_bits_of_the_weights(kind: str, size: tuple[int, ...]) -> None:
    page = ROOT / "docs" / "blending.md"
    (formula,) = [block for block in blocks_of(page) if "def weights(" in block.code]
    names: dict[str, Any] = {"torch": torch}
    formula.run(names)
    ours = weights_over(WeightedMean(kind), TensorWindow(size, stride=1))
    assert torch.equal(ours.expand(size), names["weights"](kind, size))


def test_every_guarantee_has_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("|") and not row.startswith(("|---", "| what happens"))]
    assert len(rows) > 20
    for row in rows:
        held_by = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert held_by, row
        for path, name in held_by:
            names = defined_in(ROOT / path)
            assert any(each.startswith(("test_", "Test")) for each in names)
            assert not name or name in names, row
