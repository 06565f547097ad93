"""The groups and datasets of this library in an HDF5 file.

Data of other programs is never changed. Other programs may keep settings in the attributes of the file, and their own
arrays next to ours. This library owns

    /t-<id>           a tensor: a group that contains a definition, or nothing but `MEMBERS`
    /groups/g-<id>    a group of tensors: a string

and the mark, an attribute of the root. The caller holds the lock of the file.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from infinite_tensor.support.disks import NO_LOCKS, OpenFile, lock, tell_weaker
from infinite_tensor.tilestore.persistent.documents import GROUP, TENSOR
from infinite_tensor_stores.files import LARGEST_DOCUMENT, Unreadable, parsed

DEFINITION = "definition"
MEMBERS = (DEFINITION, "tiles", "index", "partial")
"""The members of a tensor's group, in the order of deletion."""

MARK = "infinite_tensor_format"
"""The root attribute of a store, with the version of the layout."""

FOLDER = "groups"
"""The HDF5 group for groups of tensors. Foreign data may be there too."""

_OLD_FOLDER = "tensors"
"""The HDF5 group with everything from versions 0.x. Such versions create the group in every file."""


def import_h5py() -> Any:
    """Import h5py.

    Only HDF5 stores need this package. The ImportError says how to install it.
    """
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ImportError("HDF5TileStore needs the package h5py: pip install h5py") from error


def file_in_memory() -> Any:
    """Create an HDF5 file in memory.

    The file has a random name, because HDF5 refuses to open two files of the same name.
    """
    return import_h5py().File(secrets.token_hex(8), "w", driver="core", backing_store=False)


def opened(path: Path, mode: str) -> tuple[Any, OpenFile | None]:
    """Open an existing HDF5 file, locked against other programs.

    Return the open file, and the file with our own lock where HDF5 has been told not to lock
    (``HDF5_USE_FILE_LOCKING=FALSE``). Raise BlockingIOError if another program has the file open.
    """
    h5py, options = import_h5py(), {}
    with file_in_memory() as scratch:
        locks, _ = scratch.id.get_access_plist().get_file_locking()
    if locks:
        try:
            return h5py.File(path, mode), None
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
        return h5py.File(path, mode, **options), own
    except BaseException:
        own.unlock()
        raise


def group_at(h5: Any, name: str) -> Any | None:
    """Return the HDF5 group with a name.

    Return None if there is nothing, a dataset, or a link to another location.
    """
    h5py = import_h5py()
    found = h5[name] if isinstance(h5.get(name, getlink=True), h5py.HardLink) else None
    return found if isinstance(found, h5py.Group) else None


def check_own(group: Any, names: Sequence[str]) -> None:
    """Check that the members `names` of a group exist and are not links.

    Raise ValueError otherwise. The target of a link may belong to another program.
    """
    for name in names:
        if not isinstance(group.get(name, getlink=True), import_h5py().HardLink):
            raise ValueError(f"{group.name}/{name} is missing, or a link to another object")  # noqa: TRY004  (not a type error)


def tensor_at(h5: Any, name: str) -> Any | None:
    """Return the HDF5 group of a tensor, with or without a definition.

    Return None if there is no such group.
    """
    group = group_at(h5, name)
    if group is None:
        return None
    names = set(group)
    return group if DEFINITION in names or (names and names <= set(MEMBERS)) else None


def names_in(group: Any) -> list[str]:
    """List the members of a group, except names not in UTF-8."""
    return [name for name in group if isinstance(name, str)]


def tensors_in(h5: Any) -> list[str]:
    """List the HDF5 groups of tensors, with or without a definition."""
    return [name for name in names_in(h5) if name.startswith(TENSOR) and tensor_at(h5, name) is not None]


def delete_members(h5: Any, name: str) -> None:
    """Delete the members of a tensor's group.

    The group is deleted too, if it is then empty.
    """
    group = h5[name]
    for member in MEMBERS:
        if member in group:
            del group[member]
    if not len(group):
        del h5[name]


def delete_ours(h5: Any) -> None:
    """Delete everything of this library except the mark.

    A kill leaves a valid store with fewer tensors.
    """
    names = tensors_in(h5)
    for name in names:
        if DEFINITION in h5[name]:
            del h5[name][DEFINITION]
    h5.flush()
    for name in names:
        delete_members(h5, name)
    for name in groups_in(h5):
        delete_group(h5, name)
    h5.flush()


def is_defined(h5: Any, name: str) -> bool:
    """Return whether a tensor has a definition, intact or damaged."""
    group = tensor_at(h5, name)
    return group is not None and DEFINITION in group


