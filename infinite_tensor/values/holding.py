"""What functions, classes and objects hold, without running any code of theirs."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn

from infinite_tensor.values.packages import name_of

NOTHING = object()
"""The value of a name that has none yet."""


def bare(module: nn.Module) -> nn.Module:
    """The module that others are wrapped around to compile it, or to spread it over devices."""
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif name_of(type(module)) == "torch._dynamo.eval_frame.OptimizedModule":
            # By name: importing the class would import the compiler.
            module = module.get_submodule("_orig_mod")
        else:
            return module


def unwrapped(value: Any) -> Any:
    """What another function or module is only wrapped around, to compile it, cache it, or spread it over devices."""
    while True:
        kind = type(value)
        if issubclass(kind, nn.Module):
            return bare(value)
        if issubclass(kind, staticmethod | classmethod):
            value = value.__func__
        elif issubclass(kind, weakref.ref):
            value = weakref.ref.__call__(value)
        elif issubclass(kind, types.FunctionType | functools._lru_cache_wrapper):  # noqa: SLF001  (it has no public name)
            # Any other wrapper is code of its own, and reaches what it wraps.
            attribute = "_torchdynamo_orig_callable" if issubclass(kind, types.FunctionType) else "__wrapped__"
            if attribute not in value.__dict__:
                return value
            value = value.__dict__[attribute]
        else:
            return value


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """The variables around a function, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is empty: the name has no value yet
            yield name, NOTHING


def held_by(value: object) -> dict[str, object]:
    """The attributes that an object has by itself; properties are not called."""
    try:
        held = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError, ValueError):
        held = {}
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    held[name] = slot.__get__(value)
                except AttributeError:  # it is empty
                    continue
    return held


def class_attribute(kind: type, name: str) -> object:
    """What a class, or the first of those that it is made of, has under a name; None for nothing."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)


def parts_of_attribute(value: object) -> list[object]:
    """The functions that an attribute of a class stands for, or its value."""
    if isinstance(value, property):
        # A setter is for who prepares an object.
        return [] if value.fget is None else [value.fget]
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, functools.partialmethod):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, functools.singledispatchmethod):
        return [value.func, *value.dispatcher.registry.values()]
    if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
        return []
    return [unwrapped(value)]
