"""Cutting a region into shares, one for each of several processes that know nothing of each other.

A box of tiles is cut in two, and each part again, until there is a part for every process. So any number of them will
do, primes too, for which a grid of shares could only be a row of slabs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.layout import TileLayout

_NEAR_HALF = 4
"""So many cuts to either side of the middle are tried."""


class _Halving(NamedTuple):
    """A box is cut at `at` along dimension `d`; what is before goes to `ranks` processes."""

    d: int
    at: int
    ranks: int


def share_of(
    layout: TileLayout, start: Sequence[int], stop: Sequence[int], rank: int, count: int
) -> tuple[Index, Index]:
    """One of `count` parts of the pixels ``[start, stop)``, cut between tiles; empty where there are not enough."""
    low, high = share_of_tiles(*layout.box(start, stop), rank, count)
    size = layout.tile_shape
    first, last = (
        tuple([min(max(i * n, a), b) for i, n, a, b in zip(tiles, size, start, stop, strict=True)])
        for tiles in (low, high)
    )
    return first, last


def share_of_tiles(low: Sequence[int], high: Sequence[int], rank: int, count: int) -> tuple[list[int], list[int]]:
    """One of `count` boxes that the tiles ``[low, high)`` fall into: about as many each, nearly cubes as far as may be.

    Parameters
    ----------
    low, high : sequence of int
        Bounds of the box, in tiles.
    rank, count : int
        Which share, of how many. Where there are fewer tiles than shares, the last ones are empty.

    Returns
    -------
    low, high : list of int
        Bounds of the share, in tiles.
    """
    first, last = list(low), list(high)
    tiles = math.prod(b - a for a, b in zip(low, high, strict=True))
    if rank >= tiles:
        return first, first
    count = min(count, tiles)
    while count > 1:
        extents = [b - a for a, b in zip(first, last, strict=True)]
        d, at, ranks = min(_cuts(extents, count), key=lambda cut: _judged(extents, count, cut))
        if rank < ranks:
            last[d], count = first[d] + at, ranks
        else:
            first[d], rank, count = first[d] + at, rank - ranks, count - ranks
    return first, last


def _cuts(extents: Sequence[int], count: int) -> Iterator[_Halving]:
    """Cuts of long dimensions near the middle, with as many processes for either part as suit it best."""
    for d, extent in enumerate(extents):
        if 2 * extent < max(extents):
            continue
        parts = min(extent, count)
        # Less than a third could be more even, but would be a slab.
        first = max(1, -(-parts // 3), parts // 2 - _NEAR_HALF)
        for part in range(first, parts - first + 1):
            if parts == count:
                yield _Halving(d, _rounded(extent * part, count), part)
            else:
                yield _Halving(d, part, _rounded(count * part, extent))


def _judged(extents: Sequence[int], count: int, cut: _Halving) -> tuple[int, int, int]:
    """The least is best: by the most tiles that a process would get, then by what makes cubes, then by halves."""
    d, at, ranks = cut
    across = math.prod(extents) // extents[d]
    most = max(-(-at * across // ranks), -(-(extents[d] - at) * across // (count - ranks)))
    return most, -extents[d], abs(count - 2 * ranks)


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
