"""What a function is: tables of what differs between two functions, and of what their records say of it.

Tested inside: ids of maps, predictions that are resumed, and warnings are all made of a record, and a store for each
row would take minutes. `tests/behaviour/test_changes.py` tests those.
"""

from __future__ import annotations

import argparse
import array
import collections
import configparser
import enum
import functools
import importlib
import itertools
import json
import logging
import operator
import os
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, make_dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import dask.array as da
import numpy as np
import pytest
import torch
import tqdm
import xarray as xr
import zarr
from PIL import Image
from torch import nn

from infinite_tensor import InfiniteTensor, TensorWindow, digest

# Inside: records, see above.
from infinite_tensor.values.code import is_installed
from infinite_tensor.values.functions import Changes, FunctionRecord, Functions, changes
from tests.support.networks import Net, Painter, closing_over, filled, with_net
from tests.unit import constants
from tests.unit.test_digest import odd

ROOT = Path(__file__).parents[2]
NOTHING = Changes([], [], [], [])


def record(function: Callable[..., Any]) -> FunctionRecord:
    return Functions({"f": function}).record


def changed(one: Callable[..., Any], other: Callable[..., Any]) -> Changes:
    return changes(record(one), record(other))


def closure(value: Any) -> Callable[[], Any]:
    return lambda: value


# Values: a table of pairs, each in all that may hold it.


class Plain:
    def __init__(self, t: Any) -> None:
        self.t = t


class Blur(Plain):
    def __call__(self, x: Any) -> Any:
        return self.scaled(x)

    def scaled(self, x: Any) -> Any:
        return x * self.t

    @functools.cached_property
    def table(self) -> list[Any]:
        return [self.t]


class Slotted:
    __slots__ = ("t", "unset")

    def __init__(self, t: Any) -> None:
        self.t = t

    def __call__(self, x: Any) -> Any:
        return x * self.t


@dataclass(frozen=True)
class Config:
    t: Any


class Settled(nn.Module):
    """A network with a plain tensor, a number, and networks in a list."""

    def __init__(self, mean: float = 0.5, gain: float = 2.0, part: float = 0.5) -> None:
        super().__init__()
        self.mean = torch.full((2,), mean)
        self.gain = gain
        self.parts = [filled(nn.Linear(2, 2), part)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) * self.gain


def with_hook(value: float) -> nn.Module:
    net, adapter = filled(nn.Linear(2, 2)), filled(nn.Linear(2, 2), value)
    net.register_forward_hook(lambda _net, args, output: output + adapter(args[0]))
    return net


def traced(value: float) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.trace(lambda x: x * value, torch.ones(2))


def scripted(value: float) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.freeze(torch.jit.script(Settled(value).eval()))


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(lambda *args: function(*args))  # noqa: PLW0108  (a closure)


def of_default(value: Any) -> Callable[..., Any]:
    def inner(*, by: Any = value) -> object:
        return by

    return inner


def by_t(config: Any) -> Callable[..., Any]:
    return lambda x: x * config.t


def by_table(blur: Blur) -> Callable[..., Any]:
    return lambda x: x * blur.table[0]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


HOLDERS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "a closure": closure,
    "a closure on containers": lambda value: closure((1, [{"a": (value,)}])),
    "a closure on a closure": lambda value: wrapped(closure(value)),
    "a default": of_default,
    "a partial": lambda value: functools.partial(closure, value),
    "a keyword of a partial": lambda value: functools.partial(closure, value=value),
    "an object that is called": Blur,
    "a method of it": lambda value: Blur(value).scaled,
    "a method of an object with it in a list": lambda value: Painter(value).paint,
    "an object in an object": lambda value: Blur(Painter(value).paint),
    "a slot": Slotted,
    "a frozen dataclass": lambda value: by_t(Config(value)),
    "a namespace": lambda value: by_t(types.SimpleNamespace(t=value)),
    "parsed arguments": lambda value: by_t(argparse.Namespace(t=value)),
    "a cached property": lambda value: by_table(Blur(value)),
    "a cached function": lambda value: functools.lru_cache(closure(value)),
    "a function without gradients": lambda value: torch.no_grad()(closure(value)),
    "a method of a builtin": lambda value: {1: (value,)}.get,
}
PAIRS: list[tuple[Any, Any]] = [
    (0.25, 0.75),
    (1, True),
    (0.0, -0.0),
    ("a", "b"),
    (b"a", b"b"),
    (10**400, 10**400 + 1),
    (Color.RED, Color.BLUE),
    (Fraction(1, 2), Fraction(1, 3)),
    (PurePosixPath("a"), PurePosixPath("b")),
    (np.float32(1), np.float64(1)),
    (torch.float16, torch.float32),
    (torch.zeros(3), torch.tensor([0.0, 1, 0])),
    (np.zeros(3), np.ones(3)),
    (np.zeros(4, "i4"), np.zeros(4, "u4")),
    (np.zeros(4), np.zeros((2, 2))),
    (frozenset({1, 2}), frozenset({1, 3})),
    (torch.sin, torch.cos),
    (nn.functional.relu, nn.functional.gelu),
    (Net(0.5), Net(0.25)),
    (scripted(0.5), scripted(0.25)),
    (traced(0.5), traced(0.25)),
    (with_hook(0.5), with_hook(0.25)),
    (Settled(0.5), Settled(0.25)),
    (Settled(gain=2.0), Settled(gain=3.0)),
    (Settled(part=0.5), Settled(part=0.25)),
]


