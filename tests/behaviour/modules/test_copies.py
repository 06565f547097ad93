"""Virtual tensors where their modules are copied, pickled, saved, and created again."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from infinite_tensor import ValidationError, VirtualTensor
from tests.behaviour.modules.nets import Doubling, doubled

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
def test_a_copy_keeps_dtype_and_device_and_follows_on_its_own(duplicate: Any) -> None:
    module = Doubling().half()
    other = duplicate(module)
    assert other.twice.dtype == torch.float16
    other.to(torch.float64)
    assert (other.twice.dtype, module.twice.dtype) == (torch.float64, torch.float16)


@WAYS
def test_a_copy_removes_its_own_buffer_alone(duplicate: Any) -> None:
    module = Doubling(persist=True)
    other = duplicate(module)
    del other.twice
    assert "_twice_ref" not in other.state_dict()
    assert not other._load_state_dict_pre_hooks
    assert torch.equal(module.twice.value, 2 * module.base)


@WAYS
def test_a_copy_outlives_the_module_that_it_was_made_of(duplicate: Any) -> None:
    other = duplicate(Doubling())
    gc.collect()
    assert torch.equal(other.twice.value, 2 * other.base)


def test_the_copy_of_a_container_is_bound_within_the_copy() -> None:
    modules: Any = copy.deepcopy(nn.ModuleList([Doubling(), Doubling(doubled)]))
    assert [each.twice.owner is each for each in modules] == [True, True]


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


def test_one_that_is_made_and_dropped_leaves_the_one_that_is_there() -> None:
    module = Doubling()
    earlier = module.twice
    VirtualTensor(module, "twice", doubled)
    assert torch.equal(earlier.value, 2 * module.base)


def test_a_buffer_of_that_name_is_not_taken_over() -> None:
    module = Doubling()
    module.register_buffer("_half_ref", torch.ones(3))
    with pytest.raises(ValidationError, match="'_half_ref', which virtual tensor 'half' needs"):
        VirtualTensor.create(module, "half", "compute")
    assert torch.equal(module.get_buffer("_half_ref"), torch.ones(3))


def test_a_parameter_of_that_name_is_not_taken_over() -> None:
    module = Doubling()
    with pytest.raises(TypeError):
        VirtualTensor.create(module, "base", "compute")
    gc.collect()
    assert set(module.state_dict()) == {"base"}
    assert not hasattr(module, "_base_ref")


def test_a_module_that_is_gone_is_named_as_the_reason() -> None:
    virtual = Doubling().twice
    gc.collect()
    for use in (lambda: virtual.value, lambda: virtual.dtype, lambda: virtual + 1, lambda: virtual.to("cpu")):
        with pytest.raises(ReferenceError, match="the module of virtual tensor 'twice' is gone"):
            use()
    assert "gone" in repr(virtual)


def test_a_pickle_of_it_alone_comes_without_its_module() -> None:
    module = Doubling()
    alone = pickle.loads(pickle.dumps(module.twice))  # noqa: S301  (our own bytes)
    gc.collect()
    with pytest.raises(ReferenceError, match="copy and pickle the module"):
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
