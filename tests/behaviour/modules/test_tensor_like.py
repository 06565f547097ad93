"""A virtual tensor where a tensor is expected, by torch, by numpy and by Python itself."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
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


ARITHMETIC = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    operator.pow,
)
BITWISE = (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift)
COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)


@pytest.mark.parametrize("function", [*ARITHMETIC, operator.matmul, *COMPARISONS])
def test_operators_with_a_tensor_on_either_side(module: Doubling, function: Callable[..., Any]) -> None:
    other = torch.tensor([[3.0, 4.0], [5.0, 2.0]])
    assert torch.equal(function(module.twice, other), function(VALUE, other))
    assert torch.equal(function(other, module.twice), function(other, VALUE))
    assert torch.equal(function(module.twice, module.twice), function(VALUE, VALUE))


@pytest.mark.parametrize("function", BITWISE)
def test_operators_of_integers(module: Doubling, function: Callable[..., Any]) -> None:
    module.twice.dtype = torch.int32
    ints = VALUE.int()
    assert torch.equal(function(module.twice, 3), function(ints, 3))
    assert torch.equal(~module.twice, ~ints)
    assert torch.equal(3 & module.twice, 3 & ints)


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


def test_gradients_flow_through_operators_and_functions() -> None:
    module = Doubling()
    backward(torch.sum(3 * module.twice) + module.twice.sum())
    assert torch.equal(module.gradient, torch.full((2, 2), 8.0))


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
    with pytest.raises(TypeError, match="would change"):
        change(module)
    assert isinstance(module.twice, VirtualTensor)


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
    with pytest.raises(TypeError, match="must return"):
        _ = module.x.value


# Where numpy, or Python itself, takes a tensor: both make of it what they make of one.

# torch's own result of a numpy function takes arguments as numpy 1 gives them.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")

VALUES = {
    "matrix": torch.tensor([[2.0, 4.0], [6.0, 8.0]]),
    "number": torch.tensor(3.0),
    "integers": torch.tensor([[1, 2], [3, 4]]),
    "index": torch.tensor(2),
}
MATRIX = np.array([[1.0, 2.0], [3.0, 4.0]])


ACCOUNTED = (
    *("__class__", "__init__", "__new__", "__repr__", "__str__", "__dir__", "__hash__", "__annotations__"),
    *("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__deepcopy__", "__torch_dispatch__"),
    *("__dlpack_c_exchange_api__", "__div__", "__rdiv__", "__idiv__", "__long__", "__nonzero__"),
)
"""What a virtual tensor has in a way of its own: it is copied with its module, and prints what it is. The capsule is a
promise about memory, and the last five are those of Python 2."""


def outcome(function: Callable[[Any], Any], x: object) -> object:
    """What a function returns, comparable, or the type of its error."""
    try:
        result = function(x)
    except Exception as error:  # noqa: BLE001  (whichever it is)
        return type(error)
    if isinstance(result, torch.Tensor | np.ndarray):
        return type(result), result.dtype, tuple(result.shape), repr(result.tolist())
    return type(result), repr(result)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize(
    "function",
    [
        *(torch.sum, torch.linalg.norm, torch.clone, len, np.asarray),
        lambda x: torch.stack([x, torch.zeros(2, 2)]),
        lambda x: torch.cat((x, x), dim=1),
        lambda x: torch.where(x > 3, x, 0),
        lambda x: linear(torch.ones(1, 2), x),
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: torch.add(torch.ones(2, 2), other=x),
        lambda x: nn.functional.layer_norm(x, (2,)),
        lambda x: nn.functional.layer_norm(torch.eye(2), (2,), weight=x[0]),
        *(lambda x: x[0], lambda x: x[..., 1], lambda x: x[x > 3], lambda x: x.t(), lambda x: x.mean(dim=0)),
        *(lambda x: x.double(), lambda x: x.shape, lambda x: x.ndim, lambda x: x.size(1), lambda x: x.numel()),
        *(lambda x: x.tolist(), lambda x: x.is_contiguous(), lambda x: x.requires_grad, lambda x: float(x[0, 0])),
        lambda x: [row.tolist() for row in x],
        # With the dtype that numpy gives it.
        *(lambda x: np.multiply(x, np.float32(2)), lambda x: np.add(x, np.float64(0.1))),
        *(lambda x: np.subtract(x, np.int64(1)), lambda x: np.add(np.array(0.1), x), lambda x: x + np.array(0.1)),
        lambda x: np.add(x, 1),
        lambda x: np.add(MATRIX, x),
        lambda x: np.multiply(x, x),
        lambda x: np.add(x, 1, out=np.empty((2, 2))),
        lambda x: np.matmul(x, MATRIX),
        np.add.reduce,
        lambda x: np.where(x > 3, x, 0),
        lambda x: np.linspace(0, x, 3),
        lambda x: np.stack([x, x]),
        lambda x: np.asarray(x, dtype=np.float16),
        lambda x: np.arange(10)[x],
        *(np.sqrt, np.sin, np.sum, np.mean, np.from_dlpack, np.modf),
        *(torch.utils.dlpack.from_dlpack, torch.as_tensor, torch.asarray),
        *(lambda x: x + MATRIX, lambda x: x @ MATRIX, lambda x: x - np.float64(2), lambda x: np.float64(2) - x),
        *(lambda x: np.float32(2) * x, lambda x: np.int64(2) ** x, lambda x: np.int64(7) // x),
        *(lambda x: np.int64(5) % x, lambda x: np.int64(2) & x, lambda x: np.int64(1) << x),
        *(lambda x: np.float64(2) < x, lambda x: np.int64(2) == x),
        *(format, lambda x: format(x, ".2f"), lambda x: f"{x:>8}", "{:e}".format),
        *(reversed, lambda x: list(reversed(x)), lambda x: 1 << x, lambda x: 64 >> x),
        *(int, float, complex, bool, round, range, lambda x: [10, 11, 12][x]),
        *(lambda x: hasattr(x, "__cuda_array_interface__"), lambda x: x.__dlpack_device__(), lambda x: 4 in x),
    ],
)
def test_it_gives_what_a_tensor_gives(function: Callable[[Any], Any], value: torch.Tensor) -> None:
    assert outcome(function, virtual(value)) == outcome(function, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize(
    "number",
    [
        *(np.float16(0.1), np.float32(0.1), np.float32(2), np.float64(0.1), np.longdouble(0.1), np.complex64(2)),
        *(np.int8(2), np.int64(2), np.uint8(2), np.bool_(True)),
    ],
    ids=repr,
)
def test_a_number_of_numpy_on_the_left_is_taken_as_a_tensor_takes_it(number: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([0.1, 0.3, 2.0]).to(dtype)
    for function in (*COMPARISONS, *ARITHMETIC, *BITWISE, operator.matmul):
        assert outcome(partial(function, number), virtual(x)) == outcome(partial(function, number), x), function


def test_it_has_every_special_method_of_a_tensor_or_one_of_its_own() -> None:
    special = [name for name in dir(torch.Tensor) if name.startswith("__") and name.endswith("__")]
    own = {name for kind in VirtualTensor.__mro__[:-1] for name in vars(kind)}
    of_all_objects = {name for name in special if getattr(object, name, None) is getattr(torch.Tensor, name)}
    inherited = {"__getattribute__", "__init_subclass__", "__subclasshook__", "__setattr__", "__delattr__"}
    assert set(special) - own - of_all_objects - inherited - set(ACCOUNTED) == set()