@pytest.mark.parametrize("name", HOLDERS)
def test_another_value_is_seen_whatever_holds_it(name: str) -> None:
    hold = HOLDERS[name]
    for one, other in PAIRS:
        found = changed(hold(one), hold(other))
        assert (len(found.values), found.code) == (1, []), (one, found)
        assert "weights" in found.values[0] or not isinstance(one, Net), found
        assert changed(hold(one), hold(one)) == NOTHING, one


# Values: functions and objects that people write, made twice of one value, and of another one.


def held(kind: type, values: Any, attribute: str) -> Any:
    """A tensor or an array with an attribute, as MONAI and astropy have them."""
    made = values.as_subclass(kind) if isinstance(values, torch.Tensor) else values.view(kind)
    made.kind = attribute
    return closure(made)


class Tensor(torch.Tensor): ...


class Array(np.ndarray[Any, Any]): ...


class Settable(Plain):
    @property
    def gain(self) -> Any:
        return self.t

    @gain.setter
    def gain(self, value: Any) -> None:
        self.t = value

    def to(self, device: Any) -> None:
        self.t = self.t.to(device)


def by_setter(gain: Any) -> Callable[..., Any]:
    settable = Settable(gain)
    return lambda x: settable.gain(x.to("cpu"))


class Items(dict[str, float]):
    def __setitem__(self, key: str, value: float) -> None:
        super().__setitem__(key, value)


def with_attribute(gain: float) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        return x * f.gain  # type: ignore[attr-defined]

    f.gain = gain  # type: ignore[attr-defined]
    return f


