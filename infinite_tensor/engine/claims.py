"""Single flight: a window needed by several reads is computed only once.

If several reads of this process need a window, one read computes the window, and the others wait. A read claims a
window only when the call of ``f`` for the window begins. So two reads of the same region, running at once, each
compute some of the windows.

A read proceeds by depth: it begins with tensors without args, and ends with the tensor read by the user. At each depth,
it first computes the windows not yet stored or claimed by other reads. Then it waits for the windows claimed by other
reads. If ``f`` raises in another read, this read computes the remaining windows.

A nested read, which is made by an ``f``, never waits for another thread. If another thread, or a call around the read,
has begun a window, the nested read computes the window too, alone in a call. Who has begun windows only runs calls
until the windows are stored, and calls wait for nobody, so there is no deadlock. An ``f`` may also read windows
computed in the same call. But if a call computes only one window and reads this window, the window needs itself, which
is an error.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from infinite_tensor.engine.chain import Computation
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import IntArray, as_tuples
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import show_interrupt
from infinite_tensor.tilestore.access import Access

if TYPE_CHECKING:
    from infinite_tensor.engine.calls import Caller
    from infinite_tensor.engine.plan import Product
    from infinite_tensor.engine.reads import Views

_SOON_SECONDS = 0.05
"""The time without a change before a waiting thread makes busy threads store finished windows."""


@dataclass(eq=False)
class Task:
    """Windows to be computed by one computation for one read.

    Several threads use the same object. Hold the lock of `Claims` to change the object, or to call its methods.

    Attributes
    ----------
    views : Views
        The read.
    computation : Computation
        The computation.
    windows : int64 array of shape (N, coordinates)
        The window indices that ``f`` gets, in the order in which they are computed.
    products : tuple of Product
        The windows of each tensor that the computation computes.
    sources : tuple of (Access, int64 array of shape (N, ndim of the arg))
        For each arg: the access through which it is read, and the first pixel of the region that each window reads.
    indices : list of tuple of int
        The same as `windows`.
    running : threading.Lock
        Locked while the read runs. If it is unlocked, the read has ended, and its claims no longer count.
    peers : list of Task
        This task and those of other reads for the same computation.
    is_shared : bool
        Whether other reads may have begun or stored some of the windows.
    callers : list of Caller
        The threads that compute the windows.
    left : list of int
        The windows to compute, as positions in `indices`. Positions that `next` has returned stay in the list.
    met : list of int
        The positions of windows skipped by `next`, because another read was already computing them.
    """

    views: Views
    computation: Computation
    windows: IntArray
    products: tuple[Product, ...]
    sources: tuple[tuple[Access, IntArray], ...]

    def prepare(self, running: threading.Lock) -> None:
        """Set what changes while the windows are computed."""
        self.running, self.indices = running, as_tuples(self.windows)
        self.peers: list[Task] = []
        self.callers: list[Caller] = []
        self.met: list[int] = []
        self.is_shared = False
        self.take(list(range(len(self.indices))))

    def absent(self, positions: list[int]) -> list[int]:
        """Return the positions of the windows not stored yet.

        The stored windows stay in memory for this read.
        """
        if not positions:
            return []
        absent = reduce(np.logical_or, [product.absent(positions) for product in self.products])
        return list(itertools.compress(positions, absent))

    def take(self, positions: list[int], *, singly: bool = False) -> None:
        """Set the windows to compute, as positions in `indices`.

        If `singly` is True, each call of ``f`` computes a single window. Windows being computed by another read are
        then computed again, instead of being skipped.
        """
        self.left, self._had, self._singly = positions, 0, singly
        self._largest = 1 if singly else self.computation.batching.sizes[-1]

    @property
    def calls(self) -> int:
        """The number of remaining calls of ``f``, if no other read computes any of the windows."""
        count = len(self.left) - self._had
        return count if self._singly else self.computation.batching.calls(count)

    def next(self) -> list[int]:
        """Return the positions of the windows for the next call of ``f``.

        The list is empty if no windows are left. Windows already stored, or being computed by another read, are
        skipped.
        """
        while count := len(self.left) - self._had:
            size = self._largest if count >= self._largest else self.computation.batching.first(count)
            turn = slice(self._had, self._had + size)
            positions = self.left[turn]
            if self.is_shared:
                # `absent` also keeps windows in memory if other reads have stored them.
                absent = self.absent(positions)
                held = [] if self._singly else [each for each in positions if self.holder(each)]
                self.met += held
                free = [each for each in absent if each not in held]
                if len(free) < size:
                    self.left[turn] = free
                    continue
            self._had += size
            return positions
        return []

    def holder(self, position: int) -> Caller | None:
        """Return the thread computing a window, or None."""
        index = self.indices[position]
        at_it = [peer for peer in self.peers if peer.running.locked()]
        return next((caller for peer in at_it for caller in peer.callers if index in caller.begun), None)


_calling: ContextVar[tuple[weakref.ref[Caller], ...]] = ContextVar("calling", default=())
"""The calls of ``f`` around the current code, from the outermost inward.

