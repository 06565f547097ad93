"""Single flight: of all reads of this process, one computes a window, and the others wait for it.

A read claims the windows of its whole plan at once. What others have claimed it leaves out, with all that is
upstream of it. It goes up the chain by depth, from tensors that read no other to the one that is read, and at
each depth first computes what it has claimed, then turns to what it left out: of windows that an older read
has not begun it takes over half, so that a small read need not wait for a large one; what is in the making it
waits for.

So a thread waits only while another one is at work, unless an ``f`` reads a tensor itself. Such a nested read takes
over what nobody has begun, and never waits for a thread that waits: no circle of waiting threads can close. What it
may not wait for it computes itself, once more, by calls for one window each: so it does not matter which windows lie in
one call of an ``f`` that reads others of them, and a window that is computed by itself and read by that call needs
itself, which is an error.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar, Token
from typing import TypeAlias

import numpy as np

from infinite_tensor.engine.chain import Computation, Node
from infinite_tensor.engine.plan import Workload
from infinite_tensor.engine.reads import Reader
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index, as_tuples
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import show_interrupt


class Claim:
    """Windows of one computation that a read has set out to run, in order. Used with the lock of `Claims` held.

    Attributes
    ----------
    workload : Workload
        What was claimed.
    indices : list of tuple of int
        Its windows, as ``f`` is given them.
    reader : Reader
        The read.
    thread : int
        The thread that the read runs on.
    nested : bool
        Whether an ``f`` reads.
    singly : bool
        Whether each window is computed by a call of its own.
    running : Lock
        Held while the read is at it; a claim whose read has ended, in whatever way, claims nothing.
    schedule : _Schedule
        The windows that have not been begun.
    lost : set of int
        Positions in `indices` of the windows that another read has taken over.
    begun : dict of int to list of int
        For each thread the positions that it has begun, in order, and not stored.
    senders : dict of int to WeakMethod
        For each thread that is at work on it, what stores the windows which that thread has computed, on any thread.
        Weakly: claim and sender would keep each other, and the store with all that it holds, for the garbage collector.
    """

    def __init__(
        self, workload: Workload, reader: Reader, running: threading.Lock, *, nested: bool, singly: bool
    ) -> None:
        self.workload = workload
        self.indices = as_tuples(workload.windows)
        self.reader = reader
        self.thread = threading.get_ident()
        self.nested = nested
        self.singly = singly
        self.running = running
        self.lost: set[int] = set()
        self.senders: dict[int, weakref.WeakMethod[Callable[[], None]]] = {}
        self.begun: dict[int, list[int]] = {}
        self._positions: dict[Index, int] | None = None
        self.schedule = self._scheduled(list(range(len(self.indices))))

    def _scheduled(self, left: list[int]) -> _Schedule:
        return _Schedule(left, [1] * len(left) if self.singly else self.workload.computation.batching.split(len(left)))

    def lose(self, indices: Sequence[Index]) -> None:
        """These windows, which have not been begun, are another read's now."""
        gone = {self._position(index) for index in indices}
        self.lost |= gone
        self.schedule = self._scheduled([position for position in self.schedule.left if position not in gone])

    def maker(self, index: Index) -> int | None:
        """The thread that has begun this window, and has not stored it yet."""
        position = self._position(index)
        return next((thread for thread, positions in self.begun.items() if position in positions), None)

    def is_all_of(self, thread: int, index: Index) -> bool:
        """Whether a thread, which is in a call of ``f`` by now, is computing this window and no other."""
        return self.begun.get(thread) == [self._position(index)]

    def has_left(self, index: Index) -> bool:
        """Whether this window has not been begun."""
        return self.schedule.has(self._position(index))

    def holds(self, index: Index) -> bool:
        """Whether this window is this claim's."""
        return self.has_left(index) or self.maker(index) is not None

    def _position(self, index: Index) -> int:
        # Only asked for where reads meet.
        if self._positions is None:
            self._positions = {index: position for position, index in enumerate(self.indices)}
        return self._positions.get(index, -1)