def matched(config: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        match config:
            case Config(t=t):
                return x * t

    return f


ALIVE: list[Any] = []


def weakly(value: float) -> Callable[..., Any]:
    ALIVE.append(Net(value))
    net: Any = weakref.ref(ALIVE[-1])
    return lambda x: net()(x + 1)


def dispatched(gain: float) -> Callable[..., Any]:
    class Scale:
        @functools.singledispatchmethod
        def by(self, x: Any) -> Any:
            return x

        @by.register
        def _(self, x: int) -> Any:
            return x * gain

    return Scale().by


def partial_method(gain: float, t: float = 1.0) -> Callable[..., Any]:
    class Scale(Plain):
        by = functools.partialmethod(lambda self, y, x: x * y * self.t, gain)

    return Scale(t).by


def level(value: Any) -> Any:
    return enum.Enum("Level", {"LOW": value}).LOW  # type: ignore[attr-defined]


def by_name(config: Any) -> Callable[..., Any]:
    return lambda x: x * getattr(config, "t")  # noqa: B009


def by_any_name(config: Any) -> Callable[..., Any]:
    return lambda x, name: x * getattr(config, name)


def by_dict(config: Any) -> Callable[..., Any]:
    return lambda x: x * asdict(config)["t"]


def parsed(gain: float) -> Callable[..., Any]:
    config = configparser.ConfigParser()
    config.read_string(f"[a]\ngain={gain}")
    return lambda x: x * config.getfloat("a", "gain")


def with_forward(gain: float) -> nn.Module:
    net = nn.Identity()
    vars(net)["forward"] = lambda x: x * gain
    return net


def times(x: Any, k: int) -> Any:
    return x * k


def closures(factors: list[int]) -> Callable[..., Any]:
    def by(k: int) -> Callable[[Any], Any]:
        return lambda x: x * k

    steps = [by(factor) for factor in factors]
    return lambda x: [step(x) for step in steps]


def filled_beside(k: int) -> Callable[..., Any]:
    parameters = {"k": k}

    def f(x: Any) -> Any:
        parameters["n"] = parameters.get("n", 0) + 1
        return x * parameters["k"]

    with Functions({"f": f}).watched():
        f(1)
    return f


COUNT = itertools.count(1)


class Recipes(Plain):
    """Leaves out of its pickle what it makes anew, as einops does."""

    def __init__(self, t: float) -> None:
        super().__init__(t)
        self.made = next(COUNT)

    def __getstate__(self) -> dict[str, Any]:
        return {"t": self.t}


def fields(names: str) -> Callable[..., Any]:
    steps = make_dataclass("Steps", names)(*[0] * len(names))
    return lambda x: [x + step for step in vars(steps).values()]


def levels(names: str) -> Callable[..., Any]:
    kind = enum.Enum("Level", {name: ord(name) for name in names})  # type: ignore[misc]
    return lambda x: [x * level.value for level in kind]


def within(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: closure(make(value))


DIFFER: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "an attribute of a tensor": (functools.partial(held, Tensor, torch.ones(2)), 1.0, 2.0),
    "an attribute of an array": (functools.partial(held, Array, np.ones(2)), "m", "mm"),
    "members of an enum in another order": (levels, "AB", "BA"),
    "the tensor of a member": (within(level), torch.tensor(1), torch.tensor(2)),
    "the tuple of a member in a list": (lambda end: closure([level((1, end))]), 2, 3),
    "functions in another order": (
        lambda names: closure({name: operator.methodcaller(name) for name in names}),
        ["lower", "strip"],
        ["strip", "lower"],
    ),
    "an ordered dict": (within(collections.OrderedDict), [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]),
    "keywords in another order": (
        lambda keywords: functools.partial(lambda x, **given: [x * each for each in given.values()], **keywords),
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
    ),
    "fields in another order": (fields, "ab", "ba"),
    "keys that are tuples": (within(dict), {(0, 1): 1, (1, 0): 2}, {(1, 0): 1, (0, 1): 2}),
    "keys that are types": (within(dict), {int: 1, str: 2}, {str: 1, int: 2}),
    "shapes of many arrays": (lambda shape: closure([np.zeros(shape)] * 120), (2, 3), (3, 2)),
    "what calls change beside": (filled_beside, 1, 2),
    "a pickle of its own": (within(Recipes), 1.0, 2.0),
    "a property with a setter": (by_setter, 1.0, 2.0),
    "a network that is moved": (lambda value: by_setter(Net(value)), 0.5, 0.25),
    "a dict of a project": (lambda gain: closure(Items(gain=gain)), 1.0, 2.0),
    "a dict of a user": (lambda gain: closure(collections.UserDict(gain=gain)), 1.0, 2.0),
    "a dict with defaults": (lambda k: closure(collections.defaultdict(functools.partial(times, k))), 1, 2),
    "a set": (lambda value: closure({Net(value), "net", 1}), 0.5, 0.25),
    "a method that dispatches": (dispatched, 1.0, 2.0),
    "an argument of a partial method": (partial_method, 1.0, 2.0),
    "what a partial method reads": (lambda t: partial_method(0.5, t), 1.0, 2.0),
    "an attribute by its name": (lambda t: by_name(Plain(t)), 1.0, 2.0),
    "an attribute by any name": (lambda t: by_any_name(Config(t)), 1.0, 2.0),
    "a dataclass as a dict": (lambda t: by_dict(Config(t)), 1.0, 2.0),
    "a pattern": (lambda t: matched(Config(t)), 1.0, 2.0),
    "an attribute that was added": (lambda extra: closure(types.SimpleNamespace(t=1, **extra)), {"gamma": 2.0}, {}),
    "a configuration": (parsed, 1.0, 2.0),
    "a getter": (within(operator.itemgetter), 1, 2),
    "a caller": (lambda dim: closure(operator.methodcaller("sum", dim=dim)), 1, 2),
    "an array of Python": (lambda value: closure(array.array("d", [value])), 1, 2),
    "a mask": (lambda mask: closure(np.ma.masked_equal(np.arange(3), mask)), 1, 2),
    "an attribute of a function": (with_attribute, 1.0, 2.0),
    "a weak reference": (weakly, 0.5, 0.25),
    "one of several partials": (lambda ks: closure([functools.partial(times, k=k) for k in ks]), [1, 2, 1], [1, 2, 2]),
    "one of several closures": (closures, [1, 2, 1], [1, 1, 2]),
    "a setting of a layer": (lambda heads: filled(nn.MultiheadAttention(4, heads)).eval(), 1, 2),
    "the mode of a network that reads it": (lambda mode: Net().train(mode), True, False),
    "a forward of its own": (with_forward, 1.0, 2.0),
    "a transformed function": (lambda dim: torch.func.vmap(times, in_dims=dim), 0, 1),
    "a nested tensor, by its dtype": (
        lambda dtype: closure(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], dtype=dtype)),
        torch.float32,
        torch.float64,
    ),
    "pandas": (lambda value: closure(xr.DataArray([1.0, value], dims="x").to_series()), 2, 3),
    "xarray": (lambda value: closure(xr.DataArray([1.0, value])), 2, 3),
    "zarr": (lambda value: closure(zarr.array(np.array([1.0, value]))), 2, 3),
    "pillow": (lambda value: closure(Image.new("L", (2, 2), value)), 2, 3),
    "a long list": (lambda more: closure([*range(10**5), *more]), [7], []),
    "a large dict": (lambda more: closure(dict.fromkeys(range(10**5)) | more), {7: 8}, {}),
    "a large dict in another order": (lambda step: closure(dict.fromkeys(range(10**5)[::step])), 1, -1),
    "a large set": (lambda less: closure({*range(10**5)} - less), {9}, set()),
}


