"""Shapes of code that people write: what of them counts, and what does not."""

from __future__ import annotations

import array
import collections
import configparser
import enum
import functools
import itertools
import json
import operator
import os
import subprocess
import sys
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from infinite_tensor import digest
from infinite_tensor.values.definition import functions_of
from infinite_tensor.values.functions import FunctionRecord, Functions, changes
from tests.support.networks import Net, filled
from tests.unit.test_fingerprint import NOTHING, after_use, changed, closure, record

# What counts.


@dataclass
class Config:
    gain: float
    fields: Any = None


class Settable:
    """A property with a setter, and a method that moves what it holds."""

    def __init__(self, gain: Any) -> None:
        self._gain = gain

    @property
    def gain(self) -> Any:
        return self._gain

    @gain.setter
    def gain(self, value: Any) -> None:
        self._gain = value

    def to(self, device: Any) -> Settable:
        self._gain = self._gain.to(device)
        return self


def by_setter(settable: Settable) -> Callable[..., Any]:
    return lambda x: x * settable.gain


def moving(settable: Settable) -> Callable[..., Any]:
    return lambda x: settable.gain(x.to("cpu"))


class Items(dict[str, float]):
    """A dictionary with what belongs to one of a project."""

    def __setitem__(self, key: str, value: float) -> None:
        super().__setitem__(key, value)


class Words(collections.UserDict[str, float]):
    """Its base reads what it holds."""


class Partial:
    def __init__(self, k: int) -> None:
        self.__dict__["k"] = k

    half = functools.partialmethod(lambda self, x, y: x * y * self.k, 0.5)


def with_attribute(gain: float) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        return x * f.gain  # type: ignore[attr-defined]

    f.gain = gain  # type: ignore[attr-defined]
    return f


