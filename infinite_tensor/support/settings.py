"""What a function is set to: the plain values that it reads by name, which its fingerprint leaves out."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

_KEYS = (int, float, str)
"""Of keys and members of sets, those whose repr is the same in every run."""


def innermost(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that partials of it call in the end."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def settings_of(fn: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Numbers and str that a function may read by name, in containers too, which its fingerprint leaves out."""
    fn = innermost(fn)
    owner, functions = getattr(fn, "__self__", fn), [getattr(fn, "__func__", fn)]
    read: dict[str, object] = {}
    if not isinstance(owner, types.FunctionType | types.ModuleType | type):
        slots = [name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())]
        read = {name: getattr(owner, name, None) for name in (*getattr(owner, "__dict__", ()), *slots)}
        if not isinstance(owner, nn.Module):
            functions += [vars(kind)["__call__"] for kind in type(owner).__mro__ if "__call__" in vars(kind)][:1]
    for function in functions:
        if isinstance(function, types.FunctionType):
            named = _named_by(function)
            read |= named
            # Functions of other modules are their own; those beside it are a part of it.
            beside = [each for each in named.values() if getattr(each, "__globals__", None) is function.__globals__]
            functions += [each for each in beside if each not in functions]
    for name, value in sorted(read.items()):
        yield from sorted(_plain_in(name, value))


def _named_by(function: types.FunctionType) -> dict[str, object]:
    """The values of the globals and the closure of a function that its code may read."""
    found: dict[str, object] = {}
    codes = [function.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        found |= {f"global {name}": function.__globals__.get(name) for name in code.co_names}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is empty: the name has no value yet
            found[f"closure {name}"] = cell.cell_contents
    return found


def _plain_in(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The plain values in a value, under names that say where; what is neither plain nor a container has none."""
    waiting, seen = [(name, value)], set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | enum.Enum):
            yield name, repr(value)
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                waiting += [(f"{name}[{key!r}]", entry) for key, entry in value.items() if isinstance(key, _KEYS)]
            elif isinstance(value, list | tuple):
                waiting += [(f"{name}[{at}]", entry) for at, entry in enumerate(value)]
            elif isinstance(value, set | frozenset):
                yield name, repr(sorted([repr(entry) for entry in value if isinstance(entry, _KEYS)]))
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                fields = [field.name for field in dataclasses.fields(value)]
                waiting += [(f"{name}.{field}", getattr(value, field, None)) for field in fields]
            elif isinstance(value, types.SimpleNamespace):
                waiting += [(f"{name}.{key}", entry) for key, entry in vars(value).items()]
