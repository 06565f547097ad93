"""In which order a large region is worked through, so that little is held and little is computed twice.

A region is cut into strips along its longest dimension, each strip into steps. Within a strip, what the next steps
need of the tensors upstream is held, whatever their caches keep; between strips it is not. So strips are as wide as
memory allows. Regions of several tensors that share some upstream are worked through side by side, strip by strip.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import Node
from infinite_tensor.engine.lifetimes import Lifetimes, NumberedRegions
from infinite_tensor.geometry.points import Index, with_entry
from infinite_tensor.tilestore.layout import TileLayout

FloatArray: TypeAlias = npt.NDArray[np.float64]

_STEP_BYTES = 2**23
"""About as much of the tensor is worked on in one step."""


@dataclass(frozen=True)
class Strips:
    """How a region is cut.

    Attributes
    ----------
    start, stop : tuple of int
        The region in pixels.
    origin : tuple of int
        The first pixel of the tile that holds the first one of the region.
    along : int
        The dimension along which steps follow each other.
    extents : tuple of int
        Extent of a step per dimension in pixels, from the origin on; the last of each dimension may be smaller.
    """

    start: Index
    stop: Index
    origin: Index
    along: int
    extents: Index

    @property
    def steps(self) -> int:
        """How many steps there are in all strips."""
        return math.prod(len(self._bounds(d)) for d in range(len(self.start)))

    @property
    def strip_count(self) -> int:
        """How many strips there are."""
        return self.steps // len(self._bounds(self.along))

    def strips(self) -> Iterator[NumberedRegions]:
        """The strips in lexicographic order, each as the regions of its steps."""
        bounds = [
            self._bounds(d) if d != self.along else [(self.start[d], self.stop[d])] for d in range(len(self.start))
        ]
        for strip in itertools.product(*bounds):
            yield self._steps(strip)

    def _steps(self, strip: Sequence[tuple[int, int]]) -> NumberedRegions:
        steps = self._bounds(self.along)
        starts, stops = (np.array([[bound[side] for bound in strip]] * len(steps), dtype=np.int64) for side in (0, 1))
        starts[:, self.along], stops[:, self.along] = np.array(steps, dtype=np.int64).T
        return NumberedRegions.alone(starts, stops)

    def _bounds(self, d: int) -> list[tuple[int, int]]:
        """The region along one dimension, in steps."""
        cuts = range(self.origin[d] + self.extents[d], self.stop[d], self.extents[d])
        return list(itertools.pairwise([self.start[d], *cuts, self.stop[d]]))


def cut_into_strips(
    root: Node, start: Sequence[int], stop: Sequence[int], layout: TileLayout, most_bytes: int, least_strips: int = 1
) -> Strips:
    """Cut a region at the borders of tiles, into at least so many strips.

    If that can be, the `held_bytes` of a strip are at most `most_bytes`.
    """
    tile = layout.tile_shape
    origin = tuple(a // n * n for a, n in zip(start, tile, strict=True))
    widths = [b - a for a, b in zip(origin, stop, strict=True)]
    along = max(range(len(tile)), key=lambda d: -(-widths[d] // tile[d]))
    step = [n if d != along else min(n, tile[d]) for d, n in enumerate(widths)]
    while True:
        thick = max(1, _STEP_BYTES * tile[along] // (math.prod(step) * root.spec.dtype.itemsize) // tile[along])
        found = Strips(tuple(start), tuple(stop), origin, along, with_entry(step, along, thick * tile[along]))
        while thick > 1 and held_bytes({root: found}) > most_bytes:
            thick //= 2
            found = Strips(tuple(start), tuple(stop), origin, along, with_entry(step, along, thick * tile[along]))
        wide = [d for d in range(len(tile)) if d != along and step[d] > tile[d]]
        if not wide or (found.strip_count >= least_strips and held_bytes({root: found}) <= most_bytes):
            return found
        widest = max(wide, key=lambda d: step[d] // tile[d])
        step[widest] = max(1, step[widest] // tile[widest] // 2) * tile[widest]


def side_by_side(cuts: Mapping[Node, Strips]) -> Iterator[dict[Node, NumberedRegions]]:
    """The strips of several regions, which have as many each: the first of all, the second, and so on.

    Their steps are numbered by how far they are along the strip.
    """
    for strips in zip(*(each.strips() for each in cuts.values()), strict=True):
        begins = [_progress(strip, each.along) for strip, each in zip(strips, cuts.values(), strict=True)]
        numbers = np.empty(sum(map(len, begins)), dtype=np.int64)
        numbers[np.argsort(np.concatenate(begins), kind="stable")] = np.arange(len(numbers))
        of_each = np.split(numbers, np.cumsum([len(begin) for begin in begins])[:-1])
        yield {
            node: NumberedRegions(own, strip.starts, strip.stops)
            for node, own, strip in zip(cuts, of_each, strips, strict=True)
        }


def _progress(strip: NumberedRegions, along: int) -> FloatArray:
    """Where each step begins: 0 is where the strip does, 1 where it ends."""
    first, last = strip.starts[0, along], strip.stops[-1, along]
    progress: FloatArray = (strip.starts[:, along] - first) / (last - first)
    return progress


def held_bytes(cuts: Mapping[Node, Strips]) -> int:
    """The most that a read through strips side by side holds, in bytes, if each tensor is held as far as needed."""
    strips = next(side_by_side(cuts))
    return Lifetimes({node: strip.before(_ENOUGH_STEPS * len(cuts)) for node, strip in strips.items()}).held_bytes


_ENOUGH_STEPS = 64
