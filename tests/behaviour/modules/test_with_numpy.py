"""A virtual tensor where numpy, or Python itself, takes a tensor: both make of it what they make of one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import backward

from infinite_tensor import VirtualTensor
from infinite_tensor.modules.virtual_tensor import TensorLike
from tests.behaviour.modules.nets import Doubling, virtual

# torch's own result of a numpy function takes arguments as numpy 1 gives them.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")

VALUES = {
    "matrix": torch.tensor([[2.0, 4.0], [6.0, 8.0]]),
    "number": torch.tensor(3.0),
    "integers": torch.tensor([[1, 2], [3, 4]]),
    "index": torch.tensor(2),
}
MATRIX = np.array([[1.0, 2.0], [3.0, 4.0]])

ARITHMETIC = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    operator.pow,
)
BITWISE = (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift)
COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)

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


@pytest.mark.parametrize("function", [*ARITHMETIC, operator.matmul, *COMPARISONS])
@pytest.mark.parametrize("array", [MATRIX, np.array(0.1)], ids=["matrix", "number"])
def test_an_array_on_the_left_is_taken_as_a_tensor_takes_it(
    function: Callable[[Any, Any], Any], array: np.ndarray[Any, Any]
) -> None:
    x = VALUES["matrix"]
    assert outcome(partial(function, array), virtual(x)) == outcome(partial(function, array), x)


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


def test_gradients_flow_through_an_operator_with_a_number_of_numpy() -> None:
    module = Doubling()
    total = (np.float64(3) * module.twice).sum() + operator.mul(module.twice, np.float32(1)).sum()
    assert total.dtype == torch.float32
    backward(total)
    assert torch.equal(module.gradient, torch.full((2, 2), 8.0))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.__ilshift__(1),
        lambda x: x.__irshift__(1),
        lambda x: x.__imatmul__(x),
        lambda x: operator.delitem(x, 0),
    ],
)
def test_it_is_not_changed_in_place(change: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="would change VirtualTensor"):
        change(virtual(VALUES["integers"]))


def test_it_has_every_special_method_of_a_tensor_or_one_of_its_own() -> None:
    special = [name for name in dir(torch.Tensor) if name.startswith("__") and name.endswith("__")]
    own = {name for kind in (TensorLike, VirtualTensor) for name in vars(kind)}
    of_all_objects = {name for name in special if getattr(object, name, None) is getattr(torch.Tensor, name)}
    inherited = {"__getattribute__", "__init_subclass__", "__subclasshook__", "__setattr__", "__delattr__"}
    assert set(special) - own - of_all_objects - inherited - set(ACCOUNTED) == set()
