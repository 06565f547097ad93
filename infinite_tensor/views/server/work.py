"""Threads that make the answers for many clients, one answer per client in turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from starlette.responses import Response

from infinite_tensor.support.stopping import stopping

Do: TypeAlias = Callable[[], Response | None]
_MOST_UNSENT_BYTES = 2**27
"""How many bytes wait to be sent before no further answer is made."""


@dataclass
class _Job:
    """A function to call, with its result and the number of requests that need it."""

    do: Do
    jobs: dict[Hashable, _Job]
    result: Future[Response | None] = field(default_factory=Future)
    needed_by: int = 0
    unsent: Response | None = None

    def is_unwanted(self) -> bool:
        """Whether no request needs the result."""
        return not self.needed_by


class Work:
    """Threads with a queue of jobs for each client.

    Threads take one job of a client, then one of the next client, and so on. A thread that has finished a job takes the
    next one at once, without waiting for the event loop.

    An answer is kept until it is sent, and equal answers are kept once. While answers of 128 MiB wait, no job begins.

    Parameters
    ----------
    threads : int
        How many jobs are done at a time.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="infinite_tensor-server")
        self._free = threads
        self._clients: dict[Hashable, dict[Hashable, _Job]] = {}
        self._queued: dict[Hashable, _Job] = {}
        # Answers, with the number of jobs that have them.
        self._unsent: dict[Hashable, tuple[Response, int]] = {}
        self._unsent_bytes = 0
        self._lock = threading.Lock()

    async def result(self, client: Hashable, key: Hashable, do: Do, until: ExitStack) -> Response | None:
        """Queue a job, and wait for the result or the error.

        If a job with this key is already queued, wait for that one instead. The caller closes `until` once the result
        is sent, or no longer needed. If nobody else needs it, a queued job is dropped, and a running job stops before
        its next call of an ``f``.
        """
        with self._lock:
            # Do not join a running job: pixels may have been invalidated since.
            job = self._queued.get(key)
            if job is None:
                jobs = self._clients.setdefault(client, {})
                job = self._queued[key] = jobs[key] = _Job(do, jobs)
            job.needed_by += 1
            self._begin()
        until.callback(self._leave, key, job)
        return await asyncio.shield(asyncio.wrap_future(job.result))

    def _leave(self, key: Hashable, job: _Job) -> None:
        with self._lock:
            job.needed_by -= 1
            if job.needed_by:
                return
            if self._queued.get(key) is job:
                del self._queued[key], job.jobs[key]
            if job.unsent is not None:
                self._drop(job.unsent)
                self._begin()

    def _begin(self) -> None:
        if self._free:
            self._free -= 1
            self._threads.submit(self._run)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                with stopping(job.is_unwanted):
                    answer = job.do()
                job.result.set_result(answer if answer is None else self._keep(job, answer))
            except BaseException as error:  # noqa: BLE001  (raised in the requests that wait)
                job.result.set_exception(error)

    def _keep(self, job: _Job, answer: Response) -> Response:
        """Return an equal answer that waits to be sent, or else `answer`, and keep it until `job` is not needed."""
        with self._lock:
            if job.needed_by:
                tag = _tag(answer)
                answer, count = self._unsent.get(tag, (answer, 0))
                self._unsent[tag], job.unsent = (answer, count + 1), answer
                self._unsent_bytes += 0 if count else len(answer.body)
            return answer

    def _drop(self, answer: Response) -> None:
        tag = _tag(answer)
        _, count = self._unsent.pop(tag)
        if count > 1:
            self._unsent[tag] = answer, count - 1
        else:
            self._unsent_bytes -= len(answer.body)

    def _next(self) -> _Job | None:
        with self._lock:
            while self._clients and self._unsent_bytes < _MOST_UNSENT_BYTES:
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


def _tag(answer: Response) -> Hashable:
    # An answer without an ETag equals no other.
    return answer.media_type, answer.headers.get("etag", id(answer))
