"""The common loop of reads, streams and fills.

The loop computes the missing windows of regions in batches, sources first. Each step adds regions. Missing windows that
fill a batch are computed at once. The others wait, and are computed with the windows of a later step. A step may be
read as soon as all of its windows are computed.
"""

from __future__ import annotations

import contextvars
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np
import torch

from infinite_tensor.engine.calls import Caller
from infinite_tensor.engine.chain import Node, watching_first_calls
from infinite_tensor.engine.claims import CLAIMS, Task, callers
from infinite_tensor.engine.formulas import formulas_of, spread
from infinite_tensor.engine.lifetimes import Lifetimes, NumberedRegions, Regions
from infinite_tensor.engine.plan import build
from infinite_tensor.engine.reads import Views
from infinite_tensor.geometry.points import IntArray, joined
from infinite_tensor.support.interrupts import entered, store_call, wait_for
from infinite_tensor.support.stopping import end_if_unwanted
from infinite_tensor.support.threads import begin
from infinite_tensor.tilestore.access import Access


class Loop:
    """Computes the missing windows of regions of tensors, step by step.

    Parameters
    ----------
    nodes : iterable of Node
        The tensors.
    views : Views
        Gives access to the tensors in their stores.
    release : callable, optional
        ``release(depth)`` is called as soon as all windows of the tensors at this depth of the chain are computed.

    Attributes
    ----------
    read : int
        The number of steps ready to be read: all windows are computed, or are being computed now.
    """

    def __init__(self, nodes: Iterable[Node], views: Views, release: Callable[[int], None] | None = None) -> None:
        self._views = views
        self._release = release
        self._nodes = [*nodes]
        self._formulas, ends = formulas_of(self._nodes)
        for node in (*self._nodes, *self._formulas):
            views.of(node)
        # What is computed where it is read never misses a window.
        self._queues = [_Queue(node, views.of(node)) for node in ends if not node.computation.copied]
        # For each unread step: the total number of windows to compute first, per tensor.
        self._unread: deque[list[int]] = deque()
        self.read = 0

    def add(self, regions: Sequence[Regions]) -> None:
        """Add a step with the regions of each tensor.

        A tensor may have no regions in a step.
        """
        wanted = dict(zip(self._nodes, regions, strict=True))
        if self._formulas and self._queues:
            # A region of a formula is read as one.
            needed = spread(self._formulas, {node: NumberedRegions.alone(*each) for node, each in wanted.items()})
            wanted = {node: (boxes.starts, boxes.stops) for node, boxes in needed.items()}
        self._unread.append([queue.add(*wanted.get(queue.node, _NOTHING)) for queue in self._queues])

    def compute(self, *, to_the_end: bool) -> range:
        """Compute full batches, and return the steps ready to be read.

        If `to_the_end`, all missing windows are computed.
        """
        batches = [queue.take(all_of_them=to_the_end) for queue in self._queues]
        before = self.read
        while self._unread and all(map(operator.le, self._unread[0], [computed for _, computed in batches])):
            self._unread.popleft()
            self.read += 1
        wanted = {queue.node: windows for queue, (windows, _) in zip(self._queues, batches, strict=True)}
        run(wanted, self._views, self._release)
        return range(before, self.read)


_NOTHING: Regions = (np.empty((0, 0), dtype=np.int64),) * 2


class _Queue:
    """Missing windows of one tensor, in order of computation."""

    def __init__(self, node: Node, access: Access) -> None:
        self.node = node
        self._access = access
        self._windows: IntArray = np.empty((0, node.spec.grid.ndim), dtype=np.int64)
        self._numbers = self._windows[:, 0]
        self._added = 0

    def add(self, starts: IntArray, stops: IntArray) -> int:
        """Add the missing windows of regions.

        Return the total number of windows added to the queue so far. The regions can be read once `take` has returned
        at least this number, and the windows returned with it are computed.
        """
        waiting = len(self._windows)
        if waiting:
            # Some windows may be computed by now, for another tensor of the same read.
            absent = self._access.absent(self._windows)
            self._windows, self._numbers = self._windows[absent], self._numbers[absent]
            waiting = len(self._windows)
        if len(starts):
            self._windows = joined(self._windows, self._access.add(starts, stops))
            numbers = np.arange(self._added, self._added + len(self._windows) - waiting)
            self._numbers = np.concatenate([self._numbers, numbers]) if waiting else numbers
            self._added += len(numbers)
        return self._added

    def take(self, *, all_of_them: bool) -> tuple[IntArray, int]:
        """Remove the windows to compute next from the queue.

        Return ``(windows, number)``. When these windows are computed, the first `number` of all windows ever added to
        the queue are computed.
        """
        windows, count = self._windows, len(self._windows)
        count = count if all_of_them else self.node.computation.batching.full(count)
        self._windows, self._numbers = windows[count:], self._numbers[count:]
        return windows[:count], int(self._numbers[0]) if len(self._numbers) else self._added


