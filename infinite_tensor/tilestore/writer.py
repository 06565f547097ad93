"""Storing in the background: jobs wait in a queue, one thread writes them many at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Protocol, TypeAlias, TypeVar

from infinite_tensor.errors import StoreError


class Job(Protocol):
    """Something to store, which takes memory until then."""

    @property
    def nbytes(self) -> int:
        """Memory that the job takes, in bytes."""


K = TypeVar("K", bound=Hashable)
J = TypeVar("J", bound=Job)
Write: TypeAlias = Callable[[Mapping[K, J]], None]

_BATCH_JOBS = 64
_QUEUE_BYTES = 32 * 2**20


class Writer(Generic[K, J]):
    """A queue of jobs, at most one per key, and the thread that works it off.

    A later job for a key takes the place of one that has not begun. Jobs of a write that fails are kept:
    `pending` still finds them, `failure` says once what went wrong, and `retry` queues them again.

    The function that writes comes with each job. The thread holds it, and so keeps its owner alive, until
    the queue is empty; the writer itself does not.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queued: dict[K, J] = {}
        self._writing: dict[K, J] = {}
        self._failed: dict[K, J] = {}
        self._failure: Exception | None = None
        self._reason: Exception | None = None
        self._busy = False

    def submit(self, key: K, job: J, write: Write[K, J]) -> None:
        """Queue a job."""
        with self._changed:
            self._failed.pop(key, None)
            self._queued[key] = job
            self._start(write)

    def pending(self, key: K) -> J | None:
        """The newest job for `key` that is not stored yet, or None."""
        with self._changed:
            for jobs in (self._queued, self._writing, self._failed):
                if key in jobs:
                    return jobs[key]
            return None

    def failure(self) -> Exception | None:
        """What went wrong since the last call, or None."""
        with self._changed:
            failure, self._failure = self._failure, None
            return failure

    def unstored(self) -> Exception | None:
        """Why what is still kept could not be stored, told before or not; None where nothing is kept."""
        with self._changed:
            return self._reason if self._failed else None

    def retry(self, write: Write[K, J]) -> None:
        """Queue again what failed; only what goes wrong from now on is told by `failure`."""
        with self._changed:
            self._queued = self._failed | self._queued
            self._failed = {}
            self._failure = None
            if self._queued:
                self._start(write)

    def stuck(self) -> bool:
        """Whether what could not be stored takes as much memory as may wait at all."""
        with self._changed:
            return sum(job.nbytes for job in self._failed.values()) > _QUEUE_BYTES

    def throttle(self) -> None:
        """Return when the jobs that wait take a bounded amount of memory."""
        with self._changed:
            self._changed.wait_for(lambda: sum(job.nbytes for job in self._queued.values()) <= _QUEUE_BYTES)

    def drain(self) -> None:
        """Return when every job is stored or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queued and not self._writing)

    def cancel(self, matches: Callable[[K], bool]) -> None:
        """Forget the jobs whose keys match, after the end of a write that is under way."""
        with self._changed:
            for key in filter(matches, list(self._queued)):
                del self._queued[key]
            self._changed.wait_for(lambda: not any(map(matches, self._writing)))
            for key in filter(matches, list(self._failed)):
                del self._failed[key]

    def _start(self, write: Write[K, J]) -> None:
        if not self._busy:
            threading.Thread(target=self._work, args=(write,), name="infinite_tensor-writer", daemon=True).start()
            self._busy = True

    def _work(self, write: Write[K, J]) -> None:
        while self._begin():
            failure: Exception | None = None
            try:
                write(self._writing)
            except Exception as error:  # noqa: BLE001  (kept for whoever reads or flushes next)
                failure = error
            except BaseException as error:  # noqa: BLE001  (a thread that ends here would be waited for)
                failure = StoreError(f"what was to be stored in the background was stopped by {error!r}")
            self._end(failure)

    def _begin(self) -> bool:
        """Take jobs from the queue; False where it is empty and the thread must end."""
        with self._changed:
            for key in list(self._queued)[:_BATCH_JOBS]:
                self._writing[key] = self._queued.pop(key)
            self._busy = bool(self._writing)
            return self._busy

    def _end(self, failure: Exception | None) -> None:
        with self._changed:
            if failure is not None:
                self._failure = self._reason = failure
                self._failed |= {key: job for key, job in self._writing.items() if key not in self._queued}
                if isinstance(failure.__cause__, TimeoutError | ConnectionError):
                    # Nothing gets through: the others would only take longer to fail as well.
                    self._failed |= self._queued
                    self._queued = {}
            self._writing = {}
            self._changed.notify_all()
