"""Finds maps that compute far more pixels than are read of them, because their windows are too large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from infinite_tensor.engine.chain import Node, chain_of
from infinite_tensor.engine.formulas import count_in, spread
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.support.functions import Calling, Formula

Boxes: TypeAlias = Sequence[tuple[IntArray, IntArray]]
"""The bounds of boxes of pixels, in several pairs of arrays of shape (N, ndim)."""

_LEAST = 2**18
"""Fewer pixels are computed without a word."""
_PER_PIXEL = 20
"""So many pixels may be computed for one that is read."""
_PER_NEEDED = 4
"""So many pixels may be computed for one that is needed: halos and coarser pixels need many for one."""


def most_wasteful(wanted: Mapping[Node, Boxes], pixels: int, work: Mapping[Node, int]) -> Node | None:
    """Return the map that computes most pixels in vain, or None if there are few such pixels.

    To read `pixels` pixels in the boxes `wanted`, ``work[node]`` pixels of each tensor are computed.
    """
    # Only the windows of maps are chosen by this library, and not those of levels.
    computed = {
        node: count
        for node, count in work.items()
        if node not in wanted
        and node.computation.formula is None
        and isinstance(node.computation.f, Formula)
        and isinstance(node.computation.f, Calling)
    }
    total = sum(computed.values())
    if total <= max(_LEAST, _PER_PIXEL * pixels):
        return None
    starts_and_stops = {node: map(np.concatenate, zip(*boxes, strict=True)) for node, boxes in wanted.items()}
    regions = {node: NumberedRegions.alone(*bounds) for node, bounds in starts_and_stops.items()}
    needed = {node: count_in(boxes) for node, boxes in spread(chain_of(wanted)[::-1], regions).items()}
    if total <= _PER_NEEDED * sum(needed.get(node, 0) for node in computed):
        return None
    return max(computed, key=lambda node: computed[node] - needed.get(node, 0))
