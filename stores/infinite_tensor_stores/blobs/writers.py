"""Keeping a second writer of a blob out.

On a local disk that is a lock, which the operating system takes from a process that ends. Elsewhere nothing tells that
a process has ended: there it is a lease, which runs out unless renewed.

A writer puts an object of its own below ``writers/``, then lists what is there. Where another lease has not run out, it
takes its own back and gives up. Storage whose listings show what was put before (S3, GCS, Azure, memory) so lets two
writers never both continue: of two that begin at once, at least one sees the other. Both may give up.

A lease holds the time at which it was last renewed, and runs out 60 s later. It is renewed every 15 s on a thread. A
writer that could not renew it for 20 s looks again before it writes anything, and stops where its lease is gone or
somebody else has one. What is promised supposes that the difference of the machines' clocks, and the time from the
beginning of that look to the end of the request that follows it, are together less than 40 s.

A writer that begins is sure to see a lease that has always been renewed, and gives up: its holder pays no heed to
other leases.
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
from infinite_tensor.support.disks import OpenFile, lock, unlock
from infinite_tensor_stores.zarr.objects import Objects

LOCK = "writer.lock"

FOLDER = "writers"
SECONDS = 60.0
"""After so long without renewal, a lease has run out."""
RENEWAL = 15.0
_CERTAIN = 20.0
"""So long after a renewal, nobody else can have a lease, even if requests and clocks are slow.

More than RENEWAL. What remains of SECONDS is for the difference of clocks and for a request under way.
"""


class NoLocksError(Exception):
    """A file system has no locks."""


class FileLock:
    """A lock on a file in a folder, held until it is released or the process ends.

    Forked children have the lock in common with their parent, so each closes the file as it is born; see `abandon`.

    Parameters
    ----------
    folder : Path
        Where the file is created, and the folder if need be; it stays there.

    Raises
    ------
    StoreError
        If somebody holds the lock.
    NoLocksError
        If the file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        while not self._is_ours(folder / LOCK):
            # Who held it has deleted the blob, and another one may have been created.
            pass

    def check(self) -> None:
        """Nothing takes the lock from its holder."""
        if self._file.number is None:
            raise StoreError("the right to write has been released")

    def release(self) -> None:
        """Let others write."""
        if self._file.number is not None:
            unlock(self._file.number)
        self.abandon()

    def abandon(self) -> None:
        """Close the file in a forked child; the parent continues to hold the lock."""
        self._file.close()

    def _is_ours(self, path: Path) -> bool:
        """Whether the file that is there is locked now; false where it has been deleted meanwhile."""
        # The holder is written into it: not into another file, to which a link may lead.
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
    """The right to write a blob that is not on a local disk, until it is released or not renewed any more.

    Parameters
    ----------
    objects : Objects
        Those of the blob.
    renewal : float
        After how many seconds it is renewed.

    Raises
    ------
    StoreError
        If somebody else has a lease.
    """

    def __init__(self, objects: Objects, *, renewal: float = RENEWAL) -> None:
        self._objects = objects
        self._key = f"{FOLDER}/{secrets.token_hex(8)}"
        self._renewed = 0.0
        self._lost: str | None = None
        self._lock = threading.Lock()
        # Free when the lease has been released; the thread that renews it waits for that.
        self._renewing = threading.Lock()
        self._renewing.acquire()
        self._forget = weakref.finalize(self, _drop, self._key, os.getpid())
        self._forget.atexit = False
        begun = self._put()
        holder = self._other(clean=True)
        if holder is not None:
            self._objects.delete([self._key])
            ends = f". If that process was killed, its lease runs out {SECONDS:.0f} s after its last sign of life"
            raise _refused(holder, ends)
        self._renewed = begun
        # An interrupt may come before anybody else knows of this lease: the thread must not keep it.
        args = weakref.ref(self), self._renewing, renewal
        threading.Thread(target=_keep, args=args, name="infinite_tensor-lease", daemon=True).start()

    def check(self) -> None:
        """Raise StoreError unless nobody else can be writing."""
        if not self._certain():
            self._renew()
        if self._lost is not None:
            raise StoreError(f"{self._lost}; what was not flushed is not stored. Open it again to continue")

    def release(self) -> None:
        """Let others write. Where that fails, the right stays, only `check` renews it, and it can be tried again."""
        if self._renewing.locked():
            self._renewing.release()
        with self._lock:
            if self._lost is None:
                self._objects.delete([self._key])
                self._lost = "the right to write has been released"
        self._forget.detach()

    def abandon(self) -> None:
        """In a forked child: the lease is the parent's, and so is the thread that renews it."""
        self._lost = "the process that has it open for writing is the one that forked this one"
        self._lock = threading.Lock()
        self._forget.detach()

    def _renew(self) -> None:
        with self._lock:
            if self._lost is not None:
                return
            if self._objects.get([self._key]) == [None]:
                self._lost = "its lease was taken back, since this process gave no sign of life"
                return
            begun = self._put()
            holder = None if self._certain() else self._other()
            if holder is None:
                self._renewed = begun
                return
            self._lost = f"{holder} has taken over writing, since this process gave no sign of life"
            self._objects.delete([self._key])

    def _certain(self) -> bool:
        """Whether the last renewal that counts is so recent that the lease cannot have run out for anybody."""
        return time.monotonic() - self._renewed < _CERTAIN

    def _put(self) -> float:
        """Store the lease; the time from which on it is valid."""
        begun = time.monotonic()
        lease = {"holder": _this_process(), "renewed": time.time()}
        self._objects.put({self._key: json.dumps(lease).encode()})
        return begun

    def _other(self, *, clean: bool = False) -> str | None:
        """Who else has a lease that has not run out; with `clean`, where nobody has, those of others are deleted."""
        keys = [key for page in self._objects.pages(FOLDER) for key in page if key != self._key]
        for key, document in zip(keys, self._objects.get(keys), strict=True):
            holder, renewed = _read(document)
            if key not in _DROPPED and time.time() - renewed < SECONDS:
                return holder
        if clean:
            self._objects.delete(keys)
        return None


_DROPPED: set[str] = set()
"""Leases of this process that nobody holds any more, though they were not released: an interrupt came in between."""


def _drop(key: str, pid: int) -> None:
    # A forked child has copies of leases, which are its parent's.
    if pid == os.getpid():
        _DROPPED.add(key)


def _keep(known: weakref.ref[Lease], released: threading.Lock, renewal: float) -> None:
    while not released.acquire(timeout=renewal):
        lease = known()
        if lease is None:
            return
        # Each storage has errors of its own. The next write will see it; until then it may get better.
        with suppress(Exception):
            lease._renew()  # noqa: SLF001  (its own)
        del lease


def _read(document: bytes | None) -> tuple[str, float]:
    try:
        found = json.loads(document or b"{}")
        return str(found["holder"]), float(found["renewed"])
    except (ValueError, KeyError, TypeError):
        # Damaged, or gone by now: nobody renews it.
        return "somebody", 0.0
