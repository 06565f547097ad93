"""Computing what is missing: sources first, in batches; of many regions step by step, letting go early of much."""

from __future__ import annotations

import contextvars
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial

import numpy as np
import torch

from infinite_tensor.engine.calls import Calls, Deposits
from infinite_tensor.engine.chain import Node
from infinite_tensor.engine.claims import CLAIMS, Claim, work_off, work_on
from infinite_tensor.engine.lifetimes import Lifetimes, NumberedRegions
from infinite_tensor.engine.plan import Workload, build
from infinite_tensor.engine.reads import Views
from infinite_tensor.geometry.points import IntArray, joined
from infinite_tensor.support.interrupts import Mark, interrupts_shown
from infinite_tensor.tilestore.contents import Access


def run(wanted: Mapping[Node, IntArray], views: Views, after: Callable[[int], None] | None = None) -> None:
    """Return when windows of some tensors, which `views` of these reported missing, are there.

    They are computed, with all that they need and that is missing too, sources first; what another read is
    computing already is waited for. ``f`` runs under `torch.no_grad`. ``after(depth)`` is called when all windows of
    tensors at that depth of the chain are there.
    """
    if torch.is_inference_mode_enabled():
        # A tensor that is born in it could not be blended into later.
        with torch.inference_mode(mode=False):
            return run(wanted, views, after)
    with torch.no_grad():
        return _run(wanted, views, after)


def _run(
    wanted: Mapping[Node, IntArray],
    views: Views,
    after: Callable[[int], None] | None = None,
    *,
    without_waiting: bool = False,
) -> None:
    mark = Mark()
    with mark.running:
        try:
            plan = build(wanted, views)
            for depth, claims, others in CLAIMS.share(plan, views.reader, mark, without_waiting=without_waiting):
                for claim in claims:
                    _run_workload(claim)
                lost = [claim.workload.part(sorted(claim.lost)) for claim in claims if claim.lost]
                for workload in (*others, *lost):
                    _await(workload, views)
                if after is not None:
                    after(depth)
        finally:
            CLAIMS.release(mark)


def _await(workload: Workload, views: Views) -> None:
    """Return when windows that other reads set out to compute are there; computes what they leave to this one."""
    while len((workload := workload.absent()).windows):
        mine, without_waiting = CLAIMS.take_or_wait(workload, views.reader)
        if mine:
            _run(workload.part(mine).wanted, views, without_waiting=without_waiting)


def _run_workload(claim: Claim) -> None:
    """Run what a read has claimed of one computation."""
    workload = claim.workload
    workers = claim.reader.workers or workload.computation.workers
    if workers == 1 or claim.schedule.calls <= 1:
        _work(claim)
    else:
        # Modes of torch are a thread's own.
        _on_threads(min(workers, claim.schedule.calls), torch.no_grad()(partial(_work, claim)))


def _work(claim: Claim, may_continue: Callable[[], bool] | None = None) -> None:
    """Compute windows of a claim until none is left; several threads may be at it."""
    token, calls = work_on(claim), Calls(claim)
    try:
        with Deposits(claim) as deposits:
            while (may_continue is None or may_continue()) and (positions := CLAIMS.begin(claim, deposits.begun)):
                calls.run(positions, deposits.put)
                deposits.tend()
    finally:
        work_off(token)


def _on_threads(count: int, work: Callable[[Callable[[], bool]], None]) -> None:
    """Run ``work(may_continue)`` on `count` threads at once.

    The first error that one of them raises comes through, and so does a Ctrl-C. From then on ``may_continue()`` is
    false, which must bring the others to an end soon: they are waited for.
    """
    waiting = Mark()
    with interrupts_shown(), ThreadPoolExecutor(count, thread_name_prefix="infinite_tensor-worker") as pool:
        with waiting.running:
            running = [
                pool.submit(contextvars.copy_context().run, work, lambda: waiting.is_under_way) for _ in range(count)
            ]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()


class _Missing:
    """Windows of one tensor that are missing, in the order in which they are to be computed."""

    def __init__(self, node: Node, access: Access, regions: NumberedRegions) -> None:
        self.node = node
        self._access = access
        self._regions = regions
        self._windows = regions.starts[:0]
        self._numbers = np.empty(0, dtype=np.int64)
        self._added = 0

    def add(self, step: range) -> int:
        """Regions follow, by their numbers; how many windows must have been computed for them, all in all."""
        if len(self._windows):
            # What another tensor of the same read needed as well is there by now.
            absent = self._access.absent(self._windows)
            self._windows, self._numbers = self._windows[absent], self._numbers[absent]
        starts, stops = self._regions.between(step.start, step.stop)
        if len(starts):
            waiting = len(self._windows)
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

    Parameters
    ----------
    regions : mapping of Node to NumberedRegions
        The regions of each tensor, numbered through.
    steps : sequence of range
        Which numbers are worked on at once, from the first to the last.
    views : Views
        The read.
    """
    tensors = [_Missing(node, views.of(node), numbered) for node, numbered in regions.items()]
    lifetimes = Lifetimes(regions) if len(steps) > 1 else None
    # What has not been read, with the windows of each tensor that must have been computed for it.
    unread: deque[tuple[range, list[int]]] = deque()
    for step in steps:
        unread.append((step, [missing.add(step) for missing in tensors]))
        taken = [missing.take(all_of_them=step is steps[-1]) for missing in tensors]
        readable: list[int] = []
        while unread and all(map(operator.le, unread[0][1], [computed for _, computed in taken])):
            readable += unread.popleft()[0]
        release = None
        if lifetimes is not None:
            release = partial(_release, views, lifetimes, unread[0][0].start if unread else step.stop)
        wanted = {missing.node: windows for missing, (windows, _) in zip(tensors, taken, strict=True)}
        if any(map(len, wanted.values())):
            run(wanted, views, release)
        for number in readable:
            ready(number)
        if release is not None and lifetimes is not None:
            release(lifetimes.last_depth)


def _release(views: Views, lifetimes: Lifetimes, unread: int, depth: int) -> None:
    """When all windows at `depth` of a chain are there, release what only they have read, up to a region."""
    for node, access in views.items():
        if lifetimes.read_at(node) <= depth:
            access.keep(lifetimes.before(node, unread))
