"""Threads for the jobs of many clients, one job per client in turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from infinite_tensor.support.stopping import stopping

T = TypeVar("T")


@dataclass
class _Job(Generic[T]):
    """A function to call, with its result and the number of waiting requests."""

    do: Callable[[], T]
    jobs: dict[Hashable, _Job[T]]
    result: Future[T] = field(default_factory=Future)
    waiting: int = 0

    def is_unwanted(self) -> bool:
        """Whether no request waits for the result."""
        return not self.waiting


class Work(Generic[T]):
    """Threads with a queue of jobs for each client.

    Threads take one job of a client, then one of the next client, and so on. A thread that has finished a job takes the
    next one at once, without waiting for the event loop.

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
        self._lock = threading.Lock()

    async def result(self, client: Hashable, key: Hashable, do: Callable[[], T]) -> T:
        """Queue a job, and wait for the result or the error.

        If a job with this key is already queued, wait for that one instead. If the caller is cancelled and nobody else
        waits for the job, a queued job is dropped, and a running job stops before its next call of an ``f``.
        """
        with self._lock:
            # Do not join a running job: pixels may have been invalidated since.
            job = self._queued.get(key)
            if job is None:
                jobs = self._clients.setdefault(client, {})
                job = self._queued[key] = jobs[key] = _Job(do, jobs)
            job.waiting += 1
            if self._free:
                self._free -= 1
                self._threads.submit(self._run)
        try:
            return await asyncio.shield(asyncio.wrap_future(job.result))
        finally:
            with self._lock:
                job.waiting -= 1
                if not job.waiting and self._queued.get(key) is job:
                    del self._queued[key], job.jobs[key]

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                with stopping(job.is_unwanted):
                    job.result.set_result(job.do())
            except BaseException as error:  # noqa: BLE001  (raised in the requests that wait)
                job.result.set_exception(error)

    def _next(self) -> _Job[T] | None:
        with self._lock:
            while self._clients:
                client = next(iter(self._clients))
                jobs = self._clients.pop(client)
                if jobs:
                    key = next(iter(jobs))
                    # The client moves behind all others.
                    self._clients[client] = jobs
                    del self._queued[key]
                    return jobs.pop(key)
            self._free += 1
            return None

    def close(self) -> None:
        """Drop queued jobs, and wait for running jobs."""
        with self._lock:
            self._clients.clear()
        self._threads.shutdown(cancel_futures=True)
