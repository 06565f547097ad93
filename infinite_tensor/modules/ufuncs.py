"""The element-wise functions of numpy, and so the operators of its arrays and numbers, on tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

_ARITHMETIC: dict[np.ufunc, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.power: operator.pow,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.left_shift: operator.lshift,
    np.right_shift: operator.rshift,
}
_COMPARISONS: dict[np.ufunc, Callable[..., Any]] = {
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
}
_OPERATORS = {**_ARITHMETIC, **_COMPARISONS}
"""What numpy calls for an operator."""


def ufunc_of_tensors(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a function of numpy makes of tensors and arrays: a tensor, unless it is given arrays to write to."""
    if method == "__call__" and ufunc in _OPERATORS and not options:
        left, right = inputs
        if ufunc in _COMPARISONS and isinstance(left, np.ndarray):
            # A number is handed over as an array without dimensions, which would widen what it is compared with.
            left = left[()]
        if _is_for_torch(left, right):
            return _OPERATORS[ufunc](_for_torch(left), _for_torch(right))
    arrays = [np.asarray(each) if isinstance(each, torch.Tensor) else each for each in inputs]
    result = getattr(ufunc, method)(*arrays, **options)
    if "out" in options or result is None:
        return result
    return tuple(map(as_tensor, result)) if isinstance(result, tuple) else as_tensor(result)


def _is_for_torch(left: Any, right: Any) -> bool:
    """Whether an operator is torch's affair.

    ``np.float64(2) * tensor`` leaves the tensor its dtype, and gradients flow, of which numpy knows nothing. A
    number on the right was given to the function of numpy: torch takes it as an operand without asking numpy.
    """
    return isinstance(left, np.generic) or any(
        isinstance(each, torch.Tensor) and each.requires_grad for each in (left, right)
    )


def _for_torch(operand: Any) -> Any:
    return torch.from_numpy(operand) if isinstance(operand, np.ndarray) else operand


def as_tensor(result: Any) -> torch.Tensor:
    """The tensor of an array or a number of numpy."""
    return torch.from_numpy(np.asarray(result))
