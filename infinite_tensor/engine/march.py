"""Having the windows of many regions computed, step by step, while what no later step needs is let go of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from infinite_tensor.boxes import IntArray, as_tuples
from infinite_tensor.engine.execute import run
from infinite_tensor.engine.node import Node
from infinite_tensor.engine.plan import Accesses, Horizons


@dataclass(frozen=True)
class March:
    """Regions of one tensor, in the order in which they are worked on.

    Attributes
    ----------
    starts, stops : int64 array of shape (N, ndim)
        The regions in pixels.
    steps : sequence of range
        Which of them are worked on at once, from the first to the last.
    """

    starts: IntArray
    stops: IntArray
    steps: Sequence[range]


def march(node: Node, way: March, accesses: Accesses, ready: Callable[[int], None]) -> None:
    """Compute what is missing of the regions; ``ready(number)`` is called for each once all its windows are there."""
    access = accesses.of(node)
    horizons = Horizons(node, way.starts, way.stops) if len(way.steps) > 1 else None
    pending = np.empty((0, len(node.spec.shape)), dtype=np.int64)
    due: deque[tuple[range, int]] = deque()
    done = 0
    for step in way.steps:
        regions = slice(step.start, step.stop)
        pending = joined(pending, access.add(way.starts[regions], way.stops[regions]))
        due.append((step, done + len(pending)))
        # What does not fill a batch waits for the next step.
        count = len(pending) if step is way.steps[-1] else node.batching.full(len(pending))
        done += count
        unread = next((number for waiting, last in due for number in waiting if last > done), step.stop)
        let_go = partial(_let_go, accesses, horizons, unread)
        if count:
            run(node, pending[:count], accesses, let_go)
            pending = pending[count:]
        while due and due[0][1] <= done:
            for number in due.popleft()[0]:
                ready(number)
        let_go(node.depth + 1)


def joined(pending: IntArray, missing: IntArray) -> IntArray:
    """`pending`, followed by what is `missing` beside it."""
    if not len(pending):
        return missing
    known = set(as_tuples(pending))
    fresh = [index not in known for index in map(tuple, missing.tolist())]
    return np.concatenate([pending, missing[np.array(fresh, dtype=bool)]])


def _let_go(accesses: Accesses, horizons: Horizons | None, unread: int, depth: int) -> None:
    """When all windows at `depth` of a chain are there, let go of what only they have read, up to a region."""
    if horizons is None:
        return
    for node, access in accesses.items():
        if horizons.read_at(node) <= depth:
            access.keep(horizons.before(node, unread))
