"""What users depend on: the reference shows all public names of each class that it shows, and they are listed."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import infinite_tensor
from infinite_tensor import (
    VirtualTensor,
)

ROOT = Path(__file__).parents[2]
OURS = ("infinite_tensor.", "infinite_tensor_stores.")
REFERENCE = {page.name: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("api*.md"))}
# What the pages of the reference show: the path of each class or function, with the text of its options.
SHOWN = {
    path: options
    for page in REFERENCE.values()
    for path, options in re.findall(r"^::: ([\w.]+)\n((?: +.*\n)*)", page, re.MULTILINE)
}
# Names of version 0.2, which the page on migration shows.
FORMER = {"get_or_create", "clear_direct_caches", "evict_cache_for"}


def found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


CLASSES = {found(path): options for path, options in SHOWN.items() if inspect.isclass(found(path))}


def listed(options: str) -> set[str] | None:
    """The members that the page names; None where it shows all that have a docstring."""
    if "members: false" in options:
        return set()
    inline = re.search(r"\bmembers: \[(.*)\]", options)
    if inline:
        return set(inline[1].split(", "))
    below = re.search(r"^ *members:\n((?: +- \w+\n)+)", options, re.MULTILINE)
    return set(re.findall(r"- (\w+)", below[1])) if below else None


def in_docstring(kind: type) -> set[str]:
    """The parameters and attributes that its docstring explains."""
    rows = re.findall(r"^([a-z]\w*(?:, \w+)*) : ", inspect.getdoc(kind) or "", re.MULTILINE)
    return {name for row in rows for name in row.split(", ")}


def documented(kind: type) -> set[str]:
    """The public names that the page shows of a class and of those that it is made of."""
    names: set[str] = set()
    for each in kind.__mro__:
        if each in CLASSES:
            members = listed(CLASSES[each])
            names |= {name for name, value in vars(each).items() if value.__doc__} if members is None else members
        if each.__module__.startswith(OURS):
            names |= in_docstring(each)
    return {name for name in names if not name.startswith("_")} | FORMER


def of_others(kind: type) -> set[str]:
    """The names that a class has from elsewhere; one that stands for a tensor has all of a tensor's."""
    others = [each for each in kind.__mro__ if not each.__module__.startswith(OURS)]
    return set().union(*map(dir, [*others, torch.Tensor] if kind is VirtualTensor else others))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_has_the_public_names_of_the_reference(kind: type) -> None:
    public = {name for name in dir(kind) if not name.startswith(("_", "test_"))}
    assert public - documented(kind) - of_others(kind) == set()
    listed_of = listed(CLASSES[kind]) or set()
    explained = set().union(*map(in_docstring, kind.__mro__))
    assert listed_of - {*dir(kind)} - explained == set()


ERRORS = {name for name, value in vars(infinite_tensor.errors).items() if inspect.isclass(value)}
TABLE = re.findall(r"\[`(\w+)`\]\((api-\w+\.md)#([\w.]+)\)", REFERENCE["api.md"])


def test_the_table_of_the_reference_has_every_public_name_and_every_class_that_is_returned() -> None:
    of_authors = {path for path in SHOWN if f"::: {path}\n" in REFERENCE["api-backends.md"]}
    shown = {path.rpartition(".")[2] for path in {*SHOWN} - of_authors - {"infinite_tensor.errors"}}
    assert {*infinite_tensor.__all__, *ERRORS, *shown} - {name for name, _, _ in TABLE} == set()


@pytest.mark.parametrize(("name", "page", "anchor"), TABLE, ids=[name for name, _, _ in TABLE])
def test_a_name_in_the_table_leads_to_where_it_is_shown(name: str, page: str, anchor: str) -> None:
    shown = anchor.rpartition(".")[0] if name in ERRORS else anchor
    heading = rf"## {name}" if name == anchor else rf"::: {re.escape(shown)}"
    assert re.search(rf"^{heading}$", REFERENCE[page], re.MULTILINE)


# The list of them, with signatures, and pipelines that are made of nothing else.


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
                kept = {each for kind in found.__mro__ if kind in named.values() for each in vars(kind)}
                ours = [each for each in ours if each not in kept]
            lines += [f"    {signature_of(each, getattr(found, each, None))}" for each in ours]
    return lines


def is_ours(kind: type, name: str) -> bool:
    """Whether a member of a class is defined in this library, not in what it inherits from others."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    return owner.__module__.startswith("infinite_tensor")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python write signatures otherwise")
def test_public_names_and_signatures_are_those_that_are_listed() -> None:
    kept = LISTED.read_text(encoding="utf-8").splitlines()
    found = public_names()
    gone, new = [line for line in kept if line not in found], [line for line in found if line not in kept]
    assert (gone, new) == ([], []), (
        "users depend on these: tell of the change in CHANGELOG.md, then write the list anew by "
        "`python -m tests.docs.test_public_names`"
    )
    assert kept == found


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_pipelines_are_made_of_public_names(path: Path) -> None:
    """And of what knows no tensor: arithmetic of windows and regions, checks of arguments, what functions are."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("infinite_tensor"):
            _, _, part = str(node.module).partition(".")
            of_all = part.startswith(("support", "geometry", "values", "pipelines", "errors"))
            names = [] if of_all or node.module == "infinite_tensor_stores" else [alias.name for alias in node.names]
            # Where a Zarr store lies, what a store keeps or a tensor has there, whether a package is there, and checks.
            ours = {"node_of", "stored_pixels"} | {"shown", "is_in_memory", "contents_of", "import_tensordict"}
            ours |= {"check_fill_options", "check_fill"}
            assert set(names) - ours <= set(PUBLIC), f"{path.name}: {names} of {part}"


if __name__ == "__main__":
    LISTED.write_text("".join(f"{line}\n" for line in public_names()), encoding="utf-8")
