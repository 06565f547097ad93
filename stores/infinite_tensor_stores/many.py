"""Many requests at once, some of which may fail.

If a request fails, the others are still made, and the first error is raised at the end. On an event loop, no more
requests are made after many failures in a row.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import wait
from typing import Any, TypeVar

from infinite_tensor.support.interrupts import at_rest
from infinite_tensor.support.threads import on_threads

T = TypeVar("T")

Kinds = tuple[type[Exception], ...]

_THREADS = os.cpu_count() or 1
_WORTH_A_THREAD = 2**18
"""From this size on, compression takes longer than starting a thread."""

_FEWEST_FAILURES = 8
"""After this many failures in a row (at least one per concurrent request), no more requests are made."""


def threads_for(nbytes: int) -> int:
    """Return the number of threads for work on `nbytes` bytes.

    The number is one per 256 KiB, and at most the number of CPUs. It may be 0.
    """
    return min(_THREADS, nbytes // _WORTH_A_THREAD)


def each(call: Callable[[T], Any], arguments: Iterable[T], at_once: int = 1, harmless: Kinds = ()) -> list[Any]:
    """Call a function for all arguments, on up to `at_once` threads.

    Errors of the kinds `harmless` are returned in place of results.
    """
    errors: list[Exception] = []

    def attempt(argument: T) -> Any:
        try:
            return call(argument)
        except harmless as error:
            return error
        except Exception as error:  # noqa: BLE001  (raised when the others are done)
            errors.append(error)

    results = on_threads(attempt, list(arguments), at_once)
    if errors:
        raise errors[0]
    return results


def on_loop(
    loop: asyncio.AbstractEventLoop,
    call: Callable[[T], Awaitable[Any]],
    arguments: Iterable[T],
    at_once: int,
    harmless: Kinds = (),
) -> list[Any]:
    """Await a coroutine function for all arguments, on the event loop of another thread.

    Like `each`, with up to `at_once` coroutines at a time. After a Ctrl-C, they are cancelled. The interrupt takes
    effect when they have ended.
    """
    wanted = list(arguments)
    if not wanted:
        return []
    if _running_loop() is loop:
        raise RuntimeError("the storage is asked on the thread of its own event loop, and would wait for itself")
    begun: list[asyncio.Task[list[Any]]] = []

    async def run() -> list[Any]:
        begun.append(asyncio.ensure_future(_together(call, wanted, at_once, harmless)))
        # In contrast to awaiting the task, this ends only with the task.
        await asyncio.wait(begun)
        return begun[0].result()

    running = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        with at_rest():
            return running.result()
    except BaseException:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in begun])
        wait([running])
        raise


async def _together(
    call: Callable[[T], Awaitable[Any]], arguments: Sequence[T], at_once: int, harmless: Kinds
) -> list[Any]:
    results: list[Any] = [None] * len(arguments)
    waiting = iter(enumerate(arguments))
    errors: list[Exception] = []
    in_a_row, most = 0, max(at_once, _FEWEST_FAILURES)

    async def work() -> None:
        nonlocal in_a_row
        for number, argument in waiting:
            if in_a_row >= most:
                return
            try:
                results[number] = await call(argument)
            except harmless as error:
                results[number] = error
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                errors.append(ConnectionError("the storage has cancelled the request"))
                in_a_row += 1
                continue
            except Exception as error:  # noqa: BLE001  (raised when the others are done)
                errors.append(error)
                in_a_row += 1
                continue
            in_a_row = 0

    await asyncio.gather(*(work() for _ in range(min(at_once, len(arguments)))))
    if errors:
        raise errors[0]
    return results


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
