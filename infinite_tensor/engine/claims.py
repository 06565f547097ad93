"""Single flight: if several reads of this process need a window, one computes it and the others wait.

A window is claimed when the call of ``f`` that computes it begins, and no earlier. So reads of the same region share
its windows call by call. A read proceeds by depth, from tensors that read no other to the one that is read. At
each depth it first computes the windows that no other read is computing, without those that others have stored
meanwhile. Then it waits for the windows that others are computing, and computes those that they left because an ``f``
raised.

So a thread waits only while another one computes, unless an ``f`` reads a tensor itself. Such a nested read waits
too, except for a thread that waits, directly or through others, for the read that it is part of. The windows which that
thread has begun it computes again itself, by calls for one window each. So an ``f`` may read other windows of its
own call. But a window that is computed by a call of its own, and is read by that call, needs itself, which is an error.
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
"""After so many seconds without a change, a waiting thread makes others store what they have computed."""


class Work:
    """The windows of one computation that a read needs. Use it only while holding the lock of `Claims`.

    Attributes
    ----------
    workload : Workload
        The windows, from the plan of the read.
    indices : list of tuple of int
        Their indices, as ``f`` gets them.
    reader : Reader
        The read.
    running : threading.Lock
        Locked while the read runs. If it is not, the read has ended in some way, and its claims are void.
    peers : list of Work
        The works of all reads on this computation, including this one.
    is_shared : bool
        Whether other reads may have begun or stored some of the windows.
    workers : list of Worker
        The threads that compute the windows.
    left : list of int
        Positions of the windows to compute; those that were already taken up come first.
    met : list of int
        Positions of the windows that other reads were computing when this read came to them.
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
        """Set the windows to compute; if `singly`, each by a separate call, even if another read computes it."""
        self.left, self._had, self._singly = positions, 0, singly
        self._largest = 1 if singly else self.workload.computation.batching.largest

    @property
    def calls(self) -> int:
        """The number of calls that are left if no other read computes any of these windows."""
        count = len(self.left) - self._had
        return count if self._singly else self.workload.computation.batching.calls(count)

    def next(self) -> list[int]:
        """The positions for the next call, of windows that are neither stored nor being computed; empty at the end."""
        while count := len(self.left) - self._had:
            size = self._largest if count >= self._largest else self.workload.computation.batching.first(count)
            turn = slice(self._had, self._had + size)
            positions = self.left[turn]
            if self.is_shared:
                # From now on, the read keeps in memory what others store of these.
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
        """The worker that computes a window, or None."""
        index = self.indices[position]
        at_it = [peer for peer in self.peers if peer.running.locked()]
        return next((worker for peer in at_it for worker in peer.workers if index in worker.begun), None)

    def holders(self) -> dict[int, Worker]:
        """The workers that still compute the windows in `met`."""
        return {position: holder for position in self.met if (holder := self.holder(position)) is not None}


class Worker:
    """A thread that computes windows of a `Work`.

    Attributes
    ----------
    work : Work
        The work.
    thread : int
        The id of the thread.
    current : list of int
        Positions of the windows of its current call of ``f``.
    begun : dict of tuple of int to None
        The windows that it has begun and not stored yet.
    """

    def __init__(self, work: Work, send: Callable[[], None]) -> None:
        self.work = work
        self.thread = threading.get_ident()
        self.current: list[int] = []
        self.begun: dict[Index, None] = {}
        self._send = weakref.WeakMethod(send)
        self.token = _calling.set((*_calling.get(), weakref.ref(self)))

    def send(self) -> None:
        """Store what the worker has computed. May be called on any thread."""
        if (send := self._send()) is not None:
            send()

    def computes_only(self, computation: Computation, index: Index) -> bool:
        """Whether its current call of ``f`` is for this window only."""
        current = [self.work.indices[position] for position in self.current]
        return self.work.workload.computation == computation and current == [index]


_calling: ContextVar[tuple[weakref.ref[Worker], ...]] = ContextVar("calling", default=())
"""The workers whose ``f`` made this call, from the outermost read inward.

Weak references, so that a copy of the context keeps no store alive. Reads on threads that an ``f`` starts are not
recognized as nested.
"""


def _callers() -> list[Worker]:
    return [
        worker for reference in _calling.get() if (worker := reference()) is not None and worker.work.running.locked()
    ]


def is_nested() -> bool:
    """Whether an ``f`` makes this call, as far as this can be recognized."""
    return bool(_callers())


_Wait: TypeAlias = tuple[frozenset[int], Work]
"""A waiting thread together with those whose ``f`` it serves, and the work whose windows they wait for."""


