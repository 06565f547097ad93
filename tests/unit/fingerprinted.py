"""Functions of every kind that a fingerprint looks into, by name; their fingerprints are in a file beside this one."""

from __future__ import annotations

import enum
import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

FACTOR = 3


def helper(x: float, times: float = FACTOR) -> float:
    return x * times + FACTOR


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n != 0 and even(n - 1)


def calls_helpers(x: float) -> object:
    return [helper(x), doubled(x), even(int(x))]


def documented(x: float) -> float:
    """Its docstring is one of its constants."""
    return x + 1


def with_defaults(
    a: int = 1,
    b: tuple[float, ...] = (0.5, -0.0, math.inf, math.nan, 1e300),
    *,
    c: bytes = b"\x00\xff",
    d: str = "\udc80 é",
    e: complex = 1 + 2j,
    f: bool = True,
    g: None = None,
) -> object:
    return a, b, c, d, e, f, g


def closure(value: Any) -> Callable[[], Any]:
    return lambda: value


def empty_cell() -> Callable[[], Any]:
    def inner() -> object:
        return never

    if FACTOR < 0:
        never = 0
    return inner


def nested(x: int) -> object:
    def inner(y: int) -> Callable[[int], int]:
        return lambda z: x + y + z

    return [inner(y)(1) for y in range(x) if y in {1, 2, 3}], {z: helper(len(z)) for z in "abc" if z in {"a", "b"}}


def generated(n: int) -> Iterator[int]:
    yield from (i * i for i in range(n))


async def awaited(n: int) -> int:
    return n


def square(ctx: tuple[int, ...]) -> torch.Tensor:
    """A window of a tensor, computed by what has few values."""
    return torch.full((4,), float(ctx[0] ** 2))


def looked_up(ctx: tuple[int, ...], table: tuple[int, ...] = tuple(range(0, 40_000, 2))) -> torch.Tensor:
    """A window of a tensor, computed by what has many values."""
    return torch.tensor(table[4 * ctx[0] : 4 * ctx[0] + 4], dtype=torch.float32)


def halved(_ctx: tuple[int, ...], region: torch.Tensor) -> torch.Tensor:
    """A window of a tensor that is computed from another one."""
    return region / 2


def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


doubled = functools.partial(helper, 2)


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: object


@dataclass
class Settings:
    scale: float

    def method(self, x: float) -> float:
        return self.scale * x

    @classmethod
    def made(cls) -> object:
        return cls(1.0)

    @staticmethod
    def alone(x: float) -> float:
        return helper(x)


class Base:
    def __call__(self, ctx: object) -> object:
        return helper, ctx


class Derived(Base):
    pass


class Network(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helper(1.0) * x


def _looped_list() -> list[object]:
    items: list[object] = [1]
    items.append(items)
    return items


def _looped_dict() -> dict[str, object]:
    items: dict[str, object] = {"a": 1}
    items["self"] = items
    return items


def _names_itself() -> Callable[[], Any]:
    def inner() -> object:
        return inner

    return inner


def deep(depth: int, kind: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    """A value in so many others, each in the next one."""
    value: Any = 0
    for _ in range(depth):
        value = kind(value)
    return value


_SHARED = [1, (2, "x"), {"k": [3]}]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "documented": documented,
    "calls helpers": calls_helpers,
    "defaults": with_defaults,
    "sine": lambda x: torch.sin(x),  # noqa: PLW0108  (names are what differs)
    "cosine": lambda x: torch.cos(x),  # noqa: PLW0108
    "nested": nested,
    "generated": generated,
    "awaited": awaited,
    "wrapped": wrapper(helper),
    "cached": functools.lru_cache(helper),
    "partial": functools.partial(with_defaults, 2, b=(1.0,), d="x"),
    "partial of partial": functools.partial(functools.partial(helper), x=1),
    "partial of a partial in a list": closure([doubled, doubled]),
    "mutual recursion": even,
    "names itself": _names_itself(),
    "empty cell": empty_cell(),
    "bound method": Settings(2.0).method,
    "class method": Settings.made,
    "static method": Settings.alone,
    "class": Settings,
    "callable": Base(),
    "inherited call": Derived(),
    "module": Network(),
    "linear": torch.nn.Linear(1, 1),
    "builtin": math.sin,
    "builtin of torch": torch.maximum,
    "builtin method": [].append,
    "number": closure(0.1),
    "large int": closure(10**400),
    "text": closure("ünïcödé\n"),
    "dtypes and devices": closure([torch.float32, torch.device("cpu"), range(1, 9, 2), slice(None, 3)]),
    "opaque": closure([threading.Lock(), torch.ones(2), np.ones(2), math, Ellipsis, object]),
    "enums": closure([Color.RED, Level.LOW]),
    "named tuple": closure(Point(1, [2])),
    "ordered": closure(OrderedDict([("b", 1), ("a", helper)])),
    "dict": closure({1: "a", "b": [1, {2: 3}], (1, 2): {"x": None}}),
    "shared": closure([_SHARED, _SHARED, (_SHARED,)]),
    "looped list": closure(_looped_list()),
    "looped dict": closure(_looped_dict()),
    "set of text": closure({"c", "a", "b", "ä"}),
    "set of numbers": closure({3, 1, 2.5, None}),
    "set of everything": closure({(1, ("x",)), frozenset({"p", frozenset()}), helper, doubled, torch.int8, Level.LOW}),
    "set in a set": closure(frozenset({frozenset({frozenset({1, "a"}), 2}), frozenset()})),
    "sets that share": closure([{(1, 2)}, {(1, 2)}, frozenset()]),
    "deep list": closure(deep(100)),
    "deep tuple": closure(deep(100, lambda inner: (inner, "x"))),
    "deep dict": closure(deep(100, lambda inner: {"in": inner})),
    "deep set": closure(deep(50, lambda inner: frozenset({inner, "x"}))),
    "table": closure([i / 7 for i in range(5000)]),
    "tables": closure([list(range(90)) for _ in range(100)]),
    "mapping": closure({i: str(i) for i in range(4900)}),
    "large set": closure(frozenset(range(9000))),
    # Beside the ints there are 10 values: 9,999 altogether.
    "the most values": closure(list(range(9989))),
}
