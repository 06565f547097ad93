"""Single flight: a window needed by several reads is computed only once.

If several reads of this process need a window, one read computes the window, and the others wait. A read claims a
window only when the call of ``f`` for the window begins. So two reads of the same region, running at once, each
compute some of the windows.

A read proceeds by depth: it begins with tensors without args, and ends with the tensor read by the user. At each depth,
it first computes the windows not yet stored or claimed by other reads. Then it waits for the windows claimed by other
reads. If ``f`` raises in another read, this read computes the remaining windows.

A nested read, which is made by an ``f``, never waits for another thread. If another thread, or a call around the read,
has begun a window, the nested read computes the window too, alone in a call. Who has begun windows
only runs calls until the windows are stored, and calls wait for nobody, so there is no deadlock. An ``f`` may also read
windows computed in the same call. But if a call computes only one window and reads this window, the window needs
itself, which is an error.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from infinite_tensor.engine.chain import Computation, Node
from infinite_tensor.engine.plan import Workload
from infinite_tensor.engine.reads import Reader
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index, as_tuples
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import show_interrupt

_SOON_SECONDS = 0.05
"""The time without a change before a waiting thread makes busy threads store finished windows."""


class Work:
    """Windows of one computation, as needed by one read.

    Several threads use the same object. Hold the lock of `Claims` to change the object, or to call its methods.

    Attributes
    ----------
    workload : Workload
        The windows, from the plan of the read.
    indices : list of tuple of int
        The window indices that ``f`` gets.
    reader : Reader
        The options and counters of the read.
    running : threading.Lock
        Locked while the read runs. If it is unlocked, the read has ended, and its claims no longer count.
    peers : list of Work
        This object and the `Work` objects of other reads for the same computation.
    is_shared : bool
        Whether other reads may have begun or stored some of the windows.
    workers : list of Worker
        The threads that compute the windows.
    left : list of int
        The windows to compute, as positions in `indices`. Positions that `next` has returned stay in the list.
    met : list of int
        The positions of windows skipped by `next`, because another read was already computing them.
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
        """Set the windows to compute, as positions in `indices`.

        If `singly` is True, each call of ``f`` computes a single window. Windows being computed by another read are
        then computed again, instead of being skipped.
        """
        self.left, self._had, self._singly = positions, 0, singly
        self._largest = 1 if singly else self.workload.computation.batching.largest

    @property
    def calls(self) -> int:
        """The number of remaining calls of ``f``, if no other read computes any of the windows."""
        count = len(self.left) - self._had
        return count if self._singly else self.workload.computation.batching.calls(count)

    def next(self) -> list[int]:
        """Return the positions of the windows for the next call of ``f``.

        The list is empty if no windows are left. Windows already stored, or being computed by another read, are
        skipped.
        """
        while count := len(self.left) - self._had:
            size = self._largest if count >= self._largest else self.workload.computation.batching.first(count)
            turn = slice(self._had, self._had + size)
            positions = self.left[turn]
            if self.is_shared:
                # `absent` also keeps windows in memory if other reads have stored them.
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
        """Return the worker computing a window, or None."""
        index = self.indices[position]
        at_it = [peer for peer in self.peers if peer.running.locked()]
        return next((worker for peer in at_it for worker in peer.workers if index in worker.begun), None)

    def holders(self) -> dict[int, Worker]:
        """Map positions in `met` to the workers still computing the windows.

        Finished windows are left out.
        """
        return {position: holder for position in self.met if (holder := self.holder(position)) is not None}


class Worker:
    """A thread computing windows of a `Work`.

    Attributes
    ----------
    work : Work
        The work.
    thread : int
        The id of the thread.
    current : list of int
        Positions of the windows in the current call of ``f``.
    begun : dict of tuple of int to None
        The windows begun but not stored yet.
    """

    def __init__(self, work: Work, send: Callable[[], None]) -> None:
        self.work = work
        self.thread = threading.get_ident()
        self.current: list[int] = []
        self.begun: dict[Index, None] = {}
        self._send = weakref.WeakMethod(send)
        self.token = _calling.set((*_calling.get(), weakref.ref(self)))

    def send(self) -> None:
        """Store the windows computed by the worker.

        Any thread may call this method.
        """
        if (send := self._send()) is not None:
            send()

    def computes_only(self, computation: Computation, index: Index) -> bool:
        """Whether the current call of ``f`` computes only this window."""
        current = [self.work.indices[position] for position in self.current]
        return self.work.workload.computation == computation and current == [index]


_calling: ContextVar[tuple[weakref.ref[Worker], ...]] = ContextVar("calling", default=())
"""The workers running an ``f`` around the current code, from the outermost inward.

The references are weak, because a copy of the context must keep no store alive. On a thread started by an ``f``,
reads are not recognized as nested.
"""


