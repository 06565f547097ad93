"""Work on several threads, even after the main thread has ended.

The pools of `concurrent.futures`, also used by event loops, accept no work after the main thread has ended. But other
threads may continue for a long time. Python 3.12.0 to 3.12.2 cannot even start a thread then. If no thread can be
started, the calling thread does the work.
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
"""How many seconds a thread without work waits before it ends."""

_MOST_SECONDS = 5.0
"""How long the exit waits for busy threads, for example in a read on a daemon thread."""


class _Worker:
    """A reusable thread without references to finished work."""

    def __init__(self) -> None:
        self._work: list[Callable[[], object]] = []
        self._done = threading.Lock()
        self._asked = threading.Lock()
        self._asked.acquire()

    def ask(self, work: Callable[[], object], done: threading.Lock) -> None:
        """Do this work next, then release `done`."""
        self._work, self._done = [work], done
        _busy.add(self)
        self._asked.release()

    def run(self) -> None:
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
                    # A caller has just taken this thread, and work is about to come.
                    continue
                return


_idle: deque[_Worker] = deque()
_busy: set[_Worker] = set()

os.register_at_fork(after_in_child=_idle.clear)
os.register_at_fork(after_in_child=_busy.clear)


def _settle() -> None:
    """Wait a while for all threads to finish and drop their work.

    A thread may have the last reference to a store. If a thread frees a tensor while the interpreter exits, Python
    aborts the process.
    """
    end = time.monotonic() + _MOST_SECONDS
    while _busy and time.monotonic() < end:
        time.sleep(0.001)


end_after_flush(_settle)


def begin(work: Callable[[], object]) -> threading.Lock | None:
    """Run ``work()`` on another thread, and return at once.

    ``work()`` must not raise. Idle threads are reused, because starting a thread costs time and memory. Returns a lock,
    locked until the work is done. Returns None if no thread can be started.
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
    """Run ``call(argument)`` for all arguments, on up to `threads` threads.

    The calling thread is one of these threads. Results have the order of `arguments`. After an error or a Ctrl-C, no
    more calls begin. The first error is raised.
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
