"""One ``f`` with several outputs: what is declared of each, and the tensors that they are."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import TensorWindow, coordinates_of
from infinite_tensor.support.nested import Key, leaves, show
from infinite_tensor.values.checks import (
    check_followed,
)
from infinite_tensor.values.definition import (
    ArgDefinition,
    Blend,
    Number,
)
from infinite_tensor.values.spec import TensorSpec


@dataclass(frozen=True)
class Output:
    """One output of an ``f`` that computes several tensors, for `InfiniteTensor.from_multi`.

    Parameters
    ----------
    shape : tuple of (int or None)
        Extent per dimension in pixels; None for an unbounded one.
    dtype : torch.dtype
        Element type.
    window : TensorWindow
        Which pixels a window covers. Its `dimension_map` says which dimension follows which entry of `ctx`.
    blend : callable, optional
        As for `InfiniteTensor`.
    blend_init : number, optional
        As for `InfiniteTensor`.
    """

    shape: Sequence[int | None]
    dtype: torch.dtype
    window: TensorWindow
    blend: Blend | None = None
    blend_init: Number | None = None


@dataclass(frozen=True)
class Shared:
    """What all outputs of one ``f`` have in common.

    Attributes
    ----------
    tensor_id : str
        Begins the ids of the tensors.
    f : callable
        Computes a window of each.
    args : tuple of ArgDefinition
        What `f` reads.
    upstream : tuple of mapping of str to str
        Fingerprints of the functions of these.
    device : torch.device
        Where `f` returns windows.
    version : object
        The user's word for what `f` is.
    """

    tensor_id: str
    f: Callable[..., Any]
    args: tuple[ArgDefinition, ...]
    upstream: tuple[Mapping[str, str], ...]
    device: torch.device
    version: object

    def specs(self, outputs: object) -> dict[Key, TensorSpec]:
        """The tensor of each output.

        Raises
        ------
        ValidationError
            If an output is not what it must be, or the outputs do not share their windows.
        """
        declared = _declared(outputs)
        _check_coordinates(declared)
        for at, arg in enumerate(self.args):
            check_followed(f"args_windows[{at}]", arg.window, _coordinates(declared))
        specs = {}
        for key, output in declared.items():
            try:
                specs[key] = self._spec(key, output)
            except ValidationError as error:
                raise ValidationError(f"output {show(key)}: {error}") from error
        ids = [spec.tensor_id for spec in specs.values()]
        if len(set(ids)) < len(ids):
            raise ValidationError(f"the keys of outputs must lead to different ids, got {ids}: leave out the slashes")
        return specs

    def _spec(self, key: Key, output: Output) -> TensorSpec:
        return TensorSpec.declared(
            "/".join((self.tensor_id, *key)),
            output.shape,
            output.dtype,
            self.device,
            output.window,
            output.blend,
            output.blend_init,
            f=self.f,
            args=self.args,
            upstream=self.upstream,
            version=self.version,
            output=key,
        )


def new_id() -> str:
    """A name that no other tensor has."""
    return str(uuid.uuid4())


def _declared(outputs: object) -> dict[Key, Output]:
    if not isinstance(outputs, Mapping):
        raise ValidationError(f"outputs must be a dict of Output, got {outputs!r}")
    declared = dict(leaves(outputs))
    if not declared:
        raise ValidationError("outputs must hold at least one Output, got an empty dict")
    for key, output in declared.items():
        if not all(isinstance(part, str) and part for part in key):
            raise ValidationError(f"the keys of outputs must be non-empty str, got {show(key)}")
        if not isinstance(output, Output):
            raise ValidationError(f"output {show(key)} must be an Output, got {output!r}")
        if not isinstance(output.window, TensorWindow):
            raise ValidationError(f"output {show(key)}: window must be a TensorWindow, got {output.window!r}")
    return declared


def _coordinates(declared: Mapping[Key, Output]) -> int:
    return max(1, *(coordinates_of(output.window) for output in declared.values()))


def _check_coordinates(declared: Mapping[Key, Output]) -> None:
    """A window of one output is a window of each: all follow the same coordinates of ctx."""
    count = max(coordinates_of(output.window) for output in declared.values())
    for key, output in declared.items():
        unfollowed = sorted(set(range(count)) - set(output.window.followed))
        if unfollowed:
            raise ValidationError(
                f"output {show(key)}: no dimension follows window coordinate {unfollowed[0]}, which another output "
                f"follows; ctx has {count} entries, and each output must follow all of them. Give the windows a "
                "dimension_map: (None, 0, 1), say, for an image with channels first beside a mask without"
            )
