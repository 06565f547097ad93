"""Declared outputs of an ``f``, and specs for the output tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import EdgeName, TensorWindow, checked_edge, coordinates_of, followed
from infinite_tensor.support.given import checked_id, quoted
from infinite_tensor.support.nested import Key, leaves, show
from infinite_tensor.values.checks import check_followed, check_on_device, checked_shape
from infinite_tensor.values.definition import (
    ArgDefinition,
    Blend,
    BlendName,
    ContentVersion,
    Definition,
    Number,
    blend_name,
    checked_dims,
    functions_of,
    json_scalar,
    json_value,
    resolved_blend,
)
from infinite_tensor.values.dtypes import checked_dtype
from infinite_tensor.values.functions import Functions
from infinite_tensor.values.reduction import Reduction, checked_reduction, reduction_to_json
from infinite_tensor.values.spec import TensorSpec


@dataclass(frozen=True)
class Output:
    """Declaration of a single output for `InfiniteTensor.from_multi`.

    Parameters
    ----------
    shape : tuple of (int or None)
        As for `InfiniteTensor`.
    dtype : torch.dtype or str
        Element type, or its name.
    window : TensorWindow
        The pixels covered by a window. Its `dimension_map` tells which entry of the window index `ctx` moves the window
        along each dimension.
    blend : callable, WeightedMean or str, optional
        As for `InfiniteTensor`.
    blend_init : number, optional
        As for `InfiniteTensor`.
    edge : "drop", "clip" or "all", or a sequence of them, optional
        As for `InfiniteTensor`.
    dims : tuple of str, optional
        As for `InfiniteTensor`.
    reduce : Reduction, optional
        As for `InfiniteTensor`.
    """

    shape: Sequence[int | None]
    dtype: torch.dtype | str
    window: TensorWindow
    blend: Blend | BlendName | None = None
    blend_init: Number | None = None
    edge: EdgeName | Sequence[EdgeName | None] = "drop"
    dims: Sequence[str] | None = None
    reduce: Reduction | None = None


@dataclass(frozen=True)
class Shared:
    """Values shared by all outputs of an ``f``.

    Attributes
    ----------
    tensor_id : str
        The id of a single tensor, or the prefix of the ids of several tensors.
    f : callable
        Computes a window of each output.
    args : tuple of ArgDefinition
        The args that `f` reads.
    upstream : tuple of Functions
        The functions computing each arg.
    device : torch.device
        The device of windows returned by `f`.
    version : object
        The `version` given by the user to identify the computation of `f`.
    """

    tensor_id: str
    f: Callable[..., Any]
    args: tuple[ArgDefinition, ...]
    upstream: tuple[Functions, ...]
    device: torch.device
    version: object

    def spec(self, output: Output, key: Key = ()) -> TensorSpec:
        """Return the tensor spec for an output.

        For a single output, `key` is empty.

        Raises
        ------
        ValidationError
            If the output is not valid.
        """
        shape, dtype = checked_shape(output.shape), checked_dtype(output.dtype)
        edge = checked_edge(output.edge, shape)
        blend, reduction = resolved_blend(output.blend), checked_reduction(output.reduce)
        definition = Definition(
            shape=shape,
            dtype=dtype,
            output_window=output.window,
            args=self.args,
            blend=blend_name(blend),
            blend_init=json_scalar("blend_init", output.blend_init, dtype if reduction is None else reduction.dtype),
            version=self.version if isinstance(self.version, ContentVersion) else json_value("version", self.version),
            functions=functions_of(self.f, blend, self.upstream, reduction, told=self.version is not None),
            edge=edge,
            output=key or None,
            dims=checked_dims(output.dims, len(shape)),
            reduction=None if reduction is None else reduction_to_json(reduction),
        )
        tensor_id = checked_id("/".join((self.tensor_id, *key)))
        spec = TensorSpec(tensor_id, definition, self.device, blend, output.blend_init, reduction=reduction)
        check_on_device(spec)
        return spec

    def specs(self, outputs: object) -> dict[Key, TensorSpec]:
        """Return the tensor specs for several outputs by key.

        Raises
        ------
        ValidationError
            If an output is not valid, if the windows of an output do not move with every entry of the window index, or
            if two outputs would get the same id.
        """
        declared = _declared(outputs)
        coordinates = max(1, _coordinates(declared))
        for at, arg in enumerate(self.args):
            check_followed(f"args_windows[{at}]", arg.window, coordinates)
        specs = {}
        for key, output in declared.items():
            try:
                specs[key] = self.spec(output, key)
            except ValidationError as error:
                raise ValidationError(f"output {show(key)}: {error}") from error
        ids = [spec.tensor_id for spec in specs.values()]
        if len(set(ids)) < len(ids):
            raise ValidationError(f"the ids of outputs must be different, got {ids}; use keys without slashes")
        return specs


def _declared(outputs: object) -> dict[Key, Output]:
    if not isinstance(outputs, Mapping):
        raise ValidationError(f"outputs must be a dict of Output, got {quoted(outputs)}")
    declared = dict(leaves(outputs))
    if not declared:
        raise ValidationError("outputs must contain at least one Output, got an empty dict")
    for key, output in declared.items():
        if not all(isinstance(part, str) and part for part in key):
            raise ValidationError(f"the keys of outputs must be non-empty str, got {show(key)}")
        if not isinstance(output, Output):
            raise ValidationError(f"output {show(key)} must be an Output, got {quoted(output)}")
        if not isinstance(output.window, TensorWindow):
            raise ValidationError(f"output {show(key)}: window must be a TensorWindow, got {quoted(output.window)}")
    return declared


def _coordinates(declared: Mapping[Key, Output]) -> int:
    count = max(coordinates_of(output.window) for output in declared.values())
    for key, output in declared.items():
        unfollowed = sorted(set(range(count)) - set(followed(output.window)))
        if unfollowed:
            raise ValidationError(
                f"output {show(key)} has no dimension for entry {unfollowed[0]} of the window index; each output needs "
                f"a dimension for each of the {count} entries. Give the windows a dimension_map, such as "
                "(None, 0, 1) for an image with channels first and (0, 1) for a mask without channels"
            )
    return count
