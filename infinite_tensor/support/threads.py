"""Work on several threads, whatever state the process is in.

The pools of `concurrent.futures`, and so those of event loops, take no work once the main thread has come to its end,
though other threads may continue long after it. Python 3.12.0 to 3.12.2 start no thread then either: where none can be
started, the work is done on the thread that asks.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def begin(work: Callable[[], object]) -> threading.Lock | None:
    """Run ``work()``, which raises nothing, on a new thread, without waiting for that to start.

    Returns a lock that is held until the work is done; None where no thread can be started.
    """
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            work()
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return None
    return done


def on_threads(call: Callable[[T], R], arguments: Sequence[T], threads: int) -> list[R]:
    """Run ``call(argument)`` for all arguments on up to so many threads, the caller's among them.

    After an error, or a Ctrl-C, no more calls begin; the first error is raised.
    """
    if min(threads, len(arguments)) < 2:
        return list(map(call, arguments))
    results: list[Any] = [None] * len(arguments)
    errors: list[BaseException] = []
    waiting = iter(enumerate(arguments))

    def work() -> None:
        try:
            for number, argument in waiting:
                if errors:
                    return
                results[number] = call(argument)
        except BaseException as error:  # noqa: BLE001  (the caller raises it)
            errors.append(error)

    helpers = [begin(work) for _ in range(min(threads, len(arguments)) - 1)]
    work()
    for helper in helpers:
        if helper is not None:
            helper.acquire()
    if errors:
        raise errors[0]
    return results
