"""What there is to say of values that hold no others, and the members of containers, by no code of a user."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import hashlib
import pathlib
import re
import types
import uuid
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import torch

from infinite_tensor.values.arrays import digest_of_array

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
        return f"{kind.__qualname__}.{value._name_}"
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
    if issubclass(kind, slice):
        ends = [plain(each) for each in (value.start, value.stop, value.step)]
        return None if None in ends else f"slice({', '.join(map(str, ends))})"
    return f"#{sha256_of([kind.__name__, repr(value)])}" if issubclass(kind, _HASHED_BY_REPR) else None


_TOLD_BY_REPR = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    np.dtype,
    range,
    type(...),
    type(NotImplemented),
)
_HASHED_BY_REPR = (
    pathlib.PurePath,
    decimal.Decimal,
    fractions.Fraction,
    dt.date,
    dt.time,
    dt.timedelta,
    uuid.UUID,
    re.Pattern,
)


def members_of(value: Any) -> Members | None:
    """The members of a container, each with the step to it and its key; None for what is none."""
    kind = type(value)
    if issubclass(kind, dict | types.MappingProxyType):
        # A copy, as other threads may add to it, and by no method of the user's.
        items = list(dict.items(value)) if issubclass(kind, dict) else list(value.items())
        return [(f"[{_key(key)}]", f"{type(key).__name__}={plain(key)}", member) for key, member in items]
    for base in (list, tuple, deque):
        if issubclass(kind, base):
            return [(f"[{at}]", "", member) for at, member in enumerate([*base.__iter__(value)])]
    for unordered in (set, frozenset):
        if issubclass(kind, unordered):
            return [("{}", "", member) for member in [*unordered.__iter__(value)]]
    if issubclass(kind, np.ndarray) and value.dtype.hasobject:
        return [(f"[{at}]", "", member) for at, member in enumerate(value.ravel().tolist())]
    return None


def _key(key: object) -> str:
    return repr(key) if type(key) in (str, int, bool, float) and len(repr(key)) < 80 else type(key).__name__
