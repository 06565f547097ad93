"""Who is served next: threads that work for many clients at once, each in its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Job(Generic[T]):
    """Something to do, its result, and how many wait for it."""

    do: Callable[[], T]
    jobs: dict[Hashable, _Job[T]]
    result: asyncio.Future[T] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    waiting: int = 0


class Work(Generic[T]):
    """A queue per client, whose jobs are done on threads: the first of one client, then the first of the next.

    All methods are called on one event loop.

    Parameters
    ----------
    threads : int
        How many jobs are done at a time.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="infinite_tensor-server")
        self._free = threads
        self._clients: dict[Hashable, dict[Hashable, _Job[T]]] = {}
        self._queued: dict[Hashable, _Job[T]] = {}

    async def result(self, client: Hashable, key: Hashable, do: Callable[[], T]) -> T:
        """What ``do()`` returns or raises, or what is queued under the same key.

        Where this is cancelled, and nobody else waits for the job, it leaves the queue. What has begun is finished.
        """
        # Not one that has begun: pixels may have been invalidated since.
        job = self._queued.get(key)
        if job is None:
            jobs = self._clients.setdefault(client, {})
            job = self._queued[key] = jobs[key] = _Job(do, jobs)
        job.waiting += 1
        self._begin()
        try:
            return await asyncio.shield(job.result)
        finally:
            job.waiting -= 1
            if not job.waiting and self._queued.get(key) is job:
                del self._queued[key], job.jobs[key]

    def _begin(self) -> None:
        """Have free threads do what is queued."""
        while self._free and self._clients:
            client = next(iter(self._clients))
            jobs = self._clients.pop(client)
            if not jobs:
                continue
            key = next(iter(jobs))
            job = jobs.pop(key)
            del self._queued[key]
            # The client comes again after all others.
            self._clients[client] = jobs
            self._free -= 1
            done = asyncio.get_running_loop().run_in_executor(self._threads, job.do)
            done.add_done_callback(partial(self._end, job))

    def _end(self, job: _Job[T], done: asyncio.Future[T]) -> None:
        self._free += 1
        self._begin()
        if done.cancelled():
            job.result.cancel()
        elif (error := done.exception()) is not None:
            job.result.set_exception(error)
            # Perhaps nobody waits any more.
            job.result.exception()
        else:
            job.result.set_result(done.result())

    def close(self) -> None:
        """Wait for what has begun; nothing else is done."""
        self._free = 0
        self._threads.shutdown(cancel_futures=True)
