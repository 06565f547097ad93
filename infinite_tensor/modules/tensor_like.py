"""What stands wherever torch or numpy takes a tensor, by a value that it has when it is asked."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    # To a type checker it is one: what a tensor has is given to it below.
    Base: TypeAlias = torch.Tensor
else:
    Base = object


class TensorLike(Base):
    """Has the operators, methods and attributes of a tensor, and is taken for one by the functions of torch.

    It cannot be changed in place: what would change is a value that is gone afterwards.
    """

    @property
    def value(self) -> torch.Tensor:
        """The tensor that it stands for."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch on the values of all that stand for a tensor among its arguments."""
        kwargs = kwargs or {}
        # The names of functions are nothing that could be traced.
        if not torch.compiler.is_compiling():
            changed = [kwargs.get("out"), *(args[:1] if _is_in_place(func.__name__) else ())]
            for each in changed:
                if isinstance(each, TensorLike):
                    each._refuse(func.__name__)  # noqa: SLF001  (its own)
        return func(*_values(args), **_values(kwargs))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Call a function of numpy on the values: what its operators do too, on whichever side of them this stands."""
        for each in options.get("out", ()):
            if isinstance(each, TensorLike):
                each._refuse(ufunc.__name__)  # noqa: SLF001  (its own)
        return _of_numpy(ufunc, method, _values(inputs), _values(options))

    def __array_wrap__(self, array: Any, context: object = None, return_scalar: bool = False) -> torch.Tensor:
        """What other functions of numpy give back for a tensor."""
        return _as_tensor(array)

    def _refuse(self, operation: str) -> NoReturn:
        raise TypeError(
            f"{operation} would change {self!r}, which is computed when it is read; change what it is computed from, "
            "or work on a copy: .value.clone()"
        )

    __hash__ = object.__hash__


def _values(given: Any) -> Any:
    """`given`, with values for what stands for a tensor in it, in lists, tuples and dicts too."""
    if isinstance(given, TensorLike):
        return given.value
    if isinstance(given, list | tuple):
        values = [_values(each) for each in given]
        if all(map(operator.is_, values, given)):
            return given
        return tuple(values) if isinstance(given, tuple) else values
    if type(given) is dict:
        return {key: _values(each) for key, each in given.items()}
    return given


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
"""What numpy calls for an operator, and the operator."""


def _of_numpy(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
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
    return tuple(map(_as_tensor, result)) if isinstance(result, tuple) else _as_tensor(result)


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


def _as_tensor(result: Any) -> torch.Tensor:
    """The tensor of an array or a number of numpy."""
    return torch.from_numpy(np.asarray(result))


_OF_TWO = (*(each.__name__.strip("_") for each in _ARITHMETIC.values()), "matmul")
_SPECIAL = (
    *_OF_TWO,
    *(f"r{name}" for name in _OF_TWO),
    *(each.__name__ for each in _COMPARISONS.values()),
    *("neg", "pos", "abs", "invert", "array", "dlpack", "dlpack_device", "cuda_array_interface"),
    *("getitem", "len", "iter", "reversed", "contains", "bool", "int", "float", "complex", "index", "format"),
)
_IN_PLACE = (*(f"i{name}" for name in _OF_TWO), "setitem", "delitem")


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name.strip("_") in _IN_PLACE


def _method(name: str) -> Callable[..., Any]:
    def method(self: TensorLike, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.value, name)(*_values(args), **_values(kwargs))

    return method


def _attribute(name: str) -> property:
    def attribute(self: TensorLike) -> Any:
        return getattr(self.value, name)

    return property(attribute)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: TensorLike, *_args: object, **_kwargs: object) -> NoReturn:
        self._refuse(name)

    return refuse


def _forward_what_tensors_have() -> None:
    """Give `TensorLike` the operators and the public members of a tensor.

    Not by ``__getattr__``: Python would ask it too where a property of its own fails with an AttributeError, and
    the reason would be lost.
    """
    members = [name for name in dir(torch.Tensor) if not name.startswith("_") and name not in TensorLike.__dict__]
    for name in (*members, *(f"__{name}__" for name in (*_SPECIAL, *_IN_PLACE))):
        if _is_in_place(name):
            setattr(TensorLike, name, _refusal(name))
        elif callable(inspect.getattr_static(torch.Tensor, name)):
            setattr(TensorLike, name, _method(name))
        else:
            setattr(TensorLike, name, _attribute(name))


_forward_what_tensors_have()
