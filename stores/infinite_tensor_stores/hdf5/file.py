"""An open HDF5 file, what is shared by the stores of a process that name it, and room for it on the disk.

HDF5 does not survive a disk that gets full in the middle of a write: what it could not write it tries to write
again whenever an object is closed, and in the end it takes the interpreter with it. So room is taken before.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.tilestore.report import Garbage
from infinite_tensor_stores.hdf5.members import delete_members, tensor_at, tensors_in, undefine
from infinite_tensor_stores.hdf5.slots import DEFINITION, MEMBERS, TileSlots, definition_in, is_incarnation

_MARGIN = 2**20
"""Bytes for what HDF5 itself keeps in the file, beside the data."""


def reserve(h5: Any, nbytes: int) -> None:
    """Take room for `nbytes` more of data in an open file; OSError where there is none."""
    descriptor, end = h5.id.get_vfd_handle(), h5.id.get_filesize()
    if os.fstat(descriptor).st_size < end + nbytes + _MARGIN:
        _allocate(descriptor, end, nbytes + _MARGIN)


def give_back(h5: Any) -> None:
    """Let go of the room that was taken and not used; the file must be flushed."""
    os.ftruncate(h5.id.get_vfd_handle(), h5.id.get_filesize())


def check_room(folder: Path) -> None:
    """OSError where there is no room for a new file."""
    with tempfile.TemporaryFile(dir=folder) as scratch:
        _allocate(scratch.fileno(), 0, _MARGIN)


def _allocate(descriptor: int, start: int, nbytes: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, start, nbytes)
    except OSError as error:
        # Some file systems cannot tell beforehand.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise


class SharedFile:
    """An open HDF5 file, shared by all stores of this process that name it: two would write over each other."""

    def __init__(self, h5: Any, writable: bool) -> None:
        self.h5 = h5
        self.writable = writable
        self.lock = threading.RLock()
        self.groups: dict[str, TileSlots] = {}
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.process = os.getpid()
        self._flushed = time.monotonic()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self.lock = threading.RLock()

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

    def delete(self, name: str) -> None:
        """Delete a tensor, its definition first: without it the rest is garbage."""
        with self.lock:
            group = tensor_at(self.h5, name)
            if group is None:
                return
            if DEFINITION in group:
                undefine(group)
                self.flush()
            known = self.groups.pop(name, None)
            if known is not None:
                known.let_go()
            delete_members(self.h5, name)

    def collect_garbage(self) -> Garbage:
        """Delete groups without a definition, and the logs of complete tiles."""
        with self.lock:
            parts = size = 0
            for name in tensors_in(self.h5):
                if DEFINITION not in self.h5[name]:
                    sizes = _sizes(self.h5[name])
                    self.delete(name)
                    pruned = len(sizes), sum(sizes)
                else:
                    pruned = self._prune(name)
                parts, size = parts + pruned[0], size + pruned[1]
            self.flush()
            return Garbage(parts, size)

    def _prune(self, name: str) -> tuple[int, int]:
        try:
            definition = definition_in(self.h5[name])
        except (ValueError, StoreError):
            # To be verified, not to be cleaned.
            return 0, 0
        assert definition is not None
        group = self.group(name, definition)
        self.h5.flush()
        return group.log.prune()

    def flush(self, older_than: float = 0.0) -> None:
        """Bring everything into the file, unless that was done less than `older_than` seconds ago."""
        with self.lock:
            if self.process == os.getpid() and time.monotonic() - self._flushed >= older_than:
                self.h5.flush()
                for group in self.groups.values():
                    group.log.prune()
                give_back(self.h5)
                self._flushed = time.monotonic()

    def release(self, user: object) -> None:
        """Close the file if nobody else uses it."""
        with self.lock:
            self.users.discard(user)
            if not self.users:
                self.h5.close()


def _sizes(group: Any) -> list[int]:
    """The bytes that each dataset of a tensor takes."""
    sizes: list[int] = []

    def look_at(name: str, item: Any) -> None:
        if name.partition("/")[0] in MEMBERS and hasattr(item, "dtype"):
            sizes.append(item.id.get_storage_size())

    group.visititems(look_at)
    return sizes
