"""A cached value: kept while nothing has changed, never when something has."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import backward
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from infinite_tensor import InfiniteBuffer, InfiniteTensor, TensorWindow, ValidationError, VirtualTensor
from infinite_tensor.modules.dependencies import Stamps
from tests.modules.nets import Cached, Doubling, plane


def test_a_value_is_computed_once_while_nothing_changes() -> None:
    module = Cached()
    first = module.twice.value
    assert module.twice.value is first
    assert module.twice.sum() == module(torch.eye(2)).sum()
    assert module.calls == 1


def test_without_a_cache_dependencies_are_refused() -> None:
    with pytest.raises(ValidationError, match="for cache=True"):
        Doubling(dependencies=["base"])


def in_place(module: Cached) -> None:
    with torch.no_grad():
        module.base.add_(1)


def through_data(module: Cached) -> None:
    module.base.data = module.base.data + 1


def in_inference_mode(module: Cached) -> None:
    with torch.inference_mode():
        module.base.add_(1)


def another_parameter(module: Cached) -> None:
    module.base = nn.Parameter(module.base.detach() + 1)


def loaded(module: Cached) -> None:
    module.load_state_dict({"base": module.base.detach() + 1})


def step(optimizer: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Cached], None]:
    def change(module: Cached) -> None:
        module.base.grad = torch.ones(2, 2)
        optimizer([module.base]).step()

    return change


CHANGES = {
    "in place": in_place,
    "by assigning to data": through_data,
    "in inference mode": in_inference_mode,
    "by another parameter": another_parameter,
    "by load_state_dict": loaded,
    "by SGD": step(torch.optim.SGD),
    "by Adam, each in turn": step(lambda tensors: torch.optim.Adam(tensors, foreach=False)),
    "by Adam, all at once": step(lambda tensors: torch.optim.Adam(tensors, foreach=True)),
    "by Adam, fused": step(lambda tensors: torch.optim.Adam(tensors, fused=True)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_change_of_a_dependency_is_seen(change: Callable[[Cached], None], gradients: bool) -> None:
    module = Cached()
    with torch.set_grad_enabled(gradients):
        before = module.twice.value.detach().clone()
        change(module)
        after = module.twice.value
    assert torch.equal(after, 2 * module.base)
    assert not torch.equal(after, before)
    assert module.calls == 2


def test_a_change_of_dtype_or_device_is_seen() -> None:
    module = Cached()
    for change in (lambda: module.twice.to(torch.float64), module.half, lambda: module.to("meta")):
        module.twice.value.sum()
        change()
        assert (module.twice.value.dtype, module.twice.value.device) == (module.twice.dtype, module.twice.device)
    assert module.calls == 4


def test_what_is_not_declared_is_not_seen_until_the_cache_is_cleared() -> None:
    module = Cached(dependencies=())
    before = module.twice.value.clone()
    in_place(module)
    module.twice.clear_cache()
    assert torch.equal(module.twice.value, before + 2)


def test_clearing_where_there_is_no_cache_does_nothing() -> None:
    module = Doubling()
    module.twice.clear_cache()
    assert torch.equal(module.twice.value, 2 * module.base)


def test_a_value_that_was_written_into_is_computed_anew() -> None:
    module = Cached()
    with torch.no_grad():
        module.twice.value.zero_()
        assert torch.equal(module.twice.value, 2 * module.base)


class Deep(nn.Module):
    """Depends on many kinds of things."""

    x: VirtualTensor

    def __init__(self, *dependencies: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.gain: object = 2.0
        self.sizes = (1, torch.Size([2]))
        self.names = ["a"]
        self.calls = 0
        self.field = plane()
        VirtualTensor.create(self, "x", "count", cache=True, dependencies=dependencies)

    def count(self, _dtype: torch.dtype, _device: torch.device) -> torch.Tensor:
        self.calls += 1
        return torch.full((1,), float(self.calls))


def set_weight(module: Deep) -> None:
    with torch.no_grad():
        module.inner.get_parameter("0.weight").zero_()


def set_gain(module: Deep) -> None:
    module.gain = 3.0


def set_kind_of_gain(module: Deep) -> None:
    module.gain = 2


def set_sizes(module: Deep) -> None:
    module.sizes = (1, torch.Size([3]))


def set_field(module: Deep) -> None:
    module.field = plane()


@pytest.mark.parametrize(
    ("dependency", "change"),
    [
        ("inner.0.weight", set_weight),
        ("inner", set_weight),
        ("inner", lambda module: module.inner.forward(torch.ones(3, 2))),
        ("inner", lambda module: module.inner.append(nn.Linear(1, 1))),
        ("gain", set_gain),
        ("gain", set_kind_of_gain),
        ("sizes", set_sizes),
        ("training", nn.Module.eval),
        ("field", set_field),
        ("field", lambda module: module.field.to(torch.float64)),
    ],
)
def test_a_dependency_may_be_anything_of_which_changes_are_seen(
    dependency: str, change: Callable[[Deep], object]
) -> None:
    module = Deep("inner", "gain", "sizes", "training", "field")
    single = Deep(dependency)
    for each in (module, single):
        assert [each.x.item(), each.x.item()] == [1, 1]
        change(each)
        assert [each.x.item(), each.x.item()] == [2, 2]


def test_what_is_not_named_does_not_matter() -> None:
    module = Deep("inner.0.weight", "gain")
    module.x.item()
    module.inner[0].bias.data = torch.ones(2)
    module.eval()
    assert module.x.item() == 1


@pytest.mark.parametrize(
    ("name", "error"), [("missing", AttributeError), ("inner.0.missing", AttributeError), ("names", TypeError)]
)
def test_a_dependency_that_cannot_be_tracked_is_refused(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"dependencies: .*'{name}'"):
        Deep(name)


@pytest.mark.parametrize("dependencies", ["gain", [3]])
def test_dependencies_are_a_list_of_names(dependencies: Any) -> None:
    module = Deep()
    with pytest.raises(TypeError, match="dependencies must be a list of names of attributes"):
        VirtualTensor(module, "y", "count", cache=True, dependencies=dependencies)


def test_a_dependency_that_becomes_something_that_cannot_be_tracked_is_never_cached() -> None:
    module = Deep("gain")
    module.gain = [1]
    assert [module.x.item(), module.x.item()] == [1, 2]


class Chain(Cached):
    """A cached value of a cached value."""

    fourfold: VirtualTensor

    def __init__(self) -> None:
        super().__init__()
        VirtualTensor.create(self, "fourfold", "double_again", cache=True, dependencies=["twice"])

    def double_again(self, _dtype: torch.dtype, _device: torch.device) -> torch.Tensor:
        return 2 * self.twice


def test_a_virtual_tensor_that_is_cached_may_be_a_dependency() -> None:
    module = Chain()
    kept = module.fourfold.value
    assert module.fourfold.value is kept
    in_place(module)
    assert torch.equal(module.fourfold.value, 4 * module.base)


def test_one_that_is_not_cached_may_not() -> None:
    with pytest.raises(TypeError, match="dependencies: 'twice' is a VirtualTensor"):
        VirtualTensor(Doubling(), "x", "compute", cache=True, dependencies=["twice"])


def test_training_with_gradients_goes_on_as_without_a_cache() -> None:
    cached, plain = Cached(), Doubling()
    for module in (cached, plain):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            # Gradients of two batches are added up.
            for x in (torch.eye(2), torch.ones(3, 2)):
                backward((module(x) * module.twice.sum()).sum())
            optimizer.step()
    assert torch.equal(cached.base, plain.base)
    assert cached.calls == 6


def test_a_value_is_let_go_of_as_its_graph_is_used() -> None:
    module = Cached()
    kept = weakref.ref(module.twice.value)
    loss = module.twice.sum()
    gc.collect()
    assert kept() is not None
    backward(loss)
    gc.collect()
    assert kept() is None


def test_what_was_computed_from_a_value_whose_graph_is_used_up_is_computed_anew() -> None:
    module = Chain()
    module.fourfold.value.sum()
    backward(module.twice.sum())
    backward(module.fourfold.sum())
    assert torch.equal(module.gradient, torch.full((2, 2), 6.0))


def test_two_backward_passes_through_one_value_work_if_the_first_retains_the_graph() -> None:
    module = Cached()
    first, second = module(torch.eye(2)).sum(), module(torch.ones(1, 2)).sum()
    backward(first, retain_graph=True)
    backward(second)
    assert torch.equal(module.gradient, torch.full((2, 2), 4.0))
    assert module.calls == 1


def test_a_value_computed_without_gradients_is_not_used_with_them() -> None:
    module = Cached()
    with torch.no_grad():
        assert not module.twice.value.requires_grad
    backward(module.twice.sum())
    assert module.gradient.all()


def test_a_value_computed_with_gradients_has_none_where_they_are_off() -> None:
    module = Cached()
    kept = module.twice.value
    with torch.no_grad():
        assert not module.twice.value.requires_grad
    assert module.calls == 1
    assert kept.requires_grad


def test_a_value_of_frozen_parameters_is_kept_with_and_without_gradients() -> None:
    module = Cached().requires_grad_(requires_grad=False)
    kept = module.twice.value
    with torch.no_grad():
        assert module.twice.value is kept
    assert module.calls == 1
    module.requires_grad_()
    assert module.twice.value.requires_grad


def test_a_value_computed_in_inference_mode_is_used_in_it_and_not_in_training() -> None:
    module = Cached()
    with torch.inference_mode():
        assert module.twice.value is module.twice.value
    backward(module.twice.sum())
    assert module.gradient.all()
    assert module.calls == 2


def test_a_dependency_that_was_made_in_inference_mode_is_never_cached() -> None:
    module = Cached()
    with torch.inference_mode():
        module.base = nn.Parameter(torch.ones(2, 2))
        module.twice.value.sum()
        module.base.zero_()
        assert not module.twice.value.any()


def test_autocast_computes_a_value_of_its_own() -> None:
    module: Any = nn.Module()
    module.base = torch.rand(8, 8)
    VirtualTensor.create(module, "x", lambda m, *_: m.base @ m.base, cache=True, dependencies=["base"])
    full = module.x.value
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(module.x.value, full)
    assert torch.equal(module.x.value, full)


def test_threads_that_train_share_no_graph() -> None:
    module = Cached()
    loss = module.twice.sum()
    failures: list[BaseException] = []

    def train() -> None:
        try:
            backward(module.twice.sum())
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    backward(loss)
    assert failures == []
    assert torch.equal(module.gradient, torch.full((2, 2), 4.0))


def test_functional_call_and_transformations_are_not_served_from_the_cache() -> None:
    module, x = Cached(), torch.eye(2)
    module.twice.value.sum()

    def loss(base: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional_call(module, {"base": base}, (x,))
        return result.square().sum()

    given = torch.ones(2, 2)
    assert torch.equal(torch.func.grad(loss)(given), 8 * given)
    assert torch.equal(torch.vmap(loss)(torch.stack([given, 2 * given])), torch.tensor([16.0, 64.0]))
    assert torch.equal(module.twice.value, 2 * module.base)


def test_activation_checkpoints_recompute_it() -> None:
    # Its graph holds a tensor, and torch compares how many are held in both runs.
    module = Cached(lambda owner, *_: owner.base.square())
    expected = 2 * module.base.detach()
    backward(checkpoint(module, torch.eye(2), use_reentrant=False).sum())
    assert torch.equal(module.gradient, expected)


def test_a_value_is_not_kept_for_fake_tensors() -> None:
    module = Cached()
    module.twice.value.sum()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(module.twice.value, FakeTensor)
    assert type(module.twice.value) is torch.Tensor


def test_a_tensor_is_not_taken_for_one_that_is_gone_and_had_its_id() -> None:
    tensor = torch.ones(2)
    before, now = (Stamps((id(tensor),), (weakref.ref(tensor),)) for _ in range(2))
    assert before == now
    del tensor
    gc.collect()
    assert before != now


def test_a_cached_value_does_not_keep_what_it_was_computed_from() -> None:
    module = Cached().requires_grad_(requires_grad=False)
    module.twice.value.sum()
    gone = weakref.ref(module.base)
    module.base = nn.Parameter(torch.ones(2, 2))
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("wrap", [InfiniteBuffer, lambda tensor: tensor], ids=["InfiniteBuffer", "InfiniteTensor"])
def test_a_value_of_an_infinite_tensor_is_computed_anew_after_invalidate(
    wrap: Callable[[InfiniteTensor], Any],
) -> None:
    height = [1.0]
    tensor = InfiniteTensor((None,), lambda _: torch.full((4,), height[0]), TensorWindow((4,)))

    class Heights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = wrap(tensor)
            VirtualTensor.create(self, "top", "highest", cache=True, dependencies=["source"])

        def highest(self, _dtype: torch.dtype, _device: torch.device) -> torch.Tensor:
            found: torch.Tensor = self.source[0:4]
            return found

    module: Any = Heights()
    assert module.top.value.tolist() == [1.0] * 4
    height[0] = 2.0
    tensor.invalidate()
    assert module.top.value.tolist() == [2.0] * 4
