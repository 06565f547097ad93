"""The one loop of reads, streams and fills: regions step by step, what is missing of them in batches, sources first.

A step adds regions. What is missing of them is computed as far as it fills batches, and the rest with a later step. A
step may be read once all of its windows are there.
"""

from __future__ import annotations

import contextvars
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from infinite_tensor.engine.calls import Calls, Deposits
from infinite_tensor.engine.chain import Node
from infinite_tensor.engine.claims import CLAIMS, Work, is_nested
from infinite_tensor.engine.lifetimes import Lifetimes, NumberedRegions
from infinite_tensor.engine.plan import build
from infinite_tensor.engine.reads import Views
from infinite_tensor.geometry.points import IntArray, joined
from infinite_tensor.support.interrupts import at_rest, entered, known, store_call, wait_for
from infinite_tensor.support.stopping import end_if_unwanted
from infinite_tensor.support.threads import begin

Regions: TypeAlias = tuple[IntArray, IntArray]
"""Where some regions of a tensor start and stop, in pixels: two arrays of shape (N, ndim)."""


class Loop:
    """Computes what is missing of regions of some tensors, step by step.

    Parameters
    ----------
    nodes : iterable of Node
        The tensors.
    views : Views
        The read.
    release : callable, optional
        ``release(depth)`` is called when all windows of tensors at that depth of the chain are there.

    Attributes
    ----------
    read : int
        How many steps may be read, the first ones; while windows are computed, as soon as these are there.
    """

    def __init__(self, nodes: Iterable[Node], views: Views, release: Callable[[int], None] | None = None) -> None:
        self._views = views
        self._release = release
        self._queues = [_Queue(node, views) for node in nodes]
        # Of each step that may not be read, the number of windows of each tensor that must have been computed for it.
        self._unread: deque[list[int]] = deque()
        self.read = 0

    def add(self, regions: Sequence[Regions]) -> None:
        """One more step: some regions of each tensor, or none."""
        self._unread.append([queue.add(*each) for queue, each in zip(self._queues, regions, strict=True)])

    def compute(self, *, to_the_end: bool) -> range:
        """Compute what fills batches, or all of what is missing; which steps may be read from now on."""
        taken = [queue.take(all_of_them=to_the_end) for queue in self._queues]
        before = self.read
        while self._unread and all(map(operator.le, self._unread[0], [computed for _, computed in taken])):
            self._unread.popleft()
            self.read += 1
        wanted = {queue.node: windows for queue, (windows, _) in zip(self._queues, taken, strict=True)}
        if any(map(len, wanted.values())):
            run(wanted, self._views, self._release)
        return range(before, self.read)


class _Queue:
    """Windows of one tensor that are missing, in the order in which they are to be computed."""

    def __init__(self, node: Node, views: Views) -> None:
        self.node = node
        self._access = views.of(node)
        self._windows: IntArray = np.empty((0, node.spec.grid.ndim), dtype=np.int64)
        self._numbers = self._windows[:, 0]
        self._added = 0

    def add(self, starts: IntArray, stops: IntArray) -> int:
        """Regions follow; how many windows must have been computed for them, all in all."""
        waiting = len(self._windows)
        if waiting:
            # What another tensor of the same read needed as well is there by now.
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
        """The windows to compute next, and how many have been computed after these; what fills no batch waits."""
        windows, count = self._windows, len(self._windows)
        count = count if all_of_them else self.node.computation.batching.full(count)
        self._windows, self._numbers = windows[count:], self._numbers[count:]
        return windows[:count], int(self._numbers[0]) if len(self._numbers) else self._added


def run_steps(
    regions: Mapping[Node, NumberedRegions], steps: Sequence[range], views: Views, ready: Callable[[int], None]
) -> None:
    """Compute what is missing of regions; ``ready(number)`` is called for each once all its windows are there.

    Of tensors that only others read, no more is held than later steps need.

    Parameters
    ----------
    regions : mapping of Node to NumberedRegions
        The regions of each tensor, numbered through.
    steps : sequence of range
        Which numbers are worked on at once, from the first to the last.
    views : Views
        The read.
    """
    lifetimes = Lifetimes(regions) if len(steps) > 1 else None

    def release(depth: int) -> None:
        """When all windows at a depth of the chain are there, release what only they have read."""
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
    """Return when windows of some tensors, which `views` of these reported missing, are there.

    They are computed, with all that they need and that is missing too, sources first; what another read is
    computing already is waited for. ``f`` runs under `torch.no_grad`. ``after(depth)`` is called when all windows of
    tensors at that depth of the chain are there.
    """
    if torch.is_inference_mode_enabled():
        # A tensor that is born in it could not be blended into later.
        with torch.inference_mode(mode=False):
            run(wanted, views, after)
            return
    running = threading.Lock()
    with torch.no_grad(), running:
        stages = CLAIMS.join(build(wanted, views), views.reader, running)
        try:
            for depth, works in stages:
                for work in works:
                    _carry_out(work)
                for work in works:
                    while CLAIMS.take_up(work):
                        _carry_out(work)
                CLAIMS.leave(works)
                if after is not None:
                    after(depth)
        finally:
            for _, works in stages:
                CLAIMS.leave(works)


def _carry_out(work: Work) -> None:
    """Compute what nobody else is computing."""
    workers = work.reader.workers or work.workload.computation.workers
    if workers == 1 or work.calls <= 1:
        _work(work)
    else:
        # Modes of torch are a thread's own.
        _on_threads(min(workers, work.calls), torch.no_grad()(partial(_work, work)))


def _work(work: Work, may_continue: Callable[[], bool] | None = None) -> None:
    """Compute windows until none is left; several threads may be at it."""
    # Without args, nothing that others see is changed between calls, until what has been gathered is stored.
    between_calls = nullcontext() if work.workload.computation.inputs else at_rest()
    # What an f reads is a part of its call, which is finished.
    may_end = not is_nested()
    deposits = Deposits(work)
    with deposits as worker, between_calls:
        calls = Calls(work)
        while (may_continue is None or may_continue()) and (positions := CLAIMS.begin(worker)):
            if may_end:
                end_if_unwanted()
            calls.run(positions, deposits.put)
            deposits.tend()


def _on_threads(count: int, work: Callable[[Callable[[], bool]], None]) -> None:
    """Run ``work(may_continue)`` on `count` threads at once.

    The first error that one of them raises comes through, and so does a Ctrl-C. From then on ``may_continue()`` is
    false, which must bring the others to an end soon: they are waited for.
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
            # None can be started any more: the interpreter exits.
            work(lambda: not errors)
        for ended in threads:
            wait_for(ended)
    except BaseException as error:
        errors.append(error)
        for ended in threads:
            wait_for(ended)
        raise
    if errors:
        raise known(errors[0])
