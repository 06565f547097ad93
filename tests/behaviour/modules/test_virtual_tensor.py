"""The documented behaviour of a virtual tensor, one by one: also of copies, of what is loaded, and compiled."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import backward
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from infinite_tensor import ValidationError, VirtualTensor
from tests.behaviour.modules.nets import Doubling, doubled
from tests.support import compiling
from tests.support.compiling import compiled

fresh = compiling.fresh

BASE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
"""What `Doubling.base` begins with."""


def ones(_owner: nn.Module, _dtype: torch.dtype, _device: torch.device) -> torch.Tensor:
    return torch.ones(2)


def test_attributes_name_the_buffer_that_carries_dtype_and_device() -> None:
    attributes = Doubling().twice.attributes
    assert isinstance(attributes, VirtualTensor.LinkedAttributes)
    assert attributes._asdict() == {"ref": "_twice_ref"}
    assert attributes == ("_twice_ref",)


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


def set_both(virtual: VirtualTensor) -> None:
    virtual.dtype, virtual.device = torch.float64, torch.device("meta")


@pytest.mark.parametrize(
    "move",
    [
        lambda virtual: virtual.to("meta", torch.float64),
        lambda virtual: virtual.to(dtype=torch.float64, device="meta"),
        lambda virtual: virtual.to(torch.empty(0, device="meta", dtype=torch.float64)),
        set_both,
    ],
)
def test_to_returns_none_and_moves_the_reference_alone_as_setting_does(move: Any) -> None:
    module = Doubling()
    assert move(module.twice) is None
    assert (module.twice.dtype, module.twice.device.type) == (torch.float64, "meta")
    assert (module.base.dtype, module.base.device.type) == (torch.float32, "cpu")
    assert (module.twice.value.dtype, module.twice.value.device.type) == (torch.float64, "meta")


def test_a_named_method_is_called_with_dtype_and_device() -> None:
    class Told(nn.Module):
        def note(self, *told: object) -> torch.Tensor:
            self.told = told
            return torch.ones(1)

    module = Told()
    value = VirtualTensor(module, "x", "note", torch.float64, torch.device("cpu")).value
    assert value.dtype == torch.float64
    assert module.told == (torch.float64, torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "materializer", "error", "told"),
    [
        ("x", "triple", AttributeError, "triple"),
        ("x", "base", TypeError, "materializer"),
        ("x", None, TypeError, "materializer"),
        ("x", 3, TypeError, "materializer"),
        *((name, ones, ValueError, "identifier") for name in ("not valid", "", "a.b", "1st")),
        ("not valid", ones, ValidationError, "identifier"),
        *((name, ones, TypeError, "name") for name in (None, 3, b"x")),
    ],
)
def test_a_name_or_a_materializer_that_is_none_is_told(name: Any, materializer: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        VirtualTensor(Doubling(), name, materializer)


def test_it_follows_its_module_to_a_dtype_and_a_device() -> None:
    module = Doubling()
    nn.Sequential(module).to("meta", torch.float64)
    assert (module.twice.dtype, module.twice.device.type) == (torch.float64, "meta")
    assert (module.twice.value.dtype, module.twice.value.device.type) == (torch.float64, "meta")


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


# Where modules are copied, pickled, saved, and created again.

MATERIALIZERS = pytest.mark.parametrize("materializer", ["compute", doubled])


def saved_and_loaded(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))  # noqa: S301  (our own bytes)


WAYS = pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved_and_loaded])


@WAYS
@MATERIALIZERS
def test_a_copy_of_a_module_computes_from_its_own_parameters(duplicate: Any, materializer: Any) -> None:
    module = Doubling(materializer)
    other = duplicate(module)
    with torch.no_grad():
        other.base.zero_()
    assert other.twice.owner is other
    assert not other.twice.value.any()
    assert module.twice.value.all()


@WAYS
def test_a_copy_outlives_the_module_that_it_was_made_of(duplicate: Any) -> None:
    other = duplicate(Doubling())
    gc.collect()
    assert torch.equal(other.twice.value, 2 * other.base)


def test_a_shallow_copy_shares_the_buffer_and_keeps_it() -> None:
    module = Doubling()
    other = copy.copy(module.twice)
    del module.twice
    assert torch.equal(other.value, 2 * module.base)
    del other
    assert not hasattr(module, "_twice_ref")


def test_creating_it_twice_under_one_name_makes_the_later_one_hold() -> None:
    module = Doubling(dtype=torch.float64)
    for materializer in (doubled, "compute"):
        VirtualTensor.create(module, "twice", materializer, dtype=torch.float16)
        gc.collect()
        assert module.twice.dtype == torch.float16
        assert module.twice.value.dtype == torch.float16
    assert len(module._load_state_dict_pre_hooks) == 1
    del module.twice
    assert not hasattr(module, "_twice_ref")


def test_one_that_is_made_while_another_has_the_name_survives_it() -> None:
    module = Doubling()
    later = VirtualTensor(module, "twice", doubled)
    del module.twice
    gc.collect()
    assert torch.equal(later.value, 2 * module.base)


def test_a_buffer_of_that_name_is_not_taken_over() -> None:
    module = Doubling()
    module.register_buffer("_half_ref", torch.ones(3))
    with pytest.raises(ValidationError, match="rename"):
        VirtualTensor.create(module, "half", "compute")
    assert torch.equal(module.get_buffer("_half_ref"), torch.ones(3))


def test_a_module_that_is_gone_is_named_as_the_reason() -> None:
    virtual = Doubling().twice
    gc.collect()
    for use in (lambda: virtual.value, lambda: virtual.dtype, lambda: virtual + 1, lambda: virtual.to("cpu")):
        with pytest.raises(ReferenceError, match="no longer exists"):
            use()
    assert "gone" in repr(virtual)


def test_a_pickle_of_it_alone_comes_without_its_module() -> None:
    module = Doubling()
    alone = pickle.loads(pickle.dumps(module.twice))  # noqa: S301  (our own bytes)
    gc.collect()
    with pytest.raises(ReferenceError, match="no longer exists"):
        _ = alone.value


@pytest.mark.parametrize("assign", [True, False])
def test_loading_a_state_brings_back_the_dtype(assign: bool) -> None:
    module = Doubling(dtype=torch.int16, persist=True)
    other = Doubling(persist=True)
    other.load_state_dict(module.state_dict(), assign=assign)
    assert other.twice.dtype == torch.int16
    assert other.twice.value.dtype == torch.int16


def test_loading_a_state_leaves_the_device() -> None:
    other = Doubling(persist=True)
    other.twice.device = torch.device("meta")
    other.load_state_dict(Doubling(dtype=torch.float64, persist=True).state_dict())
    assert (other.twice.dtype, other.twice.device.type) == (torch.float64, "meta")


def test_loading_works_for_a_submodule_and_through_a_file(tmp_path: Path) -> None:
    torch.save(nn.Sequential(Doubling(dtype=torch.int16, persist=True)).state_dict(), tmp_path / "state.pt")
    loaded = nn.Sequential(Doubling(persist=True))
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert loaded[0].twice.dtype == torch.int16


@pytest.mark.parametrize("saved", [True, False])
def test_states_with_and_without_the_dtype_load_strictly_and_are_not_changed(saved: bool) -> None:
    state = nn.Sequential(Doubling(persist=saved)).state_dict()
    keys = set(state)
    other = nn.Sequential(Doubling(dtype=torch.float64, persist=not saved))
    assert other.load_state_dict(state, strict=True) == ([], [])
    assert other[0].twice.dtype == torch.float64
    assert set(state) == keys


def test_a_replica_that_shares_the_attribute_computes_from_the_original() -> None:
    module = Doubling()
    replica = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    replica.base = torch.zeros(2, 2)
    assert torch.equal(replica.twice.value, 2 * module.base)


# Compiled.


@pytest.mark.parametrize("materializer", ["compute", doubled, lambda owner, *_: 2 * owner.base])
def test_a_module_with_a_virtual_tensor_compiles_into_one_graph(materializer: Any) -> None:
    module = Doubling(materializer)
    run, x = compiled(module), torch.tensor([[1.0, -1.0]])
    assert torch.equal(run(x), module(x))
    backward(run(x).sum())
    assert torch.equal(module.gradient, torch.tensor([[2.0, -2.0], [2.0, -2.0]]))


def test_compiled_code_sees_changes_of_parameters_and_of_the_dtype() -> None:
    module = Doubling()
    run, x = compiled(module), torch.eye(2)
    run(x)
    with torch.no_grad():
        module.base.zero_()
    assert not run(x).any()
    module.to(torch.float64)
    assert run(x.double()).dtype == torch.float64


def test_operators_methods_and_functions_are_traced() -> None:
    module = Doubling()

    def use(x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = (x + module.twice)[0] * module.twice[0] - module.twice.sum() + torch.sum(module.twice)
        return total * module.twice.shape[0]

    x = torch.ones(2, 2)
    assert torch.equal(compiled(use)(x), use(x))
