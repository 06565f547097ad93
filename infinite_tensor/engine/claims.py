"""Single flight: of all reads of this process, one computes a window, and the others wait for it.

A read claims the windows of its whole plan at once. What others have claimed it leaves out, with all that is
upstream of it. It goes up the chain by depth, from tensors that read no other to the one that is read, and at
each depth first computes what it has claimed, then turns to what it left out: of windows that an older read
has not begun it takes over half, so that a small read need not wait for a large one; what is in the making it
waits for.

So a thread waits only while another one is at work, unless an ``f`` reads a tensor itself. Where such waits
close a circle of threads, windows that have not been begun change hands too; if there are none, a window needs
itself.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from infinite_tensor.boxes import Index, as_tuples
from infinite_tensor.engine.accesses import Reader
from infinite_tensor.engine.level import Level
from infinite_tensor.engine.node import Computation
from infinite_tensor.engine.plan import Plan
from infinite_tensor.errors import ValidationError
from infinite_tensor.forking import renew_in_children
from infinite_tensor.waiting import Changes, Mark


class Claim:
    """Windows of one computation that a read has set out to run, in order. Used with the lock of `Claims` held.

    Attributes
    ----------
    level : Level
        What was claimed.
    indices : list of tuple of int
        Its windows, as ``f`` is given them.
    reader : Reader
        The read.
    thread : int
        The thread that the read runs on.
    mark : Mark
        Whether the read is still at it; a claim whose read has ended, in whatever way, claims nothing.
    lost : set of int
        Places in `indices` of the windows that another read has taken over.
    senders : dict of int to WeakMethod
        For each thread that is at work on it, what stores the windows which that thread has computed. Weakly: claim and
        sender would keep each other, and the store with all that it holds, for the garbage collector.
    """

    def __init__(self, level: Level, reader: Reader, mark: Mark) -> None:
        self.level = level
        self.indices = as_tuples(level.windows)
        self.reader = reader
        self.thread = threading.get_ident()
        self.mark = mark
        self.lost: set[int] = set()
        self.senders: dict[int, weakref.WeakMethod[Callable[[], None]]] = {}
        # By which thread.
        self._making: dict[Index, int] = {}
        self._places: dict[Index, int] | None = None
        self._plan(list(range(len(self.indices))))

    def _plan(self, left: list[int]) -> None:
        self._schedule = _Schedule(left, self.level.computation.batching.split(len(left)))

    def begin(self, most: int) -> list[list[int]]:
        """Places of the windows for the next calls of ``f``, `most` at most; they are in the making from now on."""
        # Each thread leaves their share to the others.
        most = min(most, -(-self.calls // max(1, len(self.senders))))
        batches, rest = self._schedule.split(most)
        self._making.update(
            dict.fromkeys([self.indices[place] for batch in batches for place in batch], threading.get_ident())
        )
        self._schedule = rest
        return batches

    def leave(self, batches: Sequence[list[int]]) -> None:
        """The last of what was begun has not been begun after all."""
        left = [place for batch in batches for place in batch]
        self.end([self.indices[place] for place in left])
        self._schedule = self._schedule.after(batches)

    def end(self, indices: Sequence[Index]) -> None:
        """These windows are stored."""
        for index in indices:
            self._making.pop(index, None)

    @property
    def calls(self) -> int:
        """How many calls of ``f`` have not been begun."""
        return self._schedule.calls

    def lose(self, indices: Sequence[Index]) -> None:
        """These windows, which have not been begun, are another read's now."""
        gone = {self._place(index) for index in indices}
        self.lost |= gone
        self._plan([place for place in self._schedule.waiting if place not in gone])

    def makes(self, index: Index) -> bool:
        """Whether this window has been begun and is not stored yet."""
        return index in self._making

    def waits(self, index: Index) -> bool:
        """Whether this window has not been begun."""
        return self._schedule.has(self._place(index))

    def holds(self, index: Index) -> bool:
        """Whether this window is this claim's."""
        return self.makes(index) or self.waits(index)

    def holders(self, index: Index) -> set[int]:
        """The threads of which one must go on for this window to be stored; none if it is not this claim's."""
        if index in self._making:
            return {self._making[index]}
        return (set(self.senders) or {self.thread}) if self.waits(index) else set()

    def _place(self, index: Index) -> int:
        # Only asked for where reads meet.
        if self._places is None:
            self._places = {index: place for place, index in enumerate(self.indices)}
        return self._places.get(index, -1)