def read_document(h5: Any, name: str) -> dict[str, Any] | ValueError | None:
    """Read the document of a tensor or a group.

    Return None if there is no document. Return a ValueError if the document is damaged.
    """
    try:
        if name.startswith(GROUP):
            found = document_at(h5, name)
            return None if found is None else document_in(found)
        group = group_at(h5, name)
        return None if group is None or DEFINITION not in group else document_in(group[DEFINITION])
    except ValueError as error:
        return error


def document_at(h5: Any, name: str) -> Any | None:
    """Return the dataset with the definition of a `TensorGroup`.

    Return None if there is no such dataset.
    """
    h5py, folder = import_h5py(), group_at(h5, FOLDER)
    hard = folder is not None and isinstance(folder.get(name, getlink=True), h5py.HardLink)
    found = folder[name] if folder is not None and hard else None
    is_text = isinstance(found, h5py.Dataset) and found.shape == () and h5py.check_string_dtype(found.dtype) is not None
    return found if is_text else None


def groups_in(h5: Any) -> list[str]:
    """List all groups of tensors, intact or damaged."""
    names = [] if (folder := group_at(h5, FOLDER)) is None else names_in(folder)
    return [name for name in names if name.startswith(GROUP) and document_at(h5, name) is not None]


def delete_group(h5: Any, name: str) -> None:
    """Delete a group of tensors.

    The HDF5 group around it is deleted too, if it is then empty.
    """
    folder = h5[FOLDER]
    del folder[name]
    if not len(folder):
        del h5[FOLDER]


def names_taken(h5: Any) -> list[str]:
    """List the existing paths with a name reserved for this library.

    Called for a file of another program.
    """
    found = [f"/{name}" for name in names_in(h5) if name.startswith(TENSOR)]
    folder = group_at(h5, FOLDER)
    if folder is None:
        return found + [f"/{name}" for name in names_in(h5) if name == FOLDER]
    return found + [f"/{FOLDER}/{name}" for name in names_in(folder) if name.startswith(GROUP)]


def is_of_version_0(h5: Any) -> bool:
    """Return whether version 0.x of this library has written a file.

    Such a file has a group "tensors", either empty or with tensors.
    """
    h5py, folder = import_h5py(), group_at(h5, _OLD_FOLDER)
    if folder is None:
        return False

    def look_at(_name: str, item: Any) -> bool | None:
        found = isinstance(item, h5py.Group) and {"metadata", "tiles"} <= set(item)
        return True if found else None

    return not len(folder) or folder.visititems(look_at) is not None


def is_incarnation(group: Any, incarnation: str) -> bool:
    """Return whether a tensor's definition has a given incarnation.

    Return False if the definition is missing, or cannot be parsed.
    """
    try:
        return DEFINITION in group and document_in(group[DEFINITION]).get("incarnation") == incarnation
    except ValueError:
        return False


def put_document(group: Any, name: str, document: str) -> None:
    """Create a dataset with a document.

    The dataset gets its name only when complete, so an interrupt cannot leave an incomplete document.
    """
    group[name] = group.create_dataset(None, data=np.bytes_(document))


def replace_definition(group: Any, document: str) -> None:
    """Replace the definition in the group of a tensor.

    The old definition stays if there is no room for the new one.
    """
    new = group.create_dataset(None, data=np.bytes_(document))
    del group[DEFINITION]
    group[DEFINITION] = new


def check_chunks(dataset: Any, most: int) -> None:
    """Check the size and the compression of chunks.

    Raise ValueError if chunks are compressed twice, or have more than `most` bytes after decompression. HDF5 allocates
    the memory for a whole chunk, however few bytes of the chunk are in the file.
    """
    if dataset.chunks is not None:
        _check_bytes(f"a chunk of {dataset.name}", math.prod(dataset.chunks) * dataset.dtype.itemsize, most)
    h5z, created = import_h5py().h5z, dataset.id.get_create_plist()
    filters = [created.get_filter(number)[0] for number in range(created.get_nfilters())]
    if len([each for each in filters if each not in (h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)]) > 1:
        raise ValueError(f"{dataset.name} is compressed more than once")


def check_size(dataset: Any, most: int) -> None:
    """Check the size and the chunks of a dataset, before reading.

    Raise ValueError if the dataset or a chunk has more than `most` bytes after decompression, or if chunks are
    compressed twice.
    """
    _check_bytes(dataset.name, dataset.nbytes, most)
    check_chunks(dataset, most)


def _check_bytes(what: str, size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"{what}: {Unreadable.too_large(size, most).reason}")


def document_in(dataset: Any) -> dict[str, Any]:
    """Return the JSON object in a dataset.

    Raise ValueError if the object is damaged.
    """
    try:
        check_size(dataset, LARGEST_DOCUMENT)
        document = bytes(dataset[()])
    except Exception as error:  # (h5py raises any exception on a damaged file)
        raise ValueError(f"it cannot be read: {error}") from error
    return parsed(document)
