"""What a cached value is computed from, and whether it has changed since."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from infinite_tensor.engine.drops import DROPS
from infinite_tensor.tensor import InfiniteTensor

Tracked: TypeAlias = "torch.Tensor | InfiniteTensor"

PLAIN = (torch.Tensor, nn.Parameter)
"""Types of tensors that are no more than that: what a subclass means by a version or an address is its own affair."""

_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True)
class Stamps:
    """All that decides about a value, as it was at one moment; equal for as long as nothing has changed.

    Attributes
    ----------
    states : tuple
        What there is to compare. Tensors are in it by their ids.
    tracked : tuple of weak references
        Those tensors: while one lives, no other has its id.
    """

    states: tuple[object, ...]
    tracked: tuple[weakref.ref[Tracked], ...]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Stamps)
            and self.states == other.states
            and all(each() is not None for each in self.tracked)
        )

    # Equal ones may cease to be.
    __hash__ = None  # type: ignore[assignment]


@runtime_checkable
class Stamped(Protocol):
    """Something that a value can depend on, and that tells by itself what decides about it."""

    def _stamps(self) -> Stamps | None:
        """The stamps of now; None where no change could be seen."""


class _Untracked(Exception):  # noqa: N818  (never leaves this module)
    """No change of a dependency could be seen."""


def stamps_of(owner: nn.Module, ref: torch.Tensor, dependencies: Sequence[str], *more: object) -> Stamps | None:
    """What decides about a value of `owner` with the dtype and device of `ref`; None if a change could not be seen."""
    tracked: list[Tracked] = []
    try:
        states = [_state(_found(owner, name), tracked) for name in dependencies]
    except _Untracked:
        return None
    states += [ref.dtype, ref.device, _autocast(ref.device.type), *more]
    return Stamps(tuple(states), tuple(map(weakref.ref, tracked)))


def checked_dependencies(owner: nn.Module, dependencies: Sequence[str]) -> tuple[str, ...]:
    """`dependencies`, if each names something of `owner` of which changes can be seen."""
    if isinstance(dependencies, str) or not all(isinstance(name, str) for name in dependencies):
        raise TypeError(f"dependencies must be a list of names of attributes, got {dependencies!r}")
    for name in dependencies:
        try:
            found = _found(owner, name)
        except AttributeError as error:
            raise AttributeError(f"dependencies: {type(owner).__name__} has no {name!r}: {error}") from error
        if not isinstance(found, torch.Tensor) and not _is_tracked(found):
            raise TypeError(
                f"dependencies: {name!r} is a {type(found).__name__}, {found!r:.80}, and changes of it cannot be seen; "
                "name tensors, modules, InfiniteTensors, virtual tensors that are cached, or immutable values"
            )
    return tuple(dependencies)


def _found(owner: nn.Module, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), owner)


def _is_tracked(value: object) -> bool:
    try:
        _state(value, [])
    except _Untracked:
        return False
    return True


def _state(value: object, tracked: list[Tracked]) -> object:
    """What changes when `value` does; adds to `tracked` the tensors that are named by their ids in it."""
    if isinstance(value, torch.Tensor):
        return _state_of_tensor(value, tracked)
    if isinstance(value, Stamped):
        stamps = value._stamps()
        if stamps is None:
            raise _Untracked
        return stamps
    if isinstance(value, InfiniteTensor):
        tracked.append(value)
        return id(value), value.dtype, value.device, DROPS.count
    if isinstance(value, nn.Module):
        return _state_of_module(value, tracked)
    if isinstance(value, tuple):
        return type(value), tuple(_state(each, tracked) for each in value)
    if isinstance(value, _IMMUTABLE):
        return type(value), value
    raise _Untracked


def _state_of_module(module: nn.Module, tracked: list[Tracked]) -> object:
    tensors = itertools.chain(
        module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    )
    stamped = [each for each in module.modules() if isinstance(each, Stamped)]
    return [(name, _state(tensor, tracked)) for name, tensor in tensors], [_state(each, tracked) for each in stamped]


def _state_of_tensor(tensor: torch.Tensor, tracked: list[Tracked]) -> object:
    if tensor.is_inference():
        # It counts no versions.
        raise _Untracked
    tracked.append(tensor)
    state = id(tensor), tensor._version, tensor.dtype, tensor.device, _steps().last if tensor.requires_grad else None
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
        return state
    # Assigning to .data changes these alone.
    return *state, tensor.data_ptr(), tensor.shape, tensor.stride()


def _autocast(device_type: str) -> torch.dtype | None:
    available = torch.amp.is_autocast_available(device_type)
    return torch.get_autocast_dtype(device_type) if available and torch.is_autocast_enabled(device_type) else None


class _Steps:
    """Numbers the steps of all optimizers: fused ones change parameters without counting up their versions."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.last = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_step: object) -> None:
        # Compiled code changes parameters by operations that do count.
        if not torch.compiler.is_compiling():
            self.last = next(self._numbers)


_steps = functools.cache(_Steps)
"""The one of this process, from the first time that it is needed."""