@dataclass(frozen=True)
class _Schedule:
    """The windows of a claim that have not been begun. A new one takes its place, so that none is ever half changed.

    Attributes
    ----------
    places : list of int
        Places of windows, ascending.
    sizes : list of int
        How many of them each call of ``f`` takes.
    begun, called : int
        How many of them lie behind.
    """

    places: list[int]
    sizes: list[int]
    begun: int = 0
    called: int = 0

    @property
    def calls(self) -> int:
        """How many calls are left."""
        return len(self.sizes) - self.called

    @property
    def waiting(self) -> list[int]:
        """The places that are left."""
        return self.places[self.begun :]

    def has(self, place: int) -> bool:
        """Whether a place is left."""
        at = bisect.bisect_left(self.places, place, self.begun)
        return at < len(self.places) and self.places[at] == place

    def split(self, most: int) -> tuple[list[list[int]], _Schedule]:
        """The places of the next calls, `most` at most, and what is left then."""
        sizes = self.sizes[self.called : self.called + most]
        bounds = list(itertools.accumulate(sizes, initial=self.begun))
        places = self.places[self.begun : bounds[-1]]
        if len(places) == len(sizes):
            batches = [[place] for place in places]
        else:
            batches = [self.places[a:b] for a, b in itertools.pairwise(bounds)]
        return batches, _Schedule(self.places, self.sizes, bounds[-1], self.called + len(sizes))

    def after(self, batches: Sequence[list[int]]) -> _Schedule:
        """With these calls before what is left."""
        places = [place for batch in batches for place in batch]
        return _Schedule(sorted(places + self.waiting), [*map(len, batches), *self.sizes[self.called :]])


@dataclass
class Stage:
    """What a read does at one depth of the chain: compute what it has claimed, then turn to what others have."""

    depth: int
    claims: list[Claim] = field(default_factory=list)
    others: list[Level] = field(default_factory=list)


@dataclass(frozen=True)
class _Wait:
    """What a thread is waiting for while `mark` is under way: windows in the making."""

    computation: Computation
    indices: Sequence[Index]
    mark: Mark = field(default_factory=Mark)