The references are weak, because a copy of the context must keep no store alive. On a thread started by an ``f``,
reads are not recognized as nested.
"""


def callers() -> list[Caller]:
    """Return the calls of ``f`` around this code, from the outermost inward.

    They are not found from code on a thread started by ``f``.
    """
    if not (around := _calling.get()):
        return []
    alive = [reference() for reference in around]
    return [caller for caller in alive if caller is not None and caller.task.running.locked()]


class Claims:
    """Records which windows are being computed by threads of this process.

    Attributes
    ----------
    deposits : int
        How often windows were stored so far.
    """

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # In a forked child, no read is running, or only the read around the fork.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tasks: dict[Computation, list[Task]] = {}
        self.deposits = 0

    def join(self, tasks: Sequence[Task], views: Views, running: threading.Lock) -> list[tuple[int, list[Task]]]:
        """Register the tasks of a read, to share windows with other reads.

        Return the tasks grouped by depth, in ascending order: ``[(0, [task]), (1, [task, task])]``. `leave` unregisters
        the tasks.
        """
        for caller in callers():
            if caller.thread == threading.get_ident():
                # The running f may read windows computed, but not yet stored, by its own thread.
                caller.send_anyhow()
        stages: dict[int, list[Task]] = {}
        with self._lock:
            # Other reads may have stored missing windows since the plan was made.
            is_outdated = self.deposits - views.own_deposits != views.deposits_before
            for task in tasks:
                task.prepare(running)
                if is_outdated:
                    task.take(task.absent(task.left))
            for task in tasks:
                stages.setdefault(task.computation.depth, []).append(task)
                task.peers = self._tasks.setdefault(task.computation, [])
                # An exception of a signal handler may have kept a read from leaving.
                task.peers[:] = [*(peer for peer in task.peers if peer.running.locked()), task]
                for peer in task.peers:
                    peer.is_shared = peer.is_shared or len(task.peers) > 1
        return sorted(stages.items())

    def leave(self, tasks: Sequence[Task]) -> None:
        """Unregister the tasks of a read, if they are still registered."""
        with self._lock:
            for task in tasks:
                if task in task.peers:
                    task.peers.remove(task)
                    if not task.peers:
                        self._tasks.pop(task.computation, None)

    def start(self, caller: Caller) -> None:
        """Register this thread as a caller, until `stop`."""
        caller.token = _calling.set((*_calling.get(), weakref.ref(caller)))
        with self._lock:
            caller.task.callers.append(caller)

    def stop(self, caller: Caller) -> None:
        """Unregister a caller.

        Other reads may then compute the windows begun but not stored by the caller.
        """
        _calling.reset(caller.token)
        with self._lock:
            caller.task.callers.remove(caller)
            self._changed.notify_all()

    def begin(self, caller: Caller) -> list[int]:
        """Claim windows for the next call of ``f``, and return their positions.

        The list is empty if no windows are left.
        """
        with self._lock:
            caller.current = positions = caller.task.next()
            for position in positions:
                caller.begun[caller.task.indices[position]] = None
            return positions

    def end(self, caller: Caller, positions: Sequence[int]) -> None:
        """Mark windows begun by a caller as stored."""
        with self._lock:
            caller.task.views.own_deposits += 1
            self.deposits += 1
            for position in positions:
                del caller.begun[caller.task.indices[position]]
            self._changed.notify_all()

    def take_up(self, task: Task) -> bool:
        """Wait for windows claimed by other reads, unless this read is nested.

        Return True if this read must compute some of the windows now.

        Raises
        ------
        ValidationError
            If one of these windows would need itself, because this read is part of computing it.
        """
        while task.met:
            with self._lock:
                held = {position: holder for position in task.met if (holder := task.holder(position)) is not None}
                mine = task.absent([position for position in task.met if position not in held])
                task.met = list(held)
                if mine:
                    task.take(mine)
                    return True
                if held and (around := callers()):
                    _check_needs(task, around)
                    task.take(task.met, singly=True)
                    task.met = []
                    return True
                is_changed = not held or self._changed.wait(_SOON_SECONDS)
            show_interrupt()
            if not is_changed:
                # A holder may be in an `f` that waits for a thread of its own, which reads an awaited window not stored
                # yet. So every holder must store finished windows.
                for holder in set(held.values()):
                    holder.send_anyhow()
        return False


def _check_needs(task: Task, around: Sequence[Caller]) -> None:
    computation = task.computation
    for index in [task.indices[position] for position in task.met]:
        for caller in around:
            current = [caller.task.indices[position] for position in caller.current]
            if current == [index] and caller.task.computation == computation:
                raise ValidationError(
                    f"window {index} of {computation.names} would need itself: f reads the window while computing it, "
                    f"directly or through another f; change f to read only windows independent of window {index}"
                )


CLAIMS = Claims()
