"""Single flight: of all reads of this process, one computes a window, and the others wait for it.

A read claims the windows of its whole plan at once, and leaves out what others have claimed, with all that
is upstream of it. It then goes up the chain by depth, from tensors that read no other to the one that is
read: at each depth it first computes what it has claimed, and then waits for what others have. So a read
that waits holds back nothing that lies as deep, and two reads cannot wait for each other.

Only an ``f`` that reads another tensor itself can break that rule. Where a wait would close a circle, claims
on windows that have not been begun are given up; if none are left, a window needs itself.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from infinite_tensor.engine.node import Node
from infinite_tensor.engine.plan import Level, Plan, Reader
from infinite_tensor.errors import ValidationError
from infinite_tensor.window import Index, IntArray


class Claim:
    """Windows that a read has set out to compute, in this order.

    Those before `stored` are stored; those before `begun` are in the making; those from `end` on have been
    given up, and belong to whoever claims them next.
    """

    def __init__(self, level: Level, reader: Reader) -> None:
        self.level = level
        self.reader = reader
        self.thread = threading.get_ident()
        self.indices: list[Index] = list(map(tuple, level.windows.tolist()))
        self.stored = self.begun = 0
        self.end = len(self.indices)
        self.send: Callable[[], None] = lambda: None
        self._ranks: dict[Index, int] | None = None

    def holds(self, index: Index) -> bool:
        """Whether others must wait for this window."""
        return self.stored <= self._rank(index) < self.end

    def makes(self, index: Index) -> bool:
        """Whether this window is in the making."""
        return self.stored <= self._rank(index) < self.begun

    def _rank(self, index: Index) -> int:
        # Only asked for where reads meet.
        if self._ranks is None:
            self._ranks = {index: rank for rank, index in enumerate(self.indices)}
        return self._ranks.get(index, -1)


@dataclass
class Stage:
    """What a read does at one depth: compute what it has claimed, then wait for what others have."""

    claims: list[Claim] = field(default_factory=list)
    others: list[tuple[Node, IntArray]] = field(default_factory=list)


@dataclass(frozen=True)
class _Wait:
    """What a thread is waiting for."""

    node: Node
    indices: Sequence[Index]


class Claims:
    """Who computes what in this process."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Forget every read: in a forked child there are none."""
        self._changed = threading.Condition()
        self._active: dict[Node, list[Claim]] = {}
        self._waits: dict[int, _Wait] = {}
        self._events = 0

    def reader(self) -> Reader:
        """A read that begins now."""
        with self._changed:
            return Reader(self._events)

    @contextmanager
    def share(self, plan: Plan, reader: Reader) -> Iterator[list[Stage]]:
        """Claim what a plan computes, as far as it is still missing and nobody else computes it.

        Yields the stages in which to carry it out. In the end all claims are given up.
        """
        with self._changed:
            met = self._met(plan, reader)
            levels, others = self._free(plan) if met else (plan.levels, [])
            claims = [Claim(level, reader) for level in levels]
            for claim in claims:
                self._active.setdefault(claim.level.node, []).append(claim)
        try:
            yield _stages(claims, others)
        finally:
            self._release(claims)

    def begin(self, claim: Claim, count: int) -> bool:
        """Whether the next `count` windows are still this claim's to compute."""
        with self._changed:
            if claim.begun == claim.end:
                return False
            claim.begun += count
            return True

    def store(self, claim: Claim, count: int) -> None:
        """The next `count` windows have been stored."""
        with self._changed:
            claim.stored += count
            claim.reader.own_events += 1
            self._events += 1
            self._changed.notify_all()

    def wait(self, node: Node, windows: IntArray) -> None:
        """Return when nobody is computing any of these windows; they are then stored, or nobody has managed to.

        Raises
        ------
        ValidationError
            If one of them is in the making by whoever waits, so that it would need itself.
        """
        thread = threading.get_ident()
        self._send_all(thread)
        indices = [tuple(index) for index in windows.tolist()]
        with self._changed:
            try:
                while indices := [index for index in indices if self._holder(node, index)]:
                    self._waits[thread] = _Wait(node, indices)
                    if not self._break_circle(thread):
                        self._changed.wait()
            finally:
                self._waits.pop(thread, None)

    def _met(self, plan: Plan, reader: Reader) -> bool:
        """Whether another read may have stored what this plan found missing, or is computing it."""
        others = self._events - reader.own_events != reader.begun
        return others or any(self._active.get(level.node) for level in plan.levels)

    def _free(self, plan: Plan) -> tuple[list[Level], list[tuple[Node, IntArray]]]:
        """The part of a plan that is still missing and that nobody computes; and what others compute of it."""
        levels: list[Level] = []
        others: list[tuple[Node, IntArray]] = []
        for level in plan.levels:
            wanted = np.ones(len(level.windows), dtype=bool) if level is plan.levels[0] else level.needed_by(levels)
            wanted[wanted] = level.access.absent(level.windows[wanted])
            indices = map(tuple, level.windows[wanted].tolist())
            taken = np.array([self._holder(level.node, index) is not None for index in indices], dtype=bool)
            if taken.any():
                others.append((level.node, level.windows[wanted][taken]))
            wanted[wanted] = ~taken
            if wanted.any():
                levels.append(level.part(wanted))
        return levels, others

    def _release(self, claims: Sequence[Claim]) -> None:
        with self._changed:
            for claim in claims:
                active = self._active[claim.level.node]
                active.remove(claim)
                if not active:
                    del self._active[claim.level.node]
            self._changed.notify_all()

    def _holder(self, node: Node, index: Index) -> Claim | None:
        return next((claim for claim in self._active.get(node, ()) if claim.holds(index)), None)

    def _send_all(self, thread: int) -> None:
        """Have stored what this thread has computed, since others may be waiting for it too."""
        with self._changed:
            mine = [claim for claims in self._active.values() for claim in claims if claim.thread == thread]
        for claim in mine:
            claim.send()

    def _break_circle(self, thread: int) -> bool:
        """Give up a claim, if `thread` waits in a circle of threads that wait for each other; whether it does."""
        circle = self._circle(thread)
        for waiter, holder in circle:
            claims = [claim for claim in self._held_up_by(waiter) if claim.thread == holder]
            if not any(claim.makes(index) for claim in claims for index in self._waits[waiter].indices):
                for claim in claims:
                    claim.end = claim.begun
                self._changed.notify_all()
                return True
        if circle:
            wait = self._waits[thread]
            raise ValidationError(
                f"window {wait.indices[0]} of tensor {wait.node.spec.tensor_id!r} would need itself: it is read by the "
                "f that is computing it, or by one that this f waits for"
            )
        return False

    def _circle(self, start: int) -> list[tuple[int, int]]:
        """Pairs of a waiting thread and the one that it waits for, which lead from `start` back to it."""
        came_from: dict[int, int] = {}
        stack = [start]
        while stack:
            waiter = stack.pop()
            for holder in {claim.thread for claim in self._held_up_by(waiter)}:
                if holder in came_from:
                    continue
                came_from[holder] = waiter
                stack.append(holder)
        circle, holder = [], start
        while holder in came_from:
            circle.append((came_from[holder], holder))
            holder = came_from[holder]
            if holder == start:
                return circle
        return []

    def _held_up_by(self, thread: int) -> list[Claim]:
        wait = self._waits.get(thread)
        if wait is None:
            return []
        active = self._active.get(wait.node, ())
        return [claim for claim in active if any(claim.holds(index) for index in wait.indices)]


def _stages(claims: Sequence[Claim], others: Sequence[tuple[Node, IntArray]]) -> list[Stage]:
    stages: defaultdict[int, Stage] = defaultdict(Stage)
    for claim in claims:
        stages[claim.level.node.depth].claims.append(claim)
    for node, windows in others:
        stages[node.depth].others.append((node, windows))
    return [stages[depth] for depth in sorted(stages)]


CLAIMS = Claims()
