"""Keeping a second writer of a local blob out, by a lock that the operating system takes from a process that ends."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from infinite_tensor.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows: blobs have a lease there.
    LOCKS = False
else:
    LOCKS = True

LOCK = "writer.lock"


class _Held:
    """A descriptor, which is closed when nobody refers to it any more: by an interrupt, perhaps."""

    number: int | None = None

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        """Close it; a second time is no error."""
        number, self.number = self.number, None
        if number is not None:
            os.close(number)

    def __del__(self) -> None:
        self.close()


class FileLock:
    """A lock on a file in a folder, held until it is released or the process ends.

    Forked children have the lock in common with their parent, so each lets go of it as it is born; see `abandon`.

    Parameters
    ----------
    folder : Path
        Where the file is made; it stays there.

    Raises
    ------
    StoreError
        If somebody holds the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._held: _Held | None = None
        while self._held is None:
            self._try()

    def check(self) -> None:
        """Nothing takes the lock from its holder."""
        if self._held is None:
            raise StoreError("the right to write has been released")

    def release(self) -> None:
        """Let others write."""
        held = self._held
        if held is not None:
            if held.number is not None:
                # Closing would not unlock it while a child that was forked in this moment has it open.
                fcntl.flock(held.number, fcntl.LOCK_UN)
            held.close()
            self._held = None

    def abandon(self) -> None:
        """Close the file in a forked child; the parent goes on holding the lock."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _try(self) -> None:
        # Who holds it is written into it: not into another file, to which a link may lead.
        held = _Held(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666))
        descriptor = held.number
        assert descriptor is not None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{LOCK} is not a regular file; delete it")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Otherwise, whoever held it has deleted the blob.
            if self._is_current(descriptor):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                self._held = held
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
            raise StoreError(
                f"{holder or 'another process'} has it open for writing; close it there, or open it here with mode 'r'"
            ) from None
        finally:
            if self._held is None:
                held.close()

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False
