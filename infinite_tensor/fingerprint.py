"""A fingerprint of a function: equal for equal code, stable across processes of one Python version.

It tells a person that ``f`` has changed since results were stored. It is a hint, not a proof: what a
function reads from the world, the weights of a network say, is not part of it.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Bytecode differs between minor versions, so fingerprints compare only within one."""


def fingerprint(function: Callable[..., Any]) -> str:
    """SHA-256 over the code of `function` and of the functions it names, as hexadecimal digits.

    Covered are bytecode, names, constants, defaults, plain values in closures, and functions that are
    reached as globals, closures or attributes of a partial or a bound method. Locks, modules and the
    storage of tensors are not.
    """
    digest = hashlib.sha256()
    for part in _Walk().parts(function):
        digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


class _Walk:
    """Turns a value into strings; a function met before stands as a reference to itself."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, object]] = {}

    def parts(self, value: object) -> Iterable[str]:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            yield f"{type(value).__name__}={value!r}"
        elif isinstance(value, torch.dtype | torch.device | range | slice):
            yield repr(value)
        elif id(value) in self._seen:
            yield f"seen={self._seen[id(value)][0]}"
        else:
            # Keeping the value keeps its id from being given to another one.
            self._seen[id(value)] = (len(self._seen), value)
            yield from self._compound(value)

    def _compound(self, value: object) -> Iterable[str]:
        if isinstance(value, types.CodeType):
            yield from self._code(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, functools.partial):
            yield "partial"
            yield from self._all((value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            yield "method"
            yield from self._all((value.__func__, type(value.__self__).__qualname__))
        elif isinstance(value, tuple | list):
            yield f"{type(value).__name__}[{len(value)}]"
            yield from self._all(value)
        elif isinstance(value, set | frozenset):
            yield f"set[{len(value)}]"
            yield from sorted("".join(_Walk().parts(item)) for item in value)
        elif isinstance(value, dict):
            yield f"dict[{len(value)}]"
            for key, item in value.items():
                yield from self._all((key, item))
        else:
            yield from self._named(value)

    def _all(self, values: Iterable[object]) -> Iterable[str]:
        for value in values:
            yield from self.parts(value)

    def _code(self, code: types.CodeType) -> Iterable[str]:
        yield code.co_code.hex()
        yield from self._all((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
        yield from self._all(code.co_consts)

    def _function(self, function: types.FunctionType) -> Iterable[str]:
        yield from self._code(function.__code__)
        yield from self._all((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield from self.parts(cell.cell_contents)
            except ValueError:
                yield "empty cell"
        for name in _names_of(function.__code__):
            named = function.__globals__.get(name)
            if isinstance(named, types.FunctionType | functools.partial):
                yield name
                yield from self.parts(named)

    def _named(self, value: object) -> Iterable[str]:
        """Everything else counts by its type, and by the code that a call of it would run."""
        kind = value if isinstance(value, type) else type(value)
        yield f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, types.BuiltinFunctionType):
            yield value.__qualname__
        if hasattr(value, "__wrapped__"):
            yield from self.parts(value.__wrapped__)
        for method in ("__call__", "forward"):
            code = getattr(kind, method, None)
            # What torch itself does when a module is called is no part of the user's function.
            if isinstance(code, types.FunctionType) and not (code.__module__ or "").startswith("torch."):
                yield from self.parts(code)


def _names_of(code: types.CodeType) -> list[str]:
    """Global names that `code` or a function nested in it may look up, in order."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names_of(constant)
    return names
