"""Running one function on several threads."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait


def on_threads(count: int, work: Callable[[], None], stop: Callable[[], None]) -> None:
    """Run ``work()`` on `count` threads at once.

    The first error that one of them raises comes through, and so does a Ctrl-C. ``stop()`` is called before, which
    must bring the others to an end soon: they are waited for.
    """
    with ThreadPoolExecutor(count, thread_name_prefix="infinite_tensor-worker") as pool:
        try:
            running = [pool.submit(contextvars.copy_context().run, work) for _ in range(count)]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            stop()
            raise
