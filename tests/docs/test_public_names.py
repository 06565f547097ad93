"""What users depend on: every public name with its signature, and pipelines that are made of nothing else."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import infinite_tensor
from tests.docs.test_reference import CLASSES

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("public_names.txt")
PIPELINES = sorted((Path(infinite_tensor.__file__).parent / "pipelines").glob("*.py"))
PUBLIC = [name for name in dir(infinite_tensor) if not name.startswith("_")]
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def signature_of(name: str, found: object) -> str:
    if not callable(found) or isinstance(found, property):
        return name
    try:
        return name + _ADDRESS.sub("", str(inspect.signature(found)))
    except (TypeError, ValueError):
        return name


def public_names() -> list[str]:
    """Each public name, and behind a class its own public methods and attributes.

    Classes that only the reference shows have no short name: they are what methods return, or what authors of backends
    need.
    """
    named = {name: getattr(infinite_tensor, name) for name in PUBLIC}
    shown = {f"{kind.__module__}.{kind.__name__}": kind for kind in CLASSES if kind not in named.values()}
    lines = []
    for name, found in {**named, **dict(sorted(shown.items()))}.items():
        lines.append(signature_of(name, found))
        if isinstance(found, type) and not issubclass(found, BaseException):
            members = {each: value for kind in reversed(found.__mro__) for each, value in vars(kind).items()}
            # What a VirtualTensor has of a torch.Tensor changes with that.
            of_torch = dir(torch.Tensor) if found is infinite_tensor.VirtualTensor else ()
            ours = [
                each
                for each in sorted(members)
                if not each.startswith(("_", "test_")) and is_ours(found, each) and each not in of_torch
            ]
            if name in shown:
                listed = {each for kind in found.__mro__ if kind in named.values() for each in vars(kind)}
                ours = [each for each in ours if each not in listed]
            lines += [f"    {signature_of(each, getattr(found, each, None))}" for each in ours]
    return lines


def is_ours(kind: type, name: str) -> bool:
    """Whether a member of a class is defined in this library, not in what it inherits from others."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    return owner.__module__.startswith("infinite_tensor")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python write signatures otherwise")
def test_public_names_and_signatures_are_those_that_are_listed() -> None:
    listed = LISTED.read_text(encoding="utf-8").splitlines()
    found = public_names()
    gone, new = [line for line in listed if line not in found], [line for line in found if line not in listed]
    assert (gone, new) == ([], []), (
        "users depend on these: tell of the change in CHANGELOG.md, then write the list anew by "
        "`python -m tests.docs.test_public_names`"
    )
    assert listed == found


def git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the history of the repository: {done.stderr.strip()}")
    return done.stdout.strip()


def test_the_changelog_tells_of_the_last_change_of_the_list() -> None:
    listed, changelog = str(LISTED.relative_to(ROOT)), "CHANGELOG.md"
    last = git("log", "-1", "--format=%H", "--", listed)
    since = "HEAD" if git("diff", "--name-only", "HEAD", "--", listed) else f"{last}~1"
    assert git("diff", "--name-only", since, "--", changelog), (
        f"{listed} has changed since {since}, {changelog} has not"
    )


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_pipelines_are_made_of_public_names(path: Path) -> None:
    """And of what knows no tensor: arithmetic of windows and regions, checks of arguments, what functions are."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("infinite_tensor"):
            _, _, part = str(node.module).partition(".")
            of_all = part.startswith(("support", "geometry", "values", "pipelines", "errors"))
            names = [] if of_all or node.module == "infinite_tensor_stores" else [alias.name for alias in node.names]
            # Where a Zarr store lies, what a store keeps in memory, and whether an optional package is there.
            ours = {"shown", "is_in_memory", "contents_of", "import_tensordict"}
            assert set(names) - ours <= set(PUBLIC), f"{path.name}: {names} of {part}"


if __name__ == "__main__":
    LISTED.write_text("".join(f"{line}\n" for line in public_names()), encoding="utf-8")
