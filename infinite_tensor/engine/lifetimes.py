"""Computes when pixels can be released, while regions are read in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import Computation, Node, consumers_first
from infinite_tensor.geometry.padding import ArgReads
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.geometry.window import starts_of

Regions: TypeAlias = tuple[IntArray, IntArray]
"""The starts and stops of regions of a tensor in pixels: two arrays of shape (N, ndim)."""

_NOWHERE = 2**62
"""The start of bounds without a region. The stop is ``-_NOWHERE``."""


@dataclass(frozen=True)
class NumberedRegions:
    """Regions of one tensor, numbered in the order of reading.

    All tensors of a read are numbered together. For example, the regions of one tensor have the numbers 0, 2 and 3, and
    the regions of another have 1 and 4.

    Attributes
    ----------
    numbers : int64 array of shape (N,)
        The number of each region, in ascending order for `before` and `between`.
    starts, stops : int64 array of shape (N, ndim)
        The bounds of the regions in pixels.
    """

    numbers: IntArray
    starts: IntArray
    stops: IntArray

    @classmethod
    def alone(cls, starts: IntArray, stops: IntArray) -> Self:
        """Number the regions of a read with only one tensor: 0, 1, 2 and so on."""
        return cls(np.arange(len(starts)), starts, stops)

    def before(self, number: int) -> Self:
        """Return the regions with numbers lower than `number`."""
        count = int(np.searchsorted(self.numbers, number))
        return type(self)(self.numbers[:count], self.starts[:count], self.stops[:count])

    def between(self, first: int, last: int) -> Regions:
        """Return the bounds of the regions with numbers from `first` to `last - 1`."""
        if len(self.numbers) and first <= self.numbers[0] and self.numbers[-1] < last:
            return self.starts, self.stops
        part = slice(*np.searchsorted(self.numbers, [first, last]).tolist())
        return self.starts[part], self.stops[part]


class Lifetimes:
    """Tells how long a read needs the pixels of each tensor in memory.

    Regions are read in order. After each region, pixels not needed by later regions can be released. The args of a
    window are needed only by the first region with this window, because the window is stored then.

    If an earlier read or fill has stored only a part of a window, a later region may need the args after they were
    released. A store in memory with limits then computes them again. Keeping all args for such windows would multiply
    the memory of reads through long chains.

    Parameters
    ----------
    roots : mapping of Node to NumberedRegions
        The tensors that are read, and their regions.

    Attributes
    ----------
    last_depth : int
        The depth that `read_at` returns for `roots`: 1 more than the largest depth of a computation.
    """

    def __init__(self, roots: Mapping[Node, NumberedRegions]) -> None:
        self._count = 1 + max(int(regions.numbers[-1]) for regions in roots.values() if len(regions.numbers))
        chain = consumers_first(roots)
        self.last_depth = 1 + max(computation.depth for computation, _ in chain)
        self._read_at = dict.fromkeys(roots, self.last_depth)
        self._reach = {
            node: self._spread(regions.numbers, regions.starts, regions.stops) for node, regions in roots.items()
        }
        self._hulls: set[Node] = set()
        for computation, nodes in chain:
            read = [node for node in nodes if node in self._reach]
            numbers, low, high, whole = self._windows(computation, read)
            for node in computation.nodes:
                # An output without readers is stored with the others, and must be released too.
                if node not in self._reach:
                    own = ArgReads(node.spec.grid.window, node.spec.shape, None)
                    self._reads(node, own, numbers, low, high, computation.depth)
            depth = computation.depth
            if computation.formula is not None:
                depth = self._read_at[read[0]]
            # Windows of earlier boxes are already computed, but only if every window of the boxes is needed.
            elif whole:
                new, low = _new(low, high)
                numbers, low, high = numbers[new], low[new], high[new]
            for upstream in computation.inputs:
                if not self._reads(upstream.node, upstream.reads, numbers, low, high, depth) or not whole:
                    self._hulls.add(upstream.node)
        self._before = {
            node: np.minimum.accumulate(first[::-1], axis=0)[::-1] for node, (first, _) in self._reach.items()
        }
        self._until = {node: np.maximum.accumulate(last, axis=0) for node, (_, last) in self._reach.items()}

    def _windows(self, computation: Computation, nodes: Sequence[Node]) -> tuple[IntArray, IntArray, IntArray, bool]:
        """Find the windows of `computation` needed for each region, as one box of windows per region.

        Return ``(numbers, low, high, exact)``: the numbers of the regions that need windows, the bounds of their boxes,
        and False if a box may also contain windows that are not needed.
        """
        boxes = []
        for node in nodes:
            first, last = self._reach[node]
            numbers = np.flatnonzero(first[:, 0] < _NOWHERE)
            begin, end = self._around(node, *node.grid.boxes(first[numbers], last[numbers]))
            # Pixels in the gaps of a grid need no window.
            some, kept = (begin < end).all(axis=1), computation.coordinates
            boxes.append(self._spread(numbers[some], begin[some, :kept], end[some, :kept]))
        low = reduce(np.minimum, [box[0] for box in boxes])
        high = reduce(np.maximum, [box[1] for box in boxes])
        numbers = np.flatnonzero(low[:, 0] < _NOWHERE)
        whole = self._hulls.isdisjoint(nodes) and all(_is_one((low, high), boxes[0], box) for box in boxes[1:])
        return numbers, low[numbers], high[numbers], whole

    def _around(self, node: Node, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
        """Return boxes of windows for boxes of places; a box across the end of a periodic dimension has all of them."""
        for k, count in node.grid.around.items():
            across = (low[:, k] < 0) | (high[:, k] > count)
            low[across, k], high[across, k] = 0, count
            if across.any():
                self._hulls.add(node)
        return low, high

    def _reads(self, node: Node, reads: ArgReads, numbers: IntArray, low: IntArray, high: IntArray, depth: int) -> bool:
        """Record the pixels of `node` read by a consumer, as one box of pixels per region.

        Region ``numbers[i]`` needs the windows from ``low[i]`` to ``high[i] - 1`` of the consumer. `depth` is the depth
        of the consumer. Return False if a box may also contain pixels that are not read, as with the padding "wrap".
        """
        begin = starts_of(reads.window, low)
        end = starts_of(reads.window, high - 1) + np.array(reads.window.size)
        begin, end, all_of_it = reads.hulls(begin, end)
        some = (begin < end).all(axis=1)
        read = self._spread(numbers[some], begin[some], end[some])
        known = self._reach.get(node, read)
        hull = np.minimum(known[0], read[0]), np.maximum(known[1], read[1])
        if not _is_one(hull, known, read):
            self._hulls.add(node)
        self._reach[node] = hull
        self._read_at[node] = max(self._read_at.get(node, 0), depth)
        return all_of_it

    def _spread(self, numbers: IntArray, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
        """Return the bounds of a box for every region of the read.

        ``starts[i]`` and ``stops[i]`` are the bounds for region ``numbers[i]``. Regions not in `numbers` get an empty
        box.
        """
        first = np.full((self._count, starts.shape[1]), _NOWHERE, dtype=np.int64)
        last = -first
        first[numbers], last[numbers] = starts, stops
        return first, last

    def held_bytes(self, nodes: Iterable[Node]) -> int:
        """Estimate the peak memory for pixels of `nodes`, in bytes."""
        nbytes = 0.0
        for node in nodes:
            if not node.computation.is_direct:
                spec, before, until = node.spec, self._before[node], self._until[node]
                held = (before[:, 0] < _NOWHERE) & (until[:, 0] > -_NOWHERE)
                reached = until[held] - before[held] + np.array(spec.grid.window.size, dtype=np.int64)
                ends = [np.iinfo(np.int64).max if extent is None else extent for extent in spec.shape]
                most = np.minimum(reached, ends).prod(axis=1, dtype=np.float64).max(initial=0)
                nbytes += int(most) * spec.gathered_bytes
        return int(nbytes)

    def read_at(self, node: Node) -> int:
        """Return the depth of the deepest reader of a tensor.

        Return `last_depth` for a tensor read by the user.
        """
        return self._read_at[node]

    def before(self, node: Node, number: int) -> Sequence[int] | None:
        """Return the smallest coordinates still needed from a tensor.

        Region `number` and all later regions read no pixel with a smaller coordinate, in any dimension. Return None if
        these regions read no pixels.
        """
        firsts = self._before[node]
        if number >= len(firsts) or firsts[number, 0] == _NOWHERE:
            return None
        first: list[int] = firsts[number].tolist()
        return first


def _is_one(hull: Regions, box: Regions, other: Regions) -> bool:
    each = [((hull[0] == given[0]) & (hull[1] == given[1])).all(axis=1) for given in (box, other)]
    return bool((each[0] | each[1]).all())


def _new(low: IntArray, high: IntArray) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Find the part of each box not covered by earlier boxes.

    After the box ``0:4``, the new part of the box ``2:6`` begins at 4. Return two arrays with an entry per box: whether
    there is a new part, and the lower corner of that part. For speed, a box is compared only with some earlier boxes.
    So the new part may be too large, but never too small.
    """
    new, corners, nothing = np.ones(len(low), dtype=bool), low.copy(), [0] * low.shape[1]
    known = nothing, [*nothing]
    for n, (first, last) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        sides = list(zip(*known, first, last, strict=True))
        beyond = [d for d, (begin, end, a, b) in enumerate(sides) if not begin <= a <= b <= end]
        new[n] = bool(beyond)
        d, *others = beyond or [0]
        begin, end, a, b = sides.pop(d)
        if beyond and not others and begin <= a:
            corners[n, d] = max(a, end)
        if beyond and not others and begin <= a <= end and all(side[:2] == side[2:] for side in sides):
            known[1][d] = b
        elif beyond:
            known = first, last
    return new, corners