def matched(config: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        match config:
            case Config(gain=gain):
                return x * gain

    return f


class Plain:
    """An object whose attributes are told apart by what code names."""

    def __init__(self, gain: float) -> None:
        self.gain = gain


ALIVE: list[Any] = []


def weakly(net: Any) -> Callable[..., Any]:
    ALIVE.append(net)
    seen = weakref.ref(net)
    return lambda x: seen()(x + 1)  # type: ignore[misc]


def dispatched(gain: float) -> Callable[..., Any]:
    class Scale:
        @functools.singledispatchmethod
        def by(self, x: Any) -> Any:
            return x

        @by.register
        def _(self, x: int) -> Any:
            return x * gain

    return Scale().by


def with_argument(gain: float) -> Callable[..., Any]:
    class Scale:
        by = functools.partialmethod(lambda _self, factor, x: x * factor, gain)

    return Scale().by


def level(value: Any) -> Any:
    return enum.Enum("Level", {"LOW": value}).LOW  # type: ignore[attr-defined]


def by_name(config: Any) -> Callable[..., Any]:
    return lambda x: x * getattr(config, "gain")  # noqa: B009


def by_any_name(config: Any) -> Callable[..., Any]:
    return lambda x, name: x * getattr(config, name)


def by_dict(config: Any) -> Callable[..., Any]:
    return lambda x: x * asdict(config)["gain"]


def parsed(gain: float) -> Callable[..., Any]:
    config = configparser.ConfigParser()
    config.read_string(f"[a]\ngain={gain}")
    return lambda x: x * config.getfloat("a", "gain")


def of_masked(mask: int) -> Any:
    return np.ma.masked_equal(np.arange(3), mask)


def with_forward(gain: float) -> nn.Module:
    net = nn.Identity()
    vars(net)["forward"] = lambda x: x * gain
    return net


def times(x: Any, k: int) -> Any:
    return x * k


def scaled(*factors: int) -> Callable[..., Any]:
    steps = [functools.partial(times, k=factor) for factor in factors]
    return lambda x: [step(x) for step in steps]


def closures(*factors: int) -> Callable[..., Any]:
    def by(k: int) -> Callable[[Any], Any]:
        return lambda x: x * k

    steps = [by(factor) for factor in factors]
    return lambda x: [step(x) for step in steps]


class Held(torch.Tensor):
    """A tensor with an attribute, as MONAI has them."""


class Quantity(np.ndarray[Any, Any]):
    """An array with a unit, as astropy has them."""


def held(affine: float) -> Any:
    tensor = torch.ones(2).as_subclass(Held)
    tensor.affine = affine  # type: ignore[attr-defined]
    return tensor


def quantity(unit: str) -> Any:
    array = np.ones(2).view(Quantity)
    array.unit = unit  # type: ignore[attr-defined]
    return array


def levels(**members: int) -> Callable[..., Any]:
    kind = enum.Enum("Level", members)  # type: ignore[misc]
    return lambda x: [x * level.value for level in kind]


def applied(*names: str) -> Callable[..., Any]:
    steps = {name: operator.methodcaller(name) for name in names}
    return lambda x: [step(x) for step in steps.values()]


def with_keywords(**keywords: int) -> Callable[..., Any]:
    return functools.partial(lambda x, **given: [x * each for each in given.values()], **keywords)


def filled_beside(k: int) -> Callable[..., Any]:
    parameters = {"k": k}

    def f(x: Any) -> Any:
        parameters["n"] = parameters.get("n", 0) + 1
        return x * parameters["k"]

    with Functions({"f": f}).watched():
        f(1)
    return f


def extended(plain: Plain) -> Plain:
    plain.gamma = 2.0  # type: ignore[attr-defined]
    return plain


def layer(forward: Callable[..., torch.Tensor]) -> Any:
    kind = type("Layer", (nn.Linear,), {"__module__": __name__, "forward": forward})
    torch.manual_seed(0)
    return nn.utils.parametrizations.weight_norm(kind(2, 2))


def decorated(module: str) -> Callable[..., Any]:
    @torch.no_grad()
    def f(x: Any) -> Any:
        return x

    f.__module__ = module
    return f


def with_default(x: Any, gain: float = 1.0) -> Any:
    return x * gain


def with_renamed(x: Any, factor: float = 1.0) -> Any:
    return x * factor


with_renamed.__name__ = with_renamed.__qualname__ = "with_default"

COUNT = itertools.count()


class Recipes:
    """Leaves out of its pickle what it makes anew, as einops does."""

    def __init__(self, gain: float, made: object) -> None:
        self.gain = gain
        self.made = made

    def __getstate__(self) -> dict[str, Any]:
        return {"gain": self.gain}


def ordered_fields(*names: str) -> Callable[..., Any]:
    made = make_dataclass("Steps", names)(*[0] * len(names))
    return lambda x: [x + step for step in vars(made).values()]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: closure(held(1.0)), lambda: closure(held(2.0))),
        (lambda: closure(quantity("m")), lambda: closure(quantity("mm"))),
        (lambda: levels(A=1), lambda: levels(A=1, B=2)),
        (lambda: levels(A=1, B=2), lambda: levels(B=2, A=1)),
        (lambda: applied("lower", "strip"), lambda: applied("strip", "lower")),
        (lambda: closure(OrderedDict(a=1, b=2)), lambda: closure(OrderedDict(b=2, a=1))),
        (lambda: with_keywords(a=1, b=2), lambda: with_keywords(b=2, a=1)),
        (lambda: ordered_fields("a", "b"), lambda: ordered_fields("b", "a")),
        (lambda: filled_beside(1), lambda: filled_beside(2)),
        (lambda: closure(Recipes(1.0, next(COUNT))), lambda: closure(Recipes(2.0, next(COUNT)))),
        (lambda: by_setter(Settable(1.0)), lambda: by_setter(Settable(2.0))),
        (lambda: moving(Settable(Net(0.5))), lambda: moving(Settable(Net(0.25)))),
        (lambda: closure(Items(gain=1.0)), lambda: closure(Items(gain=2.0))),
        (lambda: closure(level(1)), lambda: closure(level(2))),
        (lambda: closure(level(torch.tensor(1))), lambda: closure(level(torch.tensor(2)))),
        (lambda: dispatched(1.0), lambda: dispatched(2.0)),
        (lambda: with_argument(1.0), lambda: with_argument(2.0)),
        (lambda: by_name(Plain(1.0)), lambda: by_name(Plain(2.0))),
        (lambda: by_any_name(Config(1.0)), lambda: by_any_name(Config(2.0))),
        (lambda: by_dict(Config(1.0)), lambda: by_dict(Config(2.0))),
        (lambda: parsed(1.0), lambda: parsed(2.0)),
        (lambda: closure(operator.itemgetter(1)), lambda: closure(operator.itemgetter(2))),
        (
            lambda: closure(operator.methodcaller("sum", dim=1)),
            lambda: closure(operator.methodcaller("sum", dim=2)),
        ),
        (lambda: closure(collections.UserDict(a=1)), lambda: closure(collections.UserDict(a=2))),
        (lambda: closure(array.array("d", [1])), lambda: closure(array.array("d", [2]))),
        (lambda: closure(of_masked(1)), lambda: closure(of_masked(2))),
        (lambda: closure(Words(a=1.0)), lambda: closure(Words(a=2.0))),
        (lambda: Partial(1).half, lambda: Partial(2).half),
        (lambda: with_attribute(1.0), lambda: with_attribute(2.0)),
        (lambda: matched(Config(1.0)), lambda: matched(Config(2.0))),
        (lambda: weakly(Net(0.5)), lambda: weakly(Net(0.25))),
        (
            lambda: closure(collections.defaultdict(functools.partial(times, 1))),
            lambda: closure(collections.defaultdict(functools.partial(times, 2))),
        ),
        (lambda: scaled(1, 2, 1), lambda: scaled(1, 2, 2)),
        (lambda: closures(1, 2, 1), lambda: closures(1, 1, 2)),
        (lambda: nn.MultiheadAttention(4, 1).eval(), lambda: nn.MultiheadAttention(4, 2).eval()),
        (lambda: with_forward(1.0), lambda: with_forward(2.0)),
        (lambda: torch.func.vmap(times, in_dims=0), lambda: torch.func.vmap(times, in_dims=1)),
        (lambda: closure({(0, 1): 1, (1, 0): 2}), lambda: closure({(1, 0): 1, (0, 1): 2})),
        (lambda: closure({int: 1, str: 2}), lambda: closure({str: 1, int: 2})),
        (lambda: closure([level((1, 2))]), lambda: closure([level((1, 3))])),
        (lambda: closure([np.zeros((2, 3))] * 120), lambda: closure([np.zeros((3, 2))] * 120)),
        (lambda: closure(extended(Plain(1.0))), lambda: closure(Plain(1.0))),
    ],
)
def test_another_value_is_seen(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    first, same = one(), one()
    if isinstance(first, nn.Module):
        same.load_state_dict(first.state_dict())
        (last := other()).load_state_dict(first.state_dict())
    else:
        last = other()
    assert changed(first, same) == NOTHING
    assert changed(first, last).values


def test_a_layer_of_a_project_that_torch_derives_a_class_from_has_code() -> None:
    one, other = layer(lambda self, x: self.bias + x), layer(lambda self, x: self.bias - x)
    assert changed(one, other).code == ["f"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (decorated("one"), decorated("other")),
        (closure(decorated("one")), closure(decorated("other"))),
        (with_default, with_renamed),
    ],
    ids=["module", "module in a closure", "parameter"],
)
def test_where_code_is_and_what_it_calls_its_parameters_does_not_count(
    one: Callable[..., Any], other: Callable[..., Any]
) -> None:
    assert changed(one, other) == NOTHING


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
    net = Counting()
    before, functions = digest(net), Functions({"f": closure(net)})
    functions.look()
    with functions.watched():
        net(torch.ones(2))
    assert digest(net) == before


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last = 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x  # type: ignore[assignment]
        return x


