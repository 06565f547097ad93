"""Single flight: of all reads of this process, one computes a window, and the others wait for it.

A window is claimed when the call of ``f`` that computes it begins, and no earlier: so reads of one region share its
windows call by call. A read goes up the chain by depth, from tensors that read no other to the one that is read. At
each depth it first computes what nobody is computing as its turn comes, and leaves out what others have stored
meanwhile. Then it waits for what it met, and computes what they have left, where an ``f`` raised.

So a thread waits only while another one is at work, unless an ``f`` reads a tensor itself. Such a nested read waits
too, but not for a thread that waits, directly or through others, for the one that it is part of: what that one has
begun it computes itself, once more, by calls for one window each. So it does not matter which windows lie in one call
of an ``f`` that reads others of them, and a window that is computed by itself and read by that call needs itself, which
is an error.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TypeAlias

from infinite_tensor.engine.chain import Computation, Node
from infinite_tensor.engine.plan import Workload
from infinite_tensor.engine.reads import Reader
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index, as_tuples
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import show_interrupt

_SOON_SECONDS = 0.05
"""After so long without a change, what others have computed and not stored is looked at."""


class Work:
    """Windows of one computation that a read has to have. Used with the lock of `Claims` held.

    Attributes
    ----------
    workload : Workload
        The windows, as the read was planned.
    indices : list of tuple of int
        Their indices, as ``f`` is given them.
    reader : Reader
        The read.
    running : threading.Lock
        Held while the read is at it: what a read has begun that has ended, in whatever way, nobody computes.
    peers : list of Work
        What reads are to compute of this computation, this one among them.
    is_shared : bool
        Whether others may have begun or stored some of the windows.
    workers : list of Worker
        The threads that are at it.
    left : list of int
        Positions of the windows that have their turn, those that have had it first.
    met : list of int
        Positions of those that others were computing as their turn came.
    """

    def __init__(self, workload: Workload, reader: Reader, running: threading.Lock) -> None:
        self.workload, self.reader, self.running = workload, reader, running
        self.peers = [self]
        self.indices = as_tuples(workload.windows)
        self.is_shared = False
        self.workers: list[Worker] = []
        self.met: list[int] = []
        self.take(list(range(len(self.indices))))

    def take(self, positions: list[int], *, singly: bool = False) -> None:
        """It is the turn of these windows; `singly`, each by a call of its own, whoever else computes it."""
        self.left, self._had, self._singly = positions, 0, singly
        self._largest = 1 if singly else self.workload.computation.batching.largest

    @property
    def calls(self) -> int:
        """How many calls are left, if nobody else computes any of these windows."""
        count = len(self.left) - self._had
        return count if self._singly else self.workload.computation.batching.calls(count)

    def next(self) -> list[int]:
        """The positions of the next call, of windows that nobody computes and nobody has stored; none at the end."""
        while count := len(self.left) - self._had:
            size = self._largest if count >= self._largest else self.workload.computation.batching.first(count)
            turn = slice(self._had, self._had + size)
            positions = self.left[turn]
            if self.is_shared:
                # What others store of these is held from now on.
                absent = self.workload.absent(positions)
                held = [] if self._singly else [each for each in positions if self.holder(each)]
                self.met += held
                free = [each for each in absent if each not in held]
                if len(free) < size:
                    self.left[turn] = free
                    continue
            self._had += size
            return positions
        return []

    def holder(self, position: int) -> Worker | None:
        """Who computes a window."""
        index = self.indices[position]
        at_it = [peer for peer in self.peers if peer.running.locked()]
        return next((worker for peer in at_it for worker in peer.workers if index in worker.begun), None)

    def holders(self) -> dict[int, Worker]:
        """Who computes the windows that it has met, where somebody still does."""
        return {position: holder for position in self.met if (holder := self.holder(position)) is not None}


class Worker:
    """A thread at work on a `Work`.

    Attributes
    ----------
    work : Work
        The work.
    thread : int
        The thread.
    current : list of int
        Positions of the windows that its call of ``f`` computes.
    begun : dict of tuple of int to None
        The windows that it has begun and not stored.
    """

    def __init__(self, work: Work, send: Callable[[], None]) -> None:
        self.work = work
        self.thread = threading.get_ident()
        self.current: list[int] = []
        self.begun: dict[Index, None] = {}
        self._send = weakref.WeakMethod(send)
        self.token = _calling.set((*_calling.get(), weakref.ref(self)))

    def send(self) -> None:
        """Have what it has computed stored, on any thread."""
        if (send := self._send()) is not None:
            send()

    def computes_only(self, computation: Computation, index: Index) -> bool:
        """Whether its call of ``f`` is for this window and no other."""
        current = [self.work.indices[position] for position in self.current]
        return self.work.workload.computation == computation and current == [index]


_calling: ContextVar[tuple[weakref.ref[Worker], ...]] = ContextVar("calling", default=())
"""The workers whose ``f`` made this call, from the outermost read inward.

