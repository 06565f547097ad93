"""Background writer: a queue of jobs, written in batches by a single thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

from infinite_tensor.errors import StoreError
from infinite_tensor.support.interrupts import wait_until
from infinite_tensor.support.threads import begin
from infinite_tensor.tilestore.messages import combined


class Submission(Protocol):
    """Data waiting to be stored."""

    @property
    def nbytes(self) -> int:
        """Memory use of the job in bytes."""


K = TypeVar("K", bound=Hashable)
J = TypeVar("J", bound=Submission)
Write: TypeAlias = Callable[[dict[K, J]], Sequence[StoreError]]
"""Function for storing jobs. Returns the errors. If there are errors, stored jobs are removed from the dict."""

_BATCH_JOBS = 64
_BATCH_BYTES = 16 * 2**20
_QUEUE_BYTES = 32 * 2**20


class Writer(Generic[K, J]):
    """Queue of jobs with a background thread for writing.

    The queue has at most one job per key: a new job replaces the queued job for the same key. If a write fails, its
    jobs are kept: `pending` still finds them, `failure` reports the error once, and `retry` queues them again. If the
    writer is deleted, it warns that its failed jobs are lost.

    `submit` and `retry` take the function for writing jobs. The thread holds this function until the queue is empty.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Reset the writer to an empty queue without errors.

        Also called in a forked child, because the parent stores the jobs.
        """
        self._lock = threading.Lock()
        self._stored = threading.Condition(self._lock)
        self._queued: dict[K, J] = {}
        self._writing: dict[K, J] = {}
        self._failed: dict[K, J] = {}
        self._untold: list[StoreError] = []
        self._reasons: list[StoreError] = []
        # Locked until the thread has ended.
        self._working: threading.Lock | None = None

    def submit(self, jobs: Mapping[K, J], write: Write[K, J]) -> None:
        """Queue jobs for writing."""
        try:
            with self._lock:
                for key, job in jobs.items():
                    self._queued[key] = job
                    self._failed.pop(key, None)
        finally:
            # Also after an exception of a signal handler, because `throttle` waits for the queue.
            self._start(write)

    def pending(self, key: K) -> J | None:
        """Return the latest unstored job for `key`, or None."""
        with self._lock:
            for jobs in (self._queued, self._writing, self._failed):
                if key in jobs:
                    return jobs[key]
            return None

    def jobs(self) -> dict[K, J]:
        """Return the latest unstored job for each key."""
        with self._lock:
            return self._failed | self._writing | self._queued

    @property
    def is_empty(self) -> bool:
        """Whether no job is queued, being written or failed."""
        return not (self._queued or self._writing or self._failed)

    @property
    def failed(self) -> bool:
        """Whether `failure` has an error to report."""
        return bool(self._untold)

    def failure(self) -> StoreError | None:
        """Return the errors since the last call, combined into a single error.

        Return None if there were no errors.
        """
        with self._lock:
            untold, self._untold = self._untold, []
        return combined(untold) if untold else None

    def unstored(self) -> StoreError | None:
        """Return the errors of failed jobs, combined into a single error.

        Errors already reported by `failure` are included. Return None if no job has failed.
        """
        with self._lock:
            return combined(self._reasons) if self._failed else None

    def retry(self, write: Write[K, J]) -> None:
        """Queue failed jobs again, and clear the errors."""
        with self._lock:
            self._queued, self._failed = self._failed | self._queued, {}
            self._untold, self._reasons = [], []
        self._start(write)

    def stuck(self) -> bool:
        """Return whether failed jobs exceed the memory limit of the queue."""
        with self._lock:
            return sum(job.nbytes for job in self._failed.values()) > _QUEUE_BYTES

    def throttle(self) -> None:
        """Wait until queued jobs are within the memory limit of the queue."""
        self._wait_for(lambda: sum(job.nbytes for job in self._queued.values()) <= _QUEUE_BYTES)

    def drain(self) -> None:
        """Wait until every job is stored or has failed."""
        self._wait_for(lambda: not self._queued and not self._writing)

    def cancel(self, matches: Callable[[K], bool]) -> None:
        """Remove all jobs for some keys, queued or failed.

        ``matches(key)`` selects the keys. If a selected job is being written, wait for the end of the write.
        """
        with self._lock:
            for key in filter(matches, list(self._queued)):
                del self._queued[key]
        self._wait_for(lambda: not any(map(matches, self._writing)))
        with self._lock:
            for key in filter(matches, list(self._failed)):
                del self._failed[key]

    def _wait_for(self, reached: Callable[[], bool]) -> None:
        with self._lock:
            wait_until(reached, self._stored)

    def __del__(self) -> None:
        if self._failed:
            warnings.warn(
                f"{len(self._failed)} tiles are lost: {combined(self._reasons)}", RuntimeWarning, stacklevel=1
            )

    def _start(self, write: Write[K, J]) -> None:
        with self._lock:
            if not self._queued or (self._working is not None and self._working.locked()):
                return
            self._working = begin(partial(self._work, write))
            if self._working is not None:
                return
        # The interpreter is exiting, so no thread can be started.
        self._work(write)

    def _work(self, write: Write[K, J]) -> None:
        while self._begin():
            unstored = dict(self._writing)
            try:
                failures = write(unstored)
            except BaseException as error:  # noqa: BLE001  (if the thread ended here, others would wait forever)
                stopped = StoreError(f"storing in the background was stopped by {error!r}")
                stopped.__cause__ = error
                failures = [stopped]
            self._end(failures, unstored)

    def _begin(self) -> bool:
        """Take a batch of jobs from the queue.

        Return False if the queue is empty.
        """
        with self._lock:
            size = 0
            for key in list(self._queued)[:_BATCH_JOBS]:
                size += self._queued[key].nbytes
                if size > _BATCH_BYTES and self._writing:
                    break
                self._writing[key] = self._queued.pop(key)
            if not self._writing:
                self._working = None
            return bool(self._writing)

    def _end(self, failures: Sequence[StoreError], unstored: Mapping[K, J]) -> None:
        with self._lock:
            self._untold += failures
            self._reasons += failures
            if failures:
                self._failed |= {key: job for key, job in unstored.items() if key not in self._queued}
            if any(isinstance(failure.__cause__, TimeoutError | ConnectionError) for failure in failures):
                # The storage cannot be reached: waiting for the other jobs to fail too would only take time.
                self._failed |= self._queued
                self._queued = {}
            self._writing = {}
            self._stored.notify_all()
