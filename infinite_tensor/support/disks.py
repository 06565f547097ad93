"""Names, locks and syncs on local disks, with fallbacks for weaker file systems.

SMB shares, exFAT, FUSE and others have no hard links, some mounts of NFS and Lustre have no locks, and CIFS cannot sync
folders.

Files and folders are written next to their target, under a hidden name of their own, and renamed when complete. Only a
killed process leaves them behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infinite_tensor.errors import ValidationError, WeakerStorageWarning

_NO_SUCH_CALL = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_NO_LINKS = (*_NO_SUCH_CALL, errno.EPERM, errno.EXDEV, errno.EMLINK)
NO_LOCKS = (*_NO_SUCH_CALL, errno.ENOLCK)
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Errors for a real failure to sync a folder. After other errors, the file system cannot sync folders."""

_told: set[tuple[str, str]] = set()


def tell_weaker(place: object, lack: str) -> None:
    """Warn about a feature missing in the file system of `place`.

    The same warning is issued only once.
    """
    told = str(place), lack
    if told not in _told:
        _told.add(told)
        warnings.warn(f"{place}: {lack} (see docs/guarantees.md)", WeakerStorageWarning, stacklevel=2)


def give_name(unfinished: Path, path: Path, place: Path) -> None:
    """Give a finished file its final name.

    The file may keep its unfinished name too.

    Parameters
    ----------
    unfinished, path : Path
        The present and the final name of the file.
    place : Path
        The file or folder to name in a warning about missing hard links.

    Raises
    ------
    FileExistsError
        If the name is taken. The existing file is not replaced, unlike in a rename.
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
            "this file system has no hard links, so if two processes create the same file at the same moment, the "
            "later one wins",
        )


def lock(descriptor: int, *, wait: bool, shared: bool = False) -> bool:
    """Lock an open file or folder.

    The lock belongs to the descriptor. Several descriptors can have a shared lock. Return False if the file system has
    no locks.

    Raises
    ------
    BlockingIOError
        If the lock belongs to another descriptor, and `wait` is False.
    """
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder against other threads and processes.

    The lock only affects other calls of this function. Do nothing if the folder does not exist. Warn if the file system
    has no locks.
    """
    file = None
    with suppress(OSError):
        # An object holds the descriptor. Dropping the object after an interrupt unlocks the folder.
        file = OpenFile(descriptor := os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        if not lock(descriptor, wait=True):
            tell_weaker(
                folder.parent,
                "this file system has no locks, so if one process clears a tensor while another one clears and "
                "recreates it, the new tensor may be deleted",
            )
    try:
        yield
    finally:
        if file is not None:
            file.unlock()


def sync_file(path: Path) -> None:
    """Sync the content of a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_opened(descriptor, path)
    finally:
        os.close(descriptor)


def sync_opened(descriptor: int, path: Path) -> None:
    """Like `sync_file`, for an open file or folder."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if error.errno in _LOST or not (is_folder or error.errno in _NO_SUCH_CALL):
            raise
        tell_weaker(
            path if is_folder else path.parent,
            f"this file system cannot sync {'folders' if is_folder else 'files'}, so the latest writes may be lost "
            "if the power fails",
        )


def allocate(descriptor: int, start: int, nbytes: int) -> None:
    """Reserve disk space for `nbytes` bytes of a file, from byte `start` on.

    Raise OSError if the disk is full. Do nothing if the file system cannot reserve space.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, start, nbytes)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise


def allocate_file(path: Path) -> None:
    """Reserve disk space for the whole size of a file, as in `allocate`."""
    with path.open("r+b") as file:
        allocate(file.fileno(), 0, path.stat().st_size)


class OpenFile:
    """A file descriptor, closed when the object is deleted."""

    number: int | None = None

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        """Close the descriptor, unless already closed."""
        number, self.number = self.number, None
        if number is not None:
            os.close(number)

    def unlock(self) -> None:
        """Unlock the file and close the descriptor.

        Closing is not enough, because a child just forked may have the file open too.
        """
        if self.number is not None:
            with suppress(OSError):  # (the file system may have no locks)
                fcntl.flock(self.number, fcntl.LOCK_UN)
        self.close()

    def __del__(self) -> None:
        self.close()


def beside(path: Path, mark: str | None = None) -> Path:
    """Return a hidden path next to `path`, for an unfinished file or folder.

    By default, `mark` is random. Nobody else writes to such a path, so there is no lock.
    """
    return path.with_name(f".{path.name}.{mark or secrets.token_hex(8)}.partial")


@contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """Yield a hidden path next to `path`. At the end, delete what is left there."""
    unfinished = beside(path)
    try:
        yield unfinished
    finally:
        remove(unfinished)


def check_free(path: Path, is_replaced: Callable[[Path], bool], what: str, *, overwrite: bool) -> None:
    """Check that a path is free or may be replaced.

    A path may be replaced if `overwrite` is True, ``is_replaced(path)`` is True, and the path is not a link. Otherwise,
    raise ValidationError. `what` says in the message why a path may not be replaced, as in "is not a file".
    """
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise ValidationError(f"{str(path)!r} already exists; give another path, or overwrite=True")
    if path.is_symlink() or not is_replaced(path):
        raise ValidationError(f"{str(path)!r} {what}, so it is not overwritten; give another path")


def publish(unfinished: Path, path: Path, *, overwrite: bool) -> None:
    """Give a finished file or folder its final name, in one step.

    If `overwrite` is True, an existing file or folder of this name is replaced. A replaced folder is missing for a
    moment.

    Raises
    ------
    ValidationError
        If another process has taken the name in the meantime. The file or folder `unfinished` is kept.
    """
    if overwrite and unfinished.is_file() and path.is_file():
        unfinished.replace(path)
        synchronize(path.parent, deep=False)
        return
    former = unfinished.with_suffix(".former")
    try:
        if overwrite and path.exists():
            path.rename(former)
        if unfinished.is_dir():
            unfinished.rename(path)
        else:
            give_name(unfinished, path, path.parent)
    except BaseException as error:
        if former.exists() and not path.exists():
            former.rename(path)
        elif not unfinished.exists():
            remove(former)
        if not isinstance(error, OSError):
            raise
        raise ValidationError(f"the result could not be renamed to {str(path)!r}: {error}") from error
    synchronize(path.parent, deep=False)
    remove(former)


def synchronize(path: Path, *, deep: bool = True) -> None:
    """Sync a file or folder to the disk.

    If `deep` is True, all contents of a folder are synced as well.
    """
    for each in [path, *(path.rglob("*") if deep and path.is_dir() else ())]:
        sync_file(each)


def remove(path: Path) -> None:
    """Delete a file, or a folder with all contents.

    Do nothing if the path does not exist.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