class _Schedule:
    """The windows of a claim that have not been begun. Each change is one step, so that none is ever half done.

    Parameters
    ----------
    positions : list of int
        Positions of windows, ascending.
    sizes : list of int
        How many of them each call of ``f`` takes.
    """

    def __init__(self, positions: list[int], sizes: Sequence[int]) -> None:
        self._positions = positions
        self._bounds = list(itertools.accumulate(sizes, initial=0))
        self._called = 0

    @property
    def calls(self) -> int:
        """How many calls are left."""
        return len(self._bounds) - 1 - self._called

    @property
    def left(self) -> list[int]:
        """The positions that are left."""
        return self._positions[self._bounds[self._called] :]

    def has(self, position: int) -> bool:
        """Whether a position is left."""
        at = bisect.bisect_left(self._positions, position, self._bounds[self._called])
        return at < len(self._positions) and self._positions[at] == position

    def next(self) -> list[int]:
        """The positions of the next call, which are not left any more; none where all calls have been begun."""
        called = self._called
        if called == len(self._bounds) - 1:
            return []
        self._called = called + 1
        return self._positions[self._bounds[called] : self._bounds[called + 1]]


_SOON_SECONDS = 0.05
"""After so long without a change, what others have computed and not stored is looked at."""

_References: TypeAlias = "tuple[tuple[weakref.ref[Claim], int], ...]"
_Callers: TypeAlias = list[tuple[Claim, int]]

_calling: ContextVar[_References] = ContextVar("calling", default=())
"""The claims that are worked on here, each by its thread, from the outermost read inward: their ``f`` made this call.

Weakly: a copy of the context keeps no store alive. What an ``f`` does on threads of its own is not seen as nested.
"""


def work_on(claim: Claim) -> Token[_References]:
    """What this context does until `work_off` is work on a claim."""
    return _calling.set((*_calling.get(), (weakref.ref(claim), threading.get_ident())))


def work_off(token: Token[_References]) -> None:
    """End what `work_on` began."""
    _calling.reset(token)


def _callers() -> _Callers:
    """The claims whose ``f`` makes this call, and that are still worked on."""
    return [
        (claim, thread)
        for reference, thread in _calling.get()
        if (claim := reference()) is not None and claim.running.locked()
    ]


def is_nested() -> bool:
    """Whether an ``f`` makes this call, as far as that is seen."""
    return bool(_callers())


