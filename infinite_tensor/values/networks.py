"""Which networks a function holds, for its fingerprint, and which tensors and arrays, for `digests`."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from typing import TypeGuard

import numpy as np
import torch
from torch import nn

from infinite_tensor.errors import ValidationError
from infinite_tensor.values.digest import Digests, Values

_MOST_LOOKS = 1000
"""At so many values that lie in one object."""

_MOST_LOOKS_ALTOGETHER = 10_000
"""At so many values that lie in the objects of one function."""

_NAMESPACES = frozenset({"types", "argparse"})
_NOT_LOOKED_INTO = (sys.stdlib_module_names - _NAMESPACES) | {
    "torch",
    "numpy",
    "infinite_tensor",
    "infinite_tensor_stores",
}
"""Packages whose objects hold much that the user has not put there: a logger all others, say, a tensor of ours what is
upstream of it."""

_MEMBERS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__",),
    types.FunctionType: ("__closure__", "__defaults__", "__kwdefaults__"),
    types.CellType: ("cell_contents",),
    functools.partial: ("func", "args", "keywords"),
}
"""What lies in functions of all kinds."""

_enabled: ContextVar[bool] = ContextVar("enabled", default=True)


@contextmanager
def no_digest() -> Iterator[None]:
    """Leave the weights of networks out of fingerprints, where they cost more than they are worth.

    In this block, constructing a tensor hashes no weights, and gives no `FunctionChangedWarning` for other ones. It
    is also a decorator, and affects the current thread, as `torch.no_grad`. `digest` itself is not affected.

    Examples
    --------
    >>> net = torch.nn.Conv2d(1, 1, 3, padding=1)
    >>> def f(ctx):
    ...     return net(torch.full((1, 4, 4), float(ctx[1])))
    >>> with no_digest():
    ...     t = InfiniteTensor((1, 4, None), f, TensorWindow((1, 4, 4)), version="checkpoint 7")
    """
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


class Networks:
    """The networks that one function holds, each hashed once.

    Attributes
    ----------
    found : bool
        Whether one has been told.
    """

    def __init__(self, told: bool = True, *, hashed: bool = True) -> None:
        self.found = False
        # Networks are looked for in any case where they are not to be hashed.
        self._told = told and (not hashed or _enabled.get())
        self._hashed = hashed
        self._digests = Digests()
        self._known: dict[int, tuple[nn.Module, str | None]] = {}
        self._values: dict[int, Values] = {}
        self._looks_left = _MOST_LOOKS_ALTOGETHER

    def digest_of(self, network: nn.Module) -> str | None:
        """Its digest; None where it has none, or is not to be told."""
        if not self._told:
            return None
        if id(network) not in self._known:
            try:
                found = self._digests.of(network) if self._hashed else ""
            except ValidationError:
                found = None
            # Keeping the network keeps its id from being given to another one.
            self._known[id(network)] = network, found
        found = self._known[id(network)][1]
        self.found |= found is not None
        return found

    def met(self) -> list[nn.Module]:
        """The networks that were met."""
        return [network for network, _ in self._known.values()]

    def digests(self) -> list[str]:
        """Of the networks, tensors and arrays that were met, each once; ValidationError where one has none."""
        networks = [self._digests.of(network) if found is None else found for network, found in self._known.values()]
        return networks + [self._digests.of_values(values) for values in self._values.values()]

    def among(self, name: str, value: object) -> list[tuple[str, nn.Module]]:
        """The networks that are a value, or among what lies in it, with where each lies: those that have a digest.

        Tensors and arrays that are met are kept for `digests`, and not told.

        Looked at are members of lists, tuples and dicts, and what functions, methods and objects hold; the nearest
        first, and not more than some.
        """
        found: list[tuple[str, nn.Module]] = []
        if not self._told or _is_empty(value):
            return found
        queue, seen = [(name, value)], {id(value)}
        looks = min(_MOST_LOOKS, self._looks_left)
        # What is nearest is looked at first; the queue grows behind.
        for where, each in queue:
            if isinstance(each, nn.Module):
                if self.digest_of(each) is not None:
                    found.append((where, each))
                continue
            if _is_values(each):
                self._values[id(each)] = each
                continue
            for key, member in islice(_held(each), looks):
                looks -= 1
                self._looks_left -= 1
                # A network is told of at each place, and nothing in it is looked at.
                if isinstance(member, nn.Module) or (id(member) not in seen and not _is_empty(member)):
                    seen.add(id(member))
                    queue.append((f"{where}.{key}", member))
        # Attributes may have been set in any order.
        return sorted(found, key=lambda each: each[0])


def _is_empty(value: object) -> bool:
    """Whether no network lies in it; nothing is said of others."""
    kind = type(value)
    if kind in _MEMBERS or isinstance(value, nn.Module | list | tuple | dict) or _is_values(value):
        return False
    return issubclass(kind, type | types.ModuleType) or str(kind.__module__).partition(".")[0] in _NOT_LOOKED_INTO


def _is_values(value: object) -> TypeGuard[Values]:
    """Whether it is a tensor or an array that lies in memory: not a file, nor objects."""
    if isinstance(value, np.ndarray | np.generic):
        return not (isinstance(value, np.memmap) or value.dtype.hasobject)
    return isinstance(value, torch.Tensor)


def _held(value: object) -> Iterator[tuple[object, object]]:
    """What lies in a value, with its names."""
    for kind, names in _MEMBERS.items():
        if isinstance(value, kind):
            return _named(value, names)
    if isinstance(value, list | tuple):
        return enumerate(value)
    if isinstance(value, dict):
        # A copy: other threads may add to it.
        items = tuple(islice(value.items(), _MOST_LOOKS))
        return ((key if isinstance(key, str) else at, held) for at, (key, held) in enumerate(items))
    return _attributes(value)


def _named(value: object, names: Iterable[str]) -> Iterator[tuple[object, object]]:
    for name in names:
        # A cell or a slot may be empty.
        with suppress(AttributeError, ValueError):
            yield name, getattr(value, name)


def _attributes(value: object) -> Iterator[tuple[object, object]]:
    """The attributes that an object has by itself; properties are not called."""
    held = getattr(value, "__dict__", None)
    if isinstance(held, Mapping):
        yield from tuple(islice(held.items(), _MOST_LOOKS))
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            slots = [name for name, slot in vars(kind).items() if isinstance(slot, types.MemberDescriptorType)]
            yield from _named(value, slots)
