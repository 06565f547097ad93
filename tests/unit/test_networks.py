"""The weights of the networks that a function holds are part of its fingerprint."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from infinite_tensor import InfiniteTensor, Output, TensorWindow, ValidationError, digest, digests, no_digest
from infinite_tensor.values.definition import functions_of
from infinite_tensor.values.fingerprint import differ, fingerprint
from tests.support.networks import Net, Painter, closing_over, filled, halved, with_net
from tests.unit.fingerprinted import closure

ROOT = Path(__file__).parents[2]
WINDOW = TensorWindow((4,))

NET = Net()
NETS = [Net(), Net()]
PAINTER = Painter(Net())


class Wrapping:
    """Holds something that holds a network, and nothing else."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, ctx: tuple[int, ...]) -> torch.Tensor:
        return torch.as_tensor(self.inner.paint(ctx))

    def rounded(self, ctx: tuple[int, ...]) -> torch.Tensor:
        return self(ctx).round()


class Slotted:
    __slots__ = ("__net", "unset")

    def __init__(self, net: nn.Module) -> None:
        self.__net = net

    def paint(self, ctx: tuple[int, ...]) -> torch.Tensor:
        return with_net(self.__net, ctx)


def with_default(ctx: tuple[int, ...], net: nn.Module = NET) -> torch.Tensor:
    return with_net(net, ctx)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


def of_default(net: nn.Module) -> Callable[..., Any]:
    def inner(ctx: tuple[int, ...], *, by: nn.Module = net) -> torch.Tensor:
        return with_net(by, ctx)

    return inner


HOLDERS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "the network": lambda net: net,
    "a method of it": lambda net: net.sample,
    "a closure": closing_over,
    "a closure on a method": lambda net: closure(net.forward),
    "a closure on a list": lambda net: closure([1, net]),
    "a closure on a dict": lambda net: closure({"net": net}),
    "a closure on a set": lambda net: closure({net, "net", 1}),
    "a closure on an object": lambda net: closure(Painter(net)),
    "a closure on a closure": lambda net: decorated(closing_over(net)),
    "a default": of_default,
    "a partial": lambda net: functools.partial(with_net, net),
    "a keyword of a partial": lambda net: functools.partial(with_default, net=net),
    "a partial of a method": lambda net: functools.partial(Painter(net).paint),
    "an object with it in a list": lambda net: Painter(net).paint,
    "an object with it in a slot": lambda net: Slotted(net).paint,
    "an object in an object": lambda net: Wrapping(Painter(net)).rounded,
    "an object that is called": lambda net: Wrapping(Painter(net)),
    "an object with a dict": lambda net: Wrapping({"nets": (Painter(net),)}).rounded,
    "an object with a closure": lambda net: Wrapping(closing_over(net)),
    "an object with a partial": lambda net: Wrapping(functools.partial(with_net, net)),
    "an object with a method": lambda net: Wrapping(net.sample),
    "a cached function": lambda net: functools.lru_cache(closing_over(net)),
    "many values": lambda net: closure([net, list(range(20_000))]),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_other_weights_are_another_function(name: str) -> None:
    hold = HOLDERS[name]
    before, again, other = (fingerprint(hold(net)) for net in (Net(), Net(), Net(0.25)))
    assert before.startswith("3:")
    assert before == again
    assert differ(before, other)


@pytest.mark.parametrize("wrap", [functools.partial(torch.compile, backend="eager"), nn.DataParallel])
@pytest.mark.parametrize("name", ["the network", "a closure", "a partial", "an object with it in a list"])
def test_what_a_network_is_wrapped_in_is_no_other_function(name: str, wrap: Callable[[Any], Any]) -> None:
    bare, wrapped = fingerprint(HOLDERS[name](Net())), fingerprint(HOLDERS[name](wrap(Net())))
    assert not differ(bare, wrapped)


def of_torch(value: float) -> nn.Module:
    return filled(nn.Sequential(nn.Linear(4, 4)), value)


@pytest.mark.parametrize(
    "name", [name for name in HOLDERS if name not in ("a method of it", "an object with a method")]
)
def test_a_network_may_be_of_a_class_of_torch_s_own(name: str) -> None:
    hold = HOLDERS[name]
    assert differ(fingerprint(hold(of_torch(0.5))), fingerprint(hold(of_torch(0.25))))


def test_methods_of_torch_s_own_classes_count() -> None:
    one, other = of_torch(0.5), of_torch(0.25)
    assert differ(fingerprint(one.forward), fingerprint(other.forward))
    assert differ(fingerprint(Wrapping(one.forward)), fingerprint(Wrapping(other.forward)))


