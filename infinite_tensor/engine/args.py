"""Reads the args of ``f``, with padding beyond their ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from infinite_tensor.engine.chain import Input
from infinite_tensor.geometry.padding import positions
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.support.allocation import Array, as_array, as_tensor, new_tensor

_SMALLER = "give args_windows a smaller size"


class Readable(Protocol):
    """Something with pixels, such as an `Access`."""

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on."""


def region_of(upstream: Input, access: Readable, start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """Read the region of an arg with `size` pixels, beginning at pixel `start`."""
    if upstream.reads.padded and upstream.reads.leaves(start, size):
        return _padded(upstream, access, start, size)
    region = _new(size, upstream)
    access.read(start, region)
    return region


def _padded(upstream: Input, access: Readable, start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    spec, reads = upstream.node.spec, upstream.reads
    parts = [reads.parts(d, first, first + n) for d, (first, n) in enumerate(zip(start, size, strict=True))]
    if not all(parts):
        # In some dimension, the region contains nothing but constant padding.
        return as_tensor(_with_constants(upstream, as_array(_new(size, upstream)), start))
    inside = as_array(_new([sum(b - a for a, b in part) for part in parts], upstream))
    for box in itertools.product(*map(_placed, parts)):
        access.read([low for low, _ in box], as_tensor(inside)[tuple(to for _, to in box)])
    for d, (extent, mode) in reads.padded.items():
        if len(parts[d]) == 1:
            index = positions(mode, extent, start[d], size[d])
            inside = _taken(inside, d, np.maximum(index - parts[d][0][0], 0))
    assert inside.shape == tuple(size)
    assert as_tensor(inside).dtype == spec.dtype
    return as_tensor(_with_constants(upstream, inside, start))


def _new(size: Sequence[int], upstream: Input) -> torch.Tensor:
    return new_tensor(tuple(size), upstream.node.spec.dtype, upstream.node.spec.device, _SMALLER)


def _placed(parts: Sequence[tuple[int, int]]) -> list[tuple[int, slice]]:
    """Return the slices for storing intervals one after another.

    The intervals ``[(5, 8), (0, 2)]`` give ``[(5, slice(0, 3)), (0, slice(3, 5))]``: the three pixels from 5 on are
    stored first, then the two pixels from 0 on.
    """
    ends = list(itertools.accumulate(b - a for a, b in parts))
    return [(a, slice(end - (b - a), end)) for (a, b), end in zip(parts, ends, strict=True)]


def _taken(block: Array, d: int, index: IntArray) -> Array:
    if len(index) == block.shape[d] and bool((index == np.arange(len(index))).all()):
        return block
    if isinstance(block, np.ndarray):
        return np.take(block, index, axis=d)
    return block.index_select(d, torch.from_numpy(index).to(block.device))


def _with_constants(upstream: Input, region: Array, start: Sequence[int]) -> Array:
    assert upstream.padding is not None
    for d, (extent, mode) in upstream.reads.padded.items():
        if mode == "constant":
            before, after = max(0, -start[d]), max(0, extent - start[d])
            for outside in (slice(0, before), slice(after, None)):
                region[(slice(None),) * d + (outside,)] = upstream.padding[d].value
    return region
