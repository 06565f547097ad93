"""Running coroutines on zarr's event loop, where its stores and their connections live.

zarr's own `sync` waits for a `concurrent.futures.Future`. Interrupted while it holds the condition of that, or while it
starts the thread of the loop, it leaves a loop behind that answers nobody any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from zarr.core import sync as zarr_sync

P = ParamSpec("P")
T = TypeVar("T")


def sync(call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``await call(*args, **kwargs)`` on zarr's event loop.

    After a Ctrl-C it runs on, and nobody waits for it.

    Raises
    ------
    ConnectionError
        If the storage has cancelled it. What it raises itself comes through.
    """
    loop = _loop()
    if threading.current_thread() is zarr_sync.iothread[0]:
        raise RuntimeError("a coroutine of zarr's event loop would wait for itself")
    tasks: list[asyncio.Task[T]] = []
    done = threading.Lock()
    done.acquire()

    async def run() -> T:
        return await call(*args, **kwargs)

    def begin() -> None:
        tasks.append(loop.create_task(run()))
        tasks[0].add_done_callback(lambda _task: done.release())

    loop.call_soon_threadsafe(begin)
    done.acquire()
    try:
        return tasks[0].result()
    except asyncio.CancelledError as error:
        raise ConnectionError("the storage has cancelled the request") from error


def _loop() -> asyncio.AbstractEventLoop:
    """Zarr's event loop, running."""
    loop = zarr_sync.loop[0]
    if loop is None or not loop.is_running():
        with zarr_sync._get_lock():  # noqa: SLF001  (zarr starts its loop under it)
            thread = zarr_sync.iothread[0]
            if thread is None or not thread.is_alive():
                # There is none, or one whose thread an interrupt has kept from starting.
                zarr_sync.loop[0] = None
        return zarr_sync._get_loop()  # noqa: SLF001  (zarr gives its loop nowhere else)
    return loop