class Claims:
    """Who computes what in this process."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # In a forked child there are no reads but the one that forked, if any, which stands alone.
        self._lock = threading.Lock()
        self._changes = Changes()
        self._active: dict[Computation, list[Claim]] = {}
        self._waits: dict[int, _Wait] = {}
        self._events = 0

    def reader(self, workers: int | None = None) -> Reader:
        """A read that begins now, on so many threads."""
        with self._lock:
            return Reader(next(self._numbers), self._events, workers=workers)

    def share(self, plan: Plan, reader: Reader, mark: Mark) -> list[Stage]:
        """Claim what a plan computes, as far as it is still missing and nobody else computes it.

        Returns the stages in which to carry it out. The claims last while `mark` is under way, and until `release`.
        """
        for level in plan.levels:
            # Worked out and remembered here, where nobody waits for it.
            level.computation.batching.calls(len(level.windows))
        with self._lock:
            met = self._met(plan, reader)
            levels, others = self._free(plan) if met else (list(plan.levels), [])
            claims = [Claim(level, reader, mark) for level in levels]
            for claim in claims:
                computation = claim.level.computation
                self._active[computation] = [*self._active.get(computation, ()), claim]
        return _stages(claims, others)

    def release(self, mark: Mark) -> None:
        """Give up the claims that were made with a mark."""
        with self._lock:
            # With those of reads that were interrupted before they could.
            kept = {
                computation: [claim for claim in claims if claim.mark is not mark and claim.mark.is_under_way]
                for computation, claims in self._active.items()
            }
            self._active = {computation: claims for computation, claims in kept.items() if claims}
            self._waits = {thread: wait for thread, wait in self._waits.items() if wait.mark.is_under_way}
            self._changes.tell()

    def begin(self, claim: Claim, most: int) -> list[list[int]]:
        """Places of the windows that a claim computes next, by calls, `most` at most; none at its end."""
        with self._lock:
            return claim.begin(most)

    def leave(self, claim: Claim, batches: Sequence[list[int]]) -> None:
        """Let others have the last of what a claim has begun, which is still to be computed."""
        with self._lock:
            claim.leave(batches)
            self._changes.tell()

    def end(self, claim: Claim, indices: Sequence[Index]) -> None:
        """Windows of a claim have been stored."""
        with self._lock:
            claim.reader.own_events += 1
            self._events += 1
            claim.end(indices)
            self._changes.tell()

    def turn(self, level: Level, reader: Reader) -> list[int]:
        """Places of missing windows that a read may compute itself by now; waits for a change where it may none.

        Raises
        ------
        ValidationError
            If one of them is in the making by whoever waits, so that it would need itself.
        """
        thread, indices = threading.get_ident(), as_tuples(level.windows)
        self._send_all(thread)
        wait = _Wait(level.computation, indices)
        with wait.mark.running:
            with self._lock:
                holders = {index: self._holder(level.computation, index) for index in indices}
                free = [index for index, claim in holders.items() if claim is None]
                if not free:
                    free = self._take_over({index: claim for index, claim in holders.items() if claim}, reader)
                bell = None
                if not free:
                    self._waits[thread] = wait
                    bell = None if self._open_circle(thread) else self._changes.bell()
            if bell is not None:
                self._changes.wait(bell)
        chosen = set(free)
        return [place for place, index in enumerate(indices) if index in chosen]

    def _met(self, plan: Plan, reader: Reader) -> bool:
        """Whether another read may have stored what this plan found missing, or is computing it."""
        others = self._events - reader.own_events != reader.begun
        return others or any(self._active.get(level.computation) for level in plan.levels)

    def _free(self, plan: Plan) -> tuple[list[Level], list[Level]]:
        """The part of a plan that is still missing and that nobody computes; and what others compute of it."""
        levels: list[Level] = []
        others: list[Level] = []
        for each in plan.levels:
            level = each.needed(levels).absent()
            indices = as_tuples(level.windows)
            taken = np.array([self._holder(level.computation, index) is not None for index in indices], dtype=bool)
            if taken.any():
                others.append(level.part(taken))
            if not taken.all():
                levels.append(level.part(~taken))
        return levels, others

    def _take_over(self, holders: dict[Index, Claim], reader: Reader) -> list[Index]:
        """Half of the windows that older reads have not begun. Only younger reads take: no window goes to and fro."""
        older = [i for i, claim in holders.items() if claim.reader.number < reader.number and claim.waits(i)]
        taken = older[len(older) // 2 :]
        for claim in {holders[index] for index in taken}:
            claim.lose([index for index in taken if holders[index] is claim])
        return taken

    def _claims_of(self, computation: Computation) -> list[Claim]:
        """The claims of reads that are at it."""
        return [claim for claim in self._active.get(computation, ()) if claim.mark.is_under_way]

    def _holder(self, computation: Computation, index: Index) -> Claim | None:
        return next((claim for claim in self._claims_of(computation) if claim.holds(index)), None)

    def _send_all(self, thread: int) -> None:
        """Have stored what this thread has computed, since others may be waiting for it too."""
        with self._lock:
            claims = [claim for computation in self._active for claim in self._claims_of(computation)]
            mine = [claim.senders[thread]() for claim in claims if thread in claim.senders]
        for send in filter(None, mine):
            send()

    def _open_circle(self, thread: int) -> bool:
        """Whether `thread` would wait for itself; then windows that nobody has begun are free for who needs them."""
        circle = self._circle(thread)
        for waiter, holder in circle:
            wait = self._waits[waiter]
            held = [
                (claim, [index for index in wait.indices if holder in claim.holders(index)])
                for claim in self._claims_of(wait.computation)
            ]
            if not any(claim.makes(index) for claim, indices in held for index in indices):
                for claim, indices in held:
                    claim.lose(indices)
                self._changes.tell()
                return True
        if circle:
            wait = self._waits[thread]
            raise ValidationError(
                f"window {wait.indices[0]} of tensor {wait.computation.names} would need itself: it is read by the "
                "f that is computing it, or by one that this f waits for"
            )
        return False

    def _circle(self, start: int) -> list[tuple[int, int]]:
        """Pairs of a waiting thread and the one that it waits for, which lead from `start` back to it."""
        came_from: dict[int, int] = {}
        stack = [start]
        while stack:
            waiter = stack.pop()
            for holder in self._held_up_by(waiter) - came_from.keys():
                came_from[holder] = waiter
                stack.append(holder)
        circle, holder = [], start
        while holder in came_from:
            circle.append((came_from[holder], holder))
            holder = came_from[holder]
            if holder == start:
                return circle
        return []

    def _held_up_by(self, thread: int) -> set[int]:
        """The threads that hold windows which `thread` waits for."""
        wait = self._waits.get(thread)
        if wait is None or not wait.mark.is_under_way:
            return set()
        active = self._claims_of(wait.computation)
        return {holder for claim in active for index in wait.indices for holder in claim.holders(index)}


def _stages(claims: Sequence[Claim], others: Sequence[Level]) -> list[Stage]:
    depths = {level.computation.depth for level in (*others, *(claim.level for claim in claims))}
    stages = {depth: Stage(depth) for depth in sorted(depths)}
    for claim in claims:
        stages[claim.level.computation.depth].claims.append(claim)
    for level in others:
        stages[level.computation.depth].others.append(level)
    return list(stages.values())


CLAIMS = Claims()
