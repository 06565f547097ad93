"""Locks and leases against a second writer of a blob.

On a local disk, a writer has a file lock, which the operating system releases when the process ends. On other storage
nobody notices the end of a process, so a writer has a lease, which expires unless it is renewed.

To get a lease, a writer puts its own object below ``writers/``, then lists that folder. If it finds another lease that
has not expired, it deletes its own and gives up. On storage with consistent listings (S3, GCS, Azure, memory), two
writers can therefore never both continue: of two that begin at once, at least one sees the other. Both may give up.

A lease contains the time at which it was last renewed, and expires 60 s later. A thread renews it every 15 s. If a
writer could not renew its lease for 20 s, it checks again before it writes anything, and stops if its lease is gone or
another writer has one. This is safe as long as the difference of the machines' clocks, plus the time from the beginning
of that check to the end of the request after it, is less than 40 s.

A new writer always sees a lease that is renewed in time, and gives up, so the holder of such a lease need not look for
others.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

from infinite_tensor.errors import StoreError
from infinite_tensor.support.disks import OpenFile, lock
from infinite_tensor_stores.homes import Home

LOCK = "writer.lock"

FOLDER = "writers"
SECONDS = 60.0
"""The lifetime of a lease without renewal."""
RENEWAL = 15.0
_CERTAIN = 20.0
"""The time after a renewal without any other holder, even with slow requests and clocks.

Must exceed RENEWAL. The rest of SECONDS allows for different clocks and for a request under way.
"""


class NoLocksError(Exception):
    """The file system does not support locks."""


class FileLock:
    """A lock on a file, held until it is released or the process ends.

    A forked child would share the lock with its parent, so it closes the file right after the fork; see `abandon`.

    Parameters
    ----------
    folder : Path
        The folder in which the file is created. The file stays there. The folder is created if necessary.

    Raises
    ------
    StoreError
        If the lock is held elsewhere.
    NoLocksError
        If the file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        while not self._is_ours(folder / LOCK):
            # The holder has deleted the blob, so the lock file may be another one now: try again.
            pass

    def check(self) -> None:
        """Raise StoreError if the lock has been released.

        Nothing else can end the lock.
        """
        if self._file.number is None:
            raise StoreError("the right to write has been released")

    def release(self) -> None:
        """Let others write."""
        self._file.unlock()

    def abandon(self) -> None:
        """Close the file in a forked child.

        The parent continues to hold the lock.
        """
        self._file.close()

    def _is_ours(self, path: Path) -> bool:
        """Lock the file.

        Return False if the file was deleted meanwhile.
        """
        # The name of the holder is written into the file, so do not follow a link, which could lead to another file.
        self._file = OpenFile(descriptor := os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666))
        is_ours = False
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{LOCK} is not a regular file; delete it")
            if not lock(descriptor, wait=False):
                raise NoLocksError
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{_this_process()}\n".encode(), 0)
                is_ours = True
        except FileNotFoundError:
            pass
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
            raise _refused(holder or "another process") from None
        finally:
            if not is_ours:
                self._file.close()
        return is_ours


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refused(holder: str, more: str = "") -> StoreError:
    return StoreError(f"{holder} has it open for writing; close it there, or open it here with mode 'r'{more}")


class Lease:
    """The right to write a blob, for storage without file locks.

    The lease ends when it is released, or when it is no longer renewed.

    Parameters
    ----------
    home : Home
        The objects of the blob.
    renewal : float
        Seconds between renewals.

    Raises
    ------
    StoreError
        If another writer has a lease.
    """

    def __init__(self, home: Home, *, renewal: float = RENEWAL) -> None:
        self._home = home
        self._key = f"{FOLDER}/{secrets.token_hex(8)}"
        self._renewed = 0.0
        self._lost: str | None = None
        self._lock = threading.Lock()
        # Locked until the lease is released. The renewing thread waits for the release.
        self._renewing = threading.Lock()
        self._renewing.acquire()
        self._forget = weakref.finalize(self, _drop, self._key, os.getpid())
        self._forget.atexit = False
        begun = self._put()
        holder = self._other(clean=True)
        if holder is not None:
            self._home.delete([self._key])
            ends = f". If that process was killed, its lease expires {SECONDS:.0f} s after the last renewal"
            raise _refused(holder, ends)
        self._renewed = begun
        # The thread must not keep the lease alive, because after an interrupt the caller may never get it.
        args = weakref.ref(self), self._renewing, renewal
        threading.Thread(target=_keep, args=args, name="infinite_tensor-lease", daemon=True).start()

    def check(self) -> None:
        """Raise StoreError if another writer may be writing."""
        if not self._certain():
            self._renew()
        if self._lost is not None:
            raise StoreError(f"{self._lost}; unflushed rows are not stored. Open the blob again to continue")

    def release(self) -> None:
        """Let others write.

        If this fails, call it again.
        """
        if self._renewing.locked():
            self._renewing.release()
        with self._lock:
            if self._lost is None:
                self._home.delete([self._key])
                self._lost = "the right to write has been released"
        self._forget.detach()

    def abandon(self) -> None:
        """Give up the lease in a forked child.

        The parent keeps the lease, and its thread renews it.
        """
        self._lost = "this process is a forked child; its parent has it open for writing"
        self._lock = threading.Lock()
        self._forget.detach()

    def _renew(self) -> None:
        with self._lock:
            if self._lost is not None:
                return
            if self._home.get([self._key]) == [None]:
                self._lost = "the lease was deleted, because this process had not renewed it in time"
                return
            begun = self._put()
            holder = None if self._certain() else self._other()
            if holder is None:
                self._renewed = begun
                return
            self._lost = f"{holder} has taken over writing, because this process had not renewed its lease in time"
            self._home.delete([self._key])

    def _certain(self) -> bool:
        return time.monotonic() - self._renewed < _CERTAIN

    def _put(self) -> float:
        begun = time.monotonic()
        lease = {"holder": _this_process(), "renewed": time.time()}
        self._home.put({self._key: json.dumps(lease).encode()})
        return begun

    def _other(self, *, clean: bool = False) -> str | None:
        """Return who else has a lease that has not expired.

        Return None if nobody has. If `clean` is True, the expired leases are then deleted.
        """
        keys = [key for key in self._home.keys(FOLDER) if key != self._key]
        for key, document in zip(keys, self._home.get(keys), strict=True):
            holder, renewed = _read(document)
            if key not in _DROPPED and time.time() - renewed < SECONDS:
                return holder
        if clean:
            self._home.delete(keys)
        return None


_DROPPED: set[str] = set()
"""Leases of this process, dropped by an interrupt without a release."""


def _drop(key: str, pid: int) -> None:
    # A forked child has copies of the parent's leases.
    if pid == os.getpid():
        _DROPPED.add(key)


def _keep(known: weakref.ref[Lease], released: threading.Lock, renewal: float) -> None:
    while not released.acquire(timeout=renewal):
        lease = known()
        if lease is None:
            return
        # Storages raise different errors. The next write reports a lasting problem.
        with suppress(Exception):
            lease._renew()  # noqa: SLF001  (a function of this module)
        del lease


def _read(document: bytes | None) -> tuple[str, float]:
    try:
        found = json.loads(document or b"{}")
        return str(found["holder"]), float(found["renewed"])
    except (ValueError, KeyError, TypeError):
        # A damaged or missing lease has no holder to renew it.
        return "somebody", 0.0
