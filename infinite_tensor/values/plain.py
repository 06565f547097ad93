"""What there is to say of values that hold no others, and the members of containers, by no code of a user."""

from __future__ import annotations

import array
import datetime as dt
import decimal
import enum
import fractions
import hashlib
import marshal
import operator
import pathlib
import re
import types
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import torch

from infinite_tensor.values.arrays import digest_of_array

MOST_MEMBERS = 10_000
"""Of a container with other objects in it; of a larger one, so many are looked at, evenly spread, and it is opaque."""

Members: TypeAlias = list[tuple[str, str, object]]


def sha256_of(said: Iterable[str]) -> str:
    """One digest of several texts, which tells where one ends and the next one begins."""
    digest = hashlib.sha256()
    for part in said:
        digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def plain(value: Any) -> str | None:  # noqa: PLR0911  (one case for each kind)
    """What there is to say of a value with no others in it; None for all others. Strings may be secret: a digest."""
    kind = type(value)
    if value is None or kind in (bool, float, complex):
        return repr(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__qualname__}.{value._name_} = {plain(value._value_)}"
    if issubclass(kind, int):
        return int.__repr__(value) if int.bit_length(value) < 1000 else f"#{sha256_of([hex(value)])}"
    if issubclass(kind, np.generic) and not value.dtype.hasobject:
        return f"{value.dtype} {value.item()!r}" if value.dtype.kind in "biufc" else f"#{digest_of_array(value)}"
    if issubclass(kind, float):
        return float.__repr__(value)
    if issubclass(kind, str | bytes | bytearray):
        raw = value.encode("utf-8", "surrogatepass") if issubclass(kind, str) else bytes(value)
        return f"#{hashlib.sha256(kind.__name__.encode() + raw).hexdigest()}"
    if issubclass(kind, _TOLD_BY_REPR):
        return repr(value)
    if kind is torch.device:
        # The same is computed on another one, as far as it can be.
        return "a device"
    if issubclass(kind, slice):
        ends = [plain(each) for each in (value.start, value.stop, value.step)]
        return None if None in ends else f"slice({', '.join(map(str, ends))})"
    return f"#{sha256_of([kind.__name__, repr(value)])}" if issubclass(kind, _HASHED_BY_REPR) else None


_TOLD_BY_REPR = (
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.Size,
    np.dtype,
    range,
    type(...),
    type(NotImplemented),
)
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_CONTAINERS = (dict, types.MappingProxyType, list, tuple, deque, set, frozenset, *_GETTERS)
_HASHED_BY_REPR = (
    pathlib.PurePath,
    decimal.Decimal,
    fractions.Fraction,
    dt.date,
    dt.time,
    dt.timedelta,
    uuid.UUID,
    array.array,
    re.Pattern,
)


def is_container(value: Any) -> bool:
    """Whether a value has members, as `members_of` lists them."""
    kind = type(value)
    return issubclass(kind, _CONTAINERS) or (issubclass(kind, np.ndarray) and value.dtype.hasobject)


def members_of(value: Any) -> Members:
    """The members of a container, each with the step to it and its key."""
    kind = type(value)
    if issubclass(kind, dict | types.MappingProxyType):
        # A copy, as other threads may add to it, and by no method of the user's.
        items = list(dict.items(value)) if issubclass(kind, dict) else list(value.items())
        made = [(".default_factory", "", value.default_factory)] if issubclass(kind, defaultdict) else []
        return [*made, *((f"[{_key(key)}]", f"{type(key).__name__}={plain(key)}", member) for key, member in items)]
    if issubclass(kind, _GETTERS):
        # What they are made of, by no code of it.
        return [(f"[{at}]", "", member) for at, member in enumerate(kind.__reduce__(value)[1])]
    for base in (list, tuple, deque):
        if issubclass(kind, base):
            return [(f"[{at}]", "", member) for at, member in enumerate([*base.__iter__(value)])]
    for unordered in (set, frozenset):
        if issubclass(kind, unordered):
            return [("{}", "", member) for member in [*unordered.__iter__(value)]]
    return [(f"[{at}]", "", member) for at, member in enumerate(value.ravel().tolist())]


def said_at_once(value: Any) -> str | None:
    """A digest of a very large container of nothing but numbers and texts; None for all else."""
    kind = type(value)
    if kind not in (list, tuple, deque, dict, set, frozenset) or len(value) <= MOST_MEMBERS:
        return None
    try:
        if kind in (list, tuple, deque):
            said = [marshal.dumps(list(value), 2)]
        else:
            said = sorted(marshal.dumps(each, 2) for each in list(value.items() if kind is dict else value))
    except ValueError:
        return None
    return f"#{kind.__name__}{hashlib.sha256(b''.join(said)).hexdigest()}"


def _key(key: object) -> str:
    return repr(key) if type(key) in (str, int, bool, float) and len(repr(key)) < 80 else type(key).__name__