@pytest.mark.filterwarnings("ignore:.*prototype:UserWarning")
@pytest.mark.parametrize("name", DIFFER)
def test_another_value_of_what_people_write_is_seen(name: str) -> None:
    make, one, other = DIFFER[name]
    assert changed(make(one), make(one)) == NOTHING
    assert changed(make(one), make(other)).values
    assert record(make(one)).opaque == ()


MEAN: Any = 0.25
TABLE: dict[str, Any] = {}


def norm(x: float) -> float:
    return x - MEAN  # type: ignore[no-any-return]


def by_module(_x: float) -> float:
    return constants.SCALE


def by_import(_x: float) -> float:
    from tests.unit import constants as imported  # noqa: PLC0415

    return imported.SCALE


def calls_norm(x: float) -> float:
    return norm(x)


class Settings:
    scale = 1.0


def by_class(_x: float) -> float:
    return Settings.scale


HERE = sys.modules[__name__]


@pytest.mark.parametrize(
    ("function", "where", "name", "place"),
    [
        (norm, HERE, "MEAN", "`MEAN`, a global of `norm`,"),
        (calls_norm, HERE, "MEAN", "`MEAN`, a global of `norm`,"),
        (by_module, constants, "SCALE", "`constants.SCALE`, a global of `by_module`,"),
        (by_import, constants, "SCALE", "`tests.unit.constants.SCALE`, imported by `by_import`,"),
        (by_class, Settings, "scale", "`scale`, an attribute of class `Settings`,"),
    ],
)
def test_a_constant_that_is_named_is_shown_with_both_values(
    function: Callable[..., Any], where: object, name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, 0.25)
    before = record(function)
    monkeypatch.setattr(where, name, 0.75)
    assert changes(before, record(function)) == NOTHING._replace(values=[f"{place} was 0.25 and is 0.75"])


def test_a_module_of_a_project_may_be_called_as_one_of_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wave(gain: float) -> Callable[..., Any]:
        module = types.ModuleType("wave")
        module.__file__ = str(tmp_path / "wave.py")
        monkeypatch.setitem(sys.modules, "wave", module)
        exec(compile(f"GAIN = {gain}\ndef f(x):\n    return x * GAIN", module.__file__, "exec"), vars(module))  # noqa: S102
        return module.f  # type: ignore[no-any-return]

    assert changed(wave(1.0), wave(2.0)).values == ["`GAIN`, a global of `f`, was 1.0 and is 2.0"]


def test_values_that_change_in_place_are_hashed_again() -> None:
    net, table = Net(), np.zeros(4)
    f = closure((net, table))
    before = record(f)
    net.out.weight.data[0, 0] = 7
    assert changes(before, record(f)).values == [
        "the weights of `value[0]`, a variable around `<lambda>`, have changed"
    ]
    table[0] = 1
    assert len(changes(before, record(f)).values) == 2