def _callers() -> list[Worker]:
    return [
        worker for reference in _calling.get() if (worker := reference()) is not None and worker.work.running.locked()
    ]


def is_nested() -> bool:
    """Whether this code runs inside a call of ``f``.

    Code on a thread started by ``f`` is not recognized.
    """
    return bool(_callers())


class Claims:
    """Records which windows are being computed by threads of this process."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # In a forked child, no read is running, or only the read around the fork.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._works: dict[Computation, list[Work]] = {}
        self._deposits = 0

    def reader(self, workers: int | None = None, notice: Callable[[Node, int], None] | None = None) -> Reader:
        """Begin a read on `workers` threads; see `Reader`."""
        return Reader(self._deposits, workers, notice)

    def join(self, plan: Sequence[Workload], reader: Reader, running: threading.Lock) -> list[tuple[int, list[Work]]]:
        """Register the workloads of a read, to share windows with other reads.

        Return the works grouped by depth, in ascending order: ``[(0, [work]), (1, [work, work])]``. `leave` unregisters
        the works.
        """
        for caller in _callers():
            if caller.thread == threading.get_ident():
                # The running f may read windows computed, but not yet stored, by its own thread.
                caller.send()
        stages: dict[int, list[Work]] = {}
        with self._lock:
            works = [Work(workload, reader, running) for workload in plan]
            if self._deposits - reader.own_deposits != reader.deposits_before:
                # Other reads may have stored missing windows since the plan was made.
                for work in works:
                    work.take(work.workload.absent(work.left))
            for work in works:
                stages.setdefault(work.workload.computation.depth, []).append(work)
                work.peers = self._works.setdefault(work.workload.computation, [])
                # An exception of a signal handler may have kept a read from leaving.
                work.peers[:] = [*(peer for peer in work.peers if peer.running.locked()), work]
                for peer in work.peers:
                    peer.is_shared = peer.is_shared or len(work.peers) > 1
        return sorted(stages.items())

    def leave(self, works: Sequence[Work]) -> None:
        """Unregister the works of a read, if they are still registered."""
        with self._lock:
            for work in works:
                if work in work.peers:
                    work.peers.remove(work)
                    if not work.peers:
                        self._works.pop(work.workload.computation, None)

    def start(self, work: Work, send: Callable[[], None]) -> Worker:
        """Register this thread as a worker.

        `stop` unregisters the worker.
        """
        worker = Worker(work, send)
        with self._lock:
            work.workers.append(worker)
        return worker

    def stop(self, worker: Worker) -> None:
        """Unregister a worker.

        Other reads may then compute the windows begun but not stored by the worker.
        """
        _calling.reset(worker.token)
        with self._lock:
            worker.work.workers.remove(worker)
            self._changed.notify_all()

    def begin(self, worker: Worker) -> list[int]:
        """Claim windows for the next call of ``f``, and return their positions.

        The list is empty if no windows are left.
        """
        with self._lock:
            worker.current = positions = worker.work.next()
            for position in positions:
                worker.begun[worker.work.indices[position]] = None
            return positions

    def end(self, worker: Worker, positions: Sequence[int]) -> None:
        """Mark windows begun by a worker as stored."""
        with self._lock:
            worker.work.reader.own_deposits += 1
            self._deposits += 1
            for position in positions:
                del worker.begun[worker.work.indices[position]]
            self._changed.notify_all()

    def take_up(self, work: Work) -> bool:
        """Wait for windows claimed by other reads, unless this read is nested.

        Return True if this read must compute some of the windows now.

        Raises
        ------
        ValidationError
            If one of these windows would need itself, because this read is part of computing it.
        """
        callers = _callers()
        while work.met:
            with self._lock:
                held = work.holders()
                mine = work.workload.absent([position for position in work.met if position not in held])
                work.met = list(held)
                if mine:
                    work.take(mine)
                    return True
                if held and callers:
                    _check_needs(work, work.met, callers)
                    work.take(work.met, singly=True)
                    work.met = []
                    return True
                is_told = not held or self._changed.wait(_SOON_SECONDS)
            show_interrupt()
            if not is_told:
                # A holder may be in an `f` that waits for a thread of its own, which reads an awaited window not stored
                # yet. So every holder must store finished windows.
                for holder in set(held.values()):
                    holder.send()
        return False


def _check_needs(work: Work, positions: Sequence[int], callers: Sequence[Worker]) -> None:
    computation = work.workload.computation
    for position in positions:
        index = work.indices[position]
        if any(caller.computes_only(computation, index) for caller in callers):
            raise ValidationError(
                f"window {index} of {computation.names} would need itself: f reads the window while computing it, "
                f"directly or through another f; change f to read only windows independent of window {index}"
            )


CLAIMS = Claims()
