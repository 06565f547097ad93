"""Computing what event loops ask for, on threads of our own.

zarr runs every store on one event loop, and decodes in the thread pool of that loop: a chunk that was computed on
either would wait forever as soon as its ``f`` reads any Zarr array.

Requests are computed at a bounded number of places. One that an ``f`` makes takes none, since all places may be waiting
for that ``f``; it is recognized by its context, since event loops run what they are given in a copy of the caller's. An
``f`` that asks on threads of its own is not recognized: when no place has become free for some seconds, one more
request is computed beside them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from infinite_tensor.engine.claims import is_nested
from infinite_tensor.support.exit import end_before_flush
from infinite_tensor.support.forks import renew_in_children

T = TypeVar("T")
PLACES = max(4, os.cpu_count() or 1)
"""Requests that are computed at a time, beside those that an ``f`` makes."""
_PATIENCE_SECONDS = 5.0
_ENDED = "the process ends, so no more is computed"


@dataclass(eq=False)
class _Request(Generic[T]):
    """Something to compute, for all who ask for it before that begins.

    Attributes
    ----------
    key : Hashable
        What is asked for.
    compute : callable
        Returns it.
    begun : bool
        Whether somebody is computing it, or nobody will any more.
    is_behind : bool
        Whether it takes a place only when another one for its key has been computed.
    answer : Future
        What `compute` returns or raises.
    """

    key: Hashable
    compute: Callable[[], T]
    begun: bool = False
    is_behind: bool = False
    answer: Future[T] = field(default_factory=Future)

    def settle(self) -> None:
        """Compute it."""
        try:
            result = self.compute()
        except Exception as error:  # noqa: BLE001  (whoever asked gets it)
            self.answer.set_exception(error)
        except BaseException as error:  # noqa: BLE001  (the same)
            self.answer.set_exception(_told(error))
        else:
            self.answer.set_result(result)


class Requests(Generic[T]):
    """What is asked for and not computed yet: once for all who ask for the same.

    Nobody is given what had begun before they asked: pixels may have been invalidated meanwhile. They wait for its end
    without a place, so that those who ask for one chunk take one place.
    """

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # A place that is cancelled at once is told of while it is taken.
        self._lock = threading.RLock()
        self._waiting: dict[Hashable, _Request[T]] = {}
        self._under_way: dict[Hashable, _Request[T]] = {}

    async def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What ``compute()`` returns for a key, or raises; CancelledError when the process ends before that begins."""
        work = partial(copy_context().run, compute)
        if is_nested():
            # Whoever has asked before may wait for the f that asks now. No window is computed twice all the same.
            request = _Request(key, work)
            self._compute_beside(request)
        else:
            request = self._at_a_place(key, work)
        loop = asyncio.get_running_loop()
        # Of this caller alone: who gives up leaves the answer to others.
        ready: asyncio.Future[None] = loop.create_future()
        request.answer.add_done_callback(lambda _: _tell(loop, ready))
        while not (await asyncio.wait([ready], timeout=_PATIENCE_SECONDS))[0]:
            if not request.begun and (request.is_behind or _PLACES_OF_ALL.are_stuck()):
                self._compute_beside(request)
        if request.answer.cancelled():
            raise asyncio.CancelledError(_ENDED)
        return request.answer.result()

    def _at_a_place(self, key: Hashable, work: Callable[[], T]) -> _Request[T]:
        """The request for a key that waits for a place, or a new one that does."""
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is not None:
                return waiting
            request = _Request(key, work, is_behind=key in self._under_way)
            if not request.is_behind:
                self._take_place(request)
            # Last: if this is interrupted, nobody waits for what nobody computes.
            self._waiting[key] = request
        return request

    def _take_place(self, request: _Request[T]) -> None:
        place = _PLACES_OF_ALL.take(partial(self._compute, request))
        place.add_done_callback(partial(self._give_up, request))

    def _compute_beside(self, request: _Request[T]) -> None:
        """Compute a request at no place, on a thread of its own."""
        threading.Thread(target=self._compute, args=(request,), name="infinite_tensor-face-beside", daemon=True).start()

    def _compute(self, request: _Request[T]) -> None:
        if self._begins(request):
            request.settle()
            self._end(request)

    def _end(self, request: _Request[T]) -> None:
        """Let the one behind a request that has been computed have a place."""
        with self._lock:
            if self._under_way.get(request.key) is not request:
                return
            del self._under_way[request.key]
            behind = self._waiting.get(request.key)
            if behind is None or not behind.is_behind:
                return
            behind.is_behind = False
        try:
            self._take_place(behind)
        except asyncio.CancelledError:
            self._cancel(behind)

    def _give_up(self, request: _Request[T], place: Future[None]) -> None:
        if place.cancelled():
            self._cancel(request)

    def _cancel(self, request: _Request[T]) -> None:
        """Tell those who wait for a place that the process ends."""
        if self._begins(request):
            request.answer.cancel()

    def _begins(self, request: _Request[T]) -> bool:
        """Whether nobody else has begun with it; from now on nobody will."""
        with self._lock:
            first = not request.begun
            request.begun = True
            if self._waiting.get(request.key) is request:
                del self._waiting[request.key]
            if first:
                self._under_way.setdefault(request.key, request)
        return first


def _tell(loop: asyncio.AbstractEventLoop, ready: asyncio.Future[None]) -> None:
    # A closed loop raises it: nobody waits there any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_set, ready)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class _Places:
    """The threads that all requests of this process share."""

    def __init__(self) -> None:
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._threads = ThreadPoolExecutor(PLACES, thread_name_prefix="infinite_tensor-face")
        self._lock = threading.Lock()
        self._last_free = time.monotonic()
        self._ended = False

    def take(self, work: Callable[[], None]) -> Future[None]:
        """Have work done once a place is free; CancelledError when the process ends."""
        if self._ended:
            raise asyncio.CancelledError(_ENDED)
        return self._threads.submit(self._work, work)

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._last_free = time.monotonic()

    def are_stuck(self) -> bool:
        """Whether no place has become free for a while; true for one caller at a time."""
        with self._lock:
            now = time.monotonic()
            stuck = now - self._last_free >= _PATIENCE_SECONDS
            if stuck:
                self._last_free = now
            return stuck

    def end(self) -> None:
        """Wait for what is under way, and cancel what waits for a place.

        Not by an error: of each of a thousand chunks that nobody waits for any more, asyncio would print a traceback.
        """
        self._ended = True
        self._threads.shutdown(cancel_futures=True)


_PLACES_OF_ALL = _Places()
end_before_flush(_PLACES_OF_ALL.end)


def _told(error: BaseException) -> RuntimeError:
    """What is raised instead of an exception that would end an event loop, or mean something else to it."""
    told = RuntimeError(f"{type(error).__name__} was raised while a chunk was computed")
    told.__cause__ = error
    return told
