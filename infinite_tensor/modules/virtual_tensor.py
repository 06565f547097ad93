"""`VirtualTensor`: an attribute of a module that is computed from others."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from infinite_tensor.errors import DeviceMismatchError, ValidationError
from infinite_tensor.modules.reference import Reference
from infinite_tensor.modules.tensor_like import TensorLike

Materializer: TypeAlias = "str | Callable[[Any, torch.dtype, torch.device], torch.Tensor]"


class _LinkedAttributes(NamedTuple):
    """Names of what a virtual tensor adds to its module."""

    ref: str


class VirtualTensor(TensorLike):
    """An attribute of a module that is computed from others when it is read.

    It has a dtype and a device, which follow ``module.to()``, and stands wherever torch takes a tensor: it has a
    tensor's operators, methods and attributes, and gradients flow through it to what it is computed from. It can not be
    changed in place.

    Parameters
    ----------
    owner : torch.nn.Module
        The module that it is an attribute of; held weakly.
    name : str
        The name of the attribute. The module also gets an empty buffer ``_{name}_ref``, which carries dtype and
        device. It is removed when the attribute is deleted or overwritten.
    materializer : str or callable
        What computes the value: the name of a method of `owner`, called ``(dtype, device)`` and never kept alive by
        this; or a callable, kept alive and called ``(owner, dtype, device)``. Its result is brought to `dtype` and
        `device` if it is not there yet.
    dtype : torch.dtype, optional
        Its dtype. Default: the default dtype of torch.
    device : torch.device or str, optional
        Its device. Default: the default device of torch.
    persist : bool
        Whether dtype and device are kept in the ``state_dict`` of the module. Loading it brings back the dtype. States
        with and without it can be loaded in either case.

    Raises
    ------
    TypeError
        If an argument is of a wrong type, or the attribute that `materializer` names is no method.
    AttributeError
        If `owner` has no attribute that `materializer` names.
    ValidationError
        (a ValueError) If `name` is no identifier.

    Notes
    -----
    Every use computes the value. A method that needs it several times takes ``self.name.value`` once.

    A module that is made on meta, to be loaded later, is computed where its parameters and buffers are once they are
    there, and never on meta while it has data: a value without data is an error then. To have shapes without data of
    one virtual tensor alone, set its device to meta.

    Methods may be called from several threads; two that read at the same time both compute the value.

    Examples
    --------
    >>> class Scaled(torch.nn.Linear):
    ...     def __init__(self) -> None:
    ...         super().__init__(2, 2, bias=False)
    ...         self.gain = torch.nn.Parameter(torch.tensor(2.0))
    ...         torch.nn.init.ones_(self.weight)
    ...         VirtualTensor.create(self, "scaled", "times_gain")
    ...
    ...     def times_gain(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    ...         return self.gain * self.weight
    ...
    ...     def forward(self, x: torch.Tensor) -> torch.Tensor:
    ...         return torch.nn.functional.linear(x, self.scaled)
    >>> module = Scaled()
    >>> module.scaled.value
    tensor([[2., 2.],
            [2., 2.]], grad_fn=<MulBackward0>)
    >>> module.half().scaled.dtype
    torch.float16
    """

    LinkedAttributes = _LinkedAttributes

    def __init__(
        self,
        owner: nn.Module,
        name: str,
        materializer: Materializer,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        persist: bool = False,
    ) -> None:
        if not isinstance(owner, nn.Module):
            raise TypeError(f"owner must be a torch.nn.Module, got {owner!r}")
        self._name = _checked_name(name)
        self._materializer = _checked_materializer(owner, materializer)
        self._reference = Reference(owner, name, dtype, device, persist)

    @classmethod
    def create(
        cls,
        owner: nn.Module,
        name: str,
        materializer: Materializer,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        persist: bool = False,
    ) -> None:
        """Make one and assign it: ``owner.name = VirtualTensor(owner, name, ...)``."""
        setattr(owner, name, cls(owner, name, materializer, dtype, device, persist))

    @property
    def attributes(self) -> _LinkedAttributes:
        """Names of what it has added to the module: ``ref``, the buffer that carries dtype and device."""
        return _LinkedAttributes(self._reference.attribute)

    @property
    def owner(self) -> nn.Module | None:
        """The module, None once it is gone."""
        return self._reference.owner

    @property
    def name(self) -> str:
        """The name of the attribute."""
        return self._name

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the value; may be set."""
        return self._reference.tensor.dtype

    @dtype.setter
    def dtype(self, dtype: torch.dtype) -> None:
        self.to(dtype=dtype)

    @property
    def device(self) -> torch.device:
        """The device of the value; may be set."""
        return self._reference.device

    @device.setter
    def device(self, device: torch.device | str) -> None:
        self.to(device=device)

    def to(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Set dtype and device; takes what `torch.Tensor.to` takes."""
        self._reference.to(*args, **kwargs)

    @property
    def value(self) -> torch.Tensor:
        """The tensor that it is now, computed.

        Raises
        ------
        ReferenceError
            If the module is gone.
        TypeError
            If the materializer returns no tensor.
        DeviceMismatchError
            (a ValueError) If it returns one on meta, and not all tensors of the module are on meta.
        """
        owner, ref = self._reference.living_owner(), self._reference.tensor
        materializer, dtype = self._materializer, ref.dtype
        device = self._reference.device if ref.is_meta else ref.device
        if isinstance(materializer, str):
            value = getattr(owner, materializer)(dtype, device)
        else:
            value = materializer(owner, dtype, device)
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"the materializer of virtual tensor {self._name!r} must return a torch.Tensor, got "
                f"{type(value).__name__} {value!r}"
            )
        if value.is_meta and not self._reference.allows_meta:
            raise DeviceMismatchError(_without_data(self._name, type(owner).__name__))
        if value.is_meta or (ref.is_meta and device.type == "meta" and not self._reference.set_to_meta):
            # Data does not go to meta, where it would be lost, unless it was sent there.
            return value.to(dtype)
        return value.to(dtype=dtype, device=device)

    def __repr__(self) -> str:  # type: ignore[override]
        ref = None if self.owner is None else self._reference.tensor
        of = "a module that is gone" if ref is None else type(self.owner).__name__
        where = "" if ref is None else f", dtype={ref.dtype}, device={str(self.device)!r}"
        return f"VirtualTensor({self._name!r} of {of}{where})"


def _without_data(name: str, owner: str) -> str:
    return (
        f"the materializer of virtual tensor {name!r} returned a tensor on meta, which has no data, but {owner} is not "
        f"all on meta: load what the value is computed from, or say where to compute it, module.{name}.device = 'cpu'; "
        "'meta' is for shapes without data"
    )


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {type(name).__name__} {name!r}")
    if not name.isidentifier():
        raise ValidationError(f"name must be an identifier, as an attribute has it, got {name!r}")
    return name


def _checked_materializer(owner: nn.Module, materializer: Materializer) -> Materializer:
    if isinstance(materializer, str):
        if not hasattr(owner, materializer):
            raise AttributeError(f"materializer: {type(owner).__name__} has no attribute {materializer!r}")
        found = getattr(owner, materializer)
        if not isinstance(found, MethodType):
            raise TypeError(
                f"materializer: {type(owner).__name__}.{materializer} must be a method, is {type(found).__name__}"
            )
    elif not callable(materializer):
        raise TypeError(
            f"materializer must be the name of a method of owner, or a callable (owner, dtype, device), got "
            f"{materializer!r}"
        )
    return materializer
