"""An open HDF5 file: whose it is, which version wrote it, who else in this process uses it, and room on the disk.

HDF5 does not survive a disk that gets full in the middle of a write: what it could not write it tries to write
again whenever an object is closed, and in the end it takes the interpreter with it. So room is taken before.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.disks import allocate
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
from infinite_tensor_stores.targets import check_format, check_found

_MARGIN = 2**20
"""Bytes for what HDF5 itself keeps in the file, beside the data."""


def reserve(h5: Any, nbytes: int) -> None:
    """Take room for `nbytes` more of data in an open file; OSError where there is none."""
    descriptor, end = h5.id.get_vfd_handle(), h5.id.get_filesize()
    if os.fstat(descriptor).st_size < end + nbytes + _MARGIN:
        allocate(descriptor, end, nbytes + _MARGIN)


def give_back(h5: Any) -> None:
    """Give the room back that was taken and not used; the file must be flushed."""
    os.ftruncate(h5.id.get_vfd_handle(), h5.id.get_filesize())


def check_room(folder: Path) -> None:
    """OSError where there is no room for a new file."""
    with tempfile.TemporaryFile(dir=folder) as scratch:
        allocate(scratch.fileno(), 0, _MARGIN)


class SharedFile:
    """An open HDF5 file, shared by all stores of this process that name it: two would write over each other."""

    def __init__(self, h5: Any, writable: bool) -> None:
        self.h5 = h5
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
        # To close it would give the parent's lock on the file away.
        _inherited.append(self)

    @property
    def vanished(self) -> bool:
        """Whether the file has been deleted or replaced: what is written to it from then on, nobody finds again."""
        own = os.fstat(self.h5.id.get_vfd_handle())
        if own.st_nlink:
            return False
        # Some file systems count no links.
        try:
            return not os.path.samestat(own, Path(self.h5.filename).stat())
        except FileNotFoundError:
            return True

    @contextmanager
    def opened(self, owner: object) -> Iterator[Any]:
        """The file, whose lock is held meanwhile; StoreError if it is closed."""
        with self.lock:
            if not self.h5:
                raise StoreError(f"{owner} is closed; open it again with `with store:`")
            yield self.h5

    def check_process(self, owner: object) -> None:
        """StoreError where this process may not write: it was forked from the one that has opened the file."""
        if self.process != os.getpid():
            raise StoreError(
                f"{owner} was opened before this process was forked: two processes that write harm the file"
            )

    def group(self, name: str, definition: Mapping[str, Any]) -> TileSlots:
        """The tiles of the tensor in group `name`; OSError where `definition` is not that of the group any more."""
        with self.lock:
            known = self.groups.get(name)
            if known is None or known.incarnation != definition["incarnation"]:
                # Two that know of different slots in one dataset would write over each other's tiles.
                if name not in self.h5 or not is_incarnation(self.h5[name], definition["incarnation"]):
                    raise OSError("it has been cleared by somebody else in this moment; try once more")
                known = self.groups[name] = TileSlots(self.h5[name], definition)
            return known

    def remember(self, name: str, slots: TileSlots) -> None:
        """Have those who open the tensor in group `name` share these slots. The garbage collector takes no locks."""
        if not slots.gone:
            self.groups.setdefault(name, slots)

    def finish(self, slots: TileSlots, tile: Index) -> None:
        """Delete the log of a tile: of a complete one by the next flush, though nobody may have its tensor then."""
        if slots.has([tile])[0]:
            self.finished.add(slots)
        else:
            slots.log.delete([tile])

    def delete(self, name: str) -> None:
        """Delete a tensor, its definition first: without it the rest is garbage."""
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
        """Delete the logs of tiles that are not complete."""
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
        """The tiles of a tensor; None where its definition is damaged: to be verified, not to be cleaned."""
        try:
            definition = checked(document_in(self.h5[name][DEFINITION]), name)
        except (KeyError, ValueError, StoreError):
            return None
        return self.group(name, definition)

    def flush(self, older_than: float = 0.0) -> None:
        """Bring everything into the file, unless that was done less than `older_than` seconds ago."""
        with self.lock:
            if self.process == os.getpid() and time.monotonic() - self._flushed >= older_than:
                self.h5.flush()
                for slots in self.finished:
                    slots.prune()
                self.finished.clear()
                give_back(self.h5)
                self._flushed = time.monotonic()

    def release(self, user: object) -> None:
        """Close the file if nobody else uses it."""
        with self.lock:
            self.users.discard(user)
            if not self.users and self.process == os.getpid():
                self.h5.close()


def _sizes(group: Any) -> list[int]:
    """The bytes that each dataset of a tensor takes."""
    sizes: list[int] = []

    def look_at(name: str, item: Any) -> None:
        if name.partition("/")[0] in MEMBERS and hasattr(item, "dtype"):
            sizes.append(item.id.get_storage_size())

    group.visititems(look_at)
    return sizes


_PLACE = "a new file"
_TOLD = 5
"""Names that one error tells."""


_known: weakref.WeakValueDictionary[tuple[int, int], SharedFile] = weakref.WeakValueDictionary()
"""The files that are open in this process, by device and inode; to be used with `_opening_lock` held."""
_opening_lock = Lock()
_inherited: list[SharedFile] = []
"""Those that the parents of this process have open."""


class _Forks(threading.local):
    """Has nothing half written wait in a process that forks: its child would write that as well, when it ends."""

    def __init__(self) -> None:
        self._held: list[SharedFile] = []

    def begin(self) -> None:
        """Bring all open files up to date, and have nothing written to them until the fork is done."""
        for file in list(_known.values()):
            if file.writable and file.process == os.getpid():
                file.lock.acquire()
                self._held.append(file)
                if file.h5:
                    file.h5.flush()

    def end(self) -> None:
        """Go on, in the parent."""
        while self._held:
            self._held.pop().lock.release()

    def forget(self) -> None:
        """Go on, in the child, which has locks of its own."""
        self._held.clear()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    _forks = _Forks()
    os.register_at_fork(before=_forks.begin, after_in_parent=_forks.end, after_in_child=_forks.forget)


def open_file(path: Path, mode: str, owner: object) -> SharedFile:
    """Open a file in a mode, or create it. A file of somebody else's becomes a store too, and keeps what is in it.

    Parameters
    ----------
    path : Path
        Where it is.
    mode : str
        One of `MODES`.
    owner : object
        who uses it until `leave_file`; its str stands in messages.

    Raises
    ------
    StoreError
        If there is no file where one must be, one where none may be, something else, or no way to look.
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