def test_the_methods_of_a_number_of_a_project_are_code() -> None:
    def number(method: Callable[..., Any]) -> Callable[..., Any]:
        kind = type("Gain", (float,), {"__module__": __name__, "apply": method})
        gain = kind(1.0)
        return gain.apply  # type: ignore[no-any-return]

    assert changed(number(lambda _self, x: x), number(lambda _self, x: x + 1)).code == ["f"]


def test_the_constructor_counts_where_objects_are_made_and_not_where_one_is_held() -> None:
    def kind(init: Callable[..., Any]) -> Any:
        return type("Kind", (), {"__module__": __name__, "__init__": init, "__call__": lambda _self, x: x})

    one, other = kind(lambda _self: None), kind(lambda self: self.__dict__.clear())
    assert changed(one(), other()) == NOTHING
    assert changed(closure(one), closure(other)).code == ["f"]


@pytest.mark.filterwarnings("ignore:.*prototype:UserWarning")
def test_a_tensor_without_bytes_of_its_own_counts_by_its_dtype() -> None:
    def nested(dtype: torch.dtype) -> torch.Tensor:
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], dtype=dtype)

    assert changed(closure(nested(torch.float32)), closure(nested(torch.float32))) == NOTHING
    assert changed(closure(nested(torch.float32)), closure(nested(torch.float64))).values


