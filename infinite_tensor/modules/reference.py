"""The buffer by which the dtype and the device of a virtual tensor follow its module."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils.hooks import RemovableHandle

from infinite_tensor.errors import ValidationError


class Reference:
    """An empty buffer of a module, whose dtype and device are those of one of its virtual tensors.

    Copies of a virtual tensor share it. When it is gone the buffer goes too, unless another reference uses it: two
    virtual tensors may have had one name. The module is held weakly; a pickle or a deep copy holds it, so that both
    come out together.

    A buffer on meta says that there was no memory for the module when it was made or moved. Loaders replace the tensors
    of a module one by one and know nothing of this buffer, so that where these are counts for more.
    """

    def __init__(
        self, owner: nn.Module, name: str, dtype: torch.dtype | None, device: torch.device | str | None, persist: bool
    ) -> None:
        attribute = f"_{name}_ref"
        if hasattr(owner, attribute) and not _references(owner, attribute):
            raise ValidationError(
                f"{type(owner).__name__} has an attribute {attribute!r}, which virtual tensor {name!r} needs for its "
                "dtype and device; rename one of the two"
            )
        owner.register_buffer(attribute, torch.empty(0, dtype=dtype, device=device), persistent=persist)
        before, after = partial(_prepare_load, attribute), partial(_follow_load, attribute)
        handles = (
            owner.register_load_state_dict_pre_hook(before),  # type: ignore[no-untyped-call]
            owner.register_load_state_dict_post_hook(after),  # type: ignore[no-untyped-call]
        )
        self._bind(owner, attribute, handles, set_to_meta=False)

    def _bind(
        self, owner: nn.Module | None, attribute: str, handles: tuple[RemovableHandle, ...], *, set_to_meta: bool
    ) -> None:
        self.attribute = attribute
        self._owner = weakref.ref(nn.Module() if owner is None else owner)
        self._handles = handles
        self.set_to_meta = set_to_meta
        if owner is not None:
            _LIVING.setdefault((id(owner), attribute), weakref.WeakSet()).add(self)
            weakref.finalize(self, _release, self._owner, id(owner), attribute, handles).atexit = False

    @property
    def owner(self) -> nn.Module | None:
        """The module, None once it is gone."""
        return self._owner()

    def living_owner(self) -> nn.Module:
        """The module; ReferenceError once it is gone."""
        owner = self._owner()
        if owner is None:
            name = self.attribute[1 : -len("_ref")]
            raise ReferenceError(
                f"the module of virtual tensor {name!r} is gone: a virtual tensor does not keep its module alive. Hold "
                "the module, or what .value returns; copy and pickle the module, not its virtual tensor"
            )
        return owner

    @property
    def tensor(self) -> torch.Tensor:
        """The buffer."""
        return cast("torch.Tensor", getattr(self.living_owner(), self.attribute))

    @property
    def device(self) -> torch.device:
        """Where the value belongs."""
        tensor = self.tensor
        if not tensor.is_meta or self.set_to_meta:
            return tensor.device
        found = {device for device in _devices(self.living_owner()) if device.type != "meta"}
        return found.pop() if len(found) == 1 else tensor.device

    @property
    def allows_meta(self) -> bool:
        """Whether a value without data is right: it was asked for, or there is no data to compute one from."""
        if self.tensor.is_meta and (self.set_to_meta or torch.get_default_device().type == "meta"):
            return True
        return _all_on_meta(self.living_owner())

    def to(self, *args: Any, **kwargs: Any) -> None:
        """Set dtype and device, with the arguments of `torch.Tensor.to`."""
        tensor = self.tensor
        try:
            moved = tensor.to(*args, **kwargs)
        except NotImplementedError:
            # Nothing leaves meta, not even nothing.
            moved = torch.empty_like(tensor, device="cpu").to(*args, **kwargs)
        self._set(moved)
        self.set_to_meta = moved.is_meta

    def settle(self) -> None:
        """Once the module has loaded a state: leave meta where it has memory now, and go there where it has none."""
        owner, tensor, device = self.living_owner(), self.tensor, self.device
        if _all_on_meta(owner):
            device = torch.device("meta")
        elif device.type == "meta" and not self.set_to_meta and not _devices(owner):
            # Where it would be, had the module not been made on meta.
            device = torch.get_default_device()
        if device != tensor.device:
            self._set(torch.empty_like(tensor, device=device))

    def _set(self, tensor: torch.Tensor) -> None:
        setattr(self.living_owner(), self.attribute, tensor)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "attribute": self.attribute,
            "handles": self._handles,
            "set_to_meta": self.set_to_meta,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._bind(**state)


_LIVING: dict[tuple[int, str], weakref.WeakSet[Reference]] = {}
"""All references, by the id of the module and the name of the buffer."""


def _devices(owner: nn.Module) -> set[torch.device]:
    """Where the tensors of a module are. Empty ones, such as references, tell nothing."""
    tensors = itertools.chain(owner.parameters(), owner.buffers())
    lazy = (UninitializedBuffer, UninitializedParameter)
    return {tensor.device for tensor in tensors if not isinstance(tensor, lazy) and tensor.numel()}


def _all_on_meta(owner: nn.Module) -> bool:
    return {device.type for device in _devices(owner)} == {"meta"}


def _references(owner: nn.Module, attribute: str) -> list[Reference]:
    # An id may be that of a module which is gone, and of a later one.
    return [each for each in _LIVING.get((id(owner), attribute), ()) if each.owner is owner]


def _release(owner: weakref.ref[nn.Module], key: int, attribute: str, handles: tuple[RemovableHandle, ...]) -> None:
    """Remove what a reference has added to a module, but for a buffer that another one uses."""
    for handle in handles:
        handle.remove()
    if not _LIVING.get((key, attribute)):
        _LIVING.pop((key, attribute), None)
    module = owner()
    if module is not None and attribute in module._buffers and not _references(module, attribute):
        delattr(module, attribute)


def _prepare_load(
    attribute: str,
    module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    metadata: Mapping[str, Any],
    *_rest: object,
) -> None:
    """Before a module loads a state: take over the dtype, and let states with and without it load alike."""
    key = prefix + attribute
    if attribute in module._non_persistent_buffers_set:
        state_dict.pop(key, None)
        return
    loaded = state_dict.setdefault(key, getattr(module, attribute))
    if isinstance(loaded, torch.Tensor):
        reference = getattr(module, attribute).to(loaded.dtype)
        setattr(module, attribute, reference)
        if loaded.is_meta or (reference.is_meta and not metadata.get("assign_to_params_buffers")):
            # One on meta says nothing of a device. It cannot be copied, and copying to it is what torch would warn of.
            state_dict[key] = reference


def _follow_load(attribute: str, module: nn.Module, _keys: object) -> None:
    """After a module and all that is in it have loaded a state: go where their tensors are now."""
    for reference in _references(module, attribute):
        reference.settle()
