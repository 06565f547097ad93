"""The buffer by which the dtype and the device of a virtual tensor follow its module."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from infinite_tensor.errors import ValidationError


class Reference:
    """An empty buffer of a module, whose dtype and device are those of one of its virtual tensors.

    Copies of a virtual tensor share it. When it is gone the buffer goes too, unless another reference uses it: two
    virtual tensors may have had one name. The module is held weakly; a pickle or a deep copy holds it, so that both
    come out together.
    """

    def __init__(
        self, owner: nn.Module, name: str, dtype: torch.dtype | None, device: torch.device | str | None, persist: bool
    ) -> None:
        attribute = f"_{name}_ref"
        if hasattr(owner, attribute) and not _is_in_use(owner, attribute):
            raise ValidationError(
                f"{type(owner).__name__} has an attribute {attribute!r}, which virtual tensor {name!r} needs for its "
                "dtype and device; rename one of the two"
            )
        owner.register_buffer(attribute, torch.empty(0, dtype=dtype, device=device), persistent=persist)
        hook = partial(_prepare_load, attribute)
        handle = owner.register_load_state_dict_pre_hook(hook)  # type: ignore[no-untyped-call]
        self._bind(owner, attribute, handle)

    def _bind(self, owner: nn.Module | None, attribute: str, handle: RemovableHandle) -> None:
        self.attribute = attribute
        self._owner = weakref.ref(nn.Module() if owner is None else owner)
        self._handle = handle
        if owner is not None:
            _LIVING.setdefault((id(owner), attribute), weakref.WeakSet()).add(self)
            weakref.finalize(self, _release, self._owner, id(owner), attribute, handle).atexit = False

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

    @tensor.setter
    def tensor(self, tensor: torch.Tensor) -> None:
        setattr(self.living_owner(), self.attribute, tensor)

    def __getstate__(self) -> dict[str, Any]:
        return {"owner": self.owner, "attribute": self.attribute, "handle": self._handle}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._bind(**state)


_LIVING: dict[tuple[int, str], weakref.WeakSet[Reference]] = {}
"""All references, by the id of the module and the name of the buffer."""


def _is_in_use(owner: nn.Module, attribute: str) -> bool:
    """Whether a buffer belongs to a reference. An id may be that of a module which is gone, and of a later one."""
    return any(each.owner is owner for each in _LIVING.get((id(owner), attribute), ()))


def _release(owner: weakref.ref[nn.Module], key: int, attribute: str, handle: RemovableHandle) -> None:
    """Remove what a reference has added to a module, but for a buffer that another one uses."""
    handle.remove()
    if not _LIVING.get((key, attribute)):
        _LIVING.pop((key, attribute), None)
    module = owner()
    if module is not None and attribute in module._buffers and not _is_in_use(module, attribute):
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
    reference = getattr(module, attribute)
    loaded = state_dict.setdefault(key, reference)
    if isinstance(loaded, torch.Tensor):
        setattr(module, attribute, reference.to(loaded.dtype))
        if reference.is_meta and not metadata.get("assign_to_params_buffers"):
            # Nothing can be copied there, of which torch would warn.
            state_dict[key] = loaded.to("meta")
