"""What a `torch.Tensor` can do and a tensor with unbounded dimensions cannot: errors that say what to do instead."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import torch

from infinite_tensor.geometry.periodic import is_endless
from infinite_tensor.geometry.window import Shape
from infinite_tensor.operators import called
from infinite_tensor.support.given import members

_REFUSED = ("divmod", "rdivmod", "matmul", "rmatmul", "lshift", "rlshift", "rshift", "rrshift", "round")
_IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_SIZES = ("size", "dim", "ndimension", "numel", "nelement")


class _Shaped(Protocol):
    @property
    def shape(self) -> Shape: ...


_T = TypeVar("_T", bound=_Shaped)


def example_of(t: _Shaped) -> str:
    """Return the code of a read, for messages, such as ``t[:, 0:512]``."""
    parts = ["0:512" if n is None or n > 512 else f"0:{n}" if is_endless(n) else ":" for n in t.shape]
    return f"t[{', '.join(parts) if '0:512' in parts else '...'}]"


def check_finite(t: _Shaped, labels: tuple[str, ...], action: str) -> None:
    """Raise TypeError if a dimension is unbounded. `action` is a verb for the message, such as "search"."""
    for label, extent in zip(labels, t.shape, strict=True):
        if extent is None:
            raise TypeError(
                f"cannot {action} an InfiniteTensor: dimension {label} is unbounded; read a region of it, as in "
                f"{example_of(t)}"
            )


def refuse_torch(kind: type[_T]) -> type[_T]:
    """Let a class refuse what only a `torch.Tensor` can do.

    Type checkers do not see these methods, because they report such mistakes themselves.
    """

    def torch_function(_cls: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = called(func, args, kwargs or {})
        if found is not None:
            return found
        given = [each for arg in (*args, *(kwargs or {}).values()) for each in members(arg) or (arg,)]
        example = next((example_of(each) for each in given if isinstance(each, kind)), "t[0:512, 0:512]")
        raise TypeError(
            f"{torch.overrides.resolve_name(func) or func.__name__} takes a torch.Tensor, not an InfiniteTensor; "
            f"read a region first, as in {example}, or compute a new tensor by t.map(fn)"
        )

    def lacking(self: Any, *_: object) -> None:
        raise TypeError(
            f"an InfiniteTensor lacks this operator; read a region first, as in {example_of(self)}, or compute a new "
            "tensor by t.map(fn)"
        )

    def in_place(_self: Any, *_: object) -> None:
        raise TypeError("an InfiniteTensor cannot be changed in place; make a new one, as in t = t + 1")

    def setitem(self: Any, *_: object) -> None:
        raise TypeError(
            "an InfiniteTensor cannot be written to; change what f returns, write into a copy, as in "
            f"pixels = {example_of(self)}, or use a TensorBlob to store your own arrays"
        )

    def getattribute(self: Any, name: str) -> Any:
        # Python also calls this function if a property raises AttributeError. Get the property again, to raise its
        # error.
        if hasattr(type(self), name) or not hasattr(torch.Tensor, name):
            return object.__getattribute__(self, name)
        advice = "see t.shape and t.ndim" if name in _SIZES else f"read a region first, as in {example_of(self)}.{name}"
        raise AttributeError(f"an InfiniteTensor has no attribute {name!r}; {advice}", name=name, obj=self)

    methods = {"torch_function": classmethod(torch_function), "setitem": setitem, "getattr": getattribute}
    changing = dict.fromkeys([f"i{name}" for name in _IN_PLACE], in_place)
    for name, method in {**dict.fromkeys(_REFUSED, lacking), **changing, **methods}.items():
        setattr(kind, f"__{name}__", method)
    return kind
