"""Reopening a tensor, and the chain it reads from, from its id alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from infinite_tensor.definition import (
    Blend,
    Definition,
    UnknownBlend,
    blend_name,
    blend_of,
    functions_of,
    scalar_from_json,
)
from infinite_tensor.engine.node import Batching
from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tensor import InfiniteTensor, arg_definitions
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.contract import check_same
from infinite_tensor.validate import checked_device, checked_id


def open_tensor(
    store: TileStore,
    tensor_id: str,
    f: Callable[..., Any] | None,
    args: Sequence[InfiniteTensor] | None,
    blend: Blend | None,
    batch_size: int | tuple[int, ...] | None,
    device: torch.device | str,
) -> InfiniteTensor:
    """`TileStore.open`; see there."""
    if f is not None and not callable(f):
        raise ValidationError(f"f must be callable or None, got {f!r}")
    tensor_id = checked_id(tensor_id)
    definition = Definition.from_json(store.tensor_definition(tensor_id))
    upstream = tuple(args) if args is not None else _open_args(store, tensor_id, definition)
    if args is not None:
        _check_given(store, tensor_id, definition, upstream)
    if f is not None and len(upstream) < len(definition.args):
        raise ValidationError(
            f"tensor {tensor_id!r} is computed from {[arg.tensor_id for arg in definition.args]} "
            f"(None: an unnamed tensor), which {store!r} does not hold; give them as args=..."
        )
    return _bind(store, tensor_id, definition, f, upstream, blend, batch_size, checked_device(device))


def _check_given(store: TileStore, tensor_id: str, definition: Definition, args: tuple[InfiniteTensor, ...]) -> None:
    """The args that a user gives to a reopened tensor are what it was computed from."""
    if len(args) != len(definition.args) or not all(isinstance(arg, InfiniteTensor) for arg in args):
        raise ValidationError(
            f"tensor {tensor_id!r} takes {len(definition.args)} InfiniteTensors as args, got {args!r}"
        )
    windows = [arg.window for arg in definition.args]
    check_same(tensor_id, definition, replace(definition, args=arg_definitions(args, windows)), store)


def _open_args(store: TileStore, tensor_id: str, definition: Definition) -> tuple[InfiniteTensor, ...]:
    """Open the args that the store holds, theirs first; a loop instead of recursion, for deep chains."""
    opened: dict[str, InfiniteTensor] = {}
    definitions = {tensor_id: definition}
    path = [tensor_id]
    while True:
        name = path[-1]
        waiting = [key for key in _held_args(store, definitions, name) if key not in opened]
        if waiting:
            if waiting[0] in path:
                raise StoreError(f"{store!r}: tensor {waiting[0]!r} is stored as upstream of itself")
            path.append(waiting[0])
            continue
        found = tuple(opened[key] for key in _held_args(store, definitions, name))
        args = found if len(found) == len(definitions[name].args) else ()
        path.pop()
        if not path:
            return args
        opened[name] = _bind(store, name, definitions[name], None, args, None, None, torch.device("cpu"))


def _held_args(store: TileStore, definitions: dict[str, Definition], name: str) -> list[str]:
    """Ids of those args of a stored tensor that the store still holds as they were."""
    held = []
    for arg in definitions[name].args:
        key = arg.tensor_id
        if key is not None and key not in definitions:
            try:
                definitions[key] = Definition.from_json(store.tensor_definition(key))
            except StoreError:
                continue
        if key is not None and definitions[key].digest == arg.digest:
            held.append(key)
    return held


def _bind(
    store: TileStore,
    tensor_id: str,
    definition: Definition,
    f: Callable[..., Any] | None,
    args: tuple[InfiniteTensor, ...],
    blend: Blend | None,
    batch_size: int | tuple[int, ...] | None,
    device: torch.device,
) -> InfiniteTensor:
    used = blend if blend is not None else blend_of(definition.blend)
    if f is not None and isinstance(used, UnknownBlend):
        raise ValidationError(f"tensor {tensor_id!r} is blended by {used.name!r}; give it as blend=...")
    if blend is not None:
        check_same(tensor_id, definition, replace(definition, blend=blend_name(blend)), store)
    if f is not None:
        functions = functions_of(f, blend, tuple(arg._spec.definition.functions for arg in args))
        definition = replace(definition, functions=functions)
    tile_size = store.tensor_definition(tensor_id).get("tile_size")
    spec = TensorSpec(
        tensor_id,
        definition,
        device,
        used,
        scalar_from_json(definition.blend_init),
        None if tile_size is None else tuple(tile_size),
    )
    tensor = InfiniteTensor.__new__(InfiniteTensor)
    tensor._bind(spec, store, f, Batching.of(batch_size), args, named=True)
    return tensor


TileStore.opener = staticmethod(open_tensor)
TileStore.tensor_type = InfiniteTensor
