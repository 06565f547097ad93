"""Keywords of version 0.2 that the constructors of stores take, deprecated."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K", bound=type)


def taking_former_keywords(kind: K) -> K:
    """A class of stores that takes ``tile_cache_size=``, now ``cache_size_tiles=``, unless that is its own."""
    constructor: Callable[..., None] | None = vars(kind).get("__init__")
    if constructor is None or "tile_cache_size" in inspect.signature(constructor).parameters:
        return kind

    @functools.wraps(constructor)
    def construct(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if "tile_cache_size" in kwargs:
            message = "tile_cache_size= is deprecated; use cache_size_tiles="
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            kwargs["cache_size_tiles"] = kwargs.pop("tile_cache_size")
        constructor(self, *args, **kwargs)

    kind.__init__ = construct  # type: ignore[misc]
    return kind
