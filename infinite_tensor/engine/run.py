"""Computing what is missing: sources first, in batches."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial

import torch

from infinite_tensor.engine.calls import Calls
from infinite_tensor.engine.chain import Node
from infinite_tensor.engine.claims import CLAIMS, Claim, work_off, work_on
from infinite_tensor.engine.deposits import Deposits
from infinite_tensor.engine.plan import Workload, build
from infinite_tensor.engine.reads import Views
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.support.waiting import Mark, interrupts_shown


def run(wanted: Mapping[Node, IntArray], views: Views, after: Callable[[int], None] | None = None) -> None:
    """Return when windows of some tensors, which their accesses reported missing, are there.

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
    wanted: Mapping[Node, IntArray], views: Views, after: Callable[[int], None] | None = None, *, alone: bool = False
) -> None:
    mark = Mark()
    with mark.running:
        try:
            for depth, stage in CLAIMS.share(build(wanted, views), views.reader, mark, alone=alone):
                for claim in stage.claims:
                    _run_workload(claim)
                lost = [claim.workload.part(sorted(claim.lost)) for claim in stage.claims if claim.lost]
                for workload in (*stage.others, *lost):
                    _await(workload, views)
                if after is not None:
                    after(depth)
        finally:
            CLAIMS.release(mark)


def _await(workload: Workload, views: Views) -> None:
    """Return when windows that other reads set out to compute are there; computes what they leave to this one."""
    while len((workload := workload.absent()).windows):
        mine, alone = CLAIMS.turn(workload, views.reader)
        if mine:
            _run(workload.part(mine).wanted, views, alone=alone)


def _run_workload(claim: Claim) -> None:
    """Run what a read has claimed of one computation."""
    workload = claim.workload
    workers = claim.reader.workers or workload.computation.workers
    if workers == 1 or claim.calls <= 1:
        _work(claim)
    else:
        # Modes of torch are a thread's own.
        _on_threads(min(workers, claim.calls), torch.no_grad()(partial(_work, claim)))


def _work(claim: Claim, goes_on: Callable[[], bool] | None = None) -> None:
    """Compute windows of a claim until none is left; several threads may be at it."""
    token, calls = work_on(claim), Calls(claim)
    try:
        with Deposits(claim) as deposits:
            while (goes_on is None or goes_on()) and (places := CLAIMS.begin(claim, deposits.begun)):
                calls.run(places, deposits.put)
                deposits.tend()
    finally:
        work_off(token)


def _on_threads(count: int, work: Callable[[Callable[[], bool]], None]) -> None:
    """Run ``work(goes_on)`` on `count` threads at once.

    The first error that one of them raises comes through, and so does a Ctrl-C. From then on ``goes_on()`` is false,
    which must bring the others to an end soon: they are waited for.
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
