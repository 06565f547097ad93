"""Storing in the background: jobs wait in a queue, one thread at a time writes them, many at a time."""

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


class Job(Protocol):
    """Something to store, which takes memory until then."""

    @property
    def nbytes(self) -> int:
        """Memory that the job takes, in bytes."""


K = TypeVar("K", bound=Hashable)
J = TypeVar("J", bound=Job)
Write: TypeAlias = Callable[[dict[K, J]], Sequence[StoreError]]
"""Stores the jobs; what it returns says what went wrong. Where something did, it takes those out that are stored."""

_BATCH_JOBS = 64
_BATCH_BYTES = 16 * 2**20
_QUEUE_BYTES = 32 * 2**20


class Writer(Generic[K, J]):
    """A queue of jobs, at most one per key, and the thread that works it off.

    A later job for a key takes the place of one that has not begun. Jobs of a write that fails are kept:
    `pending` still finds them, `failure` says once what went wrong, and `retry` queues them again. A writer that is
    dropped with such jobs warns that they are lost.

    The function that writes comes with each job. The thread holds it, and so keeps its owner alive, until
    the queue is empty; the writer itself does not.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin with no jobs: in a process that was forked, they are the parent's."""
        self._lock = threading.Lock()
        self._stored = threading.Condition(self._lock)
        self._queued: dict[K, J] = {}
        self._writing: dict[K, J] = {}
        self._failed: dict[K, J] = {}
        self._untold: list[StoreError] = []
        self._reasons: list[StoreError] = []
        # Held until the thread has come to its end.
        self._working: threading.Lock | None = None

    def submit(self, jobs: Mapping[K, J], write: Write[K, J]) -> None:
        """Queue jobs."""
        with self._lock:
            for key, job in jobs.items():
                self._queued[key] = job
                self._failed.pop(key, None)
        self._start(write)

    def pending(self, key: K) -> J | None:
        """The newest job for `key` that is not stored yet, or None."""
        with self._lock:
            for jobs in (self._queued, self._writing, self._failed):
                if key in jobs:
                    return jobs[key]
            return None

    def jobs(self) -> dict[K, J]:
        """The newest job for each key that is not stored yet."""
        with self._lock:
            return self._failed | self._writing | self._queued

    @property
    def failed(self) -> bool:
        """Whether something went wrong that `failure` has not told of."""
        return bool(self._untold)

    def failure(self) -> StoreError | None:
        """What went wrong since the last call, or None."""
        with self._lock:
            untold, self._untold = self._untold, []
        return combined(untold) if untold else None

    def unstored(self) -> StoreError | None:
        """Why what is still kept could not be stored, told before or not; None where nothing is kept."""
        with self._lock:
            return combined(self._reasons) if self._failed else None

    def retry(self, write: Write[K, J]) -> None:
        """Queue again what failed; only what goes wrong from now on is told by `failure`."""
        with self._lock:
            self._queued, self._failed = self._failed | self._queued, {}
            self._untold, self._reasons = [], []
        self._start(write)

    def stuck(self) -> bool:
        """Whether what could not be stored takes as much memory as may wait at all."""
        with self._lock:
            return sum(job.nbytes for job in self._failed.values()) > _QUEUE_BYTES

    def throttle(self) -> None:
        """Return when the jobs that wait take a bounded amount of memory."""
        self._wait_for(lambda: sum(job.nbytes for job in self._queued.values()) <= _QUEUE_BYTES)

    def drain(self) -> None:
        """Return when every job is stored or has failed."""
        self._wait_for(lambda: not self._queued and not self._writing)

    def cancel(self, matches: Callable[[K], bool]) -> None:
        """Forget the jobs whose keys match, after the end of a write that is under way."""
        with self._lock:
            for key in filter(matches, list(self._queued)):
                del self._queued[key]
        self._wait_for(lambda: not any(map(matches, self._writing)))
        with self._lock:
            for key in filter(matches, list(self._failed)):
                del self._failed[key]

    def give_up(self) -> None:
        """Forget the jobs that have not begun."""
        with self._lock:
            self._queued = {}
            self._stored.notify_all()

    def _wait_for(self, reached: Callable[[], bool]) -> None:
        with self._lock:
            wait_until(reached, self._stored)

    def __del__(self) -> None:
        if self._failed:
            warnings.warn(
                f"{len(self._failed)} tiles are lost: {combined(self._reasons)}", RuntimeWarning, stacklevel=1
            )

    def _start(self, write: Write[K, J]) -> None:
        """Have a thread work off the queue, if there is anything in it."""
        with self._lock:
            if not self._queued or (self._working is not None and self._working.locked()):
                return
            self._working = begin(partial(self._work, write))
            if self._working is not None:
                return
        # No thread can be started any more: the interpreter exits.
        self._work(write)

    def _work(self, write: Write[K, J]) -> None:
        while self._begin():
            unstored = dict(self._writing)
            try:
                failures = write(unstored)
            except BaseException as error:  # noqa: BLE001  (a thread that ends here would be waited for)
                stopped = StoreError(f"what was to be stored in the background was stopped by {error!r}")
                stopped.__cause__ = error
                failures = [stopped]
            self._end(failures, unstored)

    def _begin(self) -> bool:
        """Take jobs from the queue; False where it is empty."""
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
                # Nothing gets through: the others would only take longer to fail as well.
                self._failed |= self._queued
                self._queued = {}
            self._writing = {}
            self._stored.notify_all()
