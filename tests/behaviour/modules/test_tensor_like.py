"""A virtual tensor where a tensor is expected."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import backward
from torch.nn.functional import linear

from infinite_tensor import VirtualTensor
from tests.behaviour.modules.nets import Doubling, virtual

VALUE = torch.tensor([[2.0, 4.0], [6.0, 8.0]])


@pytest.fixture
def module() -> Doubling:
    return Doubling().requires_grad_(requires_grad=False)


BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
    *(operator.matmul, operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge),
]


@pytest.mark.parametrize("function", BINARY)
def test_operators_with_a_tensor_on_either_side(module: Doubling, function: Callable[..., Any]) -> None:
    other = torch.tensor([[3.0, 4.0], [5.0, 2.0]])
    assert torch.equal(function(module.twice, other), function(VALUE, other))
    assert torch.equal(function(other, module.twice), function(other, VALUE))
    assert torch.equal(function(module.twice, module.twice), function(VALUE, VALUE))


@pytest.mark.parametrize("function", BINARY[:7])
def test_operators_with_a_number_on_either_side(module: Doubling, function: Callable[..., Any]) -> None:
    assert torch.equal(function(module.twice, 3), function(VALUE, 3))
    assert torch.equal(function(3, module.twice), function(3, VALUE))


@pytest.mark.parametrize("function", [operator.neg, operator.pos, abs])
def test_operators_of_one_operand(module: Doubling, function: Callable[..., Any]) -> None:
    assert torch.equal(function(module.twice), function(VALUE))


@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift])
def test_operators_of_integers(module: Doubling, function: Callable[..., Any]) -> None:
    module.twice.dtype = torch.int32
    ints = VALUE.int()
    assert torch.equal(function(module.twice, 3), function(ints, 3))
    assert torch.equal(~module.twice, ~ints)
    assert torch.equal(3 & module.twice, 3 & ints)


@pytest.mark.parametrize(
    "function",
    [
        torch.sum,
        torch.linalg.norm,
        lambda x: torch.stack([x, torch.zeros(2, 2)]),
        lambda x: torch.cat((x, x), dim=1),
        lambda x: torch.where(x > 3, x, 0),
        lambda x: linear(torch.ones(1, 2), x),
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: torch.add(torch.ones(2, 2), other=x),
        lambda x: nn.functional.layer_norm(x, (2,)),
        lambda x: nn.functional.layer_norm(torch.eye(2), (2,), weight=x[0]),
    ],
)
def test_functions_of_torch_take_it(module: Doubling, function: Callable[[Any], torch.Tensor]) -> None:
    assert torch.equal(function(module.twice), function(VALUE))


@pytest.mark.parametrize(
    "get",
    [
        lambda x: x[0],
        lambda x: x[..., 1],
        lambda x: x[x > 3],
        lambda x: x.T,
        lambda x: x.mean(dim=0),
        lambda x: x.double(),
        torch.clone,
    ],
)
def test_it_has_the_methods_of_a_tensor(module: Doubling, get: Callable[[Any], torch.Tensor]) -> None:
    assert torch.equal(get(module.twice), get(VALUE))


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.w[m.i],
        lambda m: m.i[m.i],
        lambda m: m.w[m.mask],
        lambda m: m.w[m.i, 0],
        lambda m: m.w[:, m.i],
        lambda m: m.w[m.n],
        lambda m: m.w[m.n :, : m.n],
        lambda m: m.w[Pair(m.i, m.i)],
        lambda m: m.w.roll(m.n),
        lambda m: m.w.sum(dim=m.n),
        lambda m: m.w.reshape((m.n, -1)),
        lambda m: m.w.index_select(0, m.i),
        lambda m: m.w.index_put([m.i], values=m.n.float()),
        lambda m: m.w.where(condition=m.mask, other=m.n),
        lambda m: m.w.gather(dim=0, index=m.i[None]),
        lambda m: torch.tensor(m.n in m.i),
        lambda m: torch.stack([m.w, m.w]),
        lambda m: torch.stack(Pair(m.w, m.w)),
    ],
)
def test_its_methods_and_functions_take_others_of_its_kind(use: Callable[[Any], torch.Tensor]) -> None:
    values = {
        "w": torch.arange(9.0).reshape(3, 3),
        "i": torch.tensor([0, 1]),
        "n": torch.tensor(1),
        "mask": torch.tensor([True, False, True]),
    }
    others = {name: virtual(value) for name, value in values.items()}
    assert torch.equal(use(SimpleNamespace(**others)), use(SimpleNamespace(**values)))


def test_an_index_that_is_one_of_its_kind_is_traced() -> None:
    w, i = virtual(VALUE), virtual(torch.tensor([1, 0]))
    picked = torch.compile(lambda x: x + w[i], backend="eager", fullgraph=True)
    assert torch.equal(picked(VALUE), VALUE + VALUE[[1, 0]])


@pytest.mark.parametrize(
    "get",
    [
        lambda x: x.shape,
        lambda x: x.ndim,
        lambda x: x.size(1),
        lambda x: x.numel(),
        lambda x: x.tolist(),
        lambda x: x.is_contiguous(),
        lambda x: x.requires_grad,
        len,
        lambda x: [row.tolist() for row in x],
        lambda x: 4 in x,
        lambda x: float(x[0, 0]),
    ],
)
def test_it_has_the_attributes_of_a_tensor(module: Doubling, get: Callable[[Any], object]) -> None:
    assert get(module.twice) == get(VALUE)


def test_a_single_number_is_one() -> None:
    module: Any = nn.Module()
    VirtualTensor.create(module, "three", lambda *_: torch.tensor(3))
    module.three.dtype = torch.int64
    assert (int(module.three), float(module.three), complex(module.three), bool(module.three)) == (3, 3.0, 3 + 0j, True)
    assert [10, 11, 12, 13][module.three] == 13
    assert module.three.item() == 3


def test_numpy_takes_it(module: Doubling) -> None:
    assert np.array_equal(np.asarray(module.twice), VALUE.numpy())


def test_gradients_flow_through_operators_and_functions() -> None:
    module = Doubling()
    backward(torch.sum(3 * module.twice) + module.twice.sum())
    assert torch.equal(module.gradient, torch.full((2, 2), 8.0))


def test_it_is_found_in_sets_and_dicts_by_what_it_is(module: Doubling) -> None:
    assert {module.twice: 1}[module.twice] == 1


def test_its_repr_computes_nothing(module: Doubling) -> None:
    assert repr(module.twice) == "VirtualTensor('twice' of Doubling, dtype=torch.float32, device='cpu')"
    assert module.calls == 0


def add_in_place(module: Doubling) -> None:
    module.twice += 1  # type: ignore[misc]


def set_item(module: Doubling) -> None:
    module.twice[0] = 1


@pytest.mark.parametrize(
    "change",
    [
        add_in_place,
        set_item,
        lambda module: module.twice.add_(1),
        lambda module: nn.init.zeros_(module.twice),
        lambda module: torch.add(torch.ones(2, 2), 1, out=module.twice),
        lambda module: module.twice.requires_grad_(),
    ],
)
def test_a_change_in_place_is_refused(module: Doubling, change: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"would change VirtualTensor\('twice'.*, which is computed when it is read"):
        change(module)
    assert isinstance(module.twice, VirtualTensor)


def test_a_tensor_is_changed_in_place_by_it(module: Doubling) -> None:
    changed = torch.ones(2, 2)
    changed += module.twice
    changed.add_(module.twice)
    assert torch.equal(changed, 1 + 2 * VALUE)


def test_an_error_of_the_materializer_comes_through_every_use() -> None:
    class Failing(nn.Module):
        x: VirtualTensor

        def fail(self, _dtype: torch.dtype, _device: torch.device) -> torch.Tensor:
            raise AttributeError("what it reads is missing")

    module = Failing()
    VirtualTensor.create(module, "x", "fail")
    for use in (lambda: module.x.value, lambda: module.x.shape, module.x.sum, lambda: module.x + 1):
        with pytest.raises(AttributeError, match="what it reads is missing"):
            use()


@pytest.mark.parametrize("result", [None, [1.0, 2.0], np.ones(2)])
def test_a_result_that_is_no_tensor_is_a_type_error(result: Any) -> None:
    module: Any = nn.Module()
    VirtualTensor.create(module, "x", lambda *_: result)
    with pytest.raises(TypeError, match=r"materializer of virtual tensor 'x' must return a torch\.Tensor, got"):
        _ = module.x.value
