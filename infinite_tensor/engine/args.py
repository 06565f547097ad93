"""Reads the args of ``f``, with padding beyond their ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from infinite_tensor.engine.chain import Input
from infinite_tensor.geometry.padding import positions
from infinite_tensor.support.allocation import Array, as_array, as_tensor, new_tensor

_SMALLER = "give args_windows a smaller size"


class PixelSource(Protocol):
    """Something with pixels, such as an `Access`."""

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on."""


def region_of(upstream: Input, access: PixelSource, start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """Read the region of an arg with `size` pixels, beginning at pixel `start`."""
    if upstream.reads.padded and upstream.reads.leaves(start, size):
        return _padded(upstream, access, start, size)
    region = _new(size, upstream)
    access.read(start, region)
    return region


def _padded(upstream: Input, access: PixelSource, start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    spec, reads = upstream.node.spec, upstream.reads
    parts = [reads.parts(d, first, first + n) for d, (first, n) in enumerate(zip(start, size, strict=True))]
    if not all(parts):
        # In some dimension, the region contains nothing but constant padding.
        return as_tensor(_with_constants(upstream, as_array(_new(size, upstream)), start))
    inside = as_array(_new([sum(b - a for a, b in part) for part in parts], upstream))
    sides = []
    for part in parts:
        # Parts of the arg are stored one after another: of (5, 8) and (0, 2), first the three pixels from 5 on.
        ends = list(itertools.accumulate(b - a for a, b in part))
        sides.append([(a, slice(end - (b - a), end)) for (a, b), end in zip(part, ends, strict=True)])
    for box in itertools.product(*sides):
        access.read([low for low, _ in box], as_tensor(inside)[tuple(to for _, to in box)])
    for d, (extent, mode) in reads.padded.items():
        index = np.maximum(positions(mode, extent, start[d], size[d]) - parts[d][0][0], 0)
        if len(parts[d]) > 1 or np.array_equal(index, np.arange(inside.shape[d])):
            continue
        if isinstance(inside, np.ndarray):
            inside = np.take(inside, index, axis=d)
        else:
            inside = inside.index_select(d, torch.from_numpy(index).to(inside.device))
    assert inside.shape == tuple(size)
    assert as_tensor(inside).dtype == spec.dtype
    return as_tensor(_with_constants(upstream, inside, start))


def _new(size: Sequence[int], upstream: Input) -> torch.Tensor:
    return new_tensor(tuple(size), upstream.node.spec.dtype, upstream.node.spec.device, _SMALLER)


def _with_constants(upstream: Input, region: Array, start: Sequence[int]) -> Array:
    assert upstream.padding is not None
    for d, (extent, mode) in upstream.reads.padded.items():
        if mode == "constant":
            before, after = max(0, -start[d]), max(0, extent - start[d])
            for outside in (slice(0, before), slice(after, None)):
                region[(slice(None),) * d + (outside,)] = upstream.padding[d].value
    return region
