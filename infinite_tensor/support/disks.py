"""Names, locks and syncs on local disks, with fallbacks for weaker file systems.

SMB shares, exFAT, FUSE and others have no hard links, some mounts of NFS and Lustre have no locks, and CIFS cannot sync
folders.

Files and folders are written next to their target, under the name ``.<name>.partial``, and renamed when complete. A
killed attempt leaves the unfinished file or folder to the next attempt. A failed attempt leaves only an unfinished
folder. Only one process at a time writes there. A leftover folder is deleted if a file is needed, and a leftover file
if a folder is needed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infinite_tensor.errors import StoreError, ValidationError, WeakerStorageWarning

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


@contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """Create an empty file next to `path`, for this process only.

    The context value is the path of the file. At the end, the file is deleted unless renamed.
    """
    unfinished = _beside(path)
    with _alone(unfinished, _create_file, stat.S_ISREG, path) as is_left:
        os.truncate(unfinished, 0)
        try:
            yield unfinished
        finally:
            if is_left():
                remove(unfinished)


@contextmanager
def unfinished_folder(path: Path) -> Iterator[tuple[Path, Callable[[], bool]]]:
    """Create or reopen a folder next to `path`, for this process only.

    The context value is the path of the folder, and a function to check whether the folder is still there. The folder
    may contain files of an earlier attempt. The folder is not deleted at the end. After the folder is renamed, another
    process may create a new folder under the old name.
    """
    unfinished = _beside(path)
    with _alone(unfinished, _create_folder, stat.S_ISDIR, path) as is_left:
        yield unfinished, is_left


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _create_file(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


def _create_folder(path: Path) -> None:
    path.mkdir(exist_ok=True)


@contextmanager
def _alone(
    unfinished: Path, create: Callable[[Path], None], is_kind: Callable[[int], bool], path: Path
) -> Iterator[Callable[[], bool]]:
    """Create and lock an unfinished file or folder.

    The lock ends with the process, even if killed. Yields a function to check whether the file or folder is still
    there.
    """
    descriptor = _locked(unfinished, create, is_kind, path)
    try:
        yield lambda: _is_there(descriptor, unfinished)
    finally:
        os.close(descriptor)


def _locked(unfinished: Path, create: Callable[[Path], None], is_kind: Callable[[int], bool], path: Path) -> int:
    while True:
        with suppress(IsADirectoryError, FileExistsError):
            create(unfinished)
        try:
            descriptor = _opened(unfinished)
        except FileNotFoundError:
            continue
        try:
            if not lock(descriptor, wait=False):
                tell_weaker(
                    path.parent,
                    "this file system has no locks, so nothing prevents two processes from writing one file or "
                    "folder at the same time",
                )
            if _is_there(descriptor, unfinished):
                if is_kind(os.fstat(descriptor).st_mode) and not _has_another_name(descriptor):
                    return descriptor
                # An earlier attempt has left the file or folder, and nobody is writing to it.
                remove(unfinished)
        except BlockingIOError as error:
            os.close(descriptor)
            raise StoreError(
                f"another process or thread is writing {str(path)!r}; wait for it, or give another path"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        # Another process has finished and renamed the file.
        os.close(descriptor)


def _opened(unfinished: Path) -> int:
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            # NFS requires write access to lock a file.
            descriptor = os.open(unfinished, os.O_RDWR | flags)
        except IsADirectoryError:
            return os.open(unfinished, os.O_RDONLY | flags)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise _in_the_way(unfinished) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _in_the_way(unfinished)
    return descriptor


def _in_the_way(unfinished: Path) -> OSError:
    return FileExistsError(
        f"{str(unfinished)!r} is neither a file nor a folder, but a link, a FIFO or the like; delete it"
    )


def _is_there(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def _has_another_name(descriptor: int) -> bool:
    """Whether a file has a second name. Such a file is finished, and may be in use."""
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1


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
            # An earlier attempt may have been killed here.
            remove(former)
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
