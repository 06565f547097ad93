"""The event loop of this library, for connections to remote storages.

The loop works until the process ends. Threads may use it after the main thread has ended, and while the interpreter
exits. By then, zarr's event loop and the default thread pool of an event loop accept no more work.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import wait_for
from infinite_tensor.support.threads import begin

P = ParamSpec("P")
T = TypeVar("T")


def sync(call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a coroutine function on the event loop, and wait for the result.

    After a Ctrl-C, the call is cancelled. `sync` still waits until the call has ended.

    Raises
    ------
    ConnectionError
        If the storage has cancelled the call. Exceptions of the call are raised unchanged.
    """
    loop = _own.running()
    if _is_here(loop):
        raise RuntimeError("sync was called on the thread of the event loop, and would wait for itself")
    tasks: list[asyncio.Task[T]] = []
    done = threading.Lock()
    done.acquire()

    async def run() -> T:
        return await call(*args, **kwargs)

    def start() -> None:
        tasks.append(loop.create_task(run()))
        tasks[0].add_done_callback(lambda _task: done.release())

    def cancel() -> None:
        tasks[0].cancel()

    loop.call_soon_threadsafe(start)
    try:
        wait_for(done)
    except BaseException:
        loop.call_soon_threadsafe(cancel)
        wait_for(done)
        raise
    try:
        return tasks[0].result()
    except asyncio.CancelledError as error:
        raise ConnectionError("the storage has cancelled the request") from error


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this process.

    Return None if the loop has not been started.
    """
    return _own.loop


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with an executor that works even at exit."""

    def __init__(self) -> None:
        super().__init__()
        self.set_default_executor(_Threads())

    def __del__(self) -> None:
        """Skip the warning of asyncio: this loop runs until the process ends."""


class _Threads(ThreadPoolExecutor):
    """Runs each function on a thread of its own, from `support.threads`.

    The standard ThreadPoolExecutor accepts no work while the interpreter exits. This class does.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call a function on another thread, or here if no thread can be started."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  (raised where the future is awaited)
                future.set_exception(error)

        if begin(work) is None:
            work()
        return future


class _Own:
    """The event loop of this process, started on first use."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self.loop: _Loop | None = None
        # Reentrant, because a signal handler may interrupt the holder.
        self._lock = threading.RLock()

    def running(self) -> _Loop:
        """Return the loop, started by the first call."""
        if self.loop is None:
            with self._lock:
                if self.loop is None:
                    loop = _Loop()
                    try:
                        _thread.start_new_thread(loop.run_forever, ())
                    except RuntimeError as error:
                        raise RuntimeError(
                            "no thread can be started while the interpreter exits; open the store earlier"
                        ) from error
                    self.loop = loop
        return self.loop


_own = _Own()
