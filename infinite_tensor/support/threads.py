"""Work on several threads, whatever state the process is in.

The pools of `concurrent.futures`, and so those of event loops, take no work once the main thread has come to its end,
though other threads may continue long after it. Python 3.12.0 to 3.12.2 start no thread then either: where none can be
started, the work is done on the thread that asks.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from infinite_tensor.support.exit import end_after_flush

T = TypeVar("T")
R = TypeVar("R")


_IDLE_SECONDS = 5.0
"""After which a thread without work ends."""

_MOST_SECONDS = 5.0
"""For which the end of a process waits for threads that work, such as those of a read on a daemon thread."""


class _Worker:
    """A thread that does one piece of work after the other, and holds nothing of one that is done."""

    def __init__(self) -> None:
        self._work: list[Callable[[], object]] = []
        self._done = threading.Lock()
        self._asked = threading.Lock()
        self._asked.acquire()

    def ask(self, work: Callable[[], object], done: threading.Lock) -> None:
        """Do this next, and release the lock then."""
        self._work, self._done = [work], done
        _busy.add(self)
        self._asked.release()

    def run(self) -> None:
        """Do what is asked, until nobody has for a while."""
        self._asked.acquire()
        while True:
            try:
                self._work.pop()()
            finally:
                _busy.discard(self)
                self._done.release()
            _idle.append(self)
            while not self._asked.acquire(timeout=_IDLE_SECONDS):
                try:
                    _idle.remove(self)
                except ValueError:
                    # Somebody is just about to ask it.
                    continue
                return


_idle: deque[_Worker] = deque()
_busy: set[_Worker] = set()

# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)
    os.register_at_fork(after_in_child=_busy.clear)


def _settle() -> None:
    """Have every thread let go of what it has done, for a while.

    A thread may be the last to hold a store, and Python aborts the process if it frees a tensor while the interpreter
    ends.
    """
    end = time.monotonic() + _MOST_SECONDS
    while _busy and time.monotonic() < end:
        time.sleep(0.001)


end_after_flush(_settle)


def begin(work: Callable[[], object]) -> threading.Lock | None:
    """Run ``work()``, which raises nothing, on another thread, without waiting for that to start.

    A thread that has nothing to do is used again, as to start one costs time and memory. Returns a lock that is held
    until the work is done; None where no thread can be started.
    """
    done = threading.Lock()
    done.acquire()
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        try:
            _thread.start_new_thread(worker.run, ())
        except RuntimeError:
            return None
    worker.ask(work, done)
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
