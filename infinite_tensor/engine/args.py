"""What ``f`` is given of an arg: the region of a window, padded beyond the ends of finite dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from infinite_tensor.engine.chain import Input
from infinite_tensor.geometry.padding import positions
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.support.allocation import Array, as_array, as_tensor, new_tensor
from infinite_tensor.tilestore.contents import Access

_SMALLER = "give args_windows a smaller size"


def region_of(upstream: Input, access: Access, start: Sequence[int]) -> torch.Tensor:
    """What a window reads of an arg, from pixel `start` on; nobody else has the tensor."""
    if upstream.reads.padded and upstream.reads.leaves(start):
        return _padded(upstream, access, start)
    spec = upstream.node.spec
    region = new_tensor(upstream.window.size, spec.dtype, spec.device, _SMALLER)
    access.read(start, region)
    return region


def _padded(upstream: Input, access: Access, start: Sequence[int]) -> torch.Tensor:
    spec, reads, size = upstream.node.spec, upstream.reads, upstream.window.size
    parts = [reads.parts(d, first) for d, first in enumerate(start)]
    if not all(parts):
        # All of it is constant along some dimension.
        return as_tensor(_with_constants(upstream, as_array(_new(size, upstream)), start))
    inside = as_array(_new([sum(b - a for a, b in part) for part in parts], upstream))
    for box in itertools.product(*map(_placed, parts)):
        access.read([low for low, _ in box], as_tensor(inside)[tuple(to for _, to in box)])
    for d, (extent, mode) in reads.padded.items():
        if len(parts[d]) == 1:
            index = positions(mode, extent, start[d], size[d])
            inside = _taken(inside, d, np.maximum(index - parts[d][0][0], 0))
    assert inside.shape == size
    assert as_tensor(inside).dtype == spec.dtype
    return as_tensor(_with_constants(upstream, inside, start))


def _new(size: Sequence[int], upstream: Input) -> torch.Tensor:
    return new_tensor(tuple(size), upstream.node.spec.dtype, upstream.node.spec.device, _SMALLER)


def _placed(parts: Sequence[tuple[int, int]]) -> list[tuple[int, slice]]:
    """Where intervals begin that are read, and where each goes: one after the other."""
    ends = list(itertools.accumulate(b - a for a, b in parts))
    return [(a, slice(end - (b - a), end)) for (a, b), end in zip(parts, ends, strict=True)]


def _taken(block: Array, d: int, index: IntArray) -> Array:
    """The entries of a block at some places along a dimension; a copy unless it is all of them in order."""
    if len(index) == block.shape[d] and bool((index == np.arange(len(index))).all()):
        return block
    if isinstance(block, np.ndarray):
        return np.take(block, index, axis=d)
    return block.index_select(d, torch.from_numpy(index).to(block.device))


def _with_constants(upstream: Input, region: Array, start: Sequence[int]) -> Array:
    """Fill in what lies beyond the ends of constant dimensions; where two meet, the last dimension's value wins."""
    assert upstream.padding is not None
    for d, (extent, mode) in upstream.reads.padded.items():
        if mode == "constant":
            before, after = max(0, -start[d]), max(0, extent - start[d])
            for outside in (slice(0, before), slice(after, None)):
                region[(slice(None),) * d + (outside,)] = upstream.padding[d].value
    return region
