"""What a function is: all that it reaches, by value, in code, values and what cannot be looked into."""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import importlib
import itertools
import logging
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from infinite_tensor.support.functions import FunctionCaller
from infinite_tensor.values.code import is_installed
from infinite_tensor.values.fingerprint import Snapshot
from infinite_tensor.values.functions import Changes, FunctionRecord, Functions, changes
from tests.support.networks import Net, Painter, closing_over, filled, with_net
from tests.unit import constants
from tests.unit.test_digest import odd

ROOT = Path(__file__).parents[2]


def record(function: Callable[..., Any]) -> FunctionRecord:
    return Functions({"f": function}).record


def changed(one: Callable[..., Any], other: Callable[..., Any]) -> Changes:
    return changes(record(one), record(other))


def after_use(function: Callable[..., Any], use: Callable[[Any], object]) -> Changes:
    """What a call changes, where it is watched as the first call for a tensor is."""
    functions = Functions({"f": function})
    before, stored = functions.identity, functions.record
    with functions.watched():
        use(function)
    after = Functions({"f": function})
    assert after.identity == before
    return changes(stored, after.without(stored.state))


NOTHING = Changes([], [], [], [])


def closure(value: Any) -> Callable[[], Any]:
    return lambda: value


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


def of_default(value: Any) -> Callable[..., Any]:
    def inner(*, by: Any = value) -> object:
        return by

    return inner


# Values: whatever code names.

MEAN: Any = 0.25
TABLE: dict[str, Any] = {}


def norm(x: float) -> float:
    return x - MEAN  # type: ignore[no-any-return]


def by_module(_x: float) -> float:
    return constants.SCALE


def by_import(_x: float) -> float:
    from tests.unit import constants as imported  # noqa: PLC0415

    return imported.SCALE


class Settings:
    scale = 1.0


def by_class(_x: float) -> float:
    return Settings.scale


def calls_norm(x: float) -> float:
    return norm(x)


@pytest.mark.parametrize(
    ("function", "where", "name", "line"),
    [
        (norm, sys.modules[__name__], "MEAN", "`MEAN`, a global of `norm`, was 0.25 and is 0.75"),
        (calls_norm, sys.modules[__name__], "MEAN", "`MEAN`, a global of `norm`, was 0.25 and is 0.75"),
        (by_module, constants, "SCALE", "`constants.SCALE`, a global of `by_module`, was 0.25 and is 0.75"),
        (by_import, constants, "SCALE", "`tests.unit.constants.SCALE`, imported by `by_import`, was 0.25 and is 0.75"),
        (by_class, Settings, "scale", "`scale`, an attribute of class `Settings`, was 0.25 and is 0.75"),
    ],
)
def test_a_constant_that_is_named_is_told_with_both_values(
    function: Callable[..., Any], where: object, name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, 0.25)
    before = record(function)
    monkeypatch.setattr(where, name, 0.75)
    assert changes(before, record(function)) == NOTHING._replace(values=[line])


def test_a_global_that_is_called_as_an_attribute_in_the_code_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> object:
        return x.TABLE

    before = record(f)
    monkeypatch.setitem(TABLE, "x", 1)
    assert record(f) == before


class Blur:
    def __init__(self, t: Any) -> None:
        self.t = t
        self.unread = object()

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

    def __init__(self, value: Any = 0.5) -> None:
        super().__init__()
        self.mean = torch.full((2,), float(value))
        self.gain = 2.0
        self.parts = [filled(nn.Linear(2, 2))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) * self.gain


def with_gain(gain: float) -> nn.Module:
    net = Settled()
    net.gain = gain
    return net


def with_part(value: float) -> nn.Module:
    net = Settled()
    net.parts = [filled(nn.Linear(2, 2), value)]
    return net


def with_hook(value: float) -> nn.Module:
    net = filled(nn.Linear(2, 2))
    adapter = filled(nn.Linear(2, 2), value)
    net.register_forward_hook(lambda _net, args, output: output + adapter(args[0]))
    return net


def traced(value: float) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.trace(lambda x: x * value, torch.ones(2))


def scripted(value: float) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.freeze(torch.jit.script(Settled(value).eval()))


