"""`VirtualTensor`: a computed attribute of a module."""

from __future__ import annotations

import inspect
import itertools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils.hooks import RemovableHandle

from infinite_tensor.errors import DeviceMismatchError, ValidationError
from infinite_tensor.support.given import checked_flag

if TYPE_CHECKING:
    # Type checkers see a subclass of Tensor. The members of a tensor are added below.
    Base: TypeAlias = torch.Tensor
else:
    Base = object


class TensorLike(Base):
    """An object accepted as a tensor by functions of torch.

    It has the operators, methods and attributes of a tensor. It cannot be changed in place, because the change would be
    lost with the temporary value.
    """

    __array_priority__ = torch.Tensor.__array_priority__
    """Lets this object, not a numpy number on the left, handle an operator."""

    @property
    def value(self) -> torch.Tensor:
        """The tensor to use in place of this object."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch with the values of `TensorLike` arguments."""
        kwargs = kwargs or {}
        # torch.compile cannot trace the name of a function.
        if not torch.compiler.is_compiling():
            changed = [kwargs.get("out"), *(args[:1] if _is_in_place(func.__name__) else ())]
            for each in changed:
                if isinstance(each, TensorLike):
                    each._refuse(func.__name__)  # noqa: SLF001  (its own)
        return func(*_values(args), **_values(kwargs))

    def __array_wrap__(self, array: Any, context: object = None, return_scalar: bool = False) -> torch.Tensor:
        """Return the result of a numpy function as a tensor."""
        return torch.from_numpy(np.asarray(array))

    def _refuse(self, operation: str) -> NoReturn:
        raise TypeError(
            f"{operation} would change {self!r}, but each read computes the value again; change the inputs of the "
            "computation, or work on a copy: .value.clone()"
        )

    __hash__ = object.__hash__


def _values(given: Any) -> Any:
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


