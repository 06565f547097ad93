"""Groups and datasets of an HDF5 file, which may be damaged or hostile. The caller holds the lock of the file."""

from __future__ import annotations

import itertools
import math
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import h5py
import numpy as np

from infinite_tensor.tilestore.inventory import Garbage
from infinite_tensor_stores.files import LARGEST_DOCUMENT, Unreadable, parsed

DEFINITION = "definition"
"""In the group of a tensor or of a `TensorGroup`. A group without it is garbage."""

_MEMBER = re.compile(r"(-?\d{1,19}(?:,-?\d{1,19})*)(\.part\d{1,9})?")
"""The name of a tile, or of a part of the log of a tile."""

_LIBVER = ("v110", "latest")
"""The format of new objects: a dataset of a single chunk needs no index, and a large group is searched like a tree."""

_METADATA = 2**22
"""The size of HDF5's cache of its own structures, as HDF5 counts it. They take up to 16 times as much memory."""


def open_h5(path: Any, mode: str, **options: Any) -> Any:
    """Open a file as `h5py.File`, so that new objects get the format `_LIBVER`.

    A file that is written has a large cache of HDF5's own structures, so that only a flush writes them, and a kill
    between flushes leaves the file as the last flush did.
    """
    h5 = h5py.File(path, mode, libver=_LIBVER, **options)
    if mode != "r":
        cache = h5.id.get_mdc_config()
        cache.set_initial_size, cache.initial_size, cache.max_size = True, _METADATA, _METADATA
        cache.min_clean_fraction = 0.0
        cache.incr_mode = cache.decr_mode = cache.flash_incr_mode = 0
        h5.id.set_mdc_config(cache)
    return h5


def file_in_memory() -> Any:
    """Create an HDF5 file in memory.

    The file has a random name, because HDF5 refuses to open two files of the same name. Its header is of the earliest
    version: with a later one, HDF5 refuses to open a file after a kill.
    """
    name = secrets.token_hex(8)
    return h5py.File(name, "w", driver="core", backing_store=False, libver=("earliest", "latest"))


def has(group: Any, name: str) -> bool:
    """Return whether a group has a member or link of this name."""
    return bool(group.id.links.exists(name.encode()))


def group_at(group: Any, name: str) -> Any:
    """Return the subgroup with a name.

    Return None if there is nothing, a dataset, or a link to another location, which may belong to another program.
    """
    found = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    return found if isinstance(found, h5py.Group) else None


def names_in(group: Any, begin: str | tuple[str, ...] = "") -> list[str]:
    """List the members of a group whose names begin with one of some texts. Names not in UTF-8 are left out."""
    return [name for name in group if isinstance(name, str) and name.startswith(begin)]


def tiles_in(group: Any) -> tuple[set[str], set[str]]:
    """Return the complete tiles of a tensor, and the tiles with a log."""
    found = [match for name in names_in(group) if (match := _MEMBER.fullmatch(name))]
    return {match[1] for match in found if not match[2]}, {match[1] for match in found if match[2]}


def parts_of(group: Any, tile: str, first: int = 0) -> list[str]:
    """Return the names of the parts of a log, in the order of writing."""
    names = (f"{tile}.part{number}" for number in itertools.count(first))
    return list(itertools.takewhile(lambda name: has(group, name), names))


def put(group: Any, name: str, data: Any) -> None:
    """Give a finished dataset its name.

    A dataset that has the name is replaced, and stays if there was no room for the new one.
    """
    if has(group, name):
        group.id.unlink(name.encode())
    h5py.h5o.link(data, group.id, name.encode())


def put_bytes(group: Any, name: str, data: bytes) -> None:
    """Store bytes, as in `put`."""
    put(group, name, group.create_dataset(None, data=np.frombuffer(data, np.uint8)).id)


def delete(group: Any, names: Sequence[str]) -> None:
    """Delete members, the last one first: an interrupt leaves the first parts of a log, and so no gap."""
    for name in reversed(names):
        del group[name]


def check_size(data: Any, most: int) -> None:
    """Check a dataset, given by its `h5py.h5d.DatasetID`, before it is read.

    Raise ValueError if the dataset or a chunk has more than `most` bytes after decompression, or if chunks are
    compressed twice. HDF5 allocates the memory for a whole chunk, however few bytes of the chunk are in the file.
    """
    created = data.get_create_plist()
    shapes = [data.shape, *([created.get_chunk()] if created.get_layout() == h5py.h5d.CHUNKED else [])]
    size = max(map(math.prod, shapes)) * data.get_type().get_size()
    if size > most:
        raise ValueError(Unreadable.too_large(size, most).reason)
    filters = {created.get_filter(number)[0] for number in range(created.get_nfilters())}
    if created.get_nfilters() > len(filters & {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}) + 1:
        raise ValueError("it is compressed more than once")


def content(group: Any, name: str, most: int) -> bytes:
    """Return the bytes of a dataset with a document or a part of a log.

    Raise ValueError if they cannot be read, or are more than `most`.
    """
    try:
        check_size(group[name].id, most)
        return np.asarray(group[name][()]).tobytes()
    except MemoryError:
        raise
    except Exception as error:  # (h5py raises any exception on a damaged file)
        raise ValueError(f"it cannot be read: {error}") from error


def document_in(group: Any) -> dict[str, Any] | ValueError | None:
    """Return the definition in the group of a tensor or of a `TensorGroup`.

    Return None if there is none, and a ValueError if it is damaged.
    """
    if group is None or not has(group, DEFINITION):
        return None
    try:
        return parsed(content(group, DEFINITION, LARGEST_DOCUMENT))
    except ValueError as error:
        return error


def sizes(group: Any, names: Iterable[str]) -> list[int]:
    """Return the stored bytes of each of these members that is a dataset."""
    found = (h5py.h5o.open(group.id, name.encode()) for name in names)
    return [each.get_storage_size() for each in found if isinstance(each, h5py.h5d.DatasetID)]


def prune(group: Any, *, complete: bool) -> Garbage:
    """Delete the logs of the complete, or of the incomplete, tiles in the group of a tensor."""
    pruned, (tiles, begun) = Garbage(), tiles_in(group)
    for tile in begun & tiles if complete else begun - tiles:
        found = sizes(group, parts := parts_of(group, tile))
        pruned += Garbage(len(found), sum(found), *(() if complete else (1, sum(found))))
        delete(group, parts)
    return pruned