class Claims:
    """Which thread of this process computes which windows."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # In a forked child, the only read is the one that forked, if any.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._works: dict[Computation, list[Work]] = {}
        self._waits: dict[int, _Wait] = {}
        self._deposits = 0

    def reader(self, workers: int | None = None, notice: Callable[[Node, int], None] | None = None) -> Reader:
        """Begin a read on `workers` threads; see `Reader`."""
        return Reader(self._deposits, workers, notice)

    def join(self, plan: Sequence[Workload], reader: Reader, running: threading.Lock) -> list[tuple[int, list[Work]]]:
        """Register the works of a read, until it calls `leave`. Returns them for each depth of its plan."""
        for caller in _callers():
            if caller.thread == threading.get_ident():
                # The f that this thread runs may read what the thread has computed before.
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
        """Unregister works of a read, if they still are registered."""
        with self._lock:
            for work in works:
                if work in work.peers:
                    work.peers.remove(work)
                    if not work.peers:
                        self._works.pop(work.workload.computation, None)

    def cut_through(self, error: BaseException) -> None:  # noqa: ARG002  (whatever it is)
        """Drop the claims of a read that was interrupted before it could unregister its works."""
        with self._lock:
            self._waits.pop(threading.get_ident(), None)
            for peers in self._works.values():
                peers[:] = [peer for peer in peers if peer.running.locked()]
            self._changed.notify_all()

    def start(self, work: Work, send: Callable[[], None]) -> Worker:
        """Make this thread, and all that it does in this context, a worker of a work, until `stop`."""
        worker = Worker(work, send)
        with self._lock:
            work.workers.append(worker)
        return worker

    def stop(self, worker: Worker) -> None:
        """Remove a worker. The windows that it has begun and not stored, because ``f`` raised, become free."""
        _calling.reset(worker.token)
        with self._lock:
            worker.work.workers.remove(worker)
            self._tell()

    def begin(self, worker: Worker) -> list[int]:
        """Positions of the windows that a thread computes by its next call of ``f``; empty at the end.

        Between calls, an interrupt may end the read at any line of this.
        """
        with self._lock:
            worker.current = positions = worker.work.next()
            for position in positions:
                worker.begun[worker.work.indices[position]] = None
            return positions

    def end(self, worker: Worker, positions: Sequence[int]) -> None:
        """Record that windows which a thread had begun are stored."""
        with self._lock:
            worker.work.reader.own_deposits += 1
            self._deposits += 1
            for position in positions:
                del worker.begun[worker.work.indices[position]]
            self._tell()

    def _tell(self) -> None:
        # In most cases, no thread waits.
        if self._waits:
            self._changed.notify_all()

    def take_up(self, work: Work) -> bool:
        """Wait for windows that other reads were computing. Returns whether this read must compute some of them now.

        Raises
        ------
        ValidationError
            If the calling ``f`` is computing one of them, so that the window would need itself.
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
                # A thread that has computed one of them may be in an `f` that waits for this thread unnoticed.
                for holder in set(held.values()):
                    holder.send()
        return False

    def _wait(self, here: frozenset[int], work: Work) -> bool:
        """Wait for a change; returns False if there is none for a while."""
        thread = threading.get_ident()
        self._waits[thread] = here, work
        try:
            return self._changed.wait(_SOON_SECONDS)
        finally:
            del self._waits[thread]

    def _waits_for(self, thread: int, others: frozenset[int]) -> bool:
        """Whether a thread is one of `others`, or waits for one of them, directly or through other threads."""
        seen: set[int] = set()
        unseen = {thread}
        while unseen and unseen.isdisjoint(others):
            seen |= unseen
            # The current holders: a waiting thread may not have noticed a change yet.
            found = [work.holders() for waiting, work in self._waits.values() if not waiting.isdisjoint(unseen)]
            unseen = {holder.thread for holders in found for holder in holders.values()} - seen
        return bool(unseen)


def _check_needs(work: Work, positions: Sequence[int], callers: Sequence[Worker]) -> None:
    """Raise ValidationError if one of the calling ``f`` is itself computing one of the windows that are needed."""
    computation = work.workload.computation
    for position in positions:
        index = work.indices[position]
        if any(caller.computes_only(computation, index) for caller in callers):
            raise ValidationError(
                f"window {index} of {computation.names} would need itself: it is read by the f that is "
                "computing it, or by one that this f waits for; change f to read only windows that do not need it"
            )


CLAIMS = Claims()
