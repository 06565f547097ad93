"""Reopens tensors by id, and pickles tensors by reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from infinite_tensor.construction import Located, arg_definitions
from infinite_tensor.engine.chain import TensorInStore, node_of
from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.batching import Batching
from infinite_tensor.support.given import array_advice, checked_device, checked_flag, checked_id, quoted
from infinite_tensor.support.nested import show
from infinite_tensor.tensor import InfiniteTensor, SupportsAsTensor, as_tensors, tensors_of
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.inventory import sources_first
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.messages import check_same
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.checks import check_args, check_on_device, checked_windows
from infinite_tensor.values.coarse import Coarsening
from infinite_tensor.values.definition import Blend, BlendName, Definition, blend_name, functions_of, resolved_blend
from infinite_tensor.values.reduction import (
    Reduction,
    checked_reduction,
    reduction_to_json,
    unknown_in,
)


def open_tensor(
    store: TileStore,
    tensor_id: str,
    f: Callable[..., Any] | None,
    args: Sequence[InfiniteTensor | SupportsAsTensor] | None,
    blend: Blend | BlendName | None,
    batch_size: int | tuple[int, ...] | None,
    device: torch.device | str,
    reduce: Reduction | None,
    *,
    coordinates: bool,
) -> InfiniteTensor:
    """See `TileStore.open`."""
    if f is not None and not callable(f):
        raise ValidationError(f"f must be callable or None, got {quoted(f)}")
    checked_reduction(reduce)
    tensor_id = checked_id(tensor_id)
    # The records keep what has been looked up, so that nothing is read twice.
    stored, *kept = contents_of(store).open(tensor_id)
    definition = stored.definition
    if f is not None and definition.output is not None:
        raise ValidationError(
            f"tensor {tensor_id!r} must be opened without f, because it is the output {show(definition.output)} of an "
            "f with several outputs; to compute missing windows, create all outputs again with "
            "InfiniteTensor.from_multi"
        )
    upstream = as_tensors(args) if args is not None else _open_args(store, tensor_id, stored, kept)
    if args is not None:
        _check_given(store, tensor_id, definition, upstream)
    if f is not None and len(upstream) < len(definition.args):
        raise ValidationError(
            f"{store} does not contain all args of tensor {tensor_id!r}: "
            f"{[arg.tensor_id for arg in definition.args]} (None for an arg without a tensor_id); give the tensors as "
            "args=[...]"
        )
    if checked_flag("coordinates", coordinates) and f is not None:
        f = Located(f, [*[arg.window for arg in definition.args], definition.output_window][0])
    found, where = resolved_blend(blend), checked_device(device)
    return _bind(store, tensor_id, stored, f, upstream, found, batch_size, where, reduce)


def _check_given(store: TileStore, tensor_id: str, definition: Definition, args: tuple[InfiniteTensor, ...]) -> None:
    others = [arg for arg in args if not isinstance(arg, InfiniteTensor)]
    if others or len(args) != len(definition.args):
        advice = "".join(map(array_advice, others[:1]))
        raise ValidationError(
            f"tensor {tensor_id!r} takes {len(definition.args)} InfiniteTensors as args, got {quoted(args)}{advice}"
        )
    windows, paddings = [arg.window for arg in definition.args], [arg.padding for arg in definition.args]
    check_same(tensor_id, definition, replace(definition, args=arg_definitions(args, windows, paddings)), store)


def _open_args(
    store: TileStore, tensor_id: str, stored: StoredTensor, kept: list[Record]
) -> tuple[InfiniteTensor, ...]:
    """Open the args of a tensor, and all tensors upstream.

    Return an empty tuple if the store lacks an arg. A loop is used, because recursion would fail on long chains.
    """
    opened: dict[str, InfiniteTensor] = {}
    found = {tensor_id: stored}
    held = {tensor_id: _held_args(store, found, kept, tensor_id)}
    path = [(tensor_id, iter(held[tensor_id]))]
    while True:
        name, rest = path[-1]
        waiting = next((key for key in rest if key not in opened), None)
        if waiting is not None:
            if waiting in held:
                raise StoreError(f"{store}: by the stored definitions, tensor {waiting!r} is computed from itself")
            held[waiting] = _held_args(store, found, kept, waiting)
            path.append((waiting, iter(held[waiting])))
            continue
        args = tuple(opened[key] for key in held[name])
        if len(args) != len(found[name].definition.args):
            args = ()
        path.pop()
        if not path:
            return args
        opened[name] = _bind(store, name, found[name], None, args, None, None, torch.device("cpu"), None)


def _held_args(store: TileStore, found: dict[str, StoredTensor], kept: list[Record], name: str) -> list[str]:
    """Return the ids of the args of tensor `name`, except deleted or replaced args."""
    held = []
    for arg in found[name].definition.args:
        key = arg.tensor_id
        if key is not None and key not in found:
            try:
                found[key], record = contents_of(store).open(key)
            except StoreError:
                continue
            kept.append(record)
        if key is not None and found[key].definition.digest == arg.digest:
            held.append(key)
    return held


def _bind(
    store: TileStore,
    tensor_id: str,
    stored: StoredTensor,
    f: Callable[..., Any] | None,
    args: tuple[InfiniteTensor, ...],
    blend: Blend | None,
    batch_size: int | tuple[int, ...] | None,
    device: torch.device,
    reduce: Reduction | None,
) -> InfiniteTensor:
    spec, definition = stored.spec, stored.definition
    if f is None and len(args) == 1:
        f = Coarsening.of_version(definition.version, args[0].shape, definition.dtype)
    used = spec.blend if blend is None else blend
    if blend is not None:
        check_same(tensor_id, definition, replace(definition, blend=blend_name(blend)), store)
    reduction = spec.reduction if reduce is None else reduce
    for unknown in filter(None, map(unknown_in, (used, reduction))):
        if f is not None:
            raise ValidationError(
                f"tensor {tensor_id!r} needs {unknown.name!r}, but only the name is stored; give {unknown.given}"
            )
    if reduce is not None:
        check_same(tensor_id, definition, replace(definition, reduction=reduction_to_json(reduce)), store)
    check_on_device(replace(spec, device=device, blend=used, reduction=reduction))
    if args:
        checked_windows(args, [arg.window for arg in definition.args])
        check_args(tensor_id, spec.grid, args, definition.args)
    if f is not None:
        upstream = tuple(node_of(arg).spec.definition.functions for arg in args)
        told = definition.version is not None
        definition = replace(definition, functions=functions_of(f, blend, upstream, reduce, told=told))
    opened = replace(spec, definition=definition, device=device, blend=used, reduction=reduction)
    own = TensorInStore(opened, store, named=True)
    (tensor,) = tensors_of([own], f, Batching.of(batch_size), args)
    return tensor


@dataclass(frozen=True)
class _PickledComputation:
    """A pickled ``f`` with the tensors computed by ``f``.

    A pickled chain is a list of such computations, args first. All tensors in the list are numbered in order, from 0.
    `args` contains the numbers of the args of ``f``.
    """

    tensors: tuple[TensorInStore, ...]
    batch_size: int | tuple[int, ...] | None
    f: Callable[..., Any] | None
    args: tuple[int, ...]
    kind: type[InfiniteTensor]


def reduced(tensor: InfiniteTensor) -> tuple[Callable[..., InfiniteTensor], tuple[list[_PickledComputation], int]]:
    """Return the result of ``__reduce__`` for a tensor.

    The tensor and all tensors upstream are in a flat list, args first, because pickle fails on deep nesting.
    """
    numbers: dict[int, int] = {}
    parts = []
    # Args come before their readers.
    for each in reversed(sources_first([tensor], lambda each: each.args)):
        computation = node_of(each).computation
        if _tensor_key(each) not in numbers:
            for own in computation.tensors:
                numbers[id(own)] = len(numbers)
            stored = [
                TensorInStore(own.contents.with_tile_size(own.spec), own.store, own.named)
                for own in computation.tensors
            ]
            args = tuple(numbers[_tensor_key(arg)] for arg in each.args)
            parts.append(_PickledComputation(tuple(stored), each.batch_size, each.f, args, type(each)))
    return _rebuilt, (parts, numbers[_tensor_key(tensor)])


def for_reading(tensor: InfiniteTensor, readers: dict[TileStore, TileStore]) -> InfiniteTensor:
    """Return the tensor with all stores opened read-only.

    Computed windows are kept only in memory. `readers` maps stores to the same stores opened read-only; newly opened
    stores are added.

    Raises
    ------
    ValidationError
        If a store of the tensor or of a tensor upstream cannot be opened with mode ``r``.
    """
    _, (parts, number) = reduced(tensor)
    moved = [
        replace(
            part,
            tensors=tuple([TensorInStore(own.spec, reader_of(own.store, readers), own.named) for own in part.tensors]),
        )
        for part in parts
    ]
    found = _rebuilt(moved, number)
    sources = tensor._sources  # noqa: SLF001  (remembered by `pyramid`)
    found._sources = {scale: for_reading(each, readers) for scale, each in sources.items()}  # noqa: SLF001
    return found


def reader_of(store: TileStore, readers: dict[TileStore, TileStore]) -> TileStore:
    """Return `store` opened read-only.

    A store in memory is returned unchanged. `readers` are as in `for_reading`. Raise ValidationError if `store` cannot
    be opened again.
    """
    if store.read_only or not contents_of(store).outlives_process:
        return store
    if store not in readers:
        store.flush()
        try:
            kind, given, *_ = cast("tuple[Any, ...]", store.__reduce__())
            readers[store] = kind(*given, mode="r")
        except TypeError as error:
            raise ValidationError(
                f"{store} cannot be opened again with mode 'r'; open it read-only yourself"
            ) from error
    return readers[store]


def _tensor_key(tensor: InfiniteTensor) -> int:
    """Return a key for a tensor object.

    A definition cannot be the key, because tensors with equal definitions may have different ``f``.
    """
    return id(node_of(tensor).tensor)


def _rebuilt(parts: list[_PickledComputation], number: int) -> InfiniteTensor:
    tensors: list[InfiniteTensor] = []
    for part in parts:
        args = tuple(tensors[at] for at in part.args)
        tensors += tensors_of(part.tensors, part.f, Batching.of(part.batch_size), args, part.kind)
    return tensors[number]


def extent_of(tensor: InfiniteTensor) -> tuple[slice, ...] | None:
    """Return the smallest region around all stored tiles, including partial tiles.

    Return None if no tile is stored. What a read-only store has computed in memory does not count.
    """
    node = node_of(tensor)
    layout, tiles = node.contents.layout(node.spec), list(zip(*node.contents.stored_tiles(node.spec), strict=True))
    if not tiles:
        return None
    return tuple(map(slice, layout.start(tuple(map(min, tiles))), layout.stop(tuple(map(max, tiles)))))
