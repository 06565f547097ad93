"""Local disks: names, locks and syncs, each in one place, with what is done where a file system has no such thing.

SMB shares, exFAT, FUSE and others have no hard links, some mounts of NFS and Lustre no locks, and CIFS syncs no folder.

Files and folders are written beside their place: they get their name when all of them is written. What is not finished
lies in ``.<name>.partial``, where the next attempt finds it. One process at a time writes it, or deletes what another
kind of attempt has left there: a folder in the place of a file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infinite_tensor.errors import StoreError, ValidationError, WeakerStorageWarning

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
        warnings.warn(f"{place}: {lack} (see docs/guarantees.md)", WeakerStorageWarning, stacklevel=2)


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


@contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, which nobody else writes; in the end it is deleted where it is still there."""
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
    """A folder beside `path`, which nobody else writes, with what an earlier attempt has left in it. It stays.

    With it comes what tells whether it is still there. Once it has got its name, another process may have begun one.
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
    """While it is entered, what is created is locked: a lock ends with its process, however that ends.

    It gives what tells whether that is still there.
    """
    if sys.platform == "win32":
        # No folder can be opened there.
        if unfinished.exists() and not is_kind(unfinished.stat().st_mode):
            remove(unfinished)
        create(unfinished)
        yield unfinished.exists
        return
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
                    "this file system has no locks, so two processes that write one file or folder at the same time "
                    "are not kept apart",
                )
            if _is_there(descriptor, unfinished):
                if is_kind(os.fstat(descriptor).st_mode) and not _has_another_name(descriptor):
                    return descriptor
                # Nobody is writing it.
                remove(unfinished)
        except BlockingIOError as error:
            os.close(descriptor)
            raise StoreError(
                f"another process or thread is writing {str(path)!r}; wait for it, or give another path"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        # Somebody has finished it, and given it its name.
        os.close(descriptor)


def _opened(unfinished: Path) -> int:
    """A descriptor of what lies there; OSError where that is nothing that an earlier attempt can have left."""
    # To open a FIFO waits for somebody who writes, unless told not to.
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            # NFS locks a file only for those who may write to it.
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
    """Whether a file has got its name, and its writer was killed before it lost this one: it is somebody's by now."""
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1


def check_free(path: Path, is_replaced: Callable[[Path], bool], what: str, *, overwrite: bool) -> None:
    """ValidationError for what lies at a path, unless it `is_replaced` and this is to `overwrite`; never a link."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise ValidationError(f"there is something at {str(path)!r} already; give another path, or overwrite=True")
    if path.is_symlink() or not is_replaced(path):
        raise ValidationError(f"what is at {str(path)!r} {what}, so it is not overwritten; give another path")


def publish(unfinished: Path, path: Path, *, overwrite: bool) -> None:
    """Give a finished file or folder its name, at one blow; what had the name before is gone then.

    Raises
    ------
    ValidationError
        If somebody else has put something there meanwhile. What was written is left as it is.
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
        raise ValidationError(f"what was written could not be named {str(path)!r}: {error}") from error
    synchronize(path.parent, deep=False)
    remove(former)


def synchronize(path: Path, *, deep: bool = True) -> None:
    """Bring files, and which files there are, to the disk."""
    for each in [path, *(path.rglob("*") if deep and path.is_dir() else ())]:
        sync_file(each)


def remove(path: Path) -> None:
    """Delete a file, or a folder with all that is in it; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
