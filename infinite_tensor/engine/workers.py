"""Running one function on several threads."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from infinite_tensor.waiting import Mark, interrupts_shown


def on_threads(count: int, work: Callable[[Callable[[], bool]], None]) -> None:
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
