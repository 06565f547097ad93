"""The reference shows all public names of each class that it shows, and nothing else."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import infinite_tensor
from infinite_tensor import (
    GridDataset,
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    PatchDataset,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    VirtualTensor,
    ZarrTileStore,
    sl,
)

ROOT = Path(__file__).parents[2]
OURS = ("infinite_tensor.", "infinite_tensor_stores.")
# What is on the page: the path of each class, with the text of its options.
SHOWN = dict(
    re.findall(r"^::: ([\w.]+)\n((?: +.*\n)*)", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
)
# Names of version 0.2, which the page on migration shows.
FORMER = {"get_or_create", "clear_direct_caches"}


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


def ones(_ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(4, 4)


def tensor() -> InfiniteTensor:
    return InfiniteTensor((None, None), ones, TensorWindow((4, 4)))


OBJECTS: dict[str, Callable[[Path], Any]] = {
    "InfiniteTensor": lambda _path: tensor(),
    "TensorGroup": lambda _path: TensorGroup({"t": tensor()}),
    "TensorWindow": lambda _path: TensorWindow((4, 4)),
    "MemoryTileStore": lambda _path: MemoryTileStore(),
    "ZarrTileStore": lambda path: ZarrTileStore(path / "s"),
    "HDF5TileStore": lambda path: HDF5TileStore(path / "s.h5"),
    "TensorBlob": lambda path: TensorBlob.open(path / "b", "w", dtype=torch.float32, shape=(4,)),
    "PatchDataset": lambda _path: PatchDataset(tensor(), 4, sl[0:8, 0:8]),
    "GridDataset": lambda _path: GridDataset(tensor(), 4, region=sl[0:8, 0:8]),
}


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


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_has_the_public_names_of_the_reference(name: str, tmp_path: Path) -> None:
    shown = OBJECTS[name](tmp_path)
    kind = type(shown)
    assert kind is getattr(infinite_tensor, name)
    public = {each for each in dir(shown) if not each.startswith("_")}
    assert public - documented(kind) - of_others(kind) == set()


def test_every_public_class_is_in_the_reference() -> None:
    public = {getattr(infinite_tensor, name) for name in infinite_tensor.__all__}
    shown = {*CLASSES, *(value for value in vars(infinite_tensor.errors).values() if inspect.isclass(value))}
    assert [kind.__name__ for kind in public if inspect.isclass(kind) and kind not in shown] == []


def test_the_former_names_are_on_the_page_of_migration() -> None:
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    assert [name for name in FORMER if name not in page] == []
