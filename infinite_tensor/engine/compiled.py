"""Reads in code that torch compiles or exports: an operator, of which the compiler knows the shapes and no more.

The rest of a read, with its threads and its storage, is nothing that could be traced.
"""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from infinite_tensor.engine.assemble import read_together as read_at_once
from infinite_tensor.engine.chain import Node
from infinite_tensor.errors import RegionError
from infinite_tensor.geometry.regions import Selection, parse

_NODES: weakref.WeakValueDictionary[str, Node] = weakref.WeakValueDictionary()

_INT, _SLICE, _ELLIPSIS = range(3)
"""What kind of entry the numbers after it are."""
_ABSENT = (0, 0)
"""A part of a slice that is None; one that is there follows a 1."""


def handle_of(node: Node) -> str:
    """A name by which compiled code finds a tensor in this process; a new one at each call."""
    handle = secrets.token_hex(8)
    _NODES[handle] = node
    return handle


def read(node: Node, indices: object, workers: int | None) -> Any:
    """Read a region, or a list of regions, of a tensor, while torch traces it."""
    if isinstance(indices, list):
        return [read(node, region, workers) for region in indices]
    region = _encoded(indices if isinstance(indices, tuple) else (indices,))
    return torch.ops.infinite_tensor.read(node.handle, region, node.spec.dtype, node.spec.device, workers)


def read_together(
    requests: Sequence[tuple[Node, Sequence[Selection]]], workers: int | None
) -> list[list[torch.Tensor]]:
    """What selections of several tensors select, per tensor, while torch traces it."""
    handles = " ".join([node.handle for node, _ in requests])
    boxes = [number for _, wanted in requests for selection in wanted for number in _box(selection)]
    like = [torch.empty(0, dtype=node.spec.dtype, device=node.spec.device) for node, _ in requests]
    results = torch.ops.infinite_tensor.read_together(handles, boxes, like, workers)
    count = len(requests[0][1])
    return [results[count * at : count * (at + 1)] for at in range(len(requests))]


def _encoded(indices: Sequence[object]) -> list[int]:
    """A region as numbers, which is what an operator can be given."""
    numbers: list[int] = []
    for entry in indices:
        if isinstance(entry, slice):
            numbers.append(_SLICE)
            for part in (entry.start, entry.stop, entry.step):
                numbers += _ABSENT if part is None else (1, part)
        elif entry is Ellipsis:
            numbers.append(_ELLIPSIS)
        elif isinstance(entry, int) and not isinstance(entry, bool):
            numbers += (_INT, entry)
        else:
            raise RegionError("in compiled code a region is made of ints, slices of ints, and Ellipsis")
    return numbers


def _decoded(region: Sequence[int]) -> tuple[object, ...]:
    numbers = iter(region)
    return tuple(_entry(kind, numbers) for kind in numbers)


def _entry(kind: int, numbers: Iterator[int]) -> object:
    if kind == _ELLIPSIS:
        return Ellipsis
    if kind == _INT:
        return next(numbers)
    parts = [(next(numbers), next(numbers)) for _ in ("start", "stop", "step")]
    return slice(*(part if given else None for given, part in parts))


def _box(selection: Selection) -> list[int]:
    """A selection as numbers, four for each dimension."""
    squeezed = [int(d in selection.squeezed) for d in range(len(selection.start))]
    return [*selection.start, *selection.stop, *selection.steps, *squeezed]


def _requests(handles: str, boxes: Sequence[int]) -> list[tuple[Node, list[Selection]]]:
    """The tensors, and the selections of each, of which there are as many for every tensor."""
    nodes = [_node_of(handle) for handle in handles.split(" ")]
    count = len(boxes) // sum(4 * len(node.spec.shape) for node in nodes)
    numbers = iter([int(number) for number in boxes])
    return [(node, [_selection(numbers, len(node.spec.shape)) for _ in range(count)]) for node in nodes]


def _selection(numbers: Iterator[int], ndim: int) -> Selection:
    start, stop, steps, squeezed = (tuple(itertools.islice(numbers, ndim)) for _ in Selection._fields)
    return Selection(start, stop, steps, tuple(d for d, gone in enumerate(squeezed) if gone))


def _node_of(handle: str) -> Node:
    node = _NODES.get(handle)
    if node is None:
        raise ReferenceError(
            "this compiled code reads an InfiniteTensor that is gone, or one of another process: keep the tensor "
            "alive, and compile or export where it is read"
        )
    return node


@torch.library.custom_op("infinite_tensor::read", mutates_args=())
def _read(
    handle: str,
    region: list[int],
    dtype: torch.dtype,  # noqa: ARG001
    device: torch.device,  # noqa: ARG001
    workers: int | None,
) -> torch.Tensor:
    """The pixels; the dtype and the device are those that the code was compiled for."""
    node = _node_of(handle)
    ((pixels,),) = read_at_once([(node, [parse(_decoded(region), node.spec.shape)])], workers)
    return pixels


@_read.register_fake
def _shape_of_read(
    handle: str,
    region: list[int],
    dtype: torch.dtype,
    device: torch.device,
    workers: int | None,  # noqa: ARG001
) -> torch.Tensor:
    selection = parse(_decoded([int(number) for number in region]), _node_of(handle).spec.shape)
    return _unread(selection, dtype, device)


def _unread(selection: Selection, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of the shape of what is read."""
    pixels = selection.pick(torch.empty(selection.shape, dtype=dtype, device="meta"))
    return torch.empty(pixels.shape, dtype=dtype, device=device)


@torch.library.custom_op("infinite_tensor::read_together", mutates_args=())
def _read_together(
    handles: str,
    boxes: list[int],
    like: list[torch.Tensor],  # noqa: ARG001
    workers: int | None,
) -> list[torch.Tensor]:
    """The pixels of each selection of each tensor; `like` has the dtypes and devices that the code was compiled for."""
    return [pixels for of_tensor in read_at_once(_requests(handles, boxes), workers) for pixels in of_tensor]


@_read_together.register_fake
def _shapes_of_reads(
    handles: str,
    boxes: list[int],
    like: list[torch.Tensor],
    workers: int | None,  # noqa: ARG001
) -> list[torch.Tensor]:
    requests = zip(_requests(handles, boxes), like, strict=True)
    return [_unread(each, one.dtype, one.device) for (_, selections), one in requests for each in selections]