# Code.


def defined(source: str, module: str = "steps") -> Callable[..., Any]:
    scope: dict[str, Any] = {"__name__": module}
    exec(compile(source, f"{module}.py", "exec", optimize=0), scope)  # noqa: S102
    return next(each for each in scope.values() if isinstance(each, types.FunctionType))


SPELLINGS = [
    "def f(x, k=2):\n    y = [z * k for z in x]\n    return y",
    "def f(x, k=2):\n    '''Doubles.'''\n    y = [z * k for z in x]\n\n    return y",
    "def f(row, k=2):\n    doubled = [\n        each * k\n        for each in row\n    ]\n    return doubled",
    "def f(x, k=2):\n    assert k and len(x) < 9, f'{k}'\n    y = [z * k for z in x]\n    assert y\n    return y",
    "def g(x, k=2):\n    y = [z * k for z in x]\n    return y",
]
OTHERS = [
    "def f(x, k=2):\n    y = [z + k for z in x]\n    return y",
    "def f(x, k=2):\n    y = [k * z for z in x]\n    return y",
    "def f(x, *, k=2):\n    y = [z * k for z in x]\n    return y",
    "def f(x):\n    for y in x:\n        if y:\n            g(y)\n            h(y)",
    "def f(x):\n    for y in x:\n        if y:\n            g(y)\n        h(y)",
    "def f(x):\n    try:\n        g(x)\n        h(x)\n    except K:\n        pass",
    "def f(x):\n    try:\n        g(x)\n    except K:\n        pass\n    h(x)",
]


def test_the_spelling_and_the_place_of_code_do_not_count_and_all_else_does() -> None:
    first, *others = (record(defined(source)).code for source in SPELLINGS)
    assert others == [first] * len(others)
    assert record(defined(SPELLINGS[0], "elsewhere")).code == first
    assert len({str(record(defined(source)).code) for source in (*SPELLINGS, *OTHERS)}) == 1 + len(OTHERS)


def layer(forward: Callable[..., torch.Tensor]) -> Any:
    """Of a project, and torch derives a class from it."""
    kind = type("Layer", (nn.Linear,), {"__module__": __name__, "forward": forward})
    return nn.utils.parametrizations.weight_norm(filled(kind(2, 2)))


def number(method: Callable[..., Any]) -> Callable[..., Any]:
    return type("Gain", (float,), {"__module__": __name__, "apply": method})(1.0).apply  # type: ignore[no-any-return]


