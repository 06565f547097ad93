"""Parts of pyramid levels to fill, and their order."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from infinite_tensor.engine.chain import Node
from infinite_tensor.filling.mask import Target, WantedTiles
from infinite_tensor.geometry.points import Index, is_empty
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.values.coarse import Coarsening


def with_levels(base: Target, levels: Sequence[Node]) -> list[Target]:
    """Return the targets for a tensor and its levels.

    A level is filled where the level before is. Levels without such a tile are left out.
    """
    targets, sizes = [base], [(1,) * len(base.start), *(_coarsening(level).scale for level in levels)]
    for level, (finer, coarser) in zip(levels, itertools.pairwise(sizes), strict=True):
        found = _above(targets[-1], level, tuple(map(operator.floordiv, coarser, finer)))
        if found is None:
            break
        targets.append(found)
    return targets


def in_blocks_of(targets: Sequence[Target], most_bytes: int) -> Iterator[list[Target]]:
    """Cut a tensor and its levels into blocks, to be filled one after the other.

    Yield a list per block: the part of the tensor, then the part of each level over the same area. So levels are
    computed while the pixels below are still in memory. Levels too coarse for a block come last. If `most_bytes` is too
    small for a block with a tile of a level, yield the whole tensor, then each whole level.

    Parameters
    ----------
    targets : sequence of Target
        The target of the tensor, then those of its levels.
    most_bytes : int
        The largest size of a block of the tensor, in bytes.
    """
    base = targets[0]
    # In pixels of the tensor: the size of a pixel in each level (sizes), and of a tile or window (blocks).
    sizes = [(1,) * len(base.start), *(_coarsening(target.node).scale for target in targets[1:])]
    blocks = [_layout(base).tile_shape]
    for target, size in zip(targets[1:], sizes[1:], strict=True):
        unit = map(max, _layout(target).tile_shape, target.node.spec.grid.window.size)
        blocks.append(tuple(map(operator.mul, size, unit)))
    extents, itemsize = list(map(operator.sub, base.stop, base.start)), base.node.spec.dtype.itemsize

    def fits(block: Index) -> bool:
        nbytes: int = math.prod(map(min, block, extents)) * itemsize
        return nbytes <= most_bytes

    top = max((k for k, block in enumerate(blocks) if fits(block)), default=0)
    if top == 0:
        yield from ([target] for target in targets)
        return
    block = blocks[top]
    while fits(larger := tuple([2 * n for n in block])) and not all(map(operator.ge, block, extents)):
        block = larger
    places = [range(a // n, -(-b // n)) for a, b, n in zip(base.start, base.stop, block, strict=True)]
    for place in itertools.product(*places):
        parts = []
        for target, size in zip(targets[: top + 1], sizes, strict=False):
            steps = [n // k for n, k in zip(block, size, strict=True)]
            parts.append(
                _part(target, [[(i + more) * n for i, n in zip(place, steps, strict=True)] for more in (0, 1)])
            )
        if some := [*filter(None, parts)]:
            yield some
    if rest := [*targets[top + 1 :]]:
        yield rest


def _part(target: Target, bounds: Sequence[Sequence[int]]) -> Target | None:
    """Return the part of `target` in a box, or None if the box contains no wanted tile.

    `bounds` are the first pixel of the box, and the pixel after the last. A tile counts if its first pixel is in
    the box.
    """
    edges = [
        [
            min(max(-(-n // tile) * tile, a), b)
            for n, tile, a, b in zip(bound, shape, target.start, target.stop, strict=True)
        ]
        for shape in [_layout(target).tile_shape]
        for bound in bounds
    ]
    start, stop = map(tuple, edges)
    if is_empty(start, stop):
        return None
    wanted = cast("WantedTiles | None", target.wanted)
    wanted = wanted and wanted.within(start, stop)
    return replace(target, start=start, stop=stop, wanted=wanted) if wanted is None or wanted.count else None


def _layout(target: Target) -> TileLayout:
    return target.node.contents.layout(target.node.spec)


def _coarsening(level: Node) -> Coarsening:
    return cast("Coarsening", level.computation.f)


def _above(below: Target, level: Node, factors: Index) -> Target | None:
    """Return the part of `level` to fill after `below`, the next finer level. Its pixels are `factors` times as large.

    A tile is included if all pixels read by its windows are filled in `below`. Return None if there is no such tile.
    """
    coarser, finer = level.contents.layout(level.spec), _layout(below)
    ends = below.node.spec.shape
    start = tuple([-(-a // k) for a, k in zip(below.start, factors, strict=True)])
    stop = tuple([-(-b // k) if b == end else b // k for b, k, end in zip(below.stop, factors, ends, strict=True)])
    if is_empty(start, stop):
        return None
    low, high = coarser.box(start, stop)
    filled = cast("WantedTiles", below.wanted or WantedTiles.all_of(finer, below.start, below.stop))
    wanted = np.array(filled.wanted)
    for d, (factor, end) in enumerate(zip(factors, ends, strict=True)):
        # For each tile: the pixels [first, last) read by windows over the tile, and the finer tiles there.
        edges = np.arange(low[d], high[d] + 1) * coarser.tile_shape[d]
        window = level.spec.grid.window.size[d]
        first, last = edges[:-1] // window * window * factor, -(-edges[1:] // window) * window * factor
        last = last if end is None else np.minimum(last, end)
        inside = (below.start[d] <= first) & (last <= below.stop[d])
        ranges = np.stack([first, last + finer.tile_shape[d] - 1], axis=-1) // finer.tile_shape[d] - filled.low[d]
        # One additional entry, because `reduceat` needs a valid index for the end of the last range.
        padded = np.insert(wanted, wanted.shape[d], values=True, axis=d)
        all_of = np.logical_and.reduceat(padded, ranges.clip(0, wanted.shape[d]).reshape(-1), axis=d)
        wanted = all_of.take(range(0, 2 * len(first), 2), axis=d)
        wanted &= inside.reshape([-1 if e == d else 1 for e in range(len(ends))])
    if not wanted.any():
        return None
    return Target(level, *coarser.whole(start, stop), WantedTiles(coarser, tuple(low), wanted), is_level=True)
