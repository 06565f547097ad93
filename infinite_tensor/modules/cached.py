"""The value of a virtual tensor, kept until something that it is computed from changes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from infinite_tensor.modules.dependencies import PLAIN, Stamps, checked_dependencies, stamps_of


def undisturbed() -> bool:
    """Whether operations run here and now as they are written: nothing traces, transforms or recomputes them.

    Otherwise a cached tensor would be a constant to what is traced, belong to another transformation, or be there in a
    recomputation and not in the run that it repeats.
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or is_in_torch_dispatch_mode()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    )


class _Entry:
    """A value, and when it is the right one."""

    def __init__(self, value: torch.Tensor, stamps: Stamps) -> None:
        self.stamps = stamps
        self._value = value
        self._version = value._version
        self._with_gradients = torch.is_grad_enabled()
        self._thread = threading.get_ident()

    def serve(self) -> torch.Tensor | None:
        """The value as it would be computed now, None where it must be."""
        value = self._value
        if value._version != self._version:
            return None
        if not torch.is_grad_enabled():
            return value.detach() if value.requires_grad else value
        mine = value.grad_fn is None or self._thread == threading.get_ident()
        return value if self._with_gradients and mine else None


class CachedValue:
    """At most one value of a virtual tensor.

    Parameters
    ----------
    owner : torch.nn.Module
        Its module, not kept.
    dependencies : sequence of str
        What the value is computed from: names of attributes of `owner`.
    """

    def __init__(self, owner: nn.Module, dependencies: Sequence[str]) -> None:
        self.dependencies = checked_dependencies(owner, dependencies)
        self.clear()

    def clear(self) -> None:
        """Forget the value, and have those forgotten that were computed from it."""
        self._entry: _Entry | None = None
        self._generation = object()

    def stamps(self, owner: nn.Module, ref: torch.Tensor) -> Stamps | None:
        """What decides about the value now; None where no change could be seen."""
        return stamps_of(owner, ref, self.dependencies, self._generation)

    def value(self, owner: nn.Module, ref: torch.Tensor, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What `compute` returns now, or returned when all was as it is now."""
        stamps = self.stamps(owner, ref)
        entry = self._entry
        if entry is not None and entry.stamps == stamps:
            kept = entry.serve()
            if kept is not None:
                return kept
        value = _computed(compute)
        if stamps is None or type(value) not in PLAIN or value.is_inference():
            self._entry = None
            return value
        self._entry = _Entry(value, stamps)
        if value.grad_fn is not None:
            # A backward pass frees the graph that it uses.
            value.grad_fn.register_prehook(partial(_clear, weakref.ref(self)))
        return value

    def __getstate__(self) -> dict[str, object]:
        return {"dependencies": self.dependencies}

    def __setstate__(self, state: Mapping[str, tuple[str, ...]]) -> None:
        self.dependencies = state["dependencies"]
        self.clear()


def _clear(cached: weakref.ref[CachedValue], _gradients: object) -> None:
    living = cached()
    if living is not None:
        living.clear()


def _computed(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    if not torch.is_inference_mode_enabled():
        return compute()
    # Tensors that are born in it could not be used outside of it.
    with torch.inference_mode(mode=False), torch.no_grad():
        return compute()
