"""Nested dictionaries from users, and keys of entries.

A `tensordict.TensorDict` counts as a nested dictionary too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeGuard

from infinite_tensor.errors import ValidationError

Key: TypeAlias = tuple[str, ...]
"""The names on the way to an entry, from the outermost dictionary inward."""


def leaves(
    given: Mapping[Any, Any], above: Key = (), parts: Callable[[Any], Key] = lambda name: (name,)
) -> Iterator[tuple[Key, Any]]:
    """Yield the keys and values of a nested dictionary.

    ``{"a": {"b": 1}}`` yields the key ``("a", "b")`` with the value 1. `above` is prepended to every key. By default,
    each name is one entry of a key; ``parts(name)`` may split a name into several entries.
    """
    for name, value in given.items():
        key = (*above, *parts(name))
        if isinstance(value, Mapping):
            yield from leaves(value, key, parts)
        else:
            yield key, value


def show(key: Key) -> str:
    """Return a key as written in code: ``'rgb'``, or ``('biome', 'id')``."""
    return repr(key[0] if len(key) == 1 else key)


def is_key(value: object) -> TypeGuard[str | tuple[str, ...]]:
    """Whether a value in brackets is a key: a str or a tuple of str.

    Everything else is a region.
    """
    return isinstance(value, str) or (
        isinstance(value, tuple) and bool(value) and all(isinstance(name, str) for name in value)
    )


def as_key(value: object) -> Key:
    """Return a key as a tuple.

    Raise ValidationError if `value` is not a key.
    """
    if not is_key(value):
        raise ValidationError(f"a key must be a str or a tuple of str, got {value!r}")
    return (value,) if isinstance(value, str) else value


def named_leaves(given: Mapping[Any, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield the `leaves` of a group, and check all names.

    Raises
    ------
    ValidationError
        If a name is not a non-empty str, or a mapping is empty.
    """
    if not given:
        raise ValidationError(
            f"a group must have at least one tensor{f', but {show(above)} is empty' if above else ''}"
        )
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise ValidationError(
                f"names in a group must be non-empty str, got {name!r}{f' in {show(above)}' if above else ''}; nest "
                "mappings for nested names"
            )
        if isinstance(value, Mapping):
            yield from named_leaves(value, (*above, name))
        else:
            yield (*above, name), value


def nested(values: Iterable[tuple[Key, Any]]) -> dict[str, Any]:
    """Build nested dicts from pairs of keys and values.

    Raises
    ------
    ValidationError
        If two keys are equal, or if one key begins with another key.
    """
    outermost: dict[str, Any] = {}
    ends = set()
    for key, value in values:
        level = outermost
        for depth, name in enumerate(key[:-1], 1):
            if key[:depth] in ends:
                raise ValidationError(f"{show(key[:depth])} is a tensor, so it cannot contain {show(key)}")
            level = level.setdefault(name, {})
        if key[-1] in level:
            raise ValidationError(f"{show(key)} is given twice")
        level[key[-1]] = value
        ends.add(key)
    return outermost


def listed(keys: Iterable[Key], *, nested: bool, leaves_only: bool) -> list[Key]:
    """Return keys in the order of ``TensorDict.keys()``.

    `keys` are the keys of values, without dictionaries. The result also contains the key of each dictionary, after its
    last value: ``("a", "b"), ("c",)`` becomes ``("a", "b"), ("a",), ("c",)``. If `nested` is False, only keys with a
    single name are returned. If `leaves_only` is True, the keys of dictionaries are left out.
    """
    found: list[Key] = []
    open_names: Key = ()
    for key in [*keys, ()]:
        while open_names != key[: len(open_names)]:
            if (nested or len(open_names) == 1) and not leaves_only:
                found.append(open_names)
            open_names = open_names[:-1]
        if key and (nested or len(key) == 1):
            found.append(key)
        open_names = key[:-1]
    return found


def chosen(name: str, given: object, keys: Iterable[Key], default: Any) -> dict[Key, Any]:
    """Return the value of an argument for each key.

    The argument is a value for all keys, or a mapping. The mapping may be nested. A value for ``"a"`` also applies to
    ``("a", "b")``, unless this key has its own value.

    Parameters
    ----------
    name : str
        The name of the argument in messages.
    given : object
        The argument as given.
    keys : iterable of Key
        The keys of the leaves.
    default : object
        The value for keys without a given value.

    Raises
    ------
    ValidationError
        If a value in `given` applies to none of `keys`.
    """
    keys = list(keys)
    if not isinstance(given, Mapping):
        return dict.fromkeys(keys, default if given is None else given)
    said = dict(leaves(given, parts=as_key))
    for key in said:
        if not any(leaf[: len(key)] == key for leaf in keys):
            known = ", ".join(map(show, keys))
            raise ValidationError(f"{name} is given for {show(key)}, but the keys of the group are {known}")
    found = {}
    for leaf in keys:
        depth = next((n for n in range(len(leaf), 0, -1) if leaf[:n] in said), 0)
        found[leaf] = said[leaf[:depth]] if depth else default
    return found