def kind(init: Callable[..., Any]) -> Any:
    return type("Kind", (), {"__module__": __name__, "__init__": init, "__call__": lambda _self, x: x})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: torch.sin(x), lambda x: torch.cos(x)),  # noqa: PLW0108  (names are what differs)
        (lambda x: x in {1, 2}, lambda x: x in {1, 3}),
        (lambda x: (lambda: x + 1)(), lambda x: (lambda: x + 2)()),  # noqa: PLC3002
        (closure(lambda x: x + 1), closure(lambda x: x + 2)),
        (functools.lru_cache(norm), functools.lru_cache(calls_norm)),
        (layer(lambda self, x: self.bias + x), layer(lambda self, x: self.bias - x)),
        (number(lambda _self, x: x), number(lambda _self, x: x + 1)),
        (closure(kind(lambda _self: None)), closure(kind(lambda self: self.__dict__.clear()))),
    ],
)
def test_other_code_is_other_code(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert changed(one, other).code == ["f"]


def test_the_code_of_base_classes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Derived(Blur):
        pass

    before = record(Derived(1))
    monkeypatch.setattr(Blur, "scaled", lambda _self, x: x)
    assert changes(before, record(Derived(1))).code == ["f"]


# What does not count.


def decorated(module: str) -> Callable[..., Any]:
    f = torch.no_grad()(lambda x: x)
    f.__module__ = module
    return f


def with_default(x: Any, gain: float = 1.0) -> Any:
    return x * gain


def with_renamed(x: Any, factor: float = 1.0) -> Any:
    return x * factor


with_renamed.__name__ = with_renamed.__qualname__ = "with_default"


class Member(Plain):
    """Stands in a set where it is told to."""

    def __init__(self, t: float, at: int) -> None:
        super().__init__(t)
        self.at = at

    def __hash__(self) -> int:
        return self.at


def gains(*members: Member) -> Callable[..., Any]:
    chosen = set(members)
    return lambda x: [x * member.t for member in chosen]


def by_attribute(x: Any) -> object:
    return x.TABLE


def idle(*things: object) -> Callable[..., Any]:
    return lambda x: (things, x)[1]


def both(a: Config, b: Config) -> Callable[..., Any]:
    return lambda x: x + a.t + b.t


PLAIN, CONFIG = filled(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), Config(1.0)
SAME: dict[str, tuple[Any, Any]] = {
    "the module of a function": (decorated("one"), decorated("other")),
    "the module of a function in a closure": (closure(decorated("one")), closure(decorated("other"))),
    "the name of a parameter": (with_default, with_renamed),
    "the order of a set": (gains(Member(1.0, 0), Member(2.0, 1)), gains(Member(1.0, 1), Member(2.0, 0))),
    "the device": (closure(torch.device("cpu")), closure(torch.device("cpu", 0))),
    "the constructor of an object": (kind(lambda _self: None)(), kind(lambda self: self.__dict__.clear())()),
    "which objects are shared": (both(CONFIG, CONFIG), both(CONFIG, Config(1.0))),
    "which tuples are shared": (closure(((1, 2), (1, 2))), closure(((1, *"", 2), (1, 2)))),
    **{
        f"{wrap} around a network in {name}": (HOLDERS[name](Net()), HOLDERS[name](wrapper(Net())))
        for wrap, wrapper in (
            ("compile", functools.partial(torch.compile, backend="eager")),
            ("DataParallel", nn.DataParallel),
        )
        for name in ("a closure", "a closure on containers", "a method of an object with it in a list")
    },
    "a wrapper around a network": (Net(), nn.DataParallel(Net())),
}


@pytest.mark.parametrize("name", SAME)
def test_it_does_not_count(name: str) -> None:
    assert changed(*SAME[name]) == NOTHING


def test_the_mode_of_a_network_does_not_count_where_no_code_reads_it() -> None:
    for net in (PLAIN, nn.Sequential(PLAIN)):
        training = record(net.train())
        assert changes(training, record(net.eval())) == NOTHING


def test_a_name_counts_where_it_is_a_global_and_not_where_it_is_an_attribute_or_a_local_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_table(table: list[float]) -> Callable[..., Any]:
        def double(x: float) -> list[float]:
            table = []
            table.append(x)
            return table

        return lambda x: double(x) + table

    assert changed(with_table([1.0]), with_table([2.0])).values
    before = record(by_attribute)
    monkeypatch.setitem(TABLE, "x", 1)
    assert record(by_attribute) == before


@pytest.mark.parametrize(
    "make",
    [
        threading.Lock,
        itertools.count,
        lambda: logging.getLogger(str(next(COUNT))),
        lambda: tqdm.tqdm(total=next(COUNT), disable=True),
        lambda: torch.Generator().manual_seed(next(COUNT)),
        lambda: np.random.default_rng(next(COUNT)),
        lambda: (each for each in range(next(COUNT))),
        lambda: open(__file__),  # noqa: SIM115, PTH123
    ],
)
def test_locks_loggers_bars_files_and_generators_do_not_count(make: Callable[[], Any]) -> None:
    one, other = make(), make()
    found = changed(idle(one), idle(other))
    for each in (one, other):
        getattr(each, "close", lambda: None)()
    assert found == NOTHING
    assert record(idle(one)).opaque == ()


def test_what_an_installer_put_into_a_folder_is_no_project_and_what_lies_beside_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("targeted", "beside"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "inner" / "__init__.py").write_text("def made():\n    return 1\n")
    (tmp_path / "targeted-1.0.dist-info").mkdir()
    (tmp_path / "targeted-1.0.dist-info" / "RECORD").write_text("targeted/__init__.py,sha256=x,0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, known in (("targeted", True), ("beside", False)):
        made = importlib.import_module(f"{name}.inner").made
        assert is_installed(name) == is_installed(made.__module__, made.__code__.co_filename) == known


# What calls change.

calls = 0


def counts(x: Any) -> Any:
    global calls  # noqa: PLW0603
    calls += 1
    return x


def memoised(x: int) -> object:
    return TABLE.setdefault(str(x), x)


def filling(x: float, _cache: dict[float, float] = {}) -> float:  # noqa: B006
    _cache[x] = x
    return x


class Counting(Blur):
    def __init__(self) -> None:
        super().__init__(0.5)
        self.calls, self.memo, self.seen = 0, {}, []  # type: ignore[var-annotated]

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        seen = self.seen
        seen.append(x)
        self.memo[x] = x
        return x


class Rotary(nn.Module):
    """Makes a buffer and a table when it is called first, and sets an attribute of its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = filled(nn.Linear(4, 4))
        self.table: torch.Tensor | None = None
        self.register_buffer("cached", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(4.0)
            self.register_buffer("cached", torch.ones(len(x)))
        self.layer.calls = 1  # type: ignore[assignment]
        return torch.as_tensor(self.layer(x) + self.table)


def collecting(*, by_lambda: bool) -> nn.Module:
    net, features = filled(nn.Linear(4, 4)), dict[Any, torch.Tensor]()

    def hook(module: nn.Module, _args: object, output: torch.Tensor) -> None:
        features[module] = output

    net.register_forward_hook(
        (lambda _module, _args, output: features.__setitem__("layer", output)) if by_lambda else hook
    )
    return net


def counted_around(counts: Any) -> Callable[..., Any]:
    count = 0

    def f(x: Any) -> Any:
        nonlocal count
        count += 1
        counts[str(x)] = counts.get(str(x), 0) + 1
        return x

    return f


CALLED: dict[str, tuple[Any, Any]] = {
    "a global": (counts, 1.0),
    "a dict of the module": (memoised, 1),
    "a default": (filling, 1.0),
    "an object": (Counting(), 1),
    "a network": (Rotary(), torch.ones(4)),
    "a network in a closure": (closing_over(Rotary()), (1,)),
    "what a hook keeps": (collecting(by_lambda=False), torch.ones(4)),
    "what a hook of one line keeps": (collecting(by_lambda=True), torch.ones(4)),
    "a dict around": (counted_around({"a": 3}), 1),
    "a counter around": (counted_around(collections.Counter(a=3)), 1),
    "a cache": (functools.lru_cache(abs), 1),
}


@pytest.mark.parametrize("name", CALLED)
def test_what_calls_change_does_not_count(name: str) -> None:
    f, x = CALLED[name]
    functions = Functions({"f": f})
    before, stored = functions.identity, functions.record
    with functions.watched():
        f(x)
    after = Functions({"f": f})
    assert after.identity == before
    assert changes(stored, after.without(stored.state)) == NOTHING


def test_training_while_a_call_runs_is_no_state() -> None:
    net = Net(0.5)
    f = closure(net)
    functions = Functions({"f": f})
    before = functions.record
    with functions.watched(), torch.no_grad():
        net.out.weight.mul_(2)
    after = record(f)
    assert changes(before, after).values
    assert after.state == ()


def test_the_digest_of_a_network_is_that_before_calls_changed_its_attributes() -> None:
    net = Rotary()
    before, functions = digest(net), Functions({"f": closure(net)})
    functions.look()
    with functions.watched():
        net(torch.ones(4))
    assert digest(net) == before


# What cannot be looked into, and objects that would not be.


class Failing:
    """Runs nothing of its own while it is looked at."""

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)

    __eq__ = __reduce__ = __repr__ = lambda *_: 1 / 0  # type: ignore[assignment]

    @property
    def value(self) -> object:
        raise AssertionError


OPAQUE: dict[str, tuple[Callable[[], Any], str]] = {
    "an array that would be computed": (lambda: da.ones(3), ""),
    "objects of pandas": (lambda: xr.DataArray(["a", "b"], dims="x").astype(object).to_series(), ""),
    "no attributes": (lambda: np.nditer(np.zeros(2)), " (numpy.nditer)"),
    "a very long list": (
        lambda: [Fraction(at) for at in range(10**5)],
        ", of which 10000 of 100000 members are inspected",
    ),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_cannot_be_looked_into_is_opaque(name: str) -> None:
    make, end = OPAQUE[name]
    assert record(closure(make())).opaque == (f"`value`, a variable around `<lambda>`{end}",)


def looped() -> list[object]:
    items: list[object] = [1]
    items.append((items, {"self": items}))
    return items


def loops(n: int) -> int:
    return loops(n - 1) if n else 0


class Node:
    def __init__(self) -> None:
        self.next = self

    def __call__(self) -> object:
        return self.next


def nested(levels: int, inside: Callable[[Any], Any]) -> Any:
    value: Any = [1]
    for _ in range(levels):
        value = inside(value)
    return value


@pytest.mark.parametrize(
    "make",
    [
        Failing,
        looped,
        Node,
        lambda: nested(40, lambda value: (value, value)),
        lambda: nested(5000, lambda value: [value]),
        lambda: loops,
        lambda: collections.deque([1]),
    ],
)
def test_whatever_a_function_holds_the_look_ends(make: Callable[[], Any]) -> None:
    def valued(held: Any) -> Callable[..., Any]:
        return lambda x: (held.value, x)

    for hold in (closure, valued):
        assert changed(hold(make()), hold(make())) == NOTHING


def test_a_secret_is_not_kept() -> None:
    assert "hunter2" not in str(record(closure(["hunter2", {"hunter2": "hunter2"}])).items)


# The same in every process.

SETS = frozenset({"a", "b", "c", "d", ("e", frozenset({"f"}))})


def of_sets(x: str, names: frozenset[Any] = SETS) -> bool:
    return x in {"p", "q", "r"} or x in names


EVERYWHERE: dict[str, Callable[[], Callable[..., Any]]] = {
    "assertions": lambda: constants.asserting,
    "sets": lambda: of_sets,
    "object": lambda: Blur(0.5),
    "network": lambda: closing_over(Net()),
    "partial": lambda: functools.partial(with_net, Net()),
    "hook": lambda: with_hook(0.5),
    "script": lambda: scripted(0.5),
    "trace": lambda: traced(0.5),
    "module": lambda: by_module,
    "failing": lambda: closure([lambda: 1, Failing, Color.RED, {"b": 1, "a": 2}]),
}


def everywhere() -> Iterator[str]:
    yield digest(odd())
    # What a process has compiled and traced before is part of the names of its TorchScript.
    scripted(0.25)
    traced(0.25)
    for make in EVERYWHERE.values():
        yield str(record(make()).to_json())


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_is_the_same_in_every_process(seed: int) -> None:
    code = "from tests.unit.test_identity import everywhere\nprint('\\n'.join(everywhere()))"
    # Without assertions.
    command, environment = [sys.executable, "-O", "-W", "ignore", "-c", code], {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == list(everywhere())


SCRIPT = """
import json
from dataclasses import dataclass
import torch
from infinite_tensor.values.functions import Functions

@dataclass(frozen=True)
class Point:
    x: int

class Scale(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        torch.nn.init.ones_(self.weight), torch.nn.init.ones_(self.bias)

net, points = Scale(), {Point(each) for each in range(20)}

def f(x):
    return net(x), [point.x for point in points]

print(json.dumps(Functions({"f": f}).record.to_json(), sort_keys=True))
"""


@pytest.mark.slow
def test_a_script_and_its_import_are_the_same_whatever_the_order_of_sets(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    found = set()
    for command, seed in ((["script.py"], "1"), (["-c", "import script"], "2")):
        paths = os.pathsep.join([str(tmp_path), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        run = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1


# Chains.


def test_functions_upstream_count() -> None:
    def below(value: Any) -> FunctionRecord:
        upstream = Functions({"f": closing_over(Net(value))})
        return Functions({"f": norm}, (upstream, Functions({"f": calls_norm}))).record

    assert changes(below(0.5), below(0.5)) == NOTHING
    assert "weights of `net`" in changes(below(0.5), below(0.25)).values[0]


def test_a_chain_may_be_long() -> None:
    functions = Functions({"f": norm})
    for _ in range(1100):
        functions = Functions({"f": norm}, (functions,))
    assert functions.record.code.keys() == {"f", "upstream"}


def test_a_tensor_counts_by_its_definition_and_what_it_computes() -> None:
    def reading(size: int) -> Callable[..., Any]:
        t = InfiniteTensor((None,), lambda _ctx: torch.zeros(size), TensorWindow((size,)))
        return lambda ctx: t[ctx[0] : ctx[0] + 4]

    assert changed(reading(4), reading(4)) == NOTHING
    assert sorted(changed(reading(4), reading(8)).values) == [
        "`size`, a variable around `<lambda>`, was 4 and is 8",
        "a tensor has changed",
    ]


def test_a_record_is_read_back_from_json_and_one_of_other_rules_is_empty() -> None:
    found = record(closing_over(Net()))
    assert FunctionRecord.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert FunctionRecord.from_json({"python": "3.11", "f": "00" * 32}) == FunctionRecord()
    assert changes(FunctionRecord(), found) == NOTHING
