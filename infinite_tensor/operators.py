"""Operators of tensors: ``a + b`` is a lazy tensor, as are comparisons and functions of torch for single pixels."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt
import torch

from infinite_tensor.support.given import members, number
from infinite_tensor.values.definition import Number

if TYPE_CHECKING:
    from infinite_tensor.tensor import InfiniteTensor, SupportsAsTensor

Operand: TypeAlias = "InfiniteTensor | SupportsAsTensor | torch.Tensor | npt.NDArray[Any] | Number"

_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_OF_ONE = (
    *("abs", "ceil", "clamp", "clip", "cos", "exp", "expm1", "floor", "frac", "isfinite", "isinf", "isnan", "log"),
    *("log10", "log1p", "log2", "logical_not", "nan_to_num", "neg", "reciprocal", "relu", "round", "rsqrt", "sigmoid"),
    *("sign", "sin", "sqrt", "square", "tan", "tanh", "trunc"),
)
_OF_SEVERAL = (
    *("add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "eq", "floor_divide", "fmax", "fmin", "fmod"),
    *("ge", "gt", "hypot", "le", "lerp", "logical_and", "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul"),
    *("ne", "pow", "remainder", "sub", "true_divide"),
)
_PIXELWISE = frozenset(
    getattr(kind, name) for name in (*_OF_ONE, *_OF_SEVERAL) for kind in (torch, torch.Tensor) if hasattr(kind, name)
)
"""Functions of torch whose pixels depend on the pixels at the same place."""
_JOINING = (torch.cat, torch.concat, torch.concatenate)


def _binary(fn: Callable[..., Any], *, swapped: bool = False) -> Callable[[Any, Operand], InfiniteTensor]:
    def method(self: Any, other: Any) -> Any:
        if number(other) is None and not hasattr(other, "__array__") and not hasattr(other, "as_tensor"):
            return NotImplemented
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.arithmetic import computed  # noqa: PLC0415

        return computed(fn, (other, self) if swapped else (self, other))

    return method


def _unary(fn: Callable[..., Any]) -> Callable[[Any], InfiniteTensor]:
    def method(self: Any) -> InfiniteTensor:
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.arithmetic import computed  # noqa: PLC0415

        return computed(fn, (self,))

    return method


_EQUAL: Callable[[Any, Any], InfiniteTensor] = _binary(operator.eq)
_UNEQUAL: Callable[[Any, Any], InfiniteTensor] = _binary(operator.ne)


class Operators:
    """The operators of an `InfiniteTensor`, which return formulas. The hash is that of the object, as in torch."""

    __array_priority__ = 1000  # A number of numpy on the left leaves the operation to the tensor.

    __add__, __radd__ = _binary(operator.add), _binary(operator.add, swapped=True)
    __sub__, __rsub__ = _binary(operator.sub), _binary(operator.sub, swapped=True)
    __mul__, __rmul__ = _binary(operator.mul), _binary(operator.mul, swapped=True)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _binary(operator.truediv, swapped=True)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _binary(operator.floordiv, swapped=True)
    __mod__, __rmod__ = _binary(operator.mod), _binary(operator.mod, swapped=True)
    __pow__, __rpow__ = _binary(operator.pow), _binary(operator.pow, swapped=True)
    __and__, __rand__ = _binary(operator.and_), _binary(operator.and_, swapped=True)
    __or__, __ror__ = _binary(operator.or_), _binary(operator.or_, swapped=True)
    __xor__, __rxor__ = _binary(operator.xor), _binary(operator.xor, swapped=True)
    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
    __neg__, __pos__ = _unary(operator.neg), _unary(operator.pos)
    __abs__, __invert__ = _unary(operator.abs), _unary(operator.invert)
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> InfiniteTensor:  # type: ignore[override]
        return _EQUAL(self, other)

    def __ne__(self, other: object) -> InfiniteTensor:  # type: ignore[override]
        return _UNEQUAL(self, other)


def is_comparison(f: object) -> bool:
    """Return whether a tensor with this ``f`` is the result of a comparison."""
    return getattr(f, "__wrapped__", None) in _COMPARISONS


def called(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> InfiniteTensor | None:
    """Return the lazy result of a function of torch, or None if it does not work pixel by pixel."""
    # Imported here, because pipelines build on tensors.
    from infinite_tensor.pipelines import arithmetic  # noqa: PLC0415

    if func in _PIXELWISE and "out" not in kwargs:
        return arithmetic.computed(func, args, kwargs)
    if func in (torch.where, torch.Tensor.where) and len(args) == 3 and not kwargs:
        condition, one, other = args if func is torch.where else (args[1], args[0], args[2])
        return arithmetic.where(condition, one, other)
    join = arithmetic.stack if func is torch.stack else arithmetic.concatenate if func in _JOINING else None
    if join is not None and len(args) <= 2 and members(args[0]) and not kwargs.keys() - {"dim"}:
        return join(args[0], *args[1:], **kwargs)
    return None
