"""Reads in code compiled or exported by torch.

Each read is a call of a custom operator. The compiler does not trace into the operator, because torch cannot trace
threads and storage. The compiler knows only the shapes of the results.
"""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Iterator, Sequence

import torch

from infinite_tensor.engine.assemble import read_together as read_at_once
from infinite_tensor.engine.chain import Node
from infinite_tensor.geometry.regions import Selection

_NODES: weakref.WeakValueDictionary[str, Node] = weakref.WeakValueDictionary()


def token_of(node: Node) -> str:
    """Return a new key for finding a tensor from compiled code.

    The key is valid in this process, as long as `node` exists.
    """
    token = secrets.token_hex(8)
    _NODES[token] = node
    return token


def read_together(
    requests: Sequence[tuple[Node, Sequence[Selection]]], workers: int | None
) -> list[list[torch.Tensor]]:
    """Read selections of several tensors, in code traced by torch.

    All tensors must have the same number of selections.
    """
    tokens = " ".join([node.token for node, _ in requests])
    boxes: list[int] = []
    for selection in [selection for _, wanted in requests for selection in wanted]:
        squeezed = [int(d in selection.squeezed) for d in range(len(selection.start))]
        boxes += [*selection.start, *selection.stop, *selection.steps, *squeezed]
    like = [torch.empty(0, dtype=node.spec.dtype, device=node.spec.device) for node, _ in requests]
    results = torch.ops.infinite_tensor.read_together(tokens, boxes, like, workers)
    count = len(requests[0][1])
    return [results[count * at : count * (at + 1)] for at in range(len(requests))]


def _requests(tokens: str, boxes: Sequence[int]) -> list[tuple[Node, list[Selection]]]:
    nodes = [_node_of(token) for token in tokens.split(" ")]
    count = len(boxes) // sum(4 * len(node.spec.shape) for node in nodes)
    numbers = iter([int(number) for number in boxes])
    return [(node, [_selection(numbers, len(node.spec.shape)) for _ in range(count)]) for node in nodes]


def _selection(numbers: Iterator[int], ndim: int) -> Selection:
    start, stop, steps, squeezed = (tuple(itertools.islice(numbers, ndim)) for _ in Selection._fields)
    return Selection(start, stop, steps, tuple(d for d, gone in enumerate(squeezed) if gone))


def _node_of(token: str) -> Node:
    node = _NODES.get(token)
    if node is None:
        raise ReferenceError(
            "the InfiniteTensor read by this compiled code no longer exists, or belongs to another process: "
            "keep the tensor alive, and compile or export in the same process as the read"
        )
    return node


# The schema is explicit because torch before 2.7 does not derive one from list[int].
@torch.library.custom_op(
    "infinite_tensor::read_together",
    mutates_args=(),
    schema="(str tokens, SymInt[] boxes, Tensor[] like, SymInt? workers) -> Tensor[]",
)
def _read_together(
    tokens: str,
    boxes: list[int],
    like: list[torch.Tensor],  # noqa: ARG001
    workers: int | None,
) -> list[torch.Tensor]:
    """Read each selection of each tensor.

    `like` tells the compiler the dtype and device of each tensor.
    """
    return [pixels for of_tensor in read_at_once(_requests(tokens, boxes), workers) for pixels in of_tensor]


@_read_together.register_fake
def _shapes_of_reads(
    tokens: str,
    boxes: list[int],
    like: list[torch.Tensor],
    workers: int | None,  # noqa: ARG001
) -> list[torch.Tensor]:
    requests = zip(_requests(tokens, boxes), like, strict=True)
    return [one.new_empty(each.pick(one.new_empty(each.size)).shape) for (_, found), one in requests for each in found]
