"""Pickling tensors by reference: how a tensor is found or made again in another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from infinite_tensor.boxes import Index
from infinite_tensor.definition import Blend, Definition, Number
from infinite_tensor.engine.node import Batching
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore import TileStore

if TYPE_CHECKING:
    from infinite_tensor.tensor import InfiniteTensor


@dataclass(frozen=True)
class _Part:
    """One tensor of a pickled chain; `args` are the places of its args among the parts before it."""

    kind: type[InfiniteTensor]
    tensor_id: str
    named: bool
    definition: Definition
    device: torch.device
    blend: Blend | None
    blend_init: Number | None
    tile_size: Index | None
    batch_size: int | tuple[int, ...] | None
    f: Callable[..., Any] | None
    store: TileStore
    args: tuple[int, ...]


def reduced(tensor: InfiniteTensor) -> tuple[Callable[..., InfiniteTensor], tuple[list[_Part]]]:
    """What ``__reduce__`` returns: the chain as a list, args first, so that no chain is too deep to pickle."""
    chain = _args_first(tensor)
    places = {id(each): place for place, each in enumerate(chain)}
    parts = []
    for each in chain:
        spec = each.tile_store.placed(each._spec)
        parts.append(
            _Part(
                type(each),
                spec.tensor_id,
                each._named,
                spec.definition,
                spec.device,
                spec.blend,
                spec.blend_init,
                spec.tile_size,
                each.batch_size,
                each.f,
                each.tile_store,
                tuple(places[id(arg)] for arg in each.args),
            )
        )
    return _rebuilt, (parts,)


def _args_first(tensor: InfiniteTensor) -> list[InfiniteTensor]:
    finished: dict[int, InfiniteTensor] = {}
    stack = [tensor]
    while stack:
        waiting = [arg for arg in stack[-1].args if id(arg) not in finished]
        if waiting:
            stack.append(waiting[0])
        else:
            finished.setdefault(id(stack[-1]), stack[-1])
            stack.pop()
    return list(finished.values())


def _rebuilt(parts: list[_Part]) -> InfiniteTensor:
    tensors: list[InfiniteTensor] = []
    for part in parts:
        tensor = part.kind.__new__(part.kind)
        tensor._bind(
            TensorSpec(part.tensor_id, part.definition, part.device, part.blend, part.blend_init, part.tile_size),
            part.store,
            part.f,
            Batching.of(part.batch_size),
            tuple(tensors[place] for place in part.args),
            part.named,
        )
        tensors.append(tensor)
    return tensors[-1]
