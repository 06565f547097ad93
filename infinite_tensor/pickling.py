"""Pickling tensors by reference: how a tensor is found or made again in another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from infinite_tensor.boxes import Index
from infinite_tensor.definition import Blend, Definition, Number
from infinite_tensor.engine.batching import Batching
from infinite_tensor.engine.node import Computation, Member
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore import TileStore

if TYPE_CHECKING:
    from infinite_tensor.tensor import InfiniteTensor


@dataclass(frozen=True)
class _Member:
    """One tensor that a pickled computation computes."""

    tensor_id: str
    definition: Definition
    device: torch.device
    blend: Blend | None
    blend_init: Number | None
    tile_size: Index | None
    store: TileStore


@dataclass(frozen=True)
class _Part:
    """One computation of a pickled chain, and its tensors that are in the chain.

    `args` are the places of its args among all tensors of the parts before it.
    """

    members: tuple[_Member, ...]
    batch_size: int | tuple[int, ...] | None
    f: Callable[..., Any] | None
    args: tuple[int, ...]
    kind: type[InfiniteTensor]
    named: bool


def reduced(tensor: InfiniteTensor) -> tuple[Callable[..., InfiniteTensor], tuple[list[_Part], int]]:
    """What ``__reduce__`` returns: the chain as a list, args first, so that no chain is too deep to pickle."""
    places: dict[tuple[int, int], int] = {}
    parts = []
    for each in _args_first(tensor):
        computation = each._node.computation
        if _place_key(each) not in places:
            for member in computation.members:
                places[id(computation), id(member)] = len(places)
            parts.append(
                _Part(
                    tuple(map(_pickled, computation.members)),
                    each.batch_size,
                    each.f,
                    tuple(places[_place_key(arg)] for arg in each.args),
                    type(each),
                    each._named,
                )
            )
    return _rebuilt, (parts, places[_place_key(tensor)])


def _place_key(tensor: InfiniteTensor) -> tuple[int, int]:
    return id(tensor._node.computation), id(tensor._node.member)


def _pickled(member: Member) -> _Member:
    spec = member.store.placed(member.spec)
    return _Member(
        spec.tensor_id, spec.definition, spec.device, spec.blend, spec.blend_init, spec.tile_size, member.store
    )


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


def _rebuilt(parts: list[_Part], place: int) -> InfiniteTensor:
    tensors: list[InfiniteTensor] = []
    for part in parts:
        args = tuple(tensors[at] for at in part.args)
        members = [
            Member(TensorSpec(m.tensor_id, m.definition, m.device, m.blend, m.blend_init, m.tile_size), m.store)
            for m in part.members
        ]
        batching = Batching.of(part.batch_size)
        computation = Computation.registered(members, part.f, batching, [arg._node for arg in args])
        tensors += [part.kind.of_node(node, args, named=part.named) for node in computation.nodes]
    return tensors[place]
