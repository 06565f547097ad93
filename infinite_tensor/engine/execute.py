"""Computing what is missing: sources first, in batches."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping
from functools import partial

import torch

from infinite_tensor.boxes import IntArray
from infinite_tensor.engine.accesses import Accesses
from infinite_tensor.engine.calls import Calls
from infinite_tensor.engine.claims import CLAIMS, Claim, work_on
from infinite_tensor.engine.level import Level
from infinite_tensor.engine.node import Node
from infinite_tensor.engine.outbox import Outbox
from infinite_tensor.engine.plan import build
from infinite_tensor.engine.workers import on_threads
from infinite_tensor.waiting import Mark


def run(
    wanted: Mapping[Node, IntArray], accesses: Accesses, after: Callable[[int], None] = lambda _depth: None
) -> None:
    """Return when windows of some tensors, which their accesses reported missing, are there.

    They are computed, with all that they need and that is missing too, sources first; what another read is
    computing already is waited for. ``f`` runs under `torch.no_grad`. ``after(depth)`` is called when all windows of
    tensors at that depth of the chain are there.
    """
    # A tensor that is born in inference mode could not be blended into later.
    with torch.inference_mode(mode=False), torch.no_grad():
        _run(wanted, accesses, after)


def _run(
    wanted: Mapping[Node, IntArray], accesses: Accesses, after: Callable[[int], None], *, alone: bool = False
) -> None:
    mark = Mark()
    with mark.running:
        try:
            for stage in CLAIMS.share(build(wanted, accesses), accesses.reader, mark, alone=alone):
                for claim in stage.claims:
                    _run_level(claim)
                lost = [claim.level.part(sorted(claim.lost)) for claim in stage.claims if claim.lost]
                for level in (*stage.others, *lost):
                    _await(level, accesses)
                after(stage.depth)
        finally:
            CLAIMS.release(mark)


def _await(level: Level, accesses: Accesses) -> None:
    """Return when windows that other reads set out to compute are there; computes what they leave to this one."""
    while len((level := level.absent()).windows):
        mine, alone = CLAIMS.turn(level, accesses.reader)
        if mine:
            _run(level.part(mine).wanted, accesses, lambda _depth: None, alone=alone)


def _run_level(claim: Claim) -> None:
    """Run what a read has claimed of one computation."""
    level = claim.level
    workers = claim.reader.workers or level.computation.workers
    if workers == 1 or claim.calls == 1:
        contextvars.copy_context().run(_work, claim)
    else:
        # Modes of torch are a thread's own.
        on_threads(min(workers, claim.calls), torch.no_grad()(partial(_work, claim)))


def _work(claim: Claim, goes_on: Callable[[], bool] | None = None) -> None:
    """Compute windows of a claim until none is left, in a context of its own; several threads may be at it."""
    work_on(claim)
    calls, thread = Calls(claim), threading.get_ident()
    with Outbox(claim) as outbox:
        while (goes_on is None or goes_on()) and (places := CLAIMS.begin(claim, thread)):
            calls.run(places, outbox.put)
            outbox.tend()
