"""In which order a large region is worked through, so that little is held and little is computed twice.

A region is cut into strips along its longest dimension, each strip into steps. Within a strip, what the next steps
need of the tensors upstream is held, whatever their caches keep; between strips it is not. So strips are as wide as
memory allows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from infinite_tensor.boxes import Index, with_entry
from infinite_tensor.engine.horizons import Horizons, Regions
from infinite_tensor.engine.node import Node
from infinite_tensor.tilestore.layout import TileLayout

_STEP_BYTES = 2**23
"""About as much of the tensor is worked on in one step."""


@dataclass(frozen=True)
class Cut:
    """How a region is cut.

    Attributes
    ----------
    start, stop : tuple of int
        The region in pixels.
    along : int
        The dimension along which steps follow each other.
    extents : tuple of int
        Extent of a step per dimension in pixels; the last of each dimension may be smaller.
    """

    start: Index
    stop: Index
    along: int
    extents: Index

    @property
    def steps(self) -> int:
        """How many steps there are in all strips."""
        return math.prod(
            len(_bounds(a, b, extent)) for a, b, extent in zip(self.start, self.stop, self.extents, strict=True)
        )

    def strips(self) -> Iterator[Regions]:
        """The strips in lexicographic order, each as the regions of its steps."""
        bounds = [
            _bounds(a, b, extent) if d != self.along else [(a, b)]
            for d, (a, b, extent) in enumerate(zip(self.start, self.stop, self.extents, strict=True))
        ]
        for strip in itertools.product(*bounds):
            yield self._steps(strip)

    def _steps(self, strip: Sequence[tuple[int, int]]) -> Regions:
        steps = _bounds(*strip[self.along], self.extents[self.along])
        starts, stops = (np.array([[bound[side] for bound in strip]] * len(steps), dtype=np.int64) for side in (0, 1))
        starts[:, self.along], stops[:, self.along] = np.array(steps, dtype=np.int64).T
        return Regions.alone(starts, stops)


def cut(root: Node, start: Sequence[int], stop: Sequence[int], layout: TileLayout, most_bytes: int) -> Cut:
    """Cut a region at the borders of tiles, so that `held_bytes` of a strip is at most `most_bytes`, if that can be."""
    tile = layout.tile_shape
    widths = [b - a for a, b in zip(start, stop, strict=True)]
    along = max(range(len(tile)), key=lambda d: -(-widths[d] // tile[d]))
    step = [n if d != along else min(n, tile[d]) for d, n in enumerate(widths)]
    while True:
        thick = max(1, _STEP_BYTES * tile[along] // (math.prod(step) * root.spec.dtype.itemsize) // tile[along])
        found = Cut(tuple(start), tuple(stop), along, with_entry(step, along, thick * tile[along]))
        while thick > 1 and held_bytes(root, found) > most_bytes:
            thick //= 2
            found = Cut(tuple(start), tuple(stop), along, with_entry(step, along, thick * tile[along]))
        wide = [d for d in range(len(tile)) if d != along and step[d] > tile[d]]
        if not wide or held_bytes(root, found) <= most_bytes:
            return found
        widest = max(wide, key=lambda d: step[d] // tile[d])
        step[widest] = max(1, step[widest] // tile[widest] // 2) * tile[widest]


def held_bytes(root: Node, cut: Cut) -> int:
    """The most that a read through one strip holds of all tensors, in bytes, if each is held as far back as needed."""
    strip = next(cut.strips())
    return Horizons({root: Regions.alone(*strip.between(0, _ENOUGH_STEPS))}).held_bytes


_ENOUGH_STEPS = 64


def _bounds(start: int, stop: int, extent: int) -> list[tuple[int, int]]:
    """``[start, stop)``, cut at multiples of `extent`."""
    cuts = [start, *range((start // extent + 1) * extent, stop, extent), stop]
    return list(itertools.pairwise(cuts))
