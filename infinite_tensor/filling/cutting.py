"""Cuts a large region into shards, bands and steps.

Each process fills one shard, band by band along its longest dimension, and each band step by step. Within a band,
windows of upstream tensors stay in memory as long as later steps need them, even if the caches are too small. At the
end of a band they are dropped. So bands are as wide as memory allows. Regions of several tensors with a common upstream
tensor are filled side by side, band by band.

The processes do not communicate. A box of tiles is cut in two, and each part again, until there is a shard for every
process. This works for any number of processes. For a prime number, a grid of shards would be a row of thin slabs;
these cuts avoid that.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import Node
from infinite_tensor.engine.lifetimes import Lifetimes, NumberedRegions
from infinite_tensor.filling.mask import Target
from infinite_tensor.geometry.points import Index, with_entry
from infinite_tensor.tilestore.layout import TileLayout

FloatArray: TypeAlias = npt.NDArray[np.float64]

_STEP_BYTES = 2**23
"""About how many bytes of a tensor one step computes."""
_ENOUGH_STEPS = 64
"""The memory of a band is estimated from this many steps."""


@dataclass(frozen=True)
class Bands:
    """A region cut into bands and steps.

    Attributes
    ----------
    target : Target
        The region.
    origin : tuple of int
        The first pixel of the tile that contains the first pixel of the region.
    along : int
        The dimension along which the steps of a band are arranged.
    extents : tuple of int
        The size of a step in pixels. The first begins at the origin; the last along each dimension may be smaller.
    """

    target: Target
    origin: Index
    along: int
    extents: Index

    @property
    def steps(self) -> int:
        """The number of steps in all bands."""
        return math.prod(len(self._bounds(d)) for d in range(len(self.origin)))

    @property
    def band_count(self) -> int:
        """The number of bands."""
        return self.steps // len(self._bounds(self.along))

    def __iter__(self) -> Iterator[NumberedRegions]:
        """Yield the bands in lexicographic order.

        A band is given by the regions of its steps.
        """
        steps = np.array(self._bounds(self.along), dtype=np.int64)
        whole = list(zip(self.target.start, self.target.stop, strict=True))
        bounds = [self._bounds(d) if d != self.along else [whole[d]] for d in range(len(whole))]
        for band in itertools.product(*bounds):
            starts, stops = (
                np.tile(np.array(side, dtype=np.int64), (len(steps), 1)) for side in zip(*band, strict=True)
            )
            starts[:, self.along], stops[:, self.along] = steps.T
            yield NumberedRegions.alone(starts, stops)

    def _bounds(self, d: int) -> list[tuple[int, int]]:
        cuts = range(self.origin[d] + self.extents[d], self.target.stop[d], self.extents[d])
        return list(itertools.pairwise([self.target.start[d], *cuts, self.target.stop[d]]))


def cut_into_bands(target: Target, most_bytes: int, least_bands: int = 1, unit: Index | None = None) -> Bands:
    """Cut a region into bands for a limited amount of memory.

    Bands begin and end at borders of tiles. With a `unit`, such as ``(100, 100)``, they begin and end at multiples of
    100 pixels instead, counted from the first pixel of the region.

    The result is the widest bands found to meet two conditions: there are at least `least_bands` bands, and the pixels
    kept for later steps take at most `most_bytes` bytes (see `held_bytes`). If none do, the bands
    are one tile or one unit wide.
    """
    root = target.node
    tile = root.contents.layout(root.spec).tile_shape if unit is None else unit
    origin = tuple(a // n * n for a, n in zip(target.start, tile, strict=True)) if unit is None else target.start
    widths = [b - a for a, b in zip(origin, target.stop, strict=True)]
    along = max(range(len(tile)), key=lambda d: (-(-widths[d] // tile[d]), widths[d]))
    step = [n if d != along else min(n, tile[d]) for d, n in enumerate(widths)]
    while True:
        thick = max(1, int(_STEP_BYTES / (math.prod(step) * root.spec.gathered_bytes)))
        fits = False
        while thick and not fits:
            found = Bands(target, origin, along, with_entry(step, along, thick * tile[along]))
            fits = held_bytes({root: found}) <= most_bytes
            thick //= 2
        wide = [d for d in range(len(tile)) if d != along and step[d] > tile[d]]
        if not wide or (fits and found.band_count >= least_bands):
            return found
        widest = max(wide, key=lambda d: step[d] // tile[d])
        step[widest] = max(1, step[widest] // tile[widest] // 2) * tile[widest]


def side_by_side(cuts: Mapping[Node, Bands]) -> Iterator[dict[Node, NumberedRegions]]:
    """Iterate over the bands of several tensors in parallel.

    Yield a dict with the first band of each tensor, then a dict with the second bands, and so on. All tensors must have
    the same number of bands.

    The steps of all bands in a dict are numbered in the order in which to fill them, so that the bands advance at the
    same pace: if a band has two equal steps, and another has four, the two get the numbers 1 and 4, and the four get 0,
    2, 3 and 5.
    """
    for bands in zip(*cuts.values(), strict=True):
        ends: list[FloatArray] = []
        for band, along in zip(bands, [each.along for each in cuts.values()], strict=True):
            # The end of each step as a fraction of the band.
            first, last = band.starts[0, along], band.stops[-1, along]
            ends.append((band.stops[:, along] - first) / (last - first))
        numbers = np.empty(sum(map(len, ends)), dtype=np.int64)
        numbers[np.argsort(np.concatenate(ends), kind="stable")] = np.arange(len(numbers))
        of_each = np.split(numbers, np.cumsum([len(end) for end in ends])[:-1])
        yield {
            node: NumberedRegions(own, band.starts, band.stops)
            for node, own, band in zip(cuts, of_each, bands, strict=True)
        }


def held_bytes(cuts: Mapping[Node, Bands]) -> int:
    """Estimate the peak memory for pixels kept for later steps, in bytes.

    The bands are filled side by side.
    """
    bands = next(side_by_side(cuts))
    lifetimes = Lifetimes({node: band.before(_ENOUGH_STEPS * len(cuts)) for node, band in bands.items()})
    return lifetimes.held_bytes({node for each in cuts.values() for node in each.target.chain})


def shard_of(
    layout: TileLayout, start: Sequence[int], stop: Sequence[int], rank: int, count: int
) -> tuple[Index, Index]:
    """Return the bounds of shard `rank` of `count` shards.

    The pixels ``[start, stop)`` are cut into shards at borders of tiles.
    """
    low, high = shard_of_tiles(*layout.box(start, stop), rank, count)
    size = layout.tile_shape
    first, last = (
        tuple([min(max(i * n, a), b) for i, n, a, b in zip(tiles, size, start, stop, strict=True)])
        for tiles in (low, high)
    )
    return first, last


def shard_of_tiles(low: Sequence[int], high: Sequence[int], rank: int, count: int) -> tuple[list[int], list[int]]:
    """Cut a box of tiles into `count` shards, and return shard `rank`.

    The shards are about equally large, and as cubic as possible.

    Parameters
    ----------
    low, high : sequence of int
        Bounds of the box, in tiles.
    rank, count : int
        The number of the shard, and the number of shards. If there are fewer tiles than shards, the last shards are
        empty.

    Returns
    -------
    low, high : list of int
        Bounds of the shard, in tiles.
    """
    first, last = list(low), list(high)
    tiles = math.prod(b - a for a, b in zip(low, high, strict=True))
    if rank >= tiles:
        return first, first
    count = min(count, tiles)
    while count > 1:
        extents = list(map(operator.sub, last, first))
        _, _, d, at, ranks = min(
            _halved(extents, d, count) for d in range(len(extents)) if 2 * extents[d] > max(extents)
        )
        if rank < ranks:
            last[d], count = first[d] + at, ranks
        else:
            first[d], rank, count = first[d] + at, rank - ranks, count - ranks
    return first, last


def _halved(extents: Sequence[int], d: int, count: int) -> tuple[int, int, int, int, int]:
    """Find the best position to cut a box of tiles in two along dimension `d`, for `count` shards.

    Return ``(largest, -extents[d], d, at, ranks)``. The first part is `at` tiles long, and gets `ranks` of the shards.
    `largest` is the number of tiles in the largest shard. The dimension with the smallest tuple is the best to cut.
    """
    across = math.prod(extents) // extents[d]
    at = min(max(1, _rounded(extents[d] * (count // 2), count)), extents[d] - 1)
    rest = extents[d] - at
    ranks = min(max(1, _rounded(count * at, extents[d]), count - rest * across), count - 1, at * across)
    return max(-(-at * across // ranks), -(-rest * across // (count - ranks))), -extents[d], d, at, ranks


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
