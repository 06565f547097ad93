"""General helpers, and imports of public names on first use.

So code without tensors does not import torch, which takes longer to import than all other modules together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def offered_by(
    package: dict[str, Any], modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package.

    The modules and subpackages of the package are attributes too, and are imported on first use.

    Parameters
    ----------
    package : dict
        The ``globals()`` of the package. Imported names are cached in it.
    modules : mapping
        Maps each module to the names offered by the package.

    Examples
    --------
    >>> package = {"__name__": "infinite_tensor.support", "__all__": ["quoted"]}
    >>> where = {"infinite_tensor.support.given": ["quoted"]}
    >>> find, names = offered_by(package, where)
    >>> find("quoted")(1), names()
    ('1', ['quoted'])
    """
    homes = {name: module for module, names in modules.items() for name in names}
    own = package["__name__"]

    def find(name: str) -> Any:
        if name in homes:
            found = package[name] = getattr(import_module(homes[name]), name)
            return found
        # For a dotted name, find_spec would import the parent module, and the parent may not exist.
        if name.isidentifier() and not name.startswith("_") and find_spec(f"{own}.{name}") is not None:
            return import_module(f"{own}.{name}")
        raise AttributeError(f"module {own!r} has no attribute {name!r}")

    return find, lambda: sorted(package["__all__"])
