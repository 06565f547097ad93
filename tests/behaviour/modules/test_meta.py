"""Modules that are made on meta, without memory, and loaded later: the usual way to load a large model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import linear

from infinite_tensor import DeviceMismatchError, VirtualTensor, ZarrTileStore
from tests.behaviour.modules.nets import Field, plane

META = torch.device("meta")


class Weights(nn.Module):
    """Virtual tensors of every kind: of a parameter, of another virtual tensor, of nothing, and of another module."""

    scaled: VirtualTensor
    weight: VirtualTensor

    def __init__(self, *, persist: bool = False, device: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Parameter(torch.randn(3, 3, device=device))
        self.gain = nn.Parameter(torch.full((), 2.0, device=device))
        self.bias = nn.Buffer(torch.ones(3, device=device))
        VirtualTensor.create(self, "scaled", "times_gain", device=device, persist=persist)
        VirtualTensor.create(self, "weight", "with_diagonal", device=device, persist=persist)

    def times_gain(self, _dtype: torch.dtype, _device: torch.device) -> torch.Tensor:
        return self.gain * self.base

    def with_diagonal(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self.scaled.value.to(device, dtype) + torch.eye(3, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight.value, self.bias)


class Table(nn.Module):
    """A virtual tensor of a module without tensors: a table, made where it is asked for."""

    table: VirtualTensor

    def __init__(self, *, persist: bool = False, device: Any = None) -> None:
        super().__init__()
        VirtualTensor.create(self, "table", _angles, device=device, persist=persist)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.table.value)


def _angles(_owner: nn.Module, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.arange(9, dtype=dtype, device=device).reshape(3, 3)


class Tied(nn.Module):
    """A virtual tensor of a parameter of another module."""

    weight: VirtualTensor

    def __init__(self, of: Weights, *, persist: bool = False, device: Any = None) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3, device=device))
        # In a tuple, since what is assigned becomes a part of this module.
        self.of = (of,)
        VirtualTensor.create(self, "weight", lambda owner, *_: owner.of[0].base.T, device=device, persist=persist)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


def model(**options: Any) -> nn.Sequential:
    weights, linear = Weights(**options), nn.Linear(3, 3, device=options.get("device"))
    return nn.Sequential(weights, Table(**options), linear, Tied(weights, **options))


@contextmanager
def without_memory_for(registering: str) -> Iterator[None]:
    """Put on meta what modules register, one by one and after it was made."""
    register = getattr(nn.Module, registering)

    def register_on_meta(module: nn.Module, name: str, tensor: Any, *rest: Any, **options: Any) -> None:
        register(module, name, tensor, *rest, **options)
        if tensor is not None:
            (module._parameters if name in module._parameters else module._buffers)[name] = _on_meta(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, registering, register_on_meta)
        yield


def _on_meta(tensor: torch.Tensor) -> Any:
    return nn.Parameter(tensor.to(META)) if isinstance(tensor, nn.Parameter) else tensor.to(META)


def made_within(*contexts: Any) -> Callable[..., nn.Module]:
    """What makes a model within these."""

    def make(**options: Any) -> nn.Module:
        with ExitStack() as stack:
            for enter in contexts:
                stack.enter_context(enter())
            return model(**options)

    return make


ONE_BY_ONE = [partial(without_memory_for, f"register_{kind}") for kind in ("parameter", "buffer")]
MAKING: dict[str, Callable[..., nn.Module]] = {
    "default device": made_within(lambda: META),
    "device=": lambda **options: model(device="meta", **options),
    "moved": lambda **options: model(**options).to("meta"),
    "parameters": made_within(ONE_BY_ONE[0]),
    "parameters and buffers": made_within(*ONE_BY_ONE),
}


def assigned(module: nn.Module, state: dict[str, Any]) -> None:
    module.load_state_dict(state, assign=True)


def emptied_and_copied(module: nn.Module, state: dict[str, Any]) -> None:
    module.to_empty(device="cpu").load_state_dict(state)


LOADING = {"assign": assigned, "to_empty": emptied_and_copied}


@pytest.mark.parametrize("load", LOADING.values(), ids=LOADING)
@pytest.mark.parametrize("make", MAKING.values(), ids=MAKING)
@pytest.mark.parametrize("persist", [False, True])
def test_a_module_that_was_made_on_meta_and_loaded_computes_what_an_ordinary_one_does(
    make: Callable[..., nn.Module], load: Callable[[nn.Module, Any], None], persist: bool, tmp_path: Path
) -> None:
    ordinary, x = model(persist=persist), torch.randn(5, 3)
    torch.save(ordinary.state_dict(), tmp_path / "state.pt")
    module = make(persist=persist)
    load(module, torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(module(x), ordinary(x))
    # What a loader does next; and it trains.
    module.to("cpu", torch.float64)
    assert torch.equal(module(x.double()), copy.deepcopy(ordinary).double()(x.double()))
    module(x.double()).sum().backward()
    assert all(each.grad is not None and not each.grad.is_meta for each in module.parameters())


@pytest.mark.parametrize("make", MAKING.values(), ids=MAKING)
def test_a_module_of_which_a_loader_replaces_the_parameters_one_by_one_is_computed_where_they_are(
    make: Callable[..., nn.Module],
) -> None:
    ordinary: Any = Weights()
    module: Any = make()[0]  # type: ignore[index]
    for name in ("base", "gain"):
        setattr(module, name, nn.Parameter(getattr(ordinary, name).detach().clone()))
    module.bias = ordinary.bias.clone()
    x = torch.randn(5, 3)
    assert torch.equal(module(x), ordinary(x))
    assert torch.equal(linear(x, module.weight), linear(x, ordinary.weight))
    assert module.weight.device == module.weight.value.device == torch.device("cpu")
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), ordinary(x))  # noqa: S301  (our own bytes)
    assert torch.equal(copy.deepcopy(module)(x), ordinary(x))


def test_one_module_on_meta_stands_for_many_of_which_the_parameters_are_given() -> None:
    ordinary, x = [Weights() for _ in range(3)], torch.randn(5, 3)
    for number, each in enumerate(ordinary):
        each.base.data.mul_(number)
    parameters, buffers = stack_module_state(ordinary)
    skeleton = copy.deepcopy(ordinary[0]).to("meta")
    together = vmap(lambda *given: functional_call(skeleton, given, (x,)))(parameters, buffers)
    assert torch.allclose(together, torch.stack([each(x) for each in ordinary]))
    given: dict[str, torch.Tensor] = {**dict(ordinary[2].named_parameters()), "bias": ordinary[2].bias}
    assert torch.equal(functional_call(skeleton, given, (x,)), ordinary[2](x))
    assert skeleton(x.to(META)).is_meta


@pytest.mark.parametrize("make", MAKING.values(), ids=MAKING)
def test_a_value_that_is_computed_without_data_in_a_module_with_data_is_an_error(
    make: Callable[..., nn.Module],
) -> None:
    module: Any = make()[0]  # type: ignore[index]
    module.gain = nn.Parameter(torch.ones(()))
    with pytest.raises(DeviceMismatchError, match="on meta"):
        linear(torch.ones(1, 3), module.scaled)


def test_a_table_on_meta_that_nothing_was_loaded_for_is_an_error_until_it_is_told_a_device() -> None:
    with META:
        module = Table()
        assert module(torch.ones(1, 3)).is_meta
    with pytest.raises(DeviceMismatchError, match="device"):
        linear(torch.ones(1, 3), module.table)
    module.table.device = "meta"
    assert copy.deepcopy(module).table.value.is_meta
    module.table.device = "cpu"
    assert torch.equal(module(torch.eye(3)), Table()(torch.eye(3)))


@pytest.mark.parametrize("load", [assigned, None])
def test_a_module_that_was_made_on_meta_is_compiled_and_exported_once_it_has_data(load: Any) -> None:
    ordinary, x = Weights(), torch.randn(5, 3)
    module: Any = Weights(device="meta")
    if load:
        load(module, ordinary.state_dict())
    else:
        module.base, module.gain, module.bias = ordinary.base, ordinary.gain, ordinary.bias
    torch.compiler.reset()
    compiled: Any = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), ordinary(x))
    program: Any = torch.export.export(module, (x,)).module()
    assert torch.equal(program(x), ordinary(x))
    torch.compiler.reset()


@pytest.mark.parametrize("assign", [True, False])
def test_a_state_that_was_saved_on_meta_brings_back_the_dtype_and_leaves_the_device(assign: bool) -> None:
    state = Table(persist=True).to("meta", torch.float64).state_dict()
    module = Table(persist=True)
    module.load_state_dict(state, assign=assign)
    assert (module.table.value.dtype, module.table.value.device.type) == (torch.float64, "cpu")


def test_an_infinite_tensor_is_read_whatever_the_module_was_made_on(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "world.zarr") as store:
        ordinary = Field(plane(tile_store=store, tensor_id="world"))
        x, state = torch.ones(1, 3), ordinary.state_dict()
        expected = ordinary(x)
        store.flush()
        with META:
            given, opened = Field(ordinary.field.tensor), Field(None)
        opened.load_state_dict(state, assign=True)
        for module in (given, opened):
            assert torch.equal(linear(x, module.weight.value), expected)
            assert torch.equal(module(x), expected)
