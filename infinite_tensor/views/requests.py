"""Computing what other programs ask for, on threads of our own.

zarr runs all stores on one event loop, and decodes in the thread pool of that loop: a chunk that is computed on either
would wait for ever, once its ``f`` reads any Zarr array.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Hashable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

from infinite_tensor.engine.claims import is_nested
from infinite_tensor.support.forks import renew_in_children

T = TypeVar("T")
_PLACES = max(4, os.cpu_count() or 1)
"""Chunks that are computed at a time, beside those that an ``f`` asks for."""


class Requests(Generic[T]):
    """What is being computed for those who ask: once for all who ask for the same meanwhile."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[T]] = {}

    async def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What ``compute()`` returns for a key, or raises."""
        future: Future[T] = Future()
        if is_nested():
            # Whoever has asked before may wait for the f that asks now. No window is computed twice all the same.
            _begin(future, compute)
        else:
            with self._lock:
                found = self._under_way.setdefault(key, future)
            if found is future:
                future.add_done_callback(lambda _: self._end(key))
                _begin(future, compute)
            future = found
        # Others may still want what this one no longer waits for.
        return await asyncio.shield(asyncio.wrap_future(future))

    def _end(self, key: Hashable) -> None:
        with self._lock:
            del self._under_way[key]


class _Places:
    """The threads that all requests of this process share."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._threads = ThreadPoolExecutor(_PLACES, thread_name_prefix="infinite_tensor-face")

    def submit(self, work: Callable[[], object]) -> Future[object]:
        """Have it done once a thread is free."""
        return self._threads.submit(work)

    def end(self) -> None:
        """Wait for what is under way, and drop what waits for a thread."""
        self._threads.shutdown(cancel_futures=True)


_PLACES_OF_ALL = _Places()
# Before stores are flushed: they register earlier, and the last to come is the first to go.
threading._register_atexit(_PLACES_OF_ALL.end)  # type: ignore[attr-defined]  # noqa: SLF001  (as in support.exit)


def _begin(future: Future[T], compute: Callable[[], T]) -> None:
    """Have a thread compute, which knows by a copy of this context what the request is part of."""
    work = partial(copy_context().run, _settle, future, compute)
    if is_nested():
        # All places may be taken by what waits for its f.
        threading.Thread(target=work, name="infinite_tensor-face-nested", daemon=True).start()
        return
    try:
        place = _PLACES_OF_ALL.submit(work)
    except RuntimeError:
        # The process ends.
        future.cancel()
    else:
        place.add_done_callback(partial(_drop, future))


def _drop(future: Future[T], place: Future[object]) -> None:
    if place.cancelled():
        future.cancel()


def _settle(future: Future[T], compute: Callable[[], T]) -> None:
    try:
        result = compute()
    except (StopIteration, futures.CancelledError) as error:
        future.set_exception(_told(error))
    except Exception as error:  # noqa: BLE001  (whoever asked gets it)
        future.set_exception(error)
    except BaseException as error:  # noqa: BLE001  (the same)
        future.set_exception(_told(error))
    else:
        future.set_result(result)


def _told(error: BaseException) -> RuntimeError:
    """What is raised instead of an exception that would end an event loop, or mean something else to it."""
    told = RuntimeError(f"{type(error).__name__} was raised while a chunk was computed")
    told.__cause__ = error
    return told
