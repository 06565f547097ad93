"""Whose code is: that of installed packages and of the standard library, or that of a project."""

from __future__ import annotations

import pathlib
import site
import sys
import sysconfig
from functools import lru_cache

OURS = frozenset({"infinite_tensor", "infinite_tensor_stores"})

_PACKAGES = frozenset({"site-packages", "dist-packages"})
_INSTALLED = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)


def top(module: str) -> str:
    """The package that a module is in."""
    return module.partition(".")[0]


@lru_cache(maxsize=4096)
def is_installed(module: str, file: str | None = None) -> bool:
    """Whether code of a module, in a file as far as that is known, is of no project."""
    package = top(module)
    if package == "__main__":
        return False
    home = getattr(sys.modules.get(module) or sys.modules.get(package), "__file__", None)
    # Code that was compiled from a string, as that of dataclasses, is of the module it stands in.
    path = file if file is not None and not file.startswith("<") else home
    if path is None:
        return package in sys.stdlib_module_names
    return path.startswith(_INSTALLED) or not _PACKAGES.isdisjoint(pathlib.PurePath(path).parts)


def name_of(kind: type) -> str:
    """What a class is called by its module; one of a project just by itself, as a script has a name only for others."""
    module = str(kind.__module__)
    is_known = top(module) in OURS or is_installed(module)
    return f"{module}.{kind.__qualname__}" if is_known else kind.__qualname__