def reopen_file(path: Path, mode: str, owner: object) -> SharedFile:
    """Open a file again that was open before, in mode ``r`` or ``r+``: it must be there, and still be a store."""
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
    """End what `open_file` began: the last user closes the file."""
    with _opening_lock:
        file.release(owner)


@contextmanager
def _opening(path: Path, owner: object) -> Iterator[None]:
    """Alone in this process, with errors that name the store."""
    try:
        with _opening_lock:
            yield
    except StoreError:
        raise
    except BlockingIOError as error:
        raise StoreError(f"{owner} is open in another process; HDF5 serves one at a time ({error})") from error
    except Exception as error:  # (h5py raises what it pleases on a damaged file)
        if _is_other_file(path):
            raise StoreError(f"{owner}: there is a file that is not an HDF5 file; choose another path") from error
        raise StoreError(f"{owner} cannot be opened: {type(error).__name__}: {error}") from error


def _is_other_file(path: Path) -> bool:
    try:
        return path.is_file() and not import_h5py().is_hdf5(path)
    except OSError:  # (no path at all, such as one that is too long)
        return False


def _shared(path: Path, mode: str, owner: object) -> SharedFile | None:
    """The file as another store of this process has it open."""
    shared = _known.get(_identity(path.stat())) if path.exists() else None
    if shared is None or not shared.h5:
        return None
    if mode == "w":
        raise StoreError(f"{owner} is open in this process; close it first, or use mode 'a'")
    if mode != "r" and not shared.writable:
        raise StoreError(f"{owner} is open in this process with mode 'r'; close it first")
    return shared


def _look(path: Path, owner: object, mode: str) -> bool:
    """Whether a file is a store; StoreError if it is none, and may not become one. Nothing of it is changed."""
    if not path.is_file():
        # To open a pipe would take until somebody writes to it.
        raise StoreError(f"{owner}: there is something that is not a regular file; choose another path")
    with opened(path, "r") as h5:
        if MARK in h5.attrs:
            restored = f"h5py.File(path, 'r+').attrs[{MARK!r}] = {FORMAT} restores it"
            check_format(h5.attrs[MARK], owner, f"Where it is a store of this version, {restored}")
            return True
        if is_of_version_0(h5):
            raise StoreError(
                f"{owner}: the file was written by a version 0.x of this library (it has a group /tensors), which "
                "this version does not open; examples/take_over_04.py takes over what version 0.4 has stored of a "
                "tensor. Choose another path"
            )
        check_found(mode, owner, "an HDF5 file", is_store=False, place=_PLACE)
        _check_free(h5, owner)
        return False


def _check_free(h5: Any, owner: object) -> None:
    taken = names_taken(h5)
    if not taken:
        return
    names = ", ".join(taken[:_TOLD]) + (f" and {len(taken) - _TOLD} more" if len(taken) > _TOLD else "")
    told = f"{owner}: the HDF5 file is not of this library, and {names} would be in the way; choose another path"
    if tensors_in(h5):
        told += (
            f". Where they are of this library, and only its mark is lost, h5py.File(path, 'r+').attrs[{MARK!r}] = "
            f"{FORMAT} restores it"
        )
    raise StoreError(told)


def _is_blank(path: Path) -> bool:
    """Whether there is no file, or one without content, as tempfile makes it: there is nothing that could be lost."""
    return not path.exists() or (path.is_file() and not path.stat().st_size)


def _create(path: Path, *, exclusive: bool) -> None:
    """Make a file that is an empty store, by a single write: a process that is killed leaves all of it, or a blank one.

    HDF5 itself leaves a file that nobody can open, and in its mode ``w`` empties one that another process has open.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    check_room(path.parent)
    with file_in_memory() as h5:
        h5.attrs[MARK] = FORMAT
        h5.flush()
        image = h5.id.get_file_image()
    # Should another process have made it in this moment, this comes behind what is in it, and HDF5 passes over it.
    with path.open("xb" if exclusive else "ab") as file:
        file.write(image)


def _opened(path: Path, mode: str) -> SharedFile:
    h5 = opened(path, mode)
    shared = SharedFile(h5, writable=mode != "r")
    _known[_identity(os.fstat(h5.id.get_vfd_handle()))] = shared
    return shared


@contextmanager
def _closed_on_failure(file: SharedFile) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.h5.close()
        raise


def _mark(h5: Any) -> None:
    """Make a file of somebody else's a store as well."""
    reserve(h5, 0)
    h5.attrs[MARK] = FORMAT
    h5.flush()
    give_back(h5)


def _identity(status: os.stat_result) -> tuple[int, int]:
    """What a file is, by whatever path it is named."""
    return status.st_dev, status.st_ino
