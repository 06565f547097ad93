"""Open HDF5 files: shared by the stores of a process, with disk space reserved before each change.

HDF5 does not survive a full disk: whenever an object is closed, it tries to write again, and finally crashes the
interpreter. So disk space is allocated before each change.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py

from infinite_tensor.errors import StoreError
from infinite_tensor.support.disks import NO_LOCKS, OpenFile, allocate, lock, tell_weaker
from infinite_tensor.support.forks import Lock, renew_in_children
from infinite_tensor.tilestore.documents import GROUP, TENSOR
from infinite_tensor_stores.hdf5 import members
from infinite_tensor_stores.targets import check_format, check_found, check_writable

ROOT = "infinite_tensor"
"""The HDF5 group with everything of this library. All else in a file belongs to other programs."""

_FORMAT = 2
"""The version of the layout, in the attribute ``format`` of `ROOT`. Version 1 kept tiles in slots, and is not read."""
_OLD_MARK = "infinite_tensor_format"
_PLACE = "a new file"

_MARGIN = 2**20
"""Bytes for what HDF5 itself stores in the file in addition to the data."""
_MOST_CHANGES = 2**12
"""The number of changes without a flush. HDF5's structures for them must fit into its cache."""


class SharedFile:
    """An open HDF5 file, shared between the backends of this process.

    With an open file for each store, the stores would overwrite each other's data.

    Raises
    ------
    BlockingIOError
        If another program has the file open.
    """

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self.h5, self._own_lock = _opened(path, mode)
        self.descriptor = self.h5.id.get_vfd_handle()
        self.root = members.group_at(self.h5, ROOT)
        self.writable = mode != "r"
        self.lock = threading.RLock()
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.process = os.getpid()
        self.ended: list[tuple[Any, str]] = []
        self._groups: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._changes, self._flushed = 0, time.monotonic()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self.lock = threading.RLock()
        # When the child ends, HDF5 would write its old header into the file, cut it, and release the parent's lock. So
        # a descriptor for reading only takes the place of HDF5's, and h5py never closes the file, which would fail.
        with suppress(OSError):
            if self.h5:
                descriptor = os.open(f"/dev/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(descriptor, self.descriptor, inheritable=False)
                os.close(descriptor)
                h5py.h5i.inc_ref(self.h5.id)

    @property
    def vanished(self) -> bool:
        """Whether the file has been deleted or replaced.

        Data written after that is lost.
        """
        own = os.fstat(self.descriptor)
        try:
            # Some file systems do not count links, so compare the path.
            return not os.path.samestat(own, self.path.stat())
        except FileNotFoundError:
            # A file that was moved has a link elsewhere.
            return not own.st_nlink

    @contextmanager
    def opened(self, owner: object) -> Iterator[Any]:
        """Lock the open file, as in ``with file.opened(owner) as root``, with the h5py group `ROOT`.

        Raise StoreError if the file is closed.
        """
        with self.lock:
            if not self.h5:
                raise StoreError(f"{owner} is closed; open it again with `with store:`")
            yield self.root

    @contextmanager
    def changing(self, owner: object, nbytes: int | None = 0) -> Iterator[Any]:
        """Lock the open file for a change, with disk space for `nbytes` bytes of data.

        If `nbytes` is None, the space is not checked, so that data can be deleted on a full disk. Raise OSError if the
        disk is full, and StoreError in a forked child, because only its parent may write.
        """
        if self.process != os.getpid():
            raise StoreError(
                f"{owner} was opened before this process was forked, and two writing processes would damage the file; "
                "write in the parent process only"
            )
        with self.opened(owner) as root:
            end = self.h5.id.get_filesize()
            if nbytes is not None and os.fstat(self.descriptor).st_size < end + nbytes + _MARGIN:
                allocate(self.descriptor, end, nbytes + 2 * _MARGIN)
            self._changes += 1
            yield root

    def flush(self, older_than: float = 0.0) -> None:
        """Flush the file, unless flushed in the last `older_than` seconds, and delete the logs of the tiles in `ended`.

        A log is deleted only after its complete tile is safe in the file. Otherwise a kill could destroy both.
        """
        with self.lock:
            is_old = time.monotonic() - self._flushed >= older_than
            if self.process != os.getpid() or not self.writable or not (is_old or self._changes >= _MOST_CHANGES):
                return
            self.h5.flush()
            for group, tile in self.ended:
                if group and members.has(group, tile):
                    members.delete(group, members.parts_of(group, tile))
            self.ended.clear()
            # Also because the first flush may have moved the end of the file.
            self.h5.flush()
            # Give back the reserved space that was not used.
            os.ftruncate(self.descriptor, self.h5.id.get_filesize())
            self._changes, self._flushed = 0, time.monotonic()

    def group(self, name: str) -> Any:
        """Return the group of a tensor, or None. It is closed when it is deleted, and then no longer true."""
        found = self._groups.get(name) or members.group_at(self.root, name)
        if found is not None:
            self._groups[name] = found
        return found

    def delete(self, name: str) -> None:
        """Delete a tensor or a group, and flush, because later data may be written where the deleted data was."""
        # An open group would be deleted when it is closed, maybe by a forked child, which must not write.
        if group := self._groups.pop(name, None):
            group.id.close()
        if members.has(self.root, name):
            del self.root[name]
            self.flush()

    def close(self) -> None:
        """Close the file, and let other programs open it."""
        self.h5.close()
        if self._own_lock is not None:
            self._own_lock.unlock()


_known: weakref.WeakValueDictionary[tuple[int, int], SharedFile] = weakref.WeakValueDictionary()
"""The open files of this process, by device and inode. Protected by `_opening_lock`."""
_opening_lock = Lock()


def _flush_all() -> None:
    """Flush all files before a fork, because a child that needs room in HDF5's cache cannot write what is pending."""
    for file in list(_known.values()):
        if file.h5:
            file.flush()


# After h5py is imported, which takes its own lock before a fork. What is registered last runs first, and a thread that
# writes takes the lock of the file before that of h5py.
os.register_at_fork(before=_flush_all)


def open_file(path: Path, mode: str, owner: object, *, writable: bool) -> SharedFile:
    """Open a file as a store, or create it.

    A file of another program becomes a store too, and keeps its content.

    Parameters
    ----------
    path : Path
        The path of the file.
    mode : str
        What may be there, and what is created: one of `MODES`.
    owner : object
        The backend, which uses the file until `leave_file`; messages show its str.
    writable : bool
        Whether the store writes. With mode ``r``, it then writes to a store that exists already.

    Raises
    ------
    StoreError
        If the mode does not match the content of the path, or if the file cannot be read.
    """
    with _opening(path, owner):
        found = None if not path.exists() else "an empty file" if _is_blank(path) else "a file"
        check_found(mode, owner, found, is_store=found != "an empty file", place=_PLACE)
        file = _shared(path, mode, owner, writable=writable)
        if file is None:
            if _is_blank(path):
                _create(path, exclusive=mode == "w-")
            else:
                _look(path, owner, mode)
            file = SharedFile(path, "r+" if writable else "r")
            _known[_identity(os.fstat(file.descriptor))] = file
            try:
                _prepare(file, mode, owner)
            except BaseException:
                file.close()
                raise
        file.users.add(owner)
        return file


def check_place(path: Path, owner: object) -> None:
    """Check that a file can be created. Raise StoreError otherwise."""
    with _opening(path, owner):
        check_writable(path, owner)


def leave_file(file: SharedFile, owner: object) -> None:
    """End the use of a file by `owner`. The last user closes the file."""
    with _opening_lock, file.lock:
        file.users.discard(owner)
        if not file.users and file.process == os.getpid():
            file.close()


@contextmanager
def _opening(path: Path, owner: object) -> Iterator[None]:
    """Lock the opening of files, and turn errors into StoreErrors with the name of the store."""
    try:
        with _opening_lock:
            yield
    except StoreError:
        raise
    except BlockingIOError as error:
        raise StoreError(
            f"{owner} is open in another process, but HDF5 allows one at a time ({error}); close it there, or share a "
            "ZarrTileStore between processes"
        ) from error
    except Exception as error:  # (h5py raises any exception on a damaged file)
        if os.path.isfile(path) and not h5py.is_hdf5(path):  # noqa: PTH113  (`Path.is_file` raises for too long a name)
            raise StoreError(f"{owner}: the file is not an HDF5 file; choose another path") from error
        raise StoreError(f"{owner} cannot be opened: {type(error).__name__}: {error}") from error


def _opened(path: Path, mode: str) -> tuple[Any, OpenFile | None]:
    """Open an HDF5 file, locked against other programs.

    Return the file of h5py, and a file with our own lock where HDF5 has been told not to lock
    (``HDF5_USE_FILE_LOCKING=FALSE``).
    """
    options: dict[str, Any] = {}
    with members.file_in_memory() as scratch:
        locks, _ = scratch.id.get_access_plist().get_file_locking()
    if locks:
        try:
            return members.open_h5(path, mode), None
        except OSError as error:
            # HDF5 itself ignores only one of the errors for missing locks.
            if error.errno not in NO_LOCKS or "lock" not in str(error):
                raise
            options = {"locking": False}
    # Lock first: just opening and closing a file can damage what another process is writing.
    own = OpenFile(descriptor := os.open(path, os.O_RDONLY if mode == "r" else os.O_RDWR))
    try:
        if not lock(descriptor, wait=False, shared=mode == "r"):
            lack = "this file system has no locks, so nothing keeps two programs from writing the same file"
            tell_weaker(path.parent, lack)
        return members.open_h5(path, mode, **options), own
    except BaseException:
        own.unlock()
        raise


def _shared(path: Path, mode: str, owner: object, *, writable: bool) -> SharedFile | None:
    shared = _known.get(_identity(path.stat())) if path.exists() else None
    if shared is None or not shared.h5:
        return None
    if mode == "w":
        raise StoreError(f"{owner} is open in this process; close it first, or use mode 'a'")
    if writable and not shared.writable:
        raise StoreError(f"{owner} is open in this process with mode 'r'; close it first")
    return shared


def _look(path: Path, owner: object, mode: str) -> None:
    """Check that a file is a store, or can become one, without changing the file. Raise StoreError otherwise."""
    if not path.is_file():
        # Opening a pipe would wait for a writer.
        raise StoreError(f"{owner}: the path is not a regular file; choose another path")
    with closing(SharedFile(path, "r")) as file:
        folder = members.group_at(file.h5, "tensors")
        # Version 0.x makes this group with the file, and "metadata" for each tensor in it.
        is_of_version_0 = folder is not None and (
            not len(folder) or folder.visit(lambda name: name.endswith("/metadata") or None)
        )
        if _OLD_MARK in file.h5.attrs or is_of_version_0:
            raise StoreError(
                f"{owner}: the file was written by version 0.x or a pre-release of this library, and its format is not "
                "read; choose another path, or import a tensor of version 0.4 with examples/take_over_04.py"
            )
        if not members.has(file.h5, ROOT):
            check_found(mode, owner, "an HDF5 file", is_store=False, place=_PLACE)
            return
        version = None if file.root is None else file.root.attrs.get("format")
        restores = f"If it is of this library, h5py.File(path, 'r+')[{ROOT!r}].attrs['format'] = {_FORMAT} restores it"
        check_format(version, f"{owner}: /{ROOT}", f"{restores}; or choose another path", range(_FORMAT, _FORMAT + 1))


def _prepare(file: SharedFile, mode: str, owner: object) -> None:
    """Make a store of a file without one. In mode ``w``, delete all tensors and groups of a store."""
    if file.root is not None and mode != "w":
        return
    with file.changing(owner):
        if file.root is None:
            root = file.h5.create_group(None)
            root.attrs["format"] = _FORMAT
            file.h5[ROOT] = file.root = root
        for name in members.names_in(file.root, (TENSOR, GROUP)):
            file.delete(name)
    file.flush()


def _is_blank(path: Path) -> bool:
    """Return whether the file is missing, or empty as from `tempfile`."""
    return not path.exists() or (path.is_file() and not path.stat().st_size)


def _create(path: Path, *, exclusive: bool) -> None:
    """Create an HDF5 file with a single write.

    After a kill there is either a whole file or an empty one. A file created by HDF5 itself could be incomplete then,
    and impossible to open.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent) as scratch:
        allocate(scratch.fileno(), 0, _MARGIN)
    with members.file_in_memory() as h5:
        h5.flush()
        image = h5.id.get_file_image()
    # If another process has just created the file, HDF5 ignores the appended image.
    with path.open("xb" if exclusive else "ab") as file:
        file.write(image)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
