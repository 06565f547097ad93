"""The element-wise functions of numpy, and so the operators of its arrays and numbers, on tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

_OPERATORS: dict[np.ufunc, Callable[..., Any]] = {
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
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
}
"""What numpy calls for an operator."""


def ufunc_of_tensors(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a function of numpy makes of tensors and arrays: a tensor, unless it is given arrays to write to."""
    if method == "__call__" and ufunc in _OPERATORS and not options and any(map(_is_for_torch, inputs)):
        return _OPERATORS[ufunc](*[torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in inputs])
    arrays = [np.asarray(each) if isinstance(each, torch.Tensor) else each for each in inputs]
    result = getattr(ufunc, method)(*arrays, **options)
    if "out" in options or result is None:
        return result
    return tuple(map(as_tensor, result)) if isinstance(result, tuple) else as_tensor(result)


def _is_for_torch(value: Any) -> bool:
    """Whether an operator is torch's affair.

    ``np.float64(2) * tensor`` leaves the tensor its dtype, and gradients flow, of which numpy knows nothing.
    """
    return isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.requires_grad)


def as_tensor(result: Any) -> torch.Tensor:
    """The tensor of an array or a number of numpy."""
    return torch.from_numpy(np.asarray(result))
