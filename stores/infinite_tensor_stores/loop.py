"""Running coroutines on an event loop of our own, where storages that are not on a local disk have their connections.

It works as long as the process does: also for threads that continue when the main thread has come to its end, and while
the interpreter exits. zarr's own loop, and the thread pool that any loop has by default, take no more work then; and
zarr waits for a `concurrent.futures.Future`: interrupted while it holds the condition of that, it leaves a loop behind
that answers nobody any more.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.threads import begin

P = ParamSpec("P")
T = TypeVar("T")

_MOST_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""As many as the pool that a loop has by default."""


def sync(call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``await call(*args, **kwargs)`` on the event loop.

    After a Ctrl-C it runs on, and nobody waits for it.

    Raises
    ------
    ConnectionError
        If the storage has cancelled it. What it raises itself comes through.
    """
    loop = _own.running()
    if _is_here(loop):
        raise RuntimeError("a coroutine of the event loop would wait for itself")
    tasks: list[asyncio.Task[T]] = []
    done = threading.Lock()
    done.acquire()

    async def run() -> T:
        return await call(*args, **kwargs)

    def start() -> None:
        tasks.append(loop.create_task(run()))
        tasks[0].add_done_callback(lambda _task: done.release())

    loop.call_soon_threadsafe(start)
    done.acquire()
    try:
        return tasks[0].result()
    except asyncio.CancelledError as error:
        raise ConnectionError("the storage has cancelled the request") from error


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this process, where anything has run on it yet."""
    return _own.loop


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose threads may be started at any time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._threads = 0

    def __del__(self) -> None:
        """Say nothing of a loop that runs: it does so until the process ends, and a forked child drops it."""

    # The future is the same, whatever the types of arguments.
    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., Any],
        *args: Any,
    ) -> asyncio.Future[Any]:
        """Call a function on a thread."""
        answer: asyncio.Future[Any] = self.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if not answer.done():
                answer.set_result(result) if error is None else answer.set_exception(error)

        def job() -> None:
            try:
                result, error = func(*args), None
            except BaseException as raised:  # noqa: BLE001  (who awaits it gets it)
                result, error = None, raised
            self.call_soon_threadsafe(tell, result, error)

        with self._lock:
            self._jobs.append(job)
            is_full = self._threads == _MOST_THREADS
            self._threads += not is_full
        if not is_full and begin(self._work) is None:
            self._work()
        return answer

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job()


class _Own:
    """The loop of this process."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self.loop: _Loop | None = None
        # A signal handler may come in between.
        self._lock = threading.RLock()

    def running(self) -> _Loop:
        if self.loop is None:
            with self._lock:
                if self.loop is None:
                    loop = _Loop()
                    if begin(loop.run_forever) is None:
                        raise RuntimeError(
                            "Python starts no thread any more: the interpreter exits. Open the store before that"
                        )
                    self.loop = loop
        return self.loop


_own = _Own()
