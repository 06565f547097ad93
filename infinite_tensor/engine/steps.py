"""Having the windows of many regions computed, step by step, while what no later step needs is let go of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from infinite_tensor.engine.chain import Node
from infinite_tensor.engine.lifetimes import Lifetimes, NumberedRegions
from infinite_tensor.engine.reads import Views
from infinite_tensor.engine.run import run
from infinite_tensor.geometry.points import IntArray, joined
from infinite_tensor.tilestore.access import Access


@dataclass(frozen=True)
class Schedule:
    """Regions of some tensors, in the order in which they are worked on.

    Attributes
    ----------
    regions : mapping of Node to NumberedRegions
        The regions of each, numbered through.
    steps : sequence of range
        Which numbers are worked on at once, from the first to the last.
    """

    regions: Mapping[Node, NumberedRegions]
    steps: Sequence[range]


class _Waiting:
    """Windows of one tensor that are missing, in the order in which they are to be computed."""

    def __init__(self, node: Node, access: Access) -> None:
        self._node = node
        self._access = access
        self._windows = np.empty((0, node.spec.grid.ndim), dtype=np.int64)
        self._numbers = np.empty(0, dtype=np.int64)
        self.added = 0

    @property
    def done(self) -> int:
        """How many of the windows that were added, from the first on, are there."""
        return int(self._numbers[0]) if len(self._numbers) else self.added

    def add(self, starts: IntArray, stops: IntArray) -> None:
        """Regions follow, with what is missing of them."""
        if len(self._windows):
            # What another tensor of the same read needed as well is there by now.
            absent = self._access.absent(self._windows)
            self._windows, self._numbers = self._windows[absent], self._numbers[absent]
        if len(starts):
            waiting = len(self._windows)
            self._windows = joined(self._windows, self._access.add(starts, stops))
            numbers = np.arange(self.added, self.added + len(self._windows) - waiting)
            self._numbers = np.concatenate([self._numbers, numbers]) if waiting else numbers
            self.added += len(numbers)

    def take(self, *, all_of_them: bool) -> IntArray:
        """The windows to compute next; what does not fill a batch waits."""
        count = len(self._windows) if all_of_them else self._node.batching.full(len(self._windows))
        taken = self._windows[:count]
        self._windows, self._numbers = self._windows[count:], self._numbers[count:]
        return taken


@dataclass(frozen=True)
class _Due:
    """Regions that can be read when so many windows of each tensor are there."""

    numbers: range
    windows: Mapping[Node, int]


def run_steps(way: Schedule, views: Views, ready: Callable[[int], None]) -> None:
    """Compute what is missing of the regions; ``ready(number)`` is called for each once all its windows are there."""
    pending = {node: _Waiting(node, views.of(node)) for node in way.regions}
    lifetimes = Lifetimes(way.regions) if len(way.steps) > 1 else None
    top = 1 + max(node.depth for node in way.regions)
    due: deque[_Due] = deque()
    for step in way.steps:
        for node, windows in pending.items():
            windows.add(*way.regions[node].between(step.start, step.stop))
        due.append(_Due(step, {node: windows.added for node, windows in pending.items()}))
        taken = {node: windows.take(all_of_them=step is way.steps[-1]) for node, windows in pending.items()}
        done = {node: windows.done for node, windows in pending.items()}
        unread = next((each.numbers.start for each in due if not _is_done(each, done)), step.stop)
        let_go = partial(_let_go, views, lifetimes, unread)
        if any(map(len, taken.values())):
            run(taken, views, let_go)
        while due and _is_done(due[0], done):
            for number in due.popleft().numbers:
                ready(number)
        let_go(top)


def _is_done(due: _Due, done: Mapping[Node, int]) -> bool:
    return all(count <= done[node] for node, count in due.windows.items())


def _let_go(views: Views, lifetimes: Lifetimes | None, unread: int, depth: int) -> None:
    """When all windows at `depth` of a chain are there, let go of what only they have read, up to a region."""
    if lifetimes is None:
        return
    for node, access in views.items():
        if lifetimes.read_at(node) <= depth:
            access.keep(lifetimes.before(node, unread))
