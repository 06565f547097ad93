"""`TensorSpec`: the description of a tensor for a store."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window import Shape, WindowGrid
from infinite_tensor.support.allocation import as_array
from infinite_tensor.support.forks import cached_property
from infinite_tensor.values.blend import Blender
from infinite_tensor.values.definition import (
    Blend,
    Definition,
    Number,
    contradict,
    joined_dims,
    json_scalar,
    label_of,
    names_of,
)
from infinite_tensor.values.meaning import joined_meaning
from infinite_tensor.values.reduction import Reducer, Reduction, gathered_blend


@dataclass(frozen=True)
class TensorSpec:
    """A definition, with the functions and device of this process.

    Attributes
    ----------
    tensor_id : str
        The name under which a store keeps the tensor.
    definition : Definition
        Everything that decides the values of the tensor.
    device : torch.device
        The device of the windows from ``f``, and of the regions returned by reads.
    blend : callable, WeightedMean, "first", "last" or None
        The blend that ``definition.blend`` names.
    blend_init : number or None
        The value of a pixel before its first window.
    tile_size : tuple of int or None
        The tile size, if the tensor is already stored; None lets the store choose.
    reduction : Reduction or None
        The reduction that ``definition.reduction`` names.
    held : object
        An object from a persistent store. The store keeps its record of the tensor as long as this object exists.
    """

    tensor_id: str
    definition: Definition
    device: torch.device
    blend: Blend | None = None
    blend_init: Number | None = None
    tile_size: Index | None = None
    reduction: Reduction | None = None
    held: object = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all fields except `held`."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self) if each.compare)

    def hold(self, known: object) -> None:
        """Set `held`, although the spec is frozen."""
        self.__dict__["held"] = known

    @property
    def shape(self) -> Shape:
        """The shape of the tensor; None for an unbounded dimension."""
        return self.definition.shape

    @property
    def joint_id(self) -> str | None:
        """The common prefix of the ids of all outputs of ``f``.

        None if ``f`` has a single output.
        """
        output = self.definition.output
        return None if output is None else self.tensor_id.removesuffix("/".join(("", *output)))

    def is_beside(self, other: TensorSpec) -> bool:
        """Whether both tensors are outputs of the same ``f``."""
        mine, its = ((each.joint_id, each.definition.args, each.definition.version) for each in (self, other))
        return mine[0] is not None and mine == its

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.definition.dtype

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """The dtype of numpy arrays from `as_array`.

        None if `as_array` does not return numpy arrays for this tensor.
        """
        array = as_array(torch.empty(0, dtype=self.dtype, device=self.device))
        return array.dtype if isinstance(array, np.ndarray) else None

    @cached_property
    def grid(self) -> WindowGrid:
        """The windows of the tensor."""
        return WindowGrid(self.definition.output_window, self.shape, self.definition.edge)

    @property
    def gathered(self) -> TensorSpec:
        """The spec of the gathered tensor.

        The gathered tensor contains the unreduced values. Without a reduction, this is the spec itself.
        """
        # A spec that refers to itself would live, with what it holds, until the garbage collector runs.
        return self if self.reduction is None else self._gathered

    @cached_property
    def _gathered(self) -> TensorSpec:
        assert self.reduction is not None
        blend = gathered_blend(self.reduction, self.blend)
        return TensorSpec(self.tensor_id, self.definition.gathered, self.device, blend, self.blend_init)

    @cached_property
    def reducer(self) -> Reducer | None:
        """The reducer of gathered pixels, or None without a reduction."""
        return None if self.reduction is None else Reducer(self.reduction, self.dtype, self.grid)

    @property
    def gathered_bytes(self) -> float:
        """The size of a pixel before the reduction, in bytes."""
        if self.reduction is None:
            return self.dtype.itemsize
        return self.reduction.in_channels * self.reduction.dtype.itemsize / (self.reduction.out_channels or 1)

    @cached_property
    def blender(self) -> Blender:
        """The blender for the windows of the tensor."""
        return Blender(self.grid, self.dtype, self.blend, self.blend_init)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the dimensions in messages, such as ``0 ('y')``."""
        return tuple([label_of(d, name) for d, name in enumerate(names_of(self.definition.dims, len(self.shape)))])

    def beside(self, stored: Definition) -> TensorSpec:
        """Return the spec with dimension names and meaning from a store.

        `stored` is the definition in the store. For the names, see `joined_dims`. Of the stored meaning, only facts
        without a counterpart in the spec are added.
        """
        dims = joined_dims(stored.dims, self.definition.dims)
        meaning = joined_meaning(self.definition.meaning, stored.meaning)
        if self.definition.dims == dims and self.definition.meaning is meaning:
            return self
        return replace(self, definition=replace(self.definition, dims=dims, meaning=meaning))

    def moved(self, device: torch.device, dtype: torch.dtype) -> TensorSpec:
        """Return the spec for the same tensor with another device and dtype."""
        definition = replace(self.definition, dtype=dtype)
        if self.reduction is None:
            definition = replace(definition, blend_init=json_scalar("blend_init", self.blend_init, dtype))
        return replace(self, device=device, definition=definition)


def amended(stored: Definition, given: Definition) -> Definition:
    """Return a stored definition with the names and the meaning that only `given` has.

    Return the same object if there are none, or if the names contradict.
    """
    dims, meaning = joined_dims(stored.dims, given.dims), joined_meaning(stored.meaning, given.meaning)
    if dims is not None and given.dims is not None and contradict(dims, given.dims):
        return stored
    return stored if dims == stored.dims and meaning is stored.meaning else replace(stored, dims=dims, meaning=meaning)
