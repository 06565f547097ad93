"""`InfiniteBuffer`: an InfiniteTensor as an attribute of a module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import FunctionChangedWarning, ValidationError
from infinite_tensor.support.given import array_advice
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.definition import Definition, differences
from infinite_tensor.values.functions import changes


class InfiniteBuffer(nn.Module):
    """An `InfiniteTensor` as an attribute of a module.

    Like a `torch.nn.Buffer`, it follows the module to a device. The module's ``state_dict`` contains the definition of
    the tensor, not its data. It is itself a module, because torch moves and saves only parameters, buffers and
    submodules.

    Parameters
    ----------
    tensor : InfiniteTensor, optional
        The tensor. If omitted, loading a ``state_dict`` opens the tensor by its id, from the store named in the state.
        This tensor is read-only and has no ``f``: only stored pixels can be read.

    Raises
    ------
    TypeError
        If `tensor` is not an InfiniteTensor.

    Notes
    -----
    ``module.to(device)`` moves the tensor as `InfiniteTensor.to` does: in place, and ``f`` must return its windows on
    that device from then on. The dtype never follows the module, because it is part of what is stored. A
    `VirtualTensor` of a region follows dtype and device, and requires nothing of ``f``. The tensor does not move to the
    device ``meta``, because that would save no memory.

    The state is a dict of ``tensor_id`` (None if none was given), ``store`` (an argument for `open_store`, without
    credentials; None for a memory store), and ``definition``. Loading a state compares it with the module's tensor: a
    different definition raises a ValidationError with a list of all different fields; a different ``f`` gives a
    `FunctionChangedWarning`. The store is not compared, because it may have moved.

    Examples
    --------
    >>> class Map(torch.nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         row = lambda ctx: torch.full((4,), float(ctx[0]))
    ...         heights = InfiniteTensor((None,), row, TensorWindow((4,)))
    ...         self.heights = InfiniteBuffer(heights)
    >>> module = Map()
    >>> module.heights[2:6]
    tensor([0., 0., 1., 1.])
    >>> module.state_dict()["heights._extra_state"]["definition"]["shape"]
    [None]
    """

    def __init__(self, tensor: InfiniteTensor | None = None) -> None:
        super().__init__()
        if tensor is not None and not isinstance(tensor, InfiniteTensor):
            raise TypeError(
                f"tensor must be an InfiniteTensor, got {type(tensor).__name__} {tensor!r:.80}{array_advice(tensor)}"
            )
        self._tensor = tensor
        self._device = torch.get_default_device() if tensor is None else tensor.device
        if tensor is None and self._device.type == "meta":
            # Stored pixels can be read even if the default device is meta.
            self._device = torch.device("cpu")

    @property
    def tensor(self) -> InfiniteTensor:
        """The tensor of the buffer.

        Raise ValidationError if the buffer has no tensor yet.
        """
        if self._tensor is None:
            raise ValidationError(
                "this InfiniteBuffer has no tensor yet: create it as InfiniteBuffer(tensor), or load a state_dict with "
                "the location of the tensor"
            )
        return self._tensor

    def __getitem__(self, indices: object) -> Any:
        """Read a region, as `InfiniteTensor` does."""
        return self.tensor[indices]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        # Private to torch. Every way to move a module calls this method.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(torch.empty(0, device=self._device)).device
        if device.type != "meta":
            if self._tensor is not None:
                self._tensor.to(device)
            self._device = device
        return self

    def get_extra_state(self) -> dict[str, Any] | None:
        """Return the definition and location of the tensor for the ``state_dict``."""
        if self._tensor is None:
            return None
        definition = self._tensor.to_json()
        # The device follows the module.
        del definition["device"]
        return {
            "tensor_id": _given_id(self._tensor),
            "store": self._tensor.tile_store.address,
            "definition": definition,
        }

    def set_extra_state(self, state: object) -> None:
        """Compare a loaded state with the tensor.

        If there is no tensor yet, open the tensor of the state.

        Raises
        ------
        ValidationError
            If the state defines another tensor, or its tensor cannot be reopened.
        StoreError
            If the store that the state names cannot be opened, or does not contain the tensor.
        """
        if state is None and self._tensor is None:
            return
        saved = _Saved.of(state)
        if self._tensor is None:
            self._tensor = saved.reopened(self._device)
        else:
            saved.check_same(self._tensor)

    def _digested(self) -> str:
        """Return an identifying text for `infinite_tensor.digest`."""
        return "no tensor" if self._tensor is None else node_of(self._tensor).spec.definition.digest

    def extra_repr(self) -> str:
        """Describe the tensor in ``repr(module)``."""
        return repr(self._tensor)


@dataclass(frozen=True)
class _Saved:
    tensor_id: str | None
    store: str | None
    definition: Definition

    @classmethod
    def of(cls, state: object) -> Self:
        """Read an untrusted state of an `InfiniteBuffer`."""
        if not isinstance(state, Mapping) or "definition" not in state:
            raise ValidationError(
                f"the state of an InfiniteBuffer must contain the definition of a tensor, got {state!r:.200}"
            )
        tensor_id, store = state.get("tensor_id"), state.get("store")
        for name, value in (("tensor_id", tensor_id), ("store", store)):
            if value is not None and not isinstance(value, str):
                raise ValidationError(
                    f"the state of an InfiniteBuffer must contain a str or None as {name}, got {value!r:.200}"
                )
        return cls(tensor_id, store, StoredTensor.from_json(state["definition"]).definition)

    def reopened(self, device: torch.device) -> InfiniteTensor:
        from infinite_tensor_stores import open_store  # noqa: PLC0415  (loads zarr, which a VirtualTensor does without)

        if self.tensor_id is None or self.store is None:
            lack = "tensor_id" if self.tensor_id is None else "store with a path or URL"
            raise ValidationError(
                f"the tensor of this state cannot be reopened, because it has no {lack}; create the tensor again, and "
                "the module with InfiniteBuffer(tensor)"
            )
        with ExitStack() as stack:
            store = open_store(self.store, mode="r")
            stack.callback(store.close)
            tensor = store.open(self.tensor_id, device=device)
            self.check_same(tensor)
            stack.pop_all()
        return tensor

    def check_same(self, tensor: InfiniteTensor) -> None:
        """Check that `tensor` is the saved tensor. Warn if only functions differ."""
        given, tensor_id = StoredTensor.from_json(tensor.to_json()).definition, _given_id(tensor)
        lines = differences(self.definition.values(), given.values())
        if None not in (self.tensor_id, tensor_id) and self.tensor_id != tensor_id:
            lines.insert(0, f"tensor_id: stored {self.tensor_id!r}, given {tensor_id!r}")
        if lines:
            listed = "".join(f"\n  {line}" for line in lines)
            raise ValidationError(
                f"the tensor in the state differs from the tensor of the module:{listed}\nBuild the module with the "
                "saved tensor, or delete the key ending in '_extra_state' from the state"
            )
        for line in changes(self.definition.functions.record, given.functions.record).lines():
            warnings.warn(
                f"tensor {tensor.tensor_id!r} differs from the tensor in the state: {line}",
                FunctionChangedWarning,
                stacklevel=2,
            )


def _given_id(tensor: InfiniteTensor) -> str | None:
    """Return the id given by the user, or None for a random id."""
    return tensor.tensor_id if node_of(tensor).tensor.named else None
