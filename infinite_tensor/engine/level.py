"""One computation's part of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.arrays import Array
from infinite_tensor.boxes import IntArray, as_tuples
from infinite_tensor.engine.node import Computation, Node
from infinite_tensor.tilestore.access import Access

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Result:
    """What a level computes of one tensor; N is the number of its windows.

    Attributes
    ----------
    node : Node
        The tensor.
    access : Access
        Its store's view of this read.
    windows : int64 array of shape (N, ndim)
        The tensor's own index of each window.
    exists : bool array of shape (N,) or None
        Which of them it has; None where it has all.
    missing : bool array of shape (N,)
        Which of them are needed and not stored. The others come along with those of another tensor.
    asked : bool array of shape (N,)
        Which of those are wanted for themselves, and not only because others read them.
    """

    node: Node
    access: Access
    windows: IntArray
    exists: Mask | None
    missing: Mask
    asked: Mask

    def part(self, which: Mask | list[int]) -> Result:
        """Some of the windows."""
        exists = None if self.exists is None else self.exists[which]
        return Result(self.node, self.access, self.windows[which], exists, self.missing[which], self.asked[which])

    def needed(self, consumers: Sequence[Level]) -> Result:
        """Without what is neither wanted for itself nor read by some levels."""
        rest = self.missing & ~self.asked
        if not rest.any():
            return self
        regions = regions_of(consumers, self.node)
        read = set() if regions is None else set(self.node.spec.grid.indices(*regions))
        missing = self.asked.copy()
        missing[rest] = [index in read for index in as_tuples(self.windows[rest])]
        return replace(self, missing=missing)

    def absent(self) -> Result:
        """Looked up again: without what is there by now."""
        if not self.missing.any():
            return self
        missing = self.missing.copy()
        missing[missing] = self.access.absent(self.windows[missing])
        return replace(self, missing=missing, asked=self.asked & missing)

    def deposit(self, places: Sequence[int], outputs: Array) -> int:
        """Store the windows at some places, as far as the tensor has them; how many it has."""
        windows = self.windows[places]
        if self.exists is not None:
            kept = self.exists[places]
            # A view where all are kept: a store may work on neighbours at once.
            windows, outputs = windows[kept], outputs if kept.all() else outputs[kept]
        if len(windows):
            self.access.deposit(windows, outputs)
        return len(windows)


@dataclass(frozen=True)
class Level:
    """What a plan has one computation compute.

    Attributes
    ----------
    computation : Computation
        The computation.
    windows : int64 array of shape (N, coordinates)
        The windows, as ``f`` is given them, in the order in which they run.
    results : tuple of Result
        Per tensor that it computes, what becomes of them.
    sources : tuple of (Access, int64 array of shape (N, ndim of the arg))
        Per arg, where it is read from, and the first pixel of each window's region.
    """

    computation: Computation
    windows: IntArray
    results: tuple[Result, ...]
    sources: tuple[tuple[Access, IntArray], ...]

    def part(self, which: Mask | list[int]) -> Level:
        """Some of the windows."""
        sources = tuple((access, starts[which]) for access, starts in self.sources)
        results = tuple(result.part(which) for result in self.results)
        return Level(self.computation, self.windows[which], results, sources)

    def needed(self, consumers: Sequence[Level]) -> Level:
        """Without windows that are neither wanted for themselves nor read by some levels."""
        return self._with([result.needed(consumers) for result in self.results])

    def absent(self) -> Level:
        """Looked up again: without windows that are there by now."""
        return self._with([result.absent() for result in self.results])

    def _with(self, results: Sequence[Result]) -> Level:
        missing = reduce(np.logical_or, [result.missing for result in results])
        return replace(self, results=tuple(results)).part(missing)

    @property
    def wanted(self) -> dict[Node, IntArray]:
        """Per tensor, the windows that are needed and not stored."""
        return {result.node: result.windows[result.missing] for result in self.results if result.missing.any()}


def regions_of(consumers: Sequence[Level], node: Node) -> tuple[IntArray, IntArray] | None:
    """Start and stop of the regions that some levels read of a tensor, or None."""
    starts, stops = [], []
    for level in consumers:
        for upstream, (_, begin) in zip(level.computation.inputs, level.sources, strict=True):
            if upstream.node == node:
                starts.append(begin)
                stops.append(begin + np.array(upstream.window.size, dtype=np.int64))
    return (np.concatenate(starts), np.concatenate(stops)) if starts else None
