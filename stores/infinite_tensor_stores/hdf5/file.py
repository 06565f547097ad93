"""HDF5 files: opening, creating and sharing files, and reserving disk space.

Stores of this process with the same file share one open file. HDF5 does not survive a full disk during a write: it
tries to write the data again whenever an object is closed, and finally crashes the interpreter. So disk space is
allocated before each write.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.disks import OpenFile, allocate
from infinite_tensor.support.forks import Lock, renew_in_children
from infinite_tensor.tilestore.inventory import Garbage
from infinite_tensor.tilestore.persistent.documents import checked
from infinite_tensor.tilestore.stored_definition import FORMAT
from infinite_tensor_stores.hdf5.members import (
    DEFINITION,
    MARK,
    MEMBERS,
    delete_members,
    delete_ours,
    document_in,
    file_in_memory,
    import_h5py,
    is_incarnation,
    is_of_version_0,
    names_taken,
    opened,
    tensor_at,
    tensors_in,
)
from infinite_tensor_stores.hdf5.slots import TileSlots
from infinite_tensor_stores.targets import check_format, check_found, check_writable

_MARGIN = 2**20
"""Bytes for what HDF5 itself stores in the file in addition to the data."""


def reserve(h5: Any, nbytes: int) -> None:
    """Allocate disk space in an open file for `nbytes` more bytes of data.

    Raise OSError if the disk is full.
    """
    descriptor, end = h5.id.get_vfd_handle(), h5.id.get_filesize()
    if os.fstat(descriptor).st_size < end + nbytes + _MARGIN:
        allocate(descriptor, end, nbytes + _MARGIN)


def give_back(h5: Any) -> None:
    """Free unused disk space at the end of an open file.

    The file must have been flushed.
    """
    os.ftruncate(h5.id.get_vfd_handle(), h5.id.get_filesize())


def check_room(folder: Path) -> None:
    """Check that the disk has space for a new file in `folder`.

    Raise OSError if less than 1 MiB is left.
    """
    with tempfile.TemporaryFile(dir=folder) as scratch:
        allocate(scratch.fileno(), 0, _MARGIN)


class SharedFile:
    """An open HDF5 file, shared between the stores of this process.

    With an open file for each store, the stores would overwrite each other's data.
    """

    def __init__(self, h5: Any, own_lock: OpenFile | None, writable: bool) -> None:
        self.h5 = h5
        self._own_lock = own_lock
        self.writable = writable
        self.lock = threading.RLock()
        self.groups: weakref.WeakValueDictionary[str, TileSlots] = weakref.WeakValueDictionary()
        self.finished: set[TileSlots] = set()
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.process = os.getpid()
        self._flushed = time.monotonic()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self.lock = threading.RLock()
        # Keep the file open in the child: closing would release the parent's lock.
        _inherited.append(self)

    @property
    def vanished(self) -> bool:
        """Whether the file has been deleted or replaced.

        Data written after that is lost.
        """
        own = os.fstat(self.h5.id.get_vfd_handle())
        try:
            # Some file systems do not count links, so compare the path.
            return not os.path.samestat(own, Path(self.h5.filename).stat())
        except FileNotFoundError:
            # A file that was moved has a link elsewhere.
            return not own.st_nlink

    @contextmanager
    def opened(self, owner: object) -> Iterator[Any]:
        """Lock the open file, as in ``with file.opened(owner) as h5``.

        Here, ``h5`` is the h5py file. Raise StoreError if the file is closed.
        """
        with self.lock:
            if not self.h5:
                raise StoreError(f"{owner} is closed; open it again with `with store:`")
            yield self.h5

    def check_process(self, owner: object) -> None:
        """Raise StoreError in a forked child, because only its parent may write."""
        if self.process != os.getpid():
            raise StoreError(
                f"{owner} was opened before this process was forked, and two writing processes would damage the file; "
                "write in the parent process only"
            )

    def group(self, name: str, definition: Mapping[str, Any]) -> TileSlots:
        """Return the slots of the tensor in group `name`.

        Raise OSError if the group no longer has `definition`.
        """
        with self.lock:
            known = self.groups.get(name)
            if known is None or known.incarnation != definition["incarnation"]:
                # If it were opened with the wrong definition, two objects could write to the same slots.
                if name not in self.h5 or not is_incarnation(self.h5[name], definition["incarnation"]):
                    raise OSError("the tensor has just been cleared elsewhere; try again")
                known = self.groups[name] = TileSlots(self.h5[name], definition)
            return known

    def remember(self, name: str, slots: TileSlots) -> None:
        """Put the slots of a tensor back into `groups`.

        `groups` refers to slots only weakly, so the garbage collector may have removed them. Takes no lock, because the
        garbage collector may call this.
        """
        if not slots.gone:
            self.groups.setdefault(name, slots)

    def finish(self, slots: TileSlots, tile: Index) -> None:
        """Delete the log of a tile, now or at the next flush.

        If the tile is complete, the log is deleted at the next flush, because only then is the tile safe in the file.
        This happens even if nobody uses the tensor any more.
        """
        if slots.has([tile])[0]:
            self.finished.add(slots)
        else:
            slots.log.delete([tile])

    def delete(self, name: str) -> None:
        """Delete a tensor.

        The definition is deleted first: after an interrupt, the rest is garbage.
        """
        with self.lock:
            group = tensor_at(self.h5, name)
            if group is None:
                return
            if DEFINITION in group:
                del group[DEFINITION]
                self.flush()
            known = self.groups.pop(name, None)
            if known is not None:
                known.close()
            delete_members(self.h5, name)

    def collect_garbage(self) -> Garbage:
        """Delete groups without a definition, and the logs of complete tiles."""
        with self.lock:
            collected = Garbage()
            self.h5.flush()
            for name in tensors_in(self.h5):
                if DEFINITION not in self.h5[name]:
                    sizes = _sizes(self.h5[name])
                    self.delete(name)
                    collected += Garbage(len(sizes), sum(sizes))
                elif (slots := self._slots(name)) is not None:
                    collected += Garbage(*slots.prune())
            self.flush()
            return collected

    def drop_partials(self) -> Garbage:
        """Delete the logs of incomplete tiles."""
        with self.lock:
            collected = Garbage()
            for name in tensors_in(self.h5):
                if (slots := self._slots(name)) is not None:
                    tiles = slots.partial_tiles()
                    parts, size = slots.log.delete(tiles)
                    collected += Garbage(parts, size, len(tiles), size)
            self.flush()
            return collected

    def _slots(self, name: str) -> TileSlots | None:
        try:
            definition = checked(document_in(self.h5[name][DEFINITION]), name)
        except (KeyError, ValueError, StoreError):
            return None
        return self.group(name, definition)

    def flush(self, older_than: float = 0.0) -> None:
        """Flush the file, unless flushed in the last `older_than` seconds."""
        with self.lock:
            if self.process == os.getpid() and time.monotonic() - self._flushed >= older_than:
                self.h5.flush()
                for slots in self.finished:
                    slots.prune()
                self.finished.clear()
                give_back(self.h5)
                self._flushed = time.monotonic()

    def release(self, user: object) -> None:
        """Remove a user.

        The last user closes the file.
        """
        with self.lock:
            self.users.discard(user)
            if not self.users and self.process == os.getpid():
                self.close()

    def close(self) -> None:
        """Close the file, and let other programs open it."""
        self.h5.close()
        if self._own_lock is not None:
            self._own_lock.unlock()


def _sizes(group: Any) -> list[int]:
    sizes: list[int] = []

    def look_at(name: str, item: Any) -> None:
        if name.partition("/")[0] in MEMBERS and hasattr(item, "dtype"):
            sizes.append(item.id.get_storage_size())

    group.visititems(look_at)
    return sizes


_PLACE = "a new file"
_TOLD = 5
"""The maximum number of names listed in an error."""


_known: weakref.WeakValueDictionary[tuple[int, int], SharedFile] = weakref.WeakValueDictionary()
"""The open files of this process, by device and inode. Protected by `_opening_lock`."""
_opening_lock = Lock()
_inherited: list[SharedFile] = []
"""Files opened by parents of this process."""


class _Forks(threading.local):
    """Flushes all files before a fork.

    Otherwise the child would write the pending data too, when it ends.
    """

    def __init__(self) -> None:
        self._held: list[SharedFile] = []

    def begin(self) -> None:
        """Flush all open files, and lock them until the fork is done."""
        for file in list(_known.values()):
            if file.writable and file.process == os.getpid():
                file.lock.acquire()
                self._held.append(file)
                if file.h5:
                    file.h5.flush()

    def end(self) -> None:
        """Release the locks in the parent."""
        while self._held:
            self._held.pop().lock.release()

    def forget(self) -> None:
        """In the child, forget the locks of the parent."""
        self._held.clear()


@functools.cache
def _take_part_in_forks() -> None:
    """Flush files before forks from now on.

    Call this after h5py was imported, which takes its own lock before a fork. What is registered last runs first, and a
    thread that writes takes the lock of the file before that of h5py.
    """
    forks = _Forks()
    os.register_at_fork(before=forks.begin, after_in_parent=forks.end, after_in_child=forks.forget)


def open_file(path: Path, mode: str, owner: object) -> SharedFile:
    """Open a file as a store, or create it.

    A file of another program becomes a store too, and keeps its content.

    Parameters
    ----------
    path : Path
        The path of the file.
    mode : str
        One of `MODES`.
    owner : object
        The store, which uses the file until `leave_file`; messages show its str.

    Raises
    ------
    StoreError
        If the mode does not match the content of the path, or if the file cannot be read.
    """
    with _opening(path, owner):
        found = None if not path.exists() else "an empty file" if _is_blank(path) else "a file"
        check_found(mode, owner, found, is_store=found != "an empty file", place=_PLACE)
        file = _shared(path, mode, owner)
        if file is None:
            if mode != "r" and _is_blank(path):
                _create(path, exclusive=mode == "w-")
            ours = _look(path, owner, mode)
            file = _opened(path, "r" if mode == "r" else "r+")
            with _closed_on_failure(file):
                if not ours:
                    _mark(file.h5)
                elif mode == "w":
                    delete_ours(file.h5)
        file.users.add(owner)
        return file


def check_place(path: Path, owner: object) -> None:
    """Check that a file can be created. Raise StoreError otherwise."""
    with _opening(path, owner):
        check_writable(path, owner)


def reopen_file(path: Path, mode: str, owner: object) -> SharedFile:
    """Open a store's file again, in mode ``r`` or ``r+``.

    Raise StoreError if the file is gone, or is no longer a store.
    """
    with _opening(path, owner):
        if not path.exists():
            raise StoreError(f"{owner}: its file is gone; HDF5TileStore(...) with mode 'a' or 'w' creates a new one")
        file = _shared(path, mode, owner)
        if file is None:
            _look(path, owner, "r")
            file = _opened(path, mode)
        file.users.add(owner)
        return file


def leave_file(file: SharedFile, owner: object) -> None:
    """End the use of a file by `owner`.

    The last user closes the file.
    """
    with _opening_lock:
        file.release(owner)


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
        if _is_other_file(path):
            raise StoreError(f"{owner}: the file is not an HDF5 file; choose another path") from error
        raise StoreError(f"{owner} cannot be opened: {type(error).__name__}: {error}") from error


def _is_other_file(path: Path) -> bool:
    try:
        return path.is_file() and not import_h5py().is_hdf5(path)
    except OSError:  # (an invalid path, for example too long)
        return False


def _shared(path: Path, mode: str, owner: object) -> SharedFile | None:
    shared = _known.get(_identity(path.stat())) if path.exists() else None
    if shared is None or not shared.h5:
        return None
    if mode == "w":
        raise StoreError(f"{owner} is open in this process; close it first, or use mode 'a'")
    if mode != "r" and not shared.writable:
        raise StoreError(f"{owner} is open in this process with mode 'r'; close it first")
    return shared


def _look(path: Path, owner: object, mode: str) -> bool:
    """Check whether a file is a store, without changing the file.

    Return False if the file can become a store. Raise StoreError for any other file.
    """
    if not path.is_file():
        # Opening a pipe would wait for a writer.
        raise StoreError(f"{owner}: the path is not a regular file; choose another path")
    with closing(SharedFile(*opened(path, "r"), writable=False)) as file:
        h5 = file.h5
        if MARK in h5.attrs:
            restored = f"h5py.File(path, 'r+').attrs[{MARK!r}] = {FORMAT} restores it"
            check_format(h5.attrs[MARK], owner, f"If it is a store of this version, {restored}")
            return True
        if is_of_version_0(h5):
            raise StoreError(
                f"{owner}: the file was written by version 0.x of this library (it has a group /tensors), and cannot "
                "be opened; choose another path, or import a tensor of version 0.4 with examples/take_over_04.py"
            )
        check_found(mode, owner, "an HDF5 file", is_store=False, place=_PLACE)
        _check_free(h5, owner)
        return False


def _check_free(h5: Any, owner: object) -> None:
    taken = names_taken(h5)
    if not taken:
        return
    names = ", ".join(taken[:_TOLD]) + (f" and {len(taken) - _TOLD} more" if len(taken) > _TOLD else "")
    told = f"{owner}: the HDF5 file is not a store, and {names} would be in the way; choose another path"
    if tensors_in(h5):
        told += (
            f". If this library wrote the file, the mark of the store is lost: h5py.File(path, 'r+').attrs[{MARK!r}] = "
            f"{FORMAT} restores it"
        )
    raise StoreError(told)


def _is_blank(path: Path) -> bool:
    """Return whether the file is missing, or empty as from `tempfile`."""
    return not path.exists() or (path.is_file() and not path.stat().st_size)


def _create(path: Path, *, exclusive: bool) -> None:
    """Create an empty store with a single write.

    After a kill there is either a complete store or an empty file. A file created by HDF5 itself could be incomplete
    then, and impossible to open.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    check_room(path.parent)
    with file_in_memory() as h5:
        h5.attrs[MARK] = FORMAT
        h5.flush()
        image = h5.id.get_file_image()
    # If another process has just created the file, HDF5 ignores the appended image.
    with path.open("xb" if exclusive else "ab") as file:
        file.write(image)


def _opened(path: Path, mode: str) -> SharedFile:
    shared = SharedFile(*opened(path, mode), writable=mode != "r")
    _take_part_in_forks()
    _known[_identity(os.fstat(shared.h5.id.get_vfd_handle()))] = shared
    return shared


@contextmanager
def _closed_on_failure(file: SharedFile) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.close()
        raise


def _mark(h5: Any) -> None:
    reserve(h5, 0)
    h5.attrs[MARK] = FORMAT
    h5.flush()
    give_back(h5)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
