"""Names of dimensions: not part of what a pixel is, and so free to be given later, but never to be contradicted."""

from __future__ import annotations

import re
from typing import TypeAlias

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import members, quoted, word

Dims: TypeAlias = "tuple[str, ...] | None"
"""The name of each dimension, a default one where it has none; None where no dimension has a name."""

_LONGEST = 100
_DEFAULT = re.compile(r"dim_\d+", re.ASCII)


def default_name(d: int) -> str:
    """What a dimension without a name is called."""
    return f"dim_{d}"


def names_of(dims: Dims, ndim: int) -> tuple[str, ...]:
    """A name for each dimension."""
    return tuple(map(default_name, range(ndim))) if dims is None else dims


def label_of(d: int, name: str) -> str:
    """What messages call a dimension: its number, with its name if it has one."""
    return f"{d} ({name!r})" if name != default_name(d) else str(d)


def checked_dims(dims: object, ndim: int) -> Dims:
    """`dims`, if they are names of so many dimensions.

    Raises
    ------
    ValidationError
        If there is not one for each, or one is no printable str of 1 to 100 characters, is there twice, or is the
        default name of another dimension.
    """
    if dims is None:
        return None
    given = members(dims)
    if given is None or len(given) != ndim:
        raise ValidationError(f"dims must be a tuple of {ndim} str, one per dimension, or None, got {quoted(dims)}")
    names = tuple(word(name) or "" for name in given)
    for d, name in enumerate(names):
        is_taken = name in names[:d] or (_DEFAULT.fullmatch(name) and name != default_name(d))
        if is_taken or not 0 < len(name) <= _LONGEST or not name.isprintable():
            raise ValidationError(
                f"dims must hold different names, printable str of 1 to {_LONGEST} characters, of which dim_N is that "
                f"of dimension N, got {quoted(given[d])} for dimension {d}"
            )
    return None if names == names_of(None, ndim) else names


def joined_dims(stored: Dims, given: Dims) -> Dims:
    """The names of a stored tensor, and those given for dimensions that have none there.

    The stored ones alone, where one that is given contradicts them.
    """
    if stored is None or given is None:
        return stored or given
    joined = tuple(
        [new if old == default_name(d) else old for d, (old, new) in enumerate(zip(stored, given, strict=True))]
    )
    return stored if contradict(joined, given) or len(set(joined)) < len(joined) else joined


def contradict(names: tuple[str, ...], given: tuple[str, ...]) -> bool:
    """Whether a name that is given for a dimension is not the one in `names`."""
    return any(new not in (default_name(d), name) for d, (name, new) in enumerate(zip(names, given, strict=True)))