def by_t(config: Any) -> Callable[..., Any]:
    return lambda x: x * config.t


def by_table(blur: Blur) -> Callable[..., Any]:
    return lambda x: x * blur.table[0]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


VALUES: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "a closure": closure,
    "a closure on a tuple": lambda value: closure((1, (value,))),
    "a closure on a closure": lambda value: wrapped(closure(value)),
    "a default": of_default,
    "a partial": lambda value: functools.partial(closure, value),
    "a keyword of a partial": lambda value: functools.partial(closure, value=value),
    "an object that is called": Blur,
    "a method of it": lambda value: Blur(value).scaled,
    "a slot": Slotted,
    "a frozen dataclass": lambda value: by_t(Config(value)),
    "a namespace": lambda value: by_t(types.SimpleNamespace(t=value)),
    "parsed arguments": lambda value: by_t(argparse.Namespace(t=value)),
    "a cached property": lambda value: by_table(Blur(value)),
    "a cached function": lambda value: functools.lru_cache(closure(value)),
    "a function without gradients": lambda value: torch.no_grad()(closure(value)),
    "a method of a builtin": lambda value: {1: (value,)}.get,
}


@pytest.mark.parametrize(
    ("one", "other"),
    [
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
        (with_gain(2.0), with_gain(3.0)),
        (with_part(0.5), with_part(0.25)),
        (Settled(0.5), Settled(0.25)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("name", VALUES)
def test_other_values_are_seen_wherever_they_are(name: str, one: Any, other: Any) -> None:
    hold = VALUES[name]
    found = changed(hold(one), hold(other))
    assert len(found.values) == 1
    assert not found.code
    assert changed(hold(one), hold(one)) == NOTHING


HOLDERS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "the network": lambda net: net,
    "a method of it": lambda net: net.sample,
    "a closure": closing_over,
    "a list": lambda net: closure([1, net]),
    "a dict": lambda net: closure({"net": (net,)}),
    "a set": lambda net: closure({net, "net", 1}),
    "an object with it in a list": lambda net: Painter(net).paint,
    "an object in an object": lambda net: Blur(Painter(net).paint),
    "a partial": lambda net: functools.partial(with_net, net),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_other_weights_are_told_as_weights(name: str) -> None:
    hold = HOLDERS[name]
    (line,) = changed(hold(Net(0.5)), hold(Net(0.25))).values
    assert line.startswith("the weights of `")
    assert line.endswith("have changed")
    assert changed(hold(Net()), hold(Net())) == NOTHING


@pytest.mark.parametrize("wrap", [functools.partial(torch.compile, backend="eager"), nn.DataParallel])
@pytest.mark.parametrize("name", ["the network", "a closure", "a list", "an object with it in a list"])
def test_what_a_network_is_only_wrapped_in_does_not_count(name: str, wrap: Callable[[Any], Any]) -> None:
    assert changed(HOLDERS[name](Net()), HOLDERS[name](wrap(Net()))) == NOTHING


def test_weights_that_change_in_place_are_hashed_again() -> None:
    net, table = Net(), np.zeros(4)
    f = closure((net, table))
    before = record(f)
    net.out.weight.data[0, 0] = 7
    assert changes(before, record(f)).values == [
        "the weights of `value[0]`, a variable around `<lambda>`, have changed"
    ]
    table[0] = 1
    assert len(changes(before, record(f)).values) == 2


def test_a_secret_is_not_kept() -> None:
    assert "hunter2" not in str(record(closure(["hunter2", {"hunter2": "hunter2"}])).items)


# Code.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: torch.sin(x), lambda x: torch.cos(x)),  # noqa: PLW0108  (names are what differs)
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x in {1, 2}, lambda x: x in {1, 3}),
        (lambda x: (lambda: x + 1)(), lambda x: (lambda: x + 2)()),  # noqa: PLC3002
        (closure(lambda x: x + 1), closure(lambda x: x + 2)),
        (functools.lru_cache(norm), functools.lru_cache(calls_norm)),
    ],
)
def test_other_code_is_other_code(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert changed(one, other).code == ["f"]


SPELLINGS = [
    "def f(x, k=2):\n    y = [x * k for x in x]\n    return y",
    "def f(x, k=2):\n    '''Doubles.'''\n    y = [x * k for x in x]\n\n    return y",
    "def f(row, k=2):\n    doubled = [\n        each * k\n        for each in row\n    ]\n    return doubled",
    "def f(x, k=2):\n    assert k and len(x) < 9, f'{k}'\n    y = [x * k for x in x]\n    assert y\n    return y",
    "def g(x, k=2):\n    y = [x * k for x in x]\n    return y",
]
OTHERS = [
    "def f(x, k=2):\n    y = [x + k for x in x]\n    return y",
    "def f(x, k=2):\n    y = [k * x for x in x]\n    return y",
    "def f(x, *, k=2):\n    y = [x * k for x in x]\n    return y",
]


def defined(source: str, module: str = "steps") -> Callable[..., Any]:
    scope: dict[str, Any] = {"__name__": module}
    exec(compile(source, f"{module}.py", "exec", optimize=0), scope)  # noqa: S102
    return next(each for each in scope.values() if isinstance(each, types.FunctionType))


def test_how_code_is_spelled_and_where_it_stands_does_not_count() -> None:
    first, *others = (record(defined(source)).code for source in SPELLINGS)
    assert others == [first] * len(others)
    assert record(defined(SPELLINGS[0], "elsewhere")).code == first
    assert len({str(record(defined(source)).code) for source in (*SPELLINGS, *OTHERS)}) == 1 + len(OTHERS)


LOOPS = [
    "def f(x):\n    for y in x:\n        if y:\n            g(y)\n            h(y)",
    "def f(x):\n    for y in x:\n        if y:\n            g(y)\n        h(y)",
    "def f(x):\n    try:\n        g(x)\n        h(x)\n    except K:\n        pass",
    "def f(x):\n    try:\n        g(x)\n    except K:\n        pass\n    h(x)",
]


def test_what_stands_in_a_branch_counts() -> None:
    assert len({str(record(defined(source)).code) for source in LOOPS}) == len(LOOPS)


def test_the_code_of_classes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Derived(Blur):
        pass

    before = record(Derived(1))
    monkeypatch.setattr(Blur, "scaled", lambda _self, x: x)
    assert changes(before, record(Derived(1))).code == ["f"]


def test_a_renamed_variable_does_not_hide_other_weights() -> None:
    class Firm(FunctionCaller):
        def __init__(self, fn: Callable[..., Any]) -> None:
            self.fn = fn

        def _reaches(self) -> dict[str, object]:
            return {"fn": self.fn}

    # Objects that say what they reach are of this library.
    Firm.__module__ = "infinite_tensor.tests"

    def before(net: nn.Module) -> Any:
        return Firm(lambda x: net(x))  # noqa: PLW0108

    def after(model: nn.Module) -> Any:
        return Firm(lambda x: model(x))  # noqa: PLW0108

    assert changed(before(Net()), after(Net())) == NOTHING._replace(code=["f"])
    found = changed(before(Net()), after(Net(0.25)))
    assert found.firm == ["the weights of `net`, a variable around `<lambda>`, is not there any more"]


# What does not count.

COUNT = itertools.count(1)

calls = 0


def counts(x: float) -> float:
    global calls  # noqa: PLW0603
    calls += 1
    return x


def memoised(x: int) -> object:
    return TABLE.setdefault(str(x), x)


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
    """Makes a buffer and a table when it is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = filled(nn.Linear(4, 4))
        self.table: torch.Tensor | None = None
        self.longest = 0
        self.register_buffer("cached", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.fill(len(x))
        return torch.as_tensor(self.layer(x) + self.table)

    def fill(self, length: int) -> None:
        self.table, self.longest = torch.arange(4.0), length
        self.register_buffer("cached", torch.ones(length))


def collecting() -> nn.Module:
    net, features = filled(nn.Linear(4, 4)), dict[nn.Module, torch.Tensor]()

    def hook(module: nn.Module, _args: object, output: torch.Tensor) -> None:
        features[module] = output

    net.register_forward_hook(hook)
    return net


def collecting_by_lambda() -> nn.Module:
    net, features = filled(nn.Linear(4, 4)), dict[str, torch.Tensor]()
    net.register_forward_hook(lambda _module, _args, output: features.__setitem__("layer", output))
    return net


def counted_around() -> Callable[..., Any]:
    count = 0

    def f(x: Any) -> Any:
        nonlocal count
        count += 1
        return x

    return f


def idle(*things: object) -> Callable[..., Any]:
    return lambda x: (things, x)[1]


@pytest.mark.parametrize(
    ("f", "use"),
    [
        (counts, lambda f: f(1.0)),
        (memoised, lambda f: f(1)),
        (Counting(), lambda f: f(1)),
        (Rotary(), lambda f: f(torch.ones(4))),
        (closing_over(Rotary()), lambda f: f((1,))),
        (collecting(), lambda f: f(torch.ones(4))),
        (collecting_by_lambda(), lambda f: f(torch.ones(4))),
        (counted_around(), lambda f: f(1)),
        (functools.lru_cache(abs), lambda f: f(1)),
    ],
    ids=["global", "memo", "object", "rotary", "rotary in a closure", "hook", "lambda", "nonlocal", "cache"],
)
def test_what_calls_change_does_not_count(f: Callable[..., Any], use: Callable[[Any], Any]) -> None:
    assert after_use(f, use) == NOTHING


@pytest.mark.parametrize(
    "make",
    [
        threading.Lock,
        itertools.count,
        lambda: logging.getLogger(str(id(object()))),
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


def test_a_list_that_is_only_read_is_a_value_and_an_appended_one_is_not() -> None:
    def reads(table: list[int]) -> Callable[..., Any]:
        return lambda x: table[x]

    assert [item.kind for item in record(reads([1])).items] == ["state"]
    assert changed(reads([1]), reads([2])).values == ["`table`, a variable around `<lambda>`, has changed"]


def test_the_mode_of_a_network_counts_where_its_code_reads_it() -> None:
    assert changed(Net().train(), Net().eval()).values
    plain = filled(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert changed(plain.train(), plain) == NOTHING
    assert changed(nn.Sequential(plain).train(), nn.Sequential(plain).eval()) == NOTHING


def test_a_container_counts_though_code_fills_a_local_variable_of_its_name() -> None:
    def with_table(table: list[float]) -> Callable[..., Any]:
        def double(x: float) -> list[float]:
            table = []
            table.append(x)
            return table

        return lambda x: double(x) + table

    assert changed(with_table([1.0]), with_table([2.0])).values


ARRAYS: dict[str, Callable[[float], Any]] = {
    "pandas": lambda value: xr.DataArray([1.0, value], dims="x").to_series(),
    "xarray": lambda value: xr.DataArray([1.0, value]),
    "zarr": lambda value: zarr.array(np.array([1.0, value])),
    "pillow": lambda value: Image.new("L", (2, 2), int(value)),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_an_array_of_another_library_counts_by_what_it_holds(make: Callable[[float], Any]) -> None:
    assert changed(closure(make(2)), closure(make(2))) == NOTHING
    assert changed(closure(make(2)), closure(make(3))).values == ["`value`, a variable around `<lambda>`, has changed"]


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


# What cannot be looked into.


def test_an_array_that_would_have_to_be_computed_is_opaque() -> None:
    assert record(closure(da.ones(3))).opaque == ("`value`, a variable around `<lambda>`",)
    assert record(closure(xr.DataArray(["a", "b"], dims="x").astype(object).to_series())).opaque == (
        "`value`, a variable around `<lambda>`",
    )


def test_what_has_no_attributes_is_opaque() -> None:
    assert record(closure(np.nditer(np.zeros(2)))).opaque == ("`value`, a variable around `<lambda>` (numpy.nditer)",)


def test_a_very_large_container_of_numbers_is_seen_whole() -> None:
    numbers = dict(enumerate(range(10**5)))
    pairs: list[tuple[Any, Any]] = [
        (list(numbers), [*numbers, 7]),
        (numbers, numbers | {7: 8}),
        (set(numbers), {*numbers} - {9}),
    ]
    for one, other in pairs:
        assert record(closure(one)).opaque == ()
        assert changed(closure(one), closure(type(one)(one))) == NOTHING
        assert changed(closure(one), closure(other)).values
    assert changed(closure(numbers), closure(dict(reversed(numbers.items())))).values


def test_a_very_long_list_of_objects_is_opaque_and_what_is_looked_at_counts() -> None:
    objects = [Fraction(at) for at in range(10**5)]
    assert changed(closure(objects), closure([*objects, Fraction(1)])).values
    (line,) = record(closure(objects)).opaque
    assert line == "`value`, a variable around `<lambda>`, of which 10000 of 100000 members are inspected"


# Hostile objects.


class Failing:
    """Runs nothing of its own while it is looked at."""

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __reduce__(self) -> Any:
        raise AssertionError

    def __repr__(self) -> str:
        raise AssertionError

    @property
    def value(self) -> object:
        raise AssertionError


def valued(held: Any) -> Callable[..., Any]:
    return lambda x: (held.value, x)


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


def deep(kind: Callable[[Any], Any]) -> Any:
    value: Any = 0
    for _ in range(5000):
        value = kind(value)
    return value


def shared() -> Any:
    value: Any = [1]
    for _ in range(40):
        value = (value, value)
    return value


@pytest.mark.parametrize(
    "make",
    [Failing, looped, Node, shared, lambda: deep(lambda each: [each]), lambda: loops, lambda: collections.deque([1])],
)
def test_whatever_a_function_holds_the_look_ends(make: Callable[[], Any]) -> None:
    assert changed(valued(make()), valued(make())) == NOTHING
    assert changed(closure(make()), closure(make())) == NOTHING


def test_it_does_not_count_what_objects_are_shared() -> None:
    table = (1, (2, "x"))
    again = (1, (*"", 2, "x"))
    assert record(closure((table, table))) == record(closure((table, again)))
    config = Config(1.0)
    assert record(idle_of(config, config)) == record(idle_of(config, Config(1.0)))


def idle_of(a: Config, b: Config) -> Callable[..., Any]:
    return lambda x: x + a.t + b.t


SETS = frozenset({"a", "b", "c", "d", ("e", frozenset({"f"}))})


def of_sets(x: str, names: frozenset[Any] = SETS) -> bool:
    return x in {"p", "q", "r"} or x in names


EVERYWHERE: dict[str, Callable[[], Callable[..., Any]]] = {
    "assertions": lambda: constants.asserting,
    "sets": lambda: of_sets,
    "object": lambda: Blur(0.5),
    "network": lambda: closing_over(Net()),
    "hook": lambda: with_hook(0.5),
    "script": lambda: scripted(0.5),
    "trace": lambda: traced(0.5),
    "module": lambda: by_module,
    "failing": lambda: closure([lambda: 1, Failing, Color.RED, {"b": 1, "a": 2}]),
}


def everywhere() -> Iterator[str]:
    yield digest(odd())
    # What a process has compiled before is part of the names of its TorchScript.
    scripted(0.25)
    for make in EVERYWHERE.values():
        yield str(record(make()).to_json())


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_is_the_same_in_every_process(seed: int) -> None:
    code = "from tests.unit.test_fingerprint import everywhere\nprint('\\n'.join(everywhere()))"
    # Without assertions.
    command, environment = [sys.executable, "-O", "-W", "ignore", "-c", code], {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == list(everywhere())


# Chains.


def test_functions_upstream_count() -> None:
    def below(value: Any) -> FunctionRecord:
        upstream = Functions({"f": closing_over(Net(value))})
        return Functions({"f": norm}, (upstream, Functions({"f": calls_norm}))).record

    assert changes(below(0.5), below(0.5)) == NOTHING
    assert changes(below(0.5), below(0.25)).values == [
        "the weights of `net`, a variable around `<lambda>`, have changed"
    ]


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


def test_networks_are_found_without_hashing_them() -> None:
    net = Net().to("meta")
    assert Snapshot(Blur(Painter(net).paint), "f").networks == [net]


def test_a_record_is_read_back_from_json_and_one_of_other_rules_is_empty() -> None:
    found = record(closing_over(Net()))
    assert FunctionRecord.from_json(found.to_json()) == found
    assert FunctionRecord.from_json({"python": "3.11", "f": "00" * 32}) == FunctionRecord()
    assert changes(FunctionRecord(), found) == NOTHING
