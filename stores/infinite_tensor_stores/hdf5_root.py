"""Opening an HDF5 file: whose it is, which version wrote it, and whether this process has it open already."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor.forking import renew_in_children
from infinite_tensor.tilestore.persistent import FORMAT
from infinite_tensor.window import as_index
from infinite_tensor_stores.hdf5_file import SharedFile
from infinite_tensor_stores.hdf5_slots import import_h5py
from infinite_tensor_stores.hdf5_space import check_room

_ATTRIBUTE = "infinite_tensor_format"


class _OpenFiles:
    """The files that are open in this process, by device and inode. To be used with `lock` held."""

    def __init__(self) -> None:
        self.known: weakref.WeakValueDictionary[tuple[int, int], SharedFile] = weakref.WeakValueDictionary()
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self.lock = threading.Lock()


_files = _OpenFiles()


def open_file(path: Path, mode: str, owner: object) -> SharedFile:
    """Open a file in a mode, or create it.

    Parameters
    ----------
    path : Path
        Where it is.
    mode : str
        One of `MODES`.
    owner : object
        Who uses it until `let_go`; its repr stands in messages.

    Raises
    ------
    StoreError
        If there is no file where one must be, one where none may be, something else, or no way to look.
    """
    try:
        with _files.lock:
            file = _shared(path, mode, owner) or _opened(path, mode, owner)
            file.users.add(owner)
            return file
    except StoreError:
        raise
    except BlockingIOError as error:
        raise StoreError(f"{owner!r} is open in another process; HDF5 serves one at a time ({error})") from error
    except Exception as error:  # (h5py raises what it pleases on a damaged file)
        kept = "; mode 'w' deletes nothing that is not of this library" if mode == "w" else ""
        raise StoreError(f"{owner!r} cannot be opened: {type(error).__name__}: {error}{kept}") from error


def let_go(file: SharedFile, owner: object) -> None:
    """End what `open_file` began: the last user closes the file."""
    with _files.lock:
        file.release(owner)


def _shared(path: Path, mode: str, owner: object) -> SharedFile | None:
    """The file as another store of this process has it open."""
    shared = _files.known.get(_identity(path)) if path.exists() else None
    if shared is None or not shared.h5:
        return None
    if mode in ("w", "w-"):
        raise StoreError(f"{owner!r} is open in this process; close it first, or use mode 'a'")
    if mode != "r" and not shared.writable:
        raise StoreError(f"{owner!r} is open in this process with mode 'r'; close it first")
    return shared


def _opened(path: Path, mode: str, owner: object) -> SharedFile:
    h5py, exists = import_h5py(), path.exists()
    # A file without content, as tempfile makes it, holds nothing that could be lost.
    blank = not exists or (path.is_file() and not path.stat().st_size)
    if mode in ("r", "r+") and not exists:
        raise StoreError(f"{owner!r}: there is no file; mode 'a' or 'w' creates one")
    if mode == "w-" and exists:
        raise StoreError(f"{owner!r}: there is something already; mode 'a' opens it, 'w' deletes it")
    if not blank:
        h5 = h5py.File(path, "r" if mode in ("r", "w") else "r+")
        _check_ours(h5, owner)
    if blank or mode == "w":
        if not blank:
            h5.close()
        path.parent.mkdir(parents=True, exist_ok=True)
        if blank:
            check_room(path.parent)
        h5 = h5py.File(path, "w" if exists else "x")
        h5.attrs[_ATTRIBUTE] = FORMAT
        h5.flush()
    file = _files.known[_identity(path)] = SharedFile(h5, mode != "r")
    return file


def _check_ours(h5: Any, owner: object) -> None:
    try:
        stored = h5.attrs.get(_ATTRIBUTE)
        if stored is None:
            raise StoreError(f"{owner!r}: there is an HDF5 file that is not of this library; choose another path")
        if as_index(stored) is None or stored < 1:
            raise StoreError(f"{owner!r} has format {stored!r}, which is none; it may be damaged")
        if stored > FORMAT:
            raise StoreError(f"{owner!r} has format {stored}, this version reads up to {FORMAT}")
    except BaseException:
        h5.close()
        raise


def _identity(path: Path) -> tuple[int, int]:
    """What a file is, by whatever path it is named."""
    status = path.stat()
    return status.st_dev, status.st_ino
