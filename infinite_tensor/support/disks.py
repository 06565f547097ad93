"""Local disks: names, locks and syncs, each in one place, with what is done where a file system has no such thing.

SMB shares, exFAT, FUSE and others have no hard links, some mounts of NFS and Lustre no locks, and CIFS syncs no folder.
"""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infinite_tensor.errors import WeakerStorageWarning

try:
    import fcntl
except ImportError:  # Windows, where no folder can be opened either.
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

_NO_SUCH_CALL = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_NO_LINKS = (*_NO_SUCH_CALL, errno.EPERM, errno.EXDEV, errno.EMLINK)
NO_LOCKS = (*_NO_SUCH_CALL, errno.ENOLCK)
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Of a folder that cannot be synced: all else says that this is not done there."""

_told: set[tuple[str, str]] = set()


def tell_weaker(place: object, lack: str) -> None:
    """Warn that storage keeps a weaker promise than others: once in a process for each place and lack."""
    told = str(place), lack
    if told not in _told:
        _told.add(told)
        warnings.warn(f"{place}: {lack} (see docs/promises.md)", WeakerStorageWarning, stacklevel=2)


def give_name(unfinished: Path, path: Path, place: Path) -> None:
    """Name a finished file that has another name so far, which it may keep.

    Parameters
    ----------
    unfinished, path : Path
        The name that it has, and the one that it gets.
    place : Path
        What is named where the file system has no hard links: then somebody else who gives the same name at the same
        moment may win.

    Raises
    ------
    FileExistsError
        If something has the name. Unlike a rename, this does not replace it.
    """
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        unfinished.replace(path)
        tell_weaker(
            place,
            "this file system has no hard links, so where two processes create the same at the same moment, the later "
            "one wins",
        )


def lock(descriptor: int, *, wait: bool) -> bool:
    """Lock what is open, for this descriptor alone; False where the file system has no locks.

    Raises
    ------
    BlockingIOError
        If somebody else has locked it, and this is not to `wait`.
    """
    if not HAS_LOCKS:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def unlock(descriptor: int) -> None:
    """Unlock what is locked. Closing would not, while a child that was forked in this moment has it open."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While it is entered, nobody else enters it for this folder, in any process.

    Where there is no folder, or it cannot be locked, anybody may; of the latter the folder above is warned about.
    """
    file = None
    with suppress(OSError):
        # By an object: whatever interrupts this, nobody refers to that any more, and closing it unlocks the folder.
        file = OpenFile(descriptor := os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)))
        if not lock(descriptor, wait=True):
            tell_weaker(
                folder.parent,
                "this file system has no locks, so where a process clears a tensor that another one clears and creates "
                "at the same moment, what was created may be deleted",
            )
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                unlock(descriptor)
            file.close()


def sync_file(path: Path) -> None:
    """Bring the content of a file to the disk, or which files a folder holds."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        # Windows opens no folder.
        if path.is_dir():
            return
        raise
    try:
        sync_opened(descriptor, path)
    finally:
        os.close(descriptor)


def sync_opened(descriptor: int, path: Path) -> None:
    """`sync_file` of what is open."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if error.errno in _LOST or not (is_folder or error.errno in _NO_SUCH_CALL):
            raise
        tell_weaker(
            path if is_folder else path.parent,
            f"this file system syncs no {'folders' if is_folder else 'files'}, so what was written last may be lost "
            "when the power fails",
        )


def allocate(descriptor: int, start: int, nbytes: int) -> None:
    """Take room for bytes of a file, where the disk can; OSError where there is none.

    A page that is mapped kills the process where there is no room for what is written to it.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, start, nbytes)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise


def allocate_file(path: Path) -> None:
    """`allocate` all that the size of a file promises."""
    with path.open("r+b") as file:
        allocate(file.fileno(), 0, path.stat().st_size)


class OpenFile:
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