class Claims:
    """Who computes what in this process."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # In a forked child there are no reads but the one that forked, if any, which stands alone.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._active: dict[Computation, list[Claim]] = {}
        # For each thread that waits, those that wait with it: that one, and those whose ``f`` it serves.
        self._waits: dict[int, frozenset[int]] = {}
        self._deposits = 0

    def reader(self, workers: int | None = None, notice: Callable[[Node, int], None] | None = None) -> Reader:
        """A read that begins now, on so many threads; see `Reader`."""
        with self._lock:
            return Reader(next(self._numbers), self._deposits, workers, notice)

    def share(
        self, plan: Sequence[Workload], reader: Reader, running: threading.Lock, *, without_waiting: bool = False
    ) -> list[tuple[int, list[Claim], list[Workload]]]:
        """Claim what a plan computes, as far as it is still missing and nobody else computes it.

        Returns, for each depth of the chain, the claims, and what others compute. The claims last while `running` is
        held, and until `release`. `without_waiting`, what this thread has begun, and others that wait, is computed here
        as well.
        """
        callers = _callers()
        if callers:
            # What this thread has computed may be what the f that it runs reads.
            self._send_all({threading.get_ident()})
        for workload in plan:
            # Worked out and remembered here, where nobody waits for it.
            workload.computation.batching.calls(len(workload.windows))
        with self._lock:
            met = self._meets_others(plan, reader)
            workloads, others = self._unclaimed(plan, callers, without_waiting=without_waiting) if met else (plan, [])
            claims = [
                Claim(workload, reader, running, nested=bool(callers), singly=without_waiting) for workload in workloads
            ]
            for claim in claims:
                computation = claim.workload.computation
                self._active[computation] = [*self._active.get(computation, ()), claim]
        stages: dict[int, tuple[list[Claim], list[Workload]]] = {}
        for claim in claims:
            stages.setdefault(claim.workload.computation.depth, ([], []))[0].append(claim)
        for workload in others:
            stages.setdefault(workload.computation.depth, ([], []))[1].append(workload)
        return [(depth, *stages[depth]) for depth in sorted(stages)]

    def release(self, running: threading.Lock) -> None:
        """Give up the claims that were made with a lock, and those of reads that another exception has cut through."""
        with self._lock:
            self._active = {
                computation: left
                for computation, claims in self._active.items()
                if (left := [claim for claim in claims if claim.running is not running and claim.running.locked()])
            }
            self._tell()

    def cut_through(self, error: BaseException) -> None:  # noqa: ARG002  (whatever it is)
        """A read has ended, and what it has claimed is nobody's any more."""
        self.release(threading.Lock())

    def begun_by(self, claim: Claim, thread: int) -> list[int]:
        """What a thread has begun of a claim and not stored, for `begin` and `end`."""
        with self._lock:
            return claim.begun.setdefault(thread, [])

    def begin(self, claim: Claim, begun: list[int]) -> list[int]:
        """Positions of the windows that a thread computes next of a claim, by one call of ``f``; none at its end."""
        with self._lock:
            positions = claim.schedule.next()
            begun += positions
            return positions

    def end(self, claim: Claim, begun: list[int], count: int) -> None:
        """So many windows of a claim, the first of those that a thread has begun, have been stored."""
        with self._lock:
            claim.reader.own_deposits += 1
            self._deposits += 1
            del begun[:count]
            self._tell()

    def abandon(self, begun: list[int]) -> None:
        """A thread works on a claim no more: what it has begun and not stored, since ``f`` raised, is nobody's now."""
        with self._lock:
            begun.clear()
            self._tell()

    def _tell(self) -> None:
        # Most often nobody waits.
        if self._waits:
            self._changed.notify_all()

    def take_or_wait(self, workload: Workload, reader: Reader) -> tuple[list[int], bool]:
        """Positions of missing windows that a read may compute itself by now; waits for a change where it may none.

        And whether it must compute them although others are at it, since it may not wait for these.

        Raises
        ------
        ValidationError
            If one of them is in the making by the one who asks, so that it would need itself.
        """
        indices = as_tuples(workload.windows)
        callers = _callers()
        here = threading.get_ident()
        waiting = frozenset([here, *(thread for _, thread in callers)])
        self._send_all({here})
        with self._lock:
            holders = {index: self._holder(workload.computation, index) for index in indices}
            free = [index for index, claim in holders.items() if claim is None]
            held = {index: claim for index, claim in holders.items() if claim}
            if not free:
                free = self._take_over(held, reader, callers)
            if not free:
                _check_needs(workload.computation, indices, callers)
            without_waiting = not free and bool(callers) and self._holders_wait(held, waiting)
            must_wait = not free and not without_waiting
            if must_wait:
                self._waits[here] = waiting
                try:
                    must_wait = not self._changed.wait(_SOON_SECONDS)
                finally:
                    del self._waits[here]
        show_interrupt()
        if must_wait:
            # Who has computed one of them may be in an `f` that waits for this thread, unseen.
            self._send_all({claim.maker(index) or claim.thread for index, claim in held.items()})
        chosen = set(indices if without_waiting else free)
        return [position for position, index in enumerate(indices) if index in chosen], without_waiting

    def _meets_others(self, plan: Sequence[Workload], reader: Reader) -> bool:
        """Whether another read may have stored what this plan found missing, or is computing it."""
        others = self._deposits - reader.own_deposits != reader.deposits_before
        return others or not self._active.keys().isdisjoint([workload.computation for workload in plan])

    def _unclaimed(
        self, plan: Sequence[Workload], callers: _Callers, *, without_waiting: bool
    ) -> tuple[list[Workload], list[Workload]]:
        """The part of a plan that is still missing and that nobody computes; and what others compute of it."""
        workloads: list[Workload] = []
        others: list[Workload] = []
        for each in plan:
            workload = each.looked_up(workloads)
            missing = workload.missing
            holders = [
                (index, self._holder(workload.computation, index)) for index in as_tuples(workload.windows[missing])
            ]
            if without_waiting:
                _check_needs(workload.computation, [index for index, _ in holders], callers)
                self._hand_over({index: claim for index, claim in holders if claim and claim.has_left(index)})
                waiting = self._waiting().union([thread for _, thread in callers])
                holders = [
                    (index, claim if claim and claim.maker(index) and claim.maker(index) not in waiting else None)
                    for index, claim in holders
                ]
            taken = np.zeros(len(missing), dtype=bool)
            taken[missing] = [claim is not None for _, claim in holders]
            mine = missing & ~taken
            if taken.any():
                others.append(workload.part(taken))
            if mine.any():
                workloads.append(workload.part(mine))
        return workloads, others

    def _take_over(self, holders: dict[Index, Claim], reader: Reader, callers: _Callers) -> list[Index]:
        """Half of the windows that older reads have not begun. Only younger reads take: no window goes to and fro.

        A nested read takes from all, and loses none, but for what the reads lose to it whose ``f`` it is part of.
        """
        outer = {id(claim.reader) for claim, _ in callers}
        left = [
            index
            for index, claim in holders.items()
            if claim.has_left(index)
            and (id(claim.reader) in outer or (not claim.nested and (outer or claim.reader.number < reader.number)))
        ]
        taken = left[len(left) // 2 :]
        self._hand_over({index: holders[index] for index in taken})
        return taken

    def _hand_over(self, holders: dict[Index, Claim]) -> None:
        """Windows that have not been begun are another read's from now on."""
        for claim in set(holders.values()):
            claim.lose([index for index, holder in holders.items() if holder is claim])

    def _holders_wait(self, holders: dict[Index, Claim], asking: frozenset[int]) -> bool:
        """Whether a thread that has some windows waits itself, for those who are `asking`, say.

        Who waits for nobody who waits closes no circle.
        """
        waiting = self._waiting() | asking
        return any((holder.maker(index) or holder.thread) in waiting for index, holder in holders.items())

    def _waiting(self) -> set[int]:
        """The threads that wait."""
        return {thread for threads in self._waits.values() for thread in threads}

    def _claims_of(self, computation: Computation) -> list[Claim]:
        """The claims of reads that are at it."""
        return [claim for claim in self._active.get(computation, ()) if claim.running.locked()]

    def _holder(self, computation: Computation, index: Index) -> Claim | None:
        return next((claim for claim in self._claims_of(computation) if claim.holds(index)), None)

    def _send_all(self, threads: AbstractSet[int]) -> None:
        """Have stored what these threads have computed, since others may be waiting for it."""
        with self._lock:
            claims = [claim for computation in self._active for claim in self._claims_of(computation)]
            found = [claim.senders[thread]() for claim in claims for thread in claim.senders.keys() & threads]
        for send in filter(None, found):
            send()


def _check_needs(computation: Computation, indices: Sequence[Index], callers: _Callers) -> None:
    """ValidationError where one of the ``f`` that make a call is computing one of the windows that it needs."""
    for claim, thread in callers:
        if claim.workload.computation == computation:
            for index in indices:
                if claim.is_all_of(thread, index):
                    raise ValidationError(
                        f"window {index} of tensor {computation.names} would need itself: it is read by the f that is "
                        "computing it, or by one that this f waits for; have f read other windows, which do not need it"
                    )


CLAIMS = Claims()