def test_attributes_of_a_function_that_the_library_has_words_for_are_its_own() -> None:
    class Scale:
        snapshot, stored, told = True, False, False

        def __init__(self, gain: float) -> None:
            self.gain = gain

        def __call__(self, x: Any) -> Any:
            return x * self.gain

    def of(gain: float) -> FunctionRecord:
        return functions_of(Scale(gain), None, ()).record

    assert changes(of(1.0), of(2.0)).values == ["`Scale.gain` was 1.0 and is 2.0"]


# What does not.


@pytest.mark.parametrize("kind", [dict, collections.Counter])
def test_counts_of_what_came_do_not_count(kind: type) -> None:
    counts = kind(a=3)

    def f(x: Any) -> Any:
        counts[str(x)] = counts.get(str(x), 0) + 1
        return x

    assert after_use(f, lambda f: (f(1), f("a"))) == NOTHING
    assert after_use(f, lambda f: f(2)) == NOTHING


def filling(x: float, _cache: dict[float, float] = {}) -> float:  # noqa: B006
    _cache[x] = x
    return x


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = filled(nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.calls = 1  # type: ignore[assignment]
        return self.layer(x)  # type: ignore[no-any-return]


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.masks[len(x)] = torch.ones(len(x))
        return x * self.masks[len(x)]


class Extractor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 3)
        self.features: dict[str, torch.Tensor] = {}
        self.net.register_forward_hook(self.save("0"))

    def save(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: torch.Tensor) -> None:
            self.features[name] = output.detach()

        return hook

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.net(x)
        return self.features["0"]


@pytest.mark.parametrize(
    ("f", "x"),
    [(filling, 1.0), (Masked(), torch.ones(3)), (Extractor(), torch.ones(3)), (Calls(), torch.ones(3))],
    ids=["a default", "what forward keeps", "what a hook keeps", "what forward sets on a layer"],
)
def test_what_code_keeps_in_an_object_does_not_count(f: Callable[..., Any], x: Any) -> None:
    assert after_use(f, lambda f: f(x)) == NOTHING


class Member:
    """What stands in a set where it is told to."""

    def __init__(self, gain: float, at: int) -> None:
        self.gain = gain
        self.at = at

    def __hash__(self) -> int:
        return self.at


def test_members_of_a_set_come_in_any_order() -> None:
    def gains(*members: Member) -> Callable[..., Any]:
        chosen = set(members)
        return lambda x: [x * member.gain for member in chosen]

    kept = gains(Member(1.0, 0), Member(2.0, 1))
    assert changed(kept, gains(Member(1.0, 1), Member(2.0, 0))) == NOTHING
    assert changed(kept, gains(Member(1.0, 0), Member(3.0, 1))).values


def test_devices_and_docstrings_do_not_count() -> None:
    assert changed(closure(torch.device("cpu")), closure(torch.device("cpu", 0))) == NOTHING
    source = "def f(x):\n    '''{}'''\n    return x"
    functions: list[Any] = []
    for text in ("One.", "Another."):
        exec(source.format(text), scope := {"__name__": __name__})  # noqa: S102
        functions.append(scope["f"])
    assert changed(*functions) == NOTHING


def test_traced_functions_are_the_same_each_time_they_are_traced() -> None:
    def trace() -> Any:
        return torch.jit.trace(nn.Sequential(nn.ReLU(), nn.ReLU()), torch.ones(1))

    with warnings.catch_warnings(action="ignore"):
        first = record(trace())
        for _ in range(12):
            assert changes(first, record(trace())) == NOTHING


SCRIPT = """
import json, sys
from dataclasses import dataclass

import torch
from torch import nn

from infinite_tensor.values.functions import Functions


@dataclass(frozen=True)
class Point:
    x: int


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight


net, points = Scale(), {Point(each) for each in range(20)}


def f(x):
    return net(x), [point.x for point in points]


def told():
    return json.dumps(Functions({"f": f}).record.to_json())


if __name__ in ("__main__", "__mp_main__"):
    print(told())
"""


@pytest.mark.slow
def test_a_script_and_its_import_are_the_same_whatever_the_order_of_sets(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    runs = [("script.py", "1"), ("-c", "2")]
    found = set()
    for how, seed in runs:
        command = [how] if how != "-c" else ["-c", "import script; print(script.told())"]
        paths = os.pathsep.join([str(tmp_path), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        run = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        found.add(json.dumps(json.loads(run.stdout), sort_keys=True))
    assert len(found) == 1


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
