"""Dictionaries of dictionaries, as users give and return them: `tensordict.TensorDict` is one too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Key: TypeAlias = tuple[str, ...]
"""The keys that lead to an entry, from the outermost on."""


def leaves(nested: Mapping[Any, Any], outer: Key = ()) -> Iterator[tuple[Key, Any]]:
    """The entries that are no dictionaries themselves, each with its keys."""
    for key, value in nested.items():
        path = (*outer, key)
        if isinstance(value, Mapping):
            yield from leaves(value, path)
        else:
            yield path, value


def show(key: Key) -> str:
    """A key as it is written in code: ``'rgb'``, or ``('biome', 'id')``."""
    return repr(key[0] if len(key) == 1 else key)