def run_steps(
    regions: Mapping[Node, NumberedRegions], steps: Sequence[range], views: Views, ready: Callable[[int], None]
) -> None:
    """Compute the missing windows of regions, step by step.

    ``ready(number)`` is called for each complete region. Pixels of upstream tensors stay in memory only as long as
    later steps need them.

    Parameters
    ----------
    regions : mapping of Node to NumberedRegions
        The regions of each tensor. All regions have different numbers.
    steps : sequence of range
        The numbers of the regions in each step: ``[range(0, 3), range(3, 5)]`` has regions 0 to 2 in the first step.
    views : Views
        Gives access to the tensors in their stores.
    """
    lifetimes = Lifetimes(regions) if len(steps) > 1 else None

    def release(depth: int) -> None:
        if lifetimes is not None:
            unread = steps[loop.read].start if loop.read < len(steps) else steps[-1].stop
            for node, access in views.items():
                if lifetimes.read_at(node) <= depth:
                    access.keep(lifetimes.before(node, unread))

    loop = Loop(regions, views, release if lifetimes else None)
    for step in steps:
        loop.add([numbered.between(step.start, step.stop) for numbered in regions.values()])
        for done in loop.compute(to_the_end=step is steps[-1]):
            for number in steps[done]:
                ready(number)
        if lifetimes is not None:
            release(lifetimes.last_depth)


def run(wanted: Mapping[Node, IntArray], views: Views, after: Callable[[int], None] | None = None) -> None:
    """Compute missing windows, upstream windows first.

    `wanted` contains the missing windows returned by ``views.of(node).add()``. If another read is already computing a
    window, this function waits for the window. ``f`` runs under `torch.no_grad`. ``after(depth)`` is called as soon as
    all windows of the tensors at this depth of the chain are computed.
    """
    if not any(map(len, wanted.values())):
        return
    if torch.is_inference_mode_enabled():
        # Tensors created in inference mode could not be blended into later.
        with torch.inference_mode(mode=False):
            run(wanted, views, after)
            return
    running = threading.Lock()
    with torch.no_grad(), running:
        stages = CLAIMS.join(build(wanted, views), views, running)
        try:
            for depth, tasks in stages:
                for task in tasks:
                    _carry_out(task)
                for task in tasks:
                    while CLAIMS.take_up(task):
                        _carry_out(task)
                if after is not None:
                    after(depth)
        finally:
            CLAIMS.leave([task for _, tasks in stages for task in tasks])


def _carry_out(task: Task) -> None:
    workers = task.views.workers or task.computation.workers
    if workers == 1 or task.calls <= 1:
        _compute(task)
    else:
        # Each thread must enter no_grad itself, because torch's modes are thread-local.
        _on_threads(min(workers, task.calls), torch.no_grad()(partial(_compute, task)))


def _compute(task: Task, may_continue: Callable[[], bool] | None = None) -> None:
    """Compute windows until none is left.

    Several threads may call this function with the same `task`. They then share the windows.
    """
    # A nested read is part of a call of f, and a call of f is always finished.
    may_end = not callers()
    caller, is_watched = Caller(task), task.computation.functions.is_called
    with ExitStack() as stack, caller:
        while (may_continue is None or may_continue()) and (positions := CLAIMS.begin(caller)):
            if may_end:
                end_if_unwanted()
            if not is_watched:
                # Only now, because other threads may compute all windows.
                stack.enter_context(watching_first_calls(task.computation))
                is_watched = True
            caller.run(positions)
            caller.tend()


def _on_threads(count: int, work: Callable[[Callable[[], bool]], None]) -> None:
    """Run ``work(may_continue)`` on `count` threads at once.

    Raise the first error of any thread, or KeyboardInterrupt. In both cases, ``may_continue()`` returns False from then
    on, and this function waits until the other threads end.
    """
    errors: list[BaseException] = []
    stores = entered()

    def run() -> None:
        try:
            with store_call(*stores):
                work(lambda: not errors)
        except BaseException as error:  # noqa: BLE001  (the caller raises it)
            errors.append(error)

    threads: list[threading.Lock] = []
    try:
        threads += filter(None, (begin(partial(contextvars.copy_context().run, run)) for _ in range(count)))
        if not threads:
            # No thread can be started, because the interpreter is exiting.
            work(lambda: not errors)
        for ended in threads:
            wait_for(ended)
    except BaseException as error:
        errors.append(error)
        for ended in threads:
            wait_for(ended)
        raise
    if errors:
        raise errors[0]
