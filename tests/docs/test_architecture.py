"""The page on architecture names what is there, and shows the layers that the contract has."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("infinite_tensor", "infinite_tensor_stores")
NAMES = [
    name
    for name in re.findall(r"`([a-z0-9_]+(?:\.[A-Za-z0-9_]+)+)`", PAGE)
    if not name.endswith((".py", ".toml")) and not name.startswith(("torch.", "store."))
]
FILES = re.findall(r"`((?:[a-z0-9_]+/)*[a-z0-9_]+\.py|(?:[a-z0-9_]+/)+)`", PAGE)


def exists(name: str) -> bool:
    """Whether a name with dots is that of a module, or of something in one."""
    for package in PACKAGES:
        where: Any = import_module(package)
        for part in name.split("."):
            where = _member(where, part)
        if where is not None:
            return True
    return False


def _member(of: Any, name: str) -> Any:
    if isinstance(of, ModuleType) and hasattr(of, "__path__") and find_spec(f"{of.__name__}.{name}") is not None:
        return import_module(f"{of.__name__}.{name}")
    return getattr(of, name, None)


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_every_name_on_the_page_is_there(name: str) -> None:
    assert exists(name)


@pytest.mark.parametrize("file", sorted(set(FILES)))
def test_every_file_on_the_page_is_there(file: str) -> None:
    roots = (ROOT, ROOT / "infinite_tensor", ROOT / "stores" / "infinite_tensor_stores")
    assert any((root / file).exists() for root in roots)


def test_every_folder_and_module_of_the_library_is_on_the_page() -> None:
    parts = [path.name for path in (ROOT / "infinite_tensor").iterdir() if not path.name.startswith("_")]
    named = " ".join(FILES)
    assert [part for part in parts if part not in named and part != "py.typed"] == []


def test_the_drawing_shows_the_contract() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "drawings" / "layers.py"))
    assert script["DRAWING"].read_text(encoding="utf-8") == script["drawing"]()
