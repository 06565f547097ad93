"""Modules with virtual tensors and infinite tensors, compiled and exported."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import backward

from infinite_tensor import VirtualTensor
from tests.behaviour.modules.nets import Doubling, doubled


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that another test has compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # What is tested is the tracing; generating code takes seconds, and a compiler.
    return torch.compile(function, fullgraph=True, backend="aot_eager")


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


def test_compiled_code_sees_a_module_that_was_copied() -> None:
    module = Doubling()
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.base.zero_()
    assert not compiled(other)(torch.eye(2)).any()
    assert compiled(module)(torch.eye(2)).all()


def test_operators_methods_and_functions_are_traced() -> None:
    module = Doubling()

    def use(x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = (x + module.twice)[0] * module.twice[0] - module.twice.sum() + torch.sum(module.twice)
        return total * module.twice.shape[0]

    x = torch.ones(2, 2)
    assert torch.equal(compiled(use)(x), use(x))


def test_a_virtual_tensor_of_a_module_without_parameters_compiles() -> None:
    module: Any = nn.Module()
    VirtualTensor.create(module, "x", lambda _owner, dtype, device: torch.ones(2, dtype=dtype, device=device))
    assert torch.equal(compiled(lambda y: y + module.x)(torch.ones(2)), torch.full((2,), 2.0))
