"""The documented behaviour of a virtual tensor, one by one."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import backward
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from infinite_tensor import ValidationError, VirtualTensor
from tests.behaviour.modules.nets import Doubling, doubled

BASE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
"""What `Doubling.base` begins with."""


def ones(_owner: nn.Module, _dtype: torch.dtype, _device: torch.device) -> torch.Tensor:
    return torch.ones(2)


def test_attributes_name_the_buffer_that_carries_dtype_and_device() -> None:
    attributes = Doubling().twice.attributes
    assert isinstance(attributes, VirtualTensor.LinkedAttributes)
    assert attributes._asdict() == {"ref": "_twice_ref"}
    assert attributes == ("_twice_ref",)


def test_the_buffer_is_empty_and_has_the_dtype_and_device_that_were_given() -> None:
    reference = Doubling(dtype=torch.float16, device="meta").get_buffer("_twice_ref")
    assert (reference.numel(), reference.dtype, reference.device.type) == (0, torch.float16, "meta")


def test_dtype_and_device_default_to_those_of_torch() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            owner = nn.Module()
            virtual = VirtualTensor(owner, "x", ones)
            assert (virtual.dtype, virtual.device.type) == (torch.float64, "meta")
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("persist", [False, True])
def test_the_buffer_is_in_the_state_dict_if_it_is_to_persist(persist: bool) -> None:
    assert set(Doubling(persist=persist).state_dict()) == {"base", *["_twice_ref"] * persist}


@pytest.mark.parametrize("member", ["owner", "name", "value", "attributes"])
def test_what_it_is_cannot_be_set(member: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Doubling().twice, member, None)


def test_it_tells_its_owner_and_its_name() -> None:
    module = Doubling()
    assert module.twice.owner is module
    assert module.twice.name == "twice"


@pytest.mark.parametrize("materializer", ["compute", doubled])
def test_it_does_not_keep_its_owner_alive(materializer: Any) -> None:
    module = Doubling(materializer)
    virtual, gone = module.twice, weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    assert virtual.owner is None


def test_the_value_is_computed_at_each_read() -> None:
    module = Doubling()
    assert torch.equal(module.twice.value, 2 * BASE)
    with torch.no_grad():
        module.base.add_(1)
    assert torch.equal(module.twice.value, 2 * BASE + 2)
    assert module.calls == 2


def test_the_value_is_brought_to_dtype_and_device() -> None:
    module: Any = nn.Module()
    virtual = VirtualTensor(module, "x", ones, dtype=torch.int16)
    virtual.device = torch.device("meta")
    assert (virtual.value.dtype, virtual.value.device.type) == (torch.int16, "meta")


def test_gradients_flow_through_the_value() -> None:
    module = Doubling()
    backward(module.twice.value.sum())
    assert torch.equal(module.gradient, torch.full((2, 2), 2.0))


def test_functional_call_computes_it_from_the_parameters_that_it_is_given() -> None:
    module = Doubling()
    given = functional_call(module, {"base": torch.eye(2)}, torch.ones(1, 2))
    assert torch.equal(given, torch.full((1, 2), 2.0))
    assert torch.equal(module.twice.value, 2 * BASE)


def test_transformations_compute_it_from_the_parameters_that_they_are_given() -> None:
    module, x = Doubling(), torch.eye(2)

    def loss(base: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional_call(module, {"base": base}, (x,))
        return result.square().sum()

    given = torch.ones(2, 2)
    assert torch.equal(torch.func.grad(loss)(given), 8 * given)
    assert torch.equal(torch.vmap(loss)(torch.stack([given, 2 * given])), torch.tensor([16.0, 64.0]))
    assert torch.equal(module.twice.value, 2 * BASE)


def test_activation_checkpoints_recompute_it() -> None:
    # Its graph holds a tensor, and torch compares how many are held in both runs.
    module = Doubling(lambda owner, *_: owner.base.square())
    backward(checkpoint(module, torch.eye(2), use_reentrant=False).sum())
    assert torch.equal(module.gradient, 2 * BASE)


@pytest.mark.parametrize("strict", [True, False])
def test_a_module_that_uses_it_is_exported(strict: bool) -> None:
    module, x = Doubling(), torch.ones(1, 2)
    program = torch.export.export(module, (x,), strict=strict)
    assert torch.equal(program.module()(x), module(x))


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        (("meta", torch.float64), {}),
        ((), {"dtype": torch.float64, "device": "meta"}),
        ((torch.empty(0, device="meta", dtype=torch.float64),), {}),
        (None, {"dtype": torch.float64, "device": torch.device("meta")}),
    ],
)
def test_to_returns_none_and_it_or_setting_moves_the_reference_alone(arguments: Any, keywords: dict[str, Any]) -> None:
    module = Doubling()
    if arguments is None:
        for name, value in keywords.items():
            setattr(module.twice, name, value)
    else:
        assert module.twice.to(*arguments, **keywords) is None  # type: ignore[func-returns-value]
    assert (module.twice.dtype, module.twice.device.type) == (torch.float64, "meta")
    assert (module.base.dtype, module.base.device.type) == (torch.float32, "cpu")
    assert (module.twice.value.dtype, module.twice.value.device.type) == (torch.float64, "meta")


def test_create_returns_none_and_sets_the_attribute() -> None:
    module: Any = nn.Module()
    assert VirtualTensor.create(module, "x", ones, torch.float64, torch.device("meta"), persist=True) is None
    assert isinstance(module.x, VirtualTensor)
    assert (module.x.dtype, module.x.device.type) == (torch.float64, "meta")
    assert set(module.state_dict()) == {"_x_ref"}


def test_a_named_method_is_called_with_dtype_and_device() -> None:
    class Told(nn.Module):
        def note(self, *told: object) -> torch.Tensor:
            self.told = told
            return torch.ones(1)

    module = Told()
    value = VirtualTensor(module, "x", "note", torch.float64, torch.device("cpu")).value
    assert value.dtype == torch.float64
    assert module.told == (torch.float64, torch.device("cpu"))


def given_to(told: list[object]) -> Any:
    def note(*given: object) -> torch.Tensor:
        told.extend(given)
        return torch.ones(1)

    return note


def test_a_callable_is_called_with_owner_dtype_and_device_and_kept_alive() -> None:
    told: list[object] = []
    module: Any = nn.Module()
    virtual = VirtualTensor(module, "x", given_to(told), torch.float64)
    gc.collect()
    assert virtual.value.dtype == torch.float64
    assert told == [module, torch.float64, torch.device("cpu")]


@pytest.mark.parametrize(
    ("name", "materializer", "error", "told"),
    [
        ("x", "triple", AttributeError, "no attribute 'triple'"),
        ("x", "base", TypeError, "must be the name of a method of owner"),
        ("x", None, TypeError, "materializer must be the name of a method of owner, or a callable"),
        ("x", 3, TypeError, "materializer must be the name of a method of owner, or a callable"),
        *((name, ones, ValueError, "identifier") for name in ("not valid", "", "a.b", "1st")),
        ("not valid", ones, ValidationError, "identifier"),
        *((name, ones, TypeError, "name must be a str") for name in (None, 3, b"x")),
    ],
)
def test_a_name_or_a_materializer_that_is_none_is_told(name: Any, materializer: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        VirtualTensor(Doubling(), name, materializer)


def test_an_owner_that_is_no_module_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"owner must be a torch\.nn\.Module"):
        VirtualTensor(object(), "x", ones)  # type: ignore[arg-type]


def test_it_follows_its_module_to_a_dtype_and_a_device() -> None:
    module = Doubling()
    nn.Sequential(module).to("meta", torch.float64)
    assert (module.twice.dtype, module.twice.device.type) == (torch.float64, "meta")
    assert (module.twice.value.dtype, module.twice.value.device.type) == (torch.float64, "meta")


def test_it_follows_half_and_to_empty() -> None:
    module = Doubling().half()
    assert module.twice.dtype == torch.float16
    assert module.to_empty(device="meta").twice.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_integers_and_complex_numbers_keep_their_dtype(dtype: torch.dtype) -> None:
    module = Doubling(dtype=dtype).half()
    assert (module.base.dtype, module.twice.dtype) == (torch.float16, dtype)


@pytest.mark.parametrize("remove", [Doubling.__delattr__, lambda module, name: setattr(module, name, torch.ones(2))])
def test_deleting_or_overwriting_the_attribute_removes_the_buffer(remove: Any) -> None:
    module = Doubling()
    remove(module, "twice")
    assert dict(module.named_buffers()) == {}
    assert not hasattr(module, "_twice_ref")
    module.load_state_dict(module.state_dict())


def test_one_that_is_never_assigned_leaves_nothing() -> None:
    module: Any = nn.Module()
    VirtualTensor(module, "x", ones)
    assert dict(module.named_buffers()) == {}
    assert not module._load_state_dict_pre_hooks