def by_name(ctx: tuple[int, ...]) -> torch.Tensor:
    return with_net(NET, ctx)


def by_name_in_a_list(ctx: tuple[int, ...]) -> torch.Tensor:
    return with_net(NETS[ctx[0]], ctx)


def by_name_in_an_object(ctx: tuple[int, ...]) -> torch.Tensor:
    return PAINTER.paint(ctx)


def calls_by_name(ctx: tuple[int, ...]) -> torch.Tensor:
    return by_name(ctx) + 1


@pytest.mark.parametrize(
    ("function", "name", "other"),
    [
        (by_name, "NET", Net(0.25)),
        (by_name, "NET", of_torch(0.25)),
        (calls_by_name, "NET", Net(0.25)),
        (by_name_in_a_list, "NETS", [NET, Net(0.25)]),
        (by_name_in_an_object, "PAINTER", Painter(Net(0.25))),
    ],
)
def test_a_network_that_is_a_global_name_counts(
    function: Callable[..., Any], name: str, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(function)
    assert before.startswith("3:")
    monkeypatch.setitem(globals(), name, other)
    assert differ(fingerprint(function), before)


def test_it_counts_which_network_is_where() -> None:
    one, other = Net(), Net(0.25)
    assert differ(fingerprint(Painter(one, other).paint), fingerprint(Painter(other, one).paint))

    class Two:
        def __init__(self, **nets: nn.Module) -> None:
            vars(self).update(nets)

        def paint(self, ctx: tuple[int, ...]) -> torch.Tensor:
            return with_net(self.first, ctx) - with_net(self.second, ctx)  # type: ignore[attr-defined]

    assert differ(fingerprint(Two(first=one, second=other).paint), fingerprint(Two(first=other, second=one).paint))
    assert fingerprint(Two(first=one, second=other).paint) == fingerprint(Two(second=other, first=one).paint)
    assert differ(fingerprint(Two(first=one).paint), fingerprint(Two(second=one).paint))


def test_it_is_the_same_in_every_process() -> None:
    code = (
        "from infinite_tensor.values.fingerprint import fingerprint\n"
        "from tests.unit.test_networks import HOLDERS, Net\n"
        "for hold in HOLDERS.values(): print(fingerprint(hold(Net())))"
    )
    command, environment = [sys.executable, "-c", code], {"PYTHONHASHSEED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [fingerprint(hold(Net())) for hold in HOLDERS.values()]


# What it costs, and where it is not done.


class Counted(nn.Module):
    """Counts how often it is hashed: each time, it is asked what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.hashed = 0
        self.layer = filled(nn.Linear(4, 4))

    def extra_repr(self) -> str:
        self.hashed += 1
        return ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def test_one_construction_hashes_a_network_once() -> None:
    net = Counted()
    many = decorated(closure([net, net.forward, list(range(20_000))]))
    f = functools.partial(many, Painter(net, net), Wrapping(net).rounded)
    InfiniteTensor((None,), f, WINDOW)
    assert net.hashed == 1
    outputs = {name: Output((None,), torch.float32, WINDOW) for name in ("one", "two", "three")}
    InfiniteTensor.from_multi(f, outputs)
    assert net.hashed == 2


def test_a_read_hashes_nothing() -> None:
    net = Counted()
    t = InfiniteTensor((None,), closing_over(net), WINDOW)
    t[0:16]
    t[-8:4]
    InfiniteTensor((None,), halved, WINDOW, [t], [WINDOW])[0:8]
    assert net.hashed == 1


def test_without_digests_a_fingerprint_is_as_if_weights_were_none() -> None:
    net = Counted()
    f = closing_over(net)
    with no_digest():
        before = fingerprint(f)
        with pytest.raises(KeyError), no_digest():
            raise KeyError
        assert fingerprint(f) == before
        assert fingerprint(closing_over(filled(Counted(), 2))) == before
    assert net.hashed == 0
    assert ":" not in before
    assert fingerprint(f).endswith(f":{before}")
    assert no_digest()(fingerprint)(f) == before


def test_digests_are_left_out_in_one_thread_alone() -> None:
    f, found = closing_over(Net()), []
    with no_digest():
        thread = threading.Thread(target=lambda: found.append(fingerprint(f)))
        thread.start()
        thread.join()
    assert found == [fingerprint(f)]


@pytest.mark.parametrize("make", [lambda: Net().to("meta"), lambda: nn.LazyLinear(4)])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_network_without_values_counts_by_its_class(make: Callable[[], nn.Module]) -> None:
    f = functools.partial(with_net, make())
    with no_digest():
        before = fingerprint(f)
    assert fingerprint(f) == before
    assert InfiniteTensor((None,), f, WINDOW).to_json()["functions"]["f"] == before  # type: ignore[index,call-overload]
    assert fingerprint(closure([make(), Net()])).startswith("3:")


def test_a_network_of_a_tensor_that_a_function_holds_does_not_count_here() -> None:
    net = Counted()
    t = InfiniteTensor((None,), closing_over(net), WINDOW)
    assert ":" not in fingerprint(Wrapping(t).rounded)
    assert net.hashed == 1


def test_of_many_values_in_an_object_some_are_looked_at() -> None:
    looks = []

    class Watched(list[object]):
        def __iter__(self) -> Any:
            for value in super().__iter__():
                looks.append(value)
                yield value

    watched = Watched([float(at) for at in range(10**5)])
    fingerprint(closure([Wrapping(watched) for _ in range(100)]))
    assert 1000 <= len(looks) <= 10_100


# Digests for a version.


@pytest.mark.parametrize("name", HOLDERS)
def test_other_weights_give_other_digests(name: str) -> None:
    found, same, other = (digests(HOLDERS[name](Net(value))) for value in (0.5, 0.5, 0.25))
    assert found == same
    assert digest(Net()) in found
    assert digest(Net(0.25)) in other


OF_VALUES = [name for name in HOLDERS if "method" not in name and name not in ("the network", "a closure on a set")]


@pytest.mark.parametrize("make", [torch.tensor, np.array, np.int64], ids=["tensor", "array", "scalar"])
@pytest.mark.parametrize("name", OF_VALUES)
def test_other_tensors_and_arrays_give_other_digests(name: str, make: Callable[[int], Any]) -> None:
    found, same, other = (digests(HOLDERS[name](make(value))) for value in (1, 1, 2))
    assert found
    assert found == same != other


GLOBAL = torch.tensor(0)


def test_a_tensor_that_is_a_global_name_gives_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in (1, 2):
        monkeypatch.setitem(globals(), "GLOBAL", torch.tensor(value))
        found.append(digests(lambda _ctx: GLOBAL))
    assert found[0] != found[1]


def test_dtype_and_shape_of_an_array_count() -> None:
    arrays = [np.zeros(4, "i4"), np.zeros(4, "u4"), np.zeros((2, 2), "i4"), np.zeros(2, "datetime64[s]"), np.zeros(0)]
    found = [tuple(digests(closure(array))) for array in arrays]
    assert len({*found}) == len(arrays)
    assert digests(closure(np.zeros((4, 2))[:, 0])) == digests(closure(np.zeros(4)))


def test_files_and_arrays_of_objects_give_no_digest(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4))
    assert digests(closure([np.load(tmp_path / "a.npy", mmap_mode="r"), np.array([object()])])) == []


def test_tensors_do_not_count_in_fingerprints() -> None:
    assert fingerprint(closure(torch.ones(2))) == fingerprint(closure(torch.zeros(2)))


def test_what_is_held_twice_has_one_digest() -> None:
    net, kernel = Net(), torch.ones(2)
    assert len(digests(closure([net, kernel, Painter(net), {"kernel": kernel}]))) == 2


@pytest.mark.parametrize("make", [lambda: Net().to("meta"), lambda: nn.LazyLinear(4), lambda: torch.ones(2).to("meta")])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_has_no_values_has_no_digest(make: Callable[[], Any]) -> None:
    with pytest.raises(ValidationError, match="has no values; load the weights first"):
        digests(closure([1, make()]))
    with no_digest():
        assert digests(closure([1, make()])) == []


def test_only_what_can_be_called_has_digests() -> None:
    with pytest.raises(ValidationError, match="digests takes a function, got 3; give one that can be called"):
        digests(3)  # type: ignore[arg-type]


# Upstream.


def test_what_is_computed_from_a_tensor_with_a_network_has_it_in_its_fingerprint() -> None:
    def below(value: float) -> dict[str, str]:
        upstream = functions_of(fingerprint(closing_over(Net(value))), None, ())
        return functions_of(fingerprint(halved), None, (upstream, functions_of(fingerprint(halved), None, ())))

    one, other = below(0.5), below(0.25)
    assert one["f"] == other["f"]
    assert one["upstream"].startswith("3:")
    assert differ(one["upstream"], other["upstream"])
    assert differ(*(functions_of(None, None, (each,))["upstream"] for each in (one, other)))
    with no_digest():
        before = below(0.5)
    assert ":" not in before["upstream"]
    assert one["upstream"].endswith(f":{before['upstream']}")