_OF_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul")
_SPECIAL = (
    *_OF_TWO,
    *(f"r{name}" for name in _OF_TWO),
    *("lt", "le", "eq", "ne", "gt", "ge"),
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

    ``__getattr__`` is not used, because Python also calls it if a property fails with an AttributeError, and the reason
    would be lost.
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


Materializer: TypeAlias = "str | Callable[[Any, torch.dtype, torch.device], torch.Tensor]"


class _LinkedAttributes(NamedTuple):
    """Names of the attributes added to a module by a virtual tensor."""

    ref: str


class VirtualTensor(TensorLike):
    """A computed attribute of a module, usable as a tensor.

    Each use computes the value from other attributes of the module. The dtype and device follow ``module.to()``. The
    object can be used wherever torch accepts a tensor: it has the operators, methods and attributes of a tensor.
    Gradients flow through it to the other attributes. It cannot be changed in place.

    Parameters
    ----------
    owner : torch.nn.Module
        The module with the attribute. The reference to it is weak.
    name : str
        The name of the attribute. The module also gets an empty buffer ``_{name}_ref``, which carries dtype and
        device. It is removed when the attribute is deleted or overwritten.
    materializer : str or callable
        Computes the value: the name of a method of `owner`, called as ``method(dtype, device)``; or a callable, called
        as ``materializer(owner, dtype, device)``, to which a strong reference is kept. The result is moved to `dtype`
        and `device` if necessary.
    dtype : torch.dtype, optional
        Its dtype. Default: the default dtype of torch.
    device : torch.device or str, optional
        Its device. Default: the default device of torch.
    persist : bool
        Whether to save dtype and device in the ``state_dict`` of the module. Loading it restores the dtype. States with
        and without this entry can be loaded in either case.

    Raises
    ------
    TypeError
        If an argument has a wrong type, or the attribute that `materializer` names is not a method.
    AttributeError
        If `owner` has no attribute that `materializer` names.
    ValidationError
        (a ValueError) If `name` is not an identifier.

    Notes
    -----
    Every use computes the value. A method that needs it several times should read ``self.name.value`` once.

    If the module is created on the meta device and loaded later, values are computed on the device of its loaded
    parameters and buffers. Once the module has data, a value on meta is an error. To get shapes without data from a
    single virtual tensor, set its device to meta.

    Methods may be called from several threads; if two read at the same time, both compute the value.

    Examples
    --------
    >>> class Scaled(torch.nn.Linear):
    ...     def __init__(self) -> None:
    ...         super().__init__(2, 2, bias=False)
    ...         self.gain = torch.nn.Parameter(torch.tensor(2.0))
    ...         torch.nn.init.ones_(self.weight)
    ...         VirtualTensor.create(self, "scaled", "times_gain")
    ...
    ...     def times_gain(
    ...         self, dtype: torch.dtype, device: torch.device
    ...     ) -> torch.Tensor:
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
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {type(name).__name__} {name!r}")
        if not name.isidentifier():
            raise ValidationError(f"name must be a valid Python identifier, got {name!r}")
        if not callable(getattr(owner, materializer) if isinstance(materializer, str) else materializer):
            raise TypeError(
                f"materializer must name a method of owner, or be callable (owner, dtype, device), got {materializer!r}"
            )
        self._name, self._materializer = name, materializer
        self._placement = _Placement(owner, name, dtype, device, persist)

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
        """Create a virtual tensor and assign it to the attribute `name` of `owner`."""
        setattr(owner, name, cls(owner, name, materializer, dtype, device, persist))

    @property
    def attributes(self) -> _LinkedAttributes:
        """Names of attributes added to the module: ``attributes.ref`` is the name of the buffer."""
        return _LinkedAttributes(self._placement.attribute)

    @property
    def owner(self) -> nn.Module | None:
        """The module, or None after its deletion."""
        return self._placement.owner

    @property
    def name(self) -> str:
        """The name of the attribute."""
        return self._name

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the value; may be set."""
        return self._placement.buffer.dtype

    @dtype.setter
    def dtype(self, dtype: torch.dtype) -> None:
        self.to(dtype=dtype)

    @property
    def device(self) -> torch.device:
        """The device of the value; may be set."""
        return self._placement.device

    @device.setter
    def device(self, device: torch.device | str) -> None:
        self.to(device=device)

    def to(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Set dtype and device, with the arguments of `torch.Tensor.to`."""
        self._placement.to(*args, **kwargs)

    @property
    def value(self) -> torch.Tensor:
        """The current value, computed each time.

        Raises
        ------
        ReferenceError
            If the module no longer exists.
        TypeError
            If the materializer does not return a tensor.
        DeviceMismatchError
            (a ValueError) If the materializer returns a tensor on meta although not all tensors of the module are on
            meta.
        """
        placement, materializer = self._placement, self._materializer
        owner, buffer = placement.living_owner(), placement.buffer
        dtype, device = buffer.dtype, placement.device if buffer.is_meta else buffer.device
        if isinstance(materializer, str):
            value = getattr(owner, materializer)(dtype, device)
        else:
            value = materializer(owner, dtype, device)
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"the materializer of virtual tensor {self._name!r} must return a torch.Tensor, got "
                f"{type(value).__name__} {value!r}"
            )
        if value.is_meta and not placement.allows_meta:
            raise DeviceMismatchError(
                f"the materializer of virtual tensor {self._name!r} returned a tensor on meta, without data, but not "
                f"all tensors of {type(owner).__name__} are on meta; load them, or set the device of {self._name!r}"
            )
        if value.is_meta or (device.type == "meta" and not placement.set_to_meta):
            # Do not move data to meta, except on request of the user, because the data would be lost.
            return value.to(dtype)
        return value.to(dtype=dtype, device=device)

    def __repr__(self) -> str:  # type: ignore[override]
        ref = None if self.owner is None else self._placement.buffer
        of = "a module that is gone" if ref is None else type(self.owner).__name__
        where = "" if ref is None else f", dtype={ref.dtype}, device={str(self.device)!r}"
        return f"VirtualTensor({self._name!r} of {of}{where})"


class _Placement:
    """The dtype and device of a virtual tensor, stored in an empty buffer of the module.

    ``module.to()`` changes the buffer, and so the dtype and the device of the virtual tensor.

    Copies of a virtual tensor share one placement. When a placement is deleted, its buffer is removed from the module.
    But the buffer stays while another virtual tensor of the same name uses it.

    The reference to the module is weak. A pickle or a deep copy contains the module too.

    A module that was created on meta gets its data later, but its buffer may stay on meta. The virtual tensor then has
    the device of the other tensors of the module.
    """

    def __init__(
        self, owner: nn.Module, name: str, dtype: torch.dtype | None, device: torch.device | str | None, persist: bool
    ) -> None:
        attribute = f"_{name}_ref"
        if hasattr(owner, attribute) and not _placements(owner, attribute):
            raise ValidationError(
                f"{type(owner).__name__} already has an attribute {attribute!r}, needed for the dtype and device of "
                f"virtual tensor {name!r}; rename the attribute or the virtual tensor"
            )
        persistent = checked_flag("persist", persist)
        owner.register_buffer(attribute, torch.empty(0, dtype=dtype, device=device), persistent=persistent)
        before, after = partial(_prepare_load, attribute), partial(_follow_load, attribute)
        handles = (owner.register_load_state_dict_pre_hook(before), owner.register_load_state_dict_post_hook(after))
        self._bind(owner, attribute, handles, set_to_meta=False)

    def _bind(
        self, owner: nn.Module | None, attribute: str, handles: tuple[RemovableHandle, ...], *, set_to_meta: bool
    ) -> None:
        self.attribute = attribute
        self._owner = weakref.ref(nn.Module() if owner is None else owner)
        self._handles = handles
        self.set_to_meta = set_to_meta
        if owner is not None:
            _LIVING.setdefault(owner, {}).setdefault(attribute, weakref.WeakSet()).add(self)
            weakref.finalize(self, _release, self._owner, attribute, handles).atexit = False

    @property
    def owner(self) -> nn.Module | None:
        return self._owner()

    def living_owner(self) -> nn.Module:
        owner = self._owner()
        if owner is None:
            name = self.attribute[1 : -len("_ref")]
            raise ReferenceError(
                f"the module of virtual tensor {name!r} no longer exists; keep the module, or the tensor from .value. "
                "Copy and pickle the module, not the virtual tensor"
            )
        return owner

    @property
    def buffer(self) -> torch.Tensor:
        return cast("torch.Tensor", getattr(self.living_owner(), self.attribute))

    @property
    def device(self) -> torch.device:
        buffer = self.buffer
        if not buffer.is_meta or self.set_to_meta:
            return buffer.device
        found = {device for device in _devices(self.living_owner()) if device.type != "meta"}
        return found.pop() if len(found) == 1 else buffer.device

    @property
    def allows_meta(self) -> bool:
        """Whether a value without data is allowed.

        The user must have chosen the device meta, or the whole module must be on meta.
        """
        if self.buffer.is_meta and (self.set_to_meta or torch.get_default_device().type == "meta"):
            return True
        return _all_on_meta(self.living_owner())

    def to(self, *args: Any, **kwargs: Any) -> None:
        buffer = self.buffer
        try:
            moved = buffer.to(*args, **kwargs)
        except NotImplementedError:
            # torch cannot copy from meta, not even an empty tensor.
            moved = torch.empty_like(buffer, device="cpu").to(*args, **kwargs)
        self._set(moved)
        self.set_to_meta = moved.is_meta

    def settle(self) -> None:
        """Move the buffer to the device of the module's tensors, after loading a state."""
        owner, buffer, device = self.living_owner(), self.buffer, self.device
        if _all_on_meta(owner):
            device = torch.device("meta")
        elif device.type == "meta" and not self.set_to_meta and not _devices(owner):
            # Take the device of a module not created on meta.
            device = torch.get_default_device()
        if device != buffer.device:
            self._set(torch.empty_like(buffer, device=device))

    def _set(self, buffer: torch.Tensor) -> None:
        setattr(self.living_owner(), self.attribute, buffer)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "attribute": self.attribute,
            "handles": self._handles,
            "set_to_meta": self.set_to_meta,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._bind(**state)


_LIVING: weakref.WeakKeyDictionary[nn.Module, dict[str, weakref.WeakSet[_Placement]]] = weakref.WeakKeyDictionary()
"""All placements, by module and buffer name."""


def _devices(owner: nn.Module) -> set[torch.device]:
    tensors = itertools.chain(owner.parameters(), owner.buffers())
    lazy = (UninitializedBuffer, UninitializedParameter)
    return {tensor.device for tensor in tensors if not isinstance(tensor, lazy) and tensor.numel()}


def _all_on_meta(owner: nn.Module) -> bool:
    return {device.type for device in _devices(owner)} == {"meta"}


def _placements(owner: nn.Module, attribute: str) -> list[_Placement]:
    return list(_LIVING.get(owner, {}).get(attribute, ()))


def _release(owner: weakref.ref[nn.Module], attribute: str, handles: tuple[RemovableHandle, ...]) -> None:
    """Remove the hooks and the buffer of a placement, except a buffer used by another placement."""
    for handle in handles:
        handle.remove()
    module = owner()
    if module is None or _placements(module, attribute):
        return
    if attribute in dict(module.named_buffers(recurse=False, remove_duplicate=False)):
        delattr(module, attribute)


def _prepare_load(
    attribute: str,
    module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    metadata: Mapping[str, Any],
    *_rest: object,
) -> None:
    """Give the buffer the dtype from `state_dict`, before the module loads the state."""
    key = prefix + attribute
    if attribute in module._non_persistent_buffers_set:  # noqa: SLF001  (there is no public way)
        state_dict.pop(key, None)
        return
    loaded = state_dict.setdefault(key, getattr(module, attribute))
    if isinstance(loaded, torch.Tensor):
        buffer = getattr(module, attribute).to(loaded.dtype)
        setattr(module, attribute, buffer)
        if loaded.is_meta or (buffer.is_meta and not metadata.get("assign_to_params_buffers")):
            # A buffer on meta has no device to restore. Copying from meta fails, and copying to meta warns.
            state_dict[key] = buffer


def _follow_load(attribute: str, module: nn.Module, _keys: object) -> None:
    for placement in _placements(module, attribute):
        placement.settle()
