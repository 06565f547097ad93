"""`InfiniteBuffer`: an infinite tensor as an attribute of a module."""

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
    """An `InfiniteTensor` as an attribute of a module, as `torch.nn.Buffer` is for a tensor.

    It follows the module to a device, and is in its ``state_dict`` as what defines it, not as its data. A module of its
    own, because that is the one thing that torch asks about either.

    Parameters
    ----------
    tensor : InfiniteTensor, optional
        The tensor. Without one, it is opened when a ``state_dict`` is loaded: by its id, from the store that the state
        names, read-only and without ``f``, so that what is stored can be read.

    Raises
    ------
    TypeError
        If `tensor` is no InfiniteTensor.

    Notes
    -----
    ``module.to(device)`` moves the tensor as `InfiniteTensor.to` does: in place, and ``f`` must return its windows on
    that device from then on. The dtype stays, whatever is done to the module: it is a part of what is stored. A
    `VirtualTensor` of a region follows in both, and asks nothing of ``f``. The device ``meta`` is not followed: there
    is no memory to be spared.

    The state is a dict of ``tensor_id`` (None where none was given), ``store`` (what `open_store` takes, without
    credentials; None for a store in memory), and ``definition``. Loading one compares it with the tensor that is there:
    another definition is a ValidationError that lists every field that differs, another ``f`` a
    `FunctionChangedWarning`. The store is not compared: it may have moved.

    Examples
    --------
    >>> class Map(torch.nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         heights = InfiniteTensor((None,), lambda ctx: torch.full((4,), float(ctx[0])), TensorWindow((4,)))
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
            # What is stored is read all the same.
            self._device = torch.device("cpu")

    @property
    def tensor(self) -> InfiniteTensor:
        """The tensor; ValidationError where there is none yet."""
        if self._tensor is None:
            raise ValidationError(
                "this InfiniteBuffer has no tensor yet: give it one, InfiniteBuffer(tensor), or load a state_dict that "
                "says where to find it"
            )
        return self._tensor

    def __getitem__(self, indices: object) -> Any:
        """Read a region, as `InfiniteTensor` does."""
        return self.tensor[indices]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        # Private to torch, and what all ways to move a module come down to.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(torch.empty(0, device=self._device)).device
        if device.type != "meta":
            if self._tensor is not None:
                self._tensor.to(device)
            self._device = device
        return self

    def get_extra_state(self) -> dict[str, Any] | None:
        """What is in the ``state_dict``: the definition, and where the tensor is found."""
        if self._tensor is None:
            return None
        definition = self._tensor.to_json()
        # It follows the module.
        del definition["device"]
        return {
            "tensor_id": _given_id(self._tensor),
            "store": self._tensor.tile_store.address,
            "definition": definition,
        }

    def set_extra_state(self, state: object) -> None:
        """Compare what a ``state_dict`` holds with the tensor, or open the tensor where there is none.

        Raises
        ------
        ValidationError
            If the state defines another tensor, or cannot be reopened.
        StoreError
            If the store that it names does not open, or holds no such tensor.
        """
        if state is None and self._tensor is None:
            return
        saved = _Saved.of(state)
        if self._tensor is None:
            self._tensor = saved.reopened(self._device)
        else:
            saved.check_same(self._tensor)

    def _digested(self) -> str:
        """What stands for it in `infinite_tensor.digest`: its `extra_repr` has an id that may be random."""
        return "no tensor" if self._tensor is None else node_of(self._tensor).spec.definition.digest

    def extra_repr(self) -> str:
        """The tensor, for ``repr(module)``."""
        return repr(self._tensor)


@dataclass(frozen=True)
class _Saved:
    """What a state says of a tensor."""

    tensor_id: str | None
    store: str | None
    definition: Definition

    @classmethod
    def of(cls, state: object) -> Self:
        """The state of an `InfiniteBuffer`, of which nothing is trusted."""
        if not isinstance(state, Mapping) or "definition" not in state:
            raise ValidationError(
                f"the state of an InfiniteBuffer must hold the definition of a tensor, got {state!r:.200}"
            )
        tensor_id, store = state.get("tensor_id"), state.get("store")
        for name, value in (("tensor_id", tensor_id), ("store", store)):
            if value is not None and not isinstance(value, str):
                raise ValidationError(
                    f"the state of an InfiniteBuffer must hold a str or None as {name}, got {value!r:.200}"
                )
        return cls(tensor_id, store, StoredTensor.from_json(state["definition"]).definition)

    def reopened(self, device: torch.device) -> InfiniteTensor:
        """The tensor, from the store that it was in."""
        from infinite_tensor_stores import open_store  # noqa: PLC0415  (loads zarr, which a VirtualTensor does without)

        if self.tensor_id is None or self.store is None:
            unnamed = self.tensor_id is None
            reason = "was given no tensor_id" if unnamed else f"{self.tensor_id!r} was in a store without an address"
            raise ValidationError(
                f"the tensor of this state {reason}, so it cannot be reopened: build it again, and the module with "
                "InfiniteBuffer(tensor)"
            )
        with ExitStack() as stack:
            store = open_store(self.store, mode="r")
            stack.callback(store.close)
            tensor = store.open(self.tensor_id, device=device)
            self.check_same(tensor)
            stack.pop_all()
        return tensor

    def check_same(self, tensor: InfiniteTensor) -> None:
        """ValidationError unless `tensor` is the one; FunctionChangedWarning if its functions are other ones."""
        given, tensor_id = StoredTensor.from_json(tensor.to_json()).definition, _given_id(tensor)
        lines = differences(self.definition.values(), given.values())
        if None not in (self.tensor_id, tensor_id) and self.tensor_id != tensor_id:
            lines.insert(0, f"tensor_id: stored {self.tensor_id!r}, given {tensor_id!r}")
        if lines:
            listed = "".join(f"\n  {line}" for line in lines)
            raise ValidationError(
                f"the state defines another tensor than the module has:{listed}\nBuild the module with the tensor "
                "that it was saved with, or leave the tensor out of the state: its key ends in '_extra_state'"
            )
        for line in changes(self.definition.functions.record, given.functions.record).lines():
            warnings.warn(
                f"tensor {tensor.tensor_id!r} is not quite that which the state was saved with: {line}",
                FunctionChangedWarning,
                stacklevel=2,
            )


def _given_id(tensor: InfiniteTensor) -> str | None:
    """The id that the user gave it; None for a random one, by which nobody else knows it."""
    return tensor.tensor_id if node_of(tensor).tensor.named else None
