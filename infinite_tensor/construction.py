"""Checks the arguments of new tensors, and puts the tensors into a store.

A tensor stands above this module, so args are any objects with a node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.engine.chain import Node, NodeHolder, TensorInStore, node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.outputs import Shared
from infinite_tensor.support.given import checked_device, checked_id, members, quoted, unique_id
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.tilestore.messages import mismatch, warn_of_seams, warn_of_uncovered
from infinite_tensor.values.checks import check_args, check_callable, check_windows, checked_paddings, checked_windows
from infinite_tensor.values.code import short_name
from infinite_tensor.values.definition import ArgDefinition, Padding, contradict, names_of
from infinite_tensor.values.spec import TensorSpec


def checked_shared(
    f: Callable[..., Any],
    args: Sequence[NodeHolder],
    windows: Any,
    padding: object,
    device: torch.device | str,
    tensor_id: object,
    version: object,
) -> Shared:
    """Check the arguments common to all outputs of an ``f``."""
    check_callable(f)
    if windows is not None and members(windows) is None:
        raise ValidationError(f"args_windows must be a tuple or list, got {quoted(windows)}")
    definitions = arg_definitions(args, checked_windows(args, members(windows) or ()), checked_paddings(args, padding))
    upstream = tuple(node_of(arg).spec.definition.functions for arg in args)
    name = unique_id(short_name(f)) if tensor_id is None else checked_id(tensor_id)
    return Shared(name, f, definitions, upstream, checked_device(device), version)


class Located:
    """An ``f`` that also gets where its first region begins, or without args its window: ``f(ctx, *regions, start)``.

    Parameters
    ----------
    f : callable
        The user's function.
    window : TensorWindow
        The window over the first arg, or the output window.
    """

    def __init__(self, f: Callable[..., Any], window: TensorWindow) -> None:
        self.__wrapped__ = f
        self._window = window

    def _reaches(self) -> Mapping[str, object]:
        return {"f": self.__wrapped__}

    def __call__(self, ctx: Any, *regions: Any) -> Any:
        """Call the function of the user."""
        start = [self._start(index) for index in ctx] if isinstance(ctx, list) else self._start(ctx)
        return self.__wrapped__(ctx, *regions, start)

    def _start(self, index: Sequence[int]) -> tuple[int, ...]:
        return tuple([bounds.start for bounds in self._window.get_bounds(index)])


def arg_definitions(
    args: Sequence[NodeHolder], windows: Sequence[TensorWindow], paddings: Sequence[tuple[Padding, ...] | None]
) -> tuple[ArgDefinition, ...]:
    """Create the args of a definition from tensors, windows and paddings."""
    return tuple(
        ArgDefinition(window, node.spec.definition, node.spec.tensor_id if node.tensor.named else None, padding)
        for node, window, padding in zip(map(node_of, args), windows, paddings, strict=True)
    )


def in_store(
    specs: Collection[TensorSpec], given: object, shared: Shared, args: Sequence[NodeHolder], *, named: bool
) -> list[TensorInStore]:
    """Check the windows of new tensors, and register the tensors with the store that is `given`."""
    for spec in specs:
        check_windows(spec.tensor_id, spec.grid, spec.labels)
        check_args(spec.tensor_id, spec.grid, args, shared.args)
        warn_of_uncovered(spec)
        warn_of_seams(spec, args)
    # Last, because this creates a folder at a path.
    store = _checked_store(given)
    return [TensorInStore(spec, store, named) for spec in specs]


def _checked_store(store: object) -> TileStore:
    if isinstance(store, str | os.PathLike):
        # Imported here, because persistent stores build on tensors.
        from infinite_tensor_stores import shared_store  # noqa: PLC0415

        return shared_store(store)
    if store is not None and not isinstance(store, TileStore):
        raise ValidationError(f"tile_store must be a TileStore, a path or a URL, got {quoted(store)}")
    return MemoryTileStore() if store is None else store


def check_dims(given: TensorSpec, node: Node) -> None:
    """Check that the names given for dimensions are those of the tensor in the store."""
    wanted = given.definition.dims
    if wanted is not None and contradict(names := names_of(node.spec.definition.dims, len(given.shape)), wanted):
        raise mismatch(given.tensor_id, [f"dims: stored {list(names)}, given {list(wanted)}"], node.store)
