"""What has nothing to do with tensors; and packages that import what they offer when it is first asked for.

Torch takes longer to import than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def offered_by(
    package: dict[str, Any], modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package.

    Its modules and folders are found as attributes as well, as if all of them had been imported.

    Parameters
    ----------
    package : dict
        Its ``globals()``, in which what was found is kept.
    modules : mapping
        From the modules to the names that the package offers of each.

    Examples
    --------
    >>> package = {"__name__": "infinite_tensor.support", "__all__": ["quoted"]}
    >>> find, names = offered_by(package, {"infinite_tensor.support.given": ["quoted"]})
    >>> find("quoted")(1), names()
    ('1', ['quoted'])
    """
    homes = {name: module for module, names in modules.items() for name in names}
    own = package["__name__"]

    def find(name: str) -> Any:
        if name in homes:
            found = package[name] = getattr(import_module(homes[name]), name)
            return found
        # A name with a point in it would be looked for in a module that there may not be.
        if name.isidentifier() and not name.startswith("_") and find_spec(f"{own}.{name}") is not None:
            return import_module(f"{own}.{name}")
        raise AttributeError(f"module {own!r} has no attribute {name!r}")

    return find, lambda: sorted(package["__all__"])
