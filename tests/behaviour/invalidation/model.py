"""The brute-force oracle of invalidation: which windows are known of which tile, and which are wrong.

It shares no code with the library.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch

from tests.support.elsewhere import Elsewhere
from tests.support.pipelines import WindowFunction, subtract
from tests.support.reference import Box, Index, Reference, Stage, TooManyWindows, box_at, windows_over

_MOST_WINDOWS = 150


class Model:
    """A chain whose functions read data that changes.

    Parameters
    ----------
    stages : sequence of Stage
        The chain; only its geometry counts.

    Attributes
    ----------
    tiles : sequence of tuple of int
        The tile of each stage.
    """

    _changes: Elsewhere[list[list[Box | None]]] = Elsewhere()

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.tiles: Sequence[Index] = []
        self.calls: list[Counter[Index]] = [Counter() for _ in stages]
        self.known: list[defaultdict[Index, set[Index]]] = [defaultdict(set) for _ in stages]
        self._changes = [[] for _ in stages]
        self.stages = [self._changing(number, stage) for number, stage in enumerate(stages)]
        self._reference = Reference(self.stages)

    def _changing(self, number: int, stage: Stage) -> Stage:
        steady = WindowFunction(number, stage.window.size, torch.int64)

        def f(ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
            window = box_at(stage.window, ctx)
            version = sum(box is None or _meet(box, window) for box in self._changes[number])
            return steady(ctx, *regions) + version

        blend = subtract if number % 2 else None
        return replace(stage, dtype=torch.int64, f=f, blend=blend, blend_init=None, reduction=None)

    def counting(self, number: int, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        """The ``f`` of a stage as the library gets it."""
        self.calls[number][ctx] += 1
        return self.stages[number].f(ctx, *regions)

    def value(self, number: int, box: Box) -> torch.Tensor:
        """The pixels of a region, by the data as they are now."""
        return self._reference.region(number, box)[0]

    def computed_by(self, number: int, box: Box) -> list[Counter[Index]]:
        """Per stage, the calls that a read of `box` makes; from now on what they return is known.

        TooManyWindows, and nothing changes, where they are many.
        """
        needed: list[set[Index]] = [set() for _ in self.stages]
        wanted: list[set[Box]] = [set() for _ in self.stages]
        wanted[number].add(box)
        for n in range(number, -1, -1):
            for region in wanted[n]:
                for tile, part in self._parts(n, region):
                    needed[n] |= set(self._windows_over(n, part)) - self.known[n][tile]
            if sum(map(len, needed)) > _MOST_WINDOWS:
                raise TooManyWindows
            for arg in self.stages[n].reads:
                for index in needed[n]:
                    wanted[arg.number].update(self._reference.boxes_read(arg, index))
        for n, windows in enumerate(needed):
            for index in windows:
                for tile, _ in self._parts(n, box_at(self.stages[n].window, index)):
                    self.known[n][tile].add(index)
        return [Counter(windows) for windows in needed]

    def change(self, number: int, box: Box | None) -> list[int]:
        """The data behind some pixels of a stage change, None for all; how many tiles of each stage are wrong."""
        self._changes[number].append(box)
        self._reference = Reference(self.stages)
        wrong: dict[tuple[int, Index], bool] = {}
        dropped = []
        for n, tiles in enumerate(self.known):
            before = self._size(n)
            for tile in tiles:
                over = self._windows_over(n, self._box_of(n, tile))
                if any(self._is_wrong(n, index, number, box, wrong) for index in over):
                    tiles[tile] = set()
            dropped.append(before - self._size(n))
        return dropped

    def _size(self, n: int) -> int:
        return sum(map(bool, self.known[n].values()))

    def _is_wrong(
        self, n: int, index: Index, changed: int, box: Box | None, found: dict[tuple[int, Index], bool]
    ) -> bool:
        if (n, index) not in found:
            stage = self.stages[n]
            sources = [
                (arg.number, source)
                for arg in stage.reads
                if arg.number >= changed
                for read in self._reference.boxes_read(arg, index)
                for source in self._windows_over(arg.number, read)
            ]
            found[n, index] = (n == changed and (box is None or _meet(box, box_at(stage.window, index)))) or any(
                self._is_wrong(*source, changed, box, found) for source in sources
            )
        return found[n, index]

    def _windows_over(self, n: int, box: Box) -> list[Index]:
        return windows_over(self.stages[n].shape, self.stages[n].window, box, self.stages[n].edge)

    def _parts(self, n: int, box: Box) -> list[tuple[Index, Box]]:
        """The tiles that hold a region, each with what it holds of it."""
        # Of a window that is clipped, what lies in the tensor.
        shape = self.stages[n].shape
        start = tuple(a if extent is None else max(a, 0) for a, extent in zip(box[0], shape, strict=True))
        stop = tuple(b if extent is None else min(b, extent) for b, extent in zip(box[1], shape, strict=True))
        size = self.tiles[n]
        ranges = [range(a // s, -(-b // s)) for a, b, s in zip(start, stop, size, strict=True)]
        parts = []
        for tile in itertools.product(*ranges):
            low = tuple(max(a, i * s) for a, i, s in zip(start, tile, size, strict=True))
            high = tuple(min(b, (i + 1) * s) for b, i, s in zip(stop, tile, size, strict=True))
            parts.append((tile, (low, high)))
        return parts

    def _box_of(self, n: int, tile: Index) -> Box:
        size = self.tiles[n]
        low = tuple(i * s for i, s in zip(tile, size, strict=True))
        return low, tuple(a + s for a, s in zip(low, size, strict=True))


def _meet(box: Box, other: Box) -> bool:
    return all(max(a, c) < min(b, d) for a, b, c, d in zip(*box, *other, strict=True))
