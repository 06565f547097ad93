"""Finds maps that compute far more pixels than are read of them, because their windows are too large."""

from __future__ import annotations

from collections.abc import Mapping

from infinite_tensor.engine.chain import Node, chain_of
from infinite_tensor.engine.formulas import count_in, spread
from infinite_tensor.engine.lifetimes import NumberedRegions

_LEAST = 2**18
"""Fewer pixels are computed without a word."""
_PER_PIXEL = 20
"""So many pixels may be computed for one that is read."""
_PER_NEEDED = 4
"""So many pixels may be computed for one that is needed: halos and coarser pixels need many for one."""


def most_wasteful(wanted: Mapping[Node, NumberedRegions], pixels: int, work: Mapping[Node, int]) -> Node | None:
    """Return the map that computes most pixels in vain, or None if there are few such pixels.

    To read `pixels` pixels in the boxes `wanted`, ``work[node]`` pixels of each tensor are computed.
    """
    computed = {
        node: count
        for node, count in work.items()
        if node.computation.units is not None and node.computation.formula is None
    }
    total = sum(computed.values())
    if total <= max(_LEAST, _PER_PIXEL * pixels):
        return None
    needed = {node: count_in(boxes) for node, boxes in spread(chain_of(wanted)[::-1], wanted).items()}
    if total <= _PER_NEEDED * sum(needed.get(node, 0) for node in computed):
        return None
    return max(computed, key=lambda node: computed[node] - needed.get(node, 0))
