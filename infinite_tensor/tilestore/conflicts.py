"""What is said where a store and its user do not agree on what a tensor is."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence

from infinite_tensor.errors import DependantsRemainWarning, FunctionChangedWarning, StoreError, ValidationError
from infinite_tensor.values.definition import Definition, changed_functions, differences

_FUNCTIONS = {"f": "f", "blend": "The blend", "upstream": "A function upstream"}
_MOST_NAMED = 5


def check_same(tensor_id: str, stored: Definition, given: Definition, store: object) -> None:
    """ValidationError that lists every differing field, unless both definitions give the same values."""
    if stored.digest != given.digest:
        lines = differences(stored.values(), given.values())
        raise mismatch(tensor_id, lines, store, changed_args(stored, given))


def changed_args(stored: Definition, given: Definition) -> list[str]:
    """The args that are not what a stored tensor was computed from, as they are named in messages."""
    pairs = enumerate(zip(stored.args, given.args, strict=False))
    return [
        f"args[{at}] ({'without a tensor_id' if new.tensor_id is None else repr(new.tensor_id)})"
        for at, (old, new) in pairs
        if old.digest != new.digest
    ]


def warn_of_changes(tensor_id: str, stored: Mapping[str, str], given: Mapping[str, str], store: object) -> None:
    """FunctionChangedWarning for each function that is not the one of the stored values."""
    for name in changed_functions(stored, given):
        warnings.warn(
            f"{_FUNCTIONS[name]} of tensor {tensor_id!r} is not the one that {store!r} was filled with. Stored values "
            f"are used as they are; to compute them again, give version=... or call store.clear_tensor({tensor_id!r})",
            FunctionChangedWarning,
            stacklevel=_level_of_caller(),
        )


def _level_of_caller() -> int:
    """The stacklevel of the line outside of this package that made the tensor."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001  (there is no other way that costs as little)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("infinite_tensor."):
        level, frame = level + 1, frame.f_back
    return level


def unknown_tensor(tensor_id: str, known: Sequence[str], store: object) -> StoreError:
    """The error for an id that a store does not hold."""
    return StoreError(f"{store!r} holds no tensor {tensor_id!r}; it holds {list(known)}")


def mismatch(tensor_id: str, lines: Sequence[str], store: object, changed_args: Sequence[str] = ()) -> ValidationError:
    """The error for an id that is taken by a tensor with another definition."""
    listed = "".join(f"\n  {line}" for line in lines)
    stale = advice = ""
    if changed_args:
        stale = (
            f"What is stored is stale: {' and '.join(changed_args)} has changed since it was computed: its version, "
            "say, or something else in its definition or further upstream.\n"
        )
        advice = (
            " Where only some regions of an arg have changed, leave its definition as it was, and call its "
            "invalidate(region)."
        )
    if any(line.startswith("tile_size:") for line in lines):
        advice += " Without a tile_size, a stored tensor keeps the one it has."
    return ValidationError(
        f"{store!r} already holds a tensor {tensor_id!r} with another definition:{listed}\n{stale}"
        "Give the new tensor another tensor_id, or delete the stored one with "
        f"store.clear_tensor({tensor_id!r}).{advice}"
    )


def warn_of_dependants(tensor_id: str, names: Sequence[str], store: object) -> None:
    """DependantsRemainWarning for tensors that read one which has just been cleared."""
    listed = ", ".join(map(repr, names[:_MOST_NAMED])) + ", ..." * (len(names) > _MOST_NAMED)
    warnings.warn(
        f"{store!r}: tensor {tensor_id!r} is cleared, but {listed} {'is' if len(names) == 1 else 'are'} computed from "
        "it and kept as before. If its pixels will be other ones, clear those too: "
        f"store.clear_tensor({tensor_id!r}, dependants=True)",
        DependantsRemainWarning,
        stacklevel=_level_of_caller(),
    )