Weakly: a copy of the context keeps no store alive. What an ``f`` does on threads of its own is not seen as nested.
"""


def _callers() -> list[Worker]:
    return [
        worker for reference in _calling.get() if (worker := reference()) is not None and worker.work.running.locked()
    ]


def is_nested() -> bool:
    """Whether an ``f`` makes this call, as far as that is seen."""
    return bool(_callers())


_Wait: TypeAlias = tuple[frozenset[int], Work]
"""Threads that wait, the last one and those whose ``f`` it serves, and what has met the windows that they wait for."""


class Claims:
    """Who computes what in this process."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # In a forked child there are no reads but the one that forked, if any, which stands alone.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._works: dict[Computation, list[Work]] = {}
        self._waits: dict[int, _Wait] = {}
        self._deposits = 0

    def reader(self, workers: int | None = None, notice: Callable[[Node, int], None] | None = None) -> Reader:
        """A read that begins now, on so many threads; see `Reader`."""
        return Reader(self._deposits, workers, notice)

    def join(self, plan: Sequence[Workload], reader: Reader, running: threading.Lock) -> list[tuple[int, list[Work]]]:
        """What a read is at from now on, at each depth of its plan, until it does `leave` it."""
        for caller in _callers():
            if caller.thread == threading.get_ident():
                # What this thread has computed may be what the f that it runs reads.
                caller.send()
        stages: dict[int, list[Work]] = {}
        with self._lock:
            works = [Work(workload, reader, running) for workload in plan]
            if self._deposits - reader.own_deposits != reader.deposits_before:
                # Another read may have stored what the plan found missing.
                for work in works:
                    work.take(work.workload.absent(work.left))
            for work in works:
                stages.setdefault(work.workload.computation.depth, []).append(work)
                work.peers = self._works.setdefault(work.workload.computation, [])
                work.peers.append(work)
                for peer in work.peers:
                    peer.is_shared = peer.is_shared or len(work.peers) > 1
        return sorted(stages.items())

    def leave(self, works: Sequence[Work]) -> None:
        """A read is at these works no more, if it still was."""
        with self._lock:
            for work in works:
                if work in work.peers:
                    work.peers.remove(work)
                    if not work.peers:
                        self._works.pop(work.workload.computation, None)

    def cut_through(self, error: BaseException) -> None:  # noqa: ARG002  (whatever it is)
        """A read has ended without an end: what it was at is nobody's any more."""
        with self._lock:
            self._waits.pop(threading.get_ident(), None)
            for peers in self._works.values():
                peers[:] = [peer for peer in peers if peer.running.locked()]
            self._changed.notify_all()

    def start(self, work: Work, send: Callable[[], None]) -> Worker:
        """Have this thread be at a work, with all that it does in this context, until `stop`."""
        worker = Worker(work, send)
        with self._lock:
            work.workers.append(worker)
        return worker

    def stop(self, worker: Worker) -> None:
        """What a thread has begun and not stored, since ``f`` raised, nobody computes any more."""
        _calling.reset(worker.token)
        with self._lock:
            worker.work.workers.remove(worker)
            self._tell()

    def begin(self, worker: Worker) -> list[int]:
        """Positions of the windows that a thread computes next, by one call of ``f``; none where all have had a turn.

        At rest, an interrupt may end the read at any line of this.
        """
        with self._lock:
            worker.current = positions = worker.work.next()
            for position in positions:
                worker.begun[worker.work.indices[position]] = None
            return positions

    def end(self, worker: Worker, positions: Sequence[int]) -> None:
        """Windows that a thread has begun have been stored."""
        with self._lock:
            worker.work.reader.own_deposits += 1
            self._deposits += 1
            for position in positions:
                del worker.begun[worker.work.indices[position]]
            self._tell()

    def _tell(self) -> None:
        # Most often nobody waits.
        if self._waits:
            self._changed.notify_all()

    def take_up(self, work: Work) -> bool:
        """Wait for windows that others were computing as their turn came; whether this read is to compute some now.

        Raises
        ------
        ValidationError
            If one of them is in the making by the one who asks, so that it would need itself.
        """
        callers = _callers()
        here = frozenset([threading.get_ident(), *(caller.thread for caller in callers)])
        while work.met:
            with self._lock:
                held = work.holders()
                mine = work.workload.absent([position for position in work.met if position not in held])
                must = [position for position, holder in held.items() if self._waits_for(holder.thread, here)]
                work.met = [position for position in held if mine or position not in must]
                if mine:
                    work.take(mine)
                    return True
                if must:
                    _check_needs(work, must, callers)
                    work.take(must, singly=True)
                    return True
                is_told = not held or self._wait(here, work)
            show_interrupt()
            if not is_told:
                # Who has computed one of them may be in an `f` that waits for this thread, unseen.
                for holder in set(held.values()):
                    holder.send()
        return False

    def _wait(self, here: frozenset[int], work: Work) -> bool:
        """Wait for a change; False where there is none for a while."""
        thread = threading.get_ident()
        self._waits[thread] = here, work
        try:
            return self._changed.wait(_SOON_SECONDS)
        finally:
            del self._waits[thread]

    def _waits_for(self, thread: int, others: frozenset[int]) -> bool:
        """Whether a thread is one of some others, or waits for one of them, directly or through more."""
        seen: set[int] = set()
        unseen = {thread}
        while unseen and unseen.isdisjoint(others):
            seen |= unseen
            # As it is now: who waits may not have noticed yet that something has changed.
            found = [work.holders() for waiting, work in self._waits.values() if not waiting.isdisjoint(unseen)]
            unseen = {holder.thread for holders in found for holder in holders.values()} - seen
        return bool(unseen)


def _check_needs(work: Work, positions: Sequence[int], callers: Sequence[Worker]) -> None:
    """ValidationError where one of the ``f`` that make a call is computing one of the windows that it needs."""
    computation = work.workload.computation
    for position in positions:
        index = work.indices[position]
        if any(caller.computes_only(computation, index) for caller in callers):
            raise ValidationError(
                f"window {index} of tensor {computation.names} would need itself: it is read by the f that is "
                "computing it, or by one that this f waits for; have f read other windows, which do not need it"
            )


CLAIMS = Claims()
