"""Groups and datasets of an HDF5 file, which may be damaged or hostile. The caller holds the lock of the file."""

from __future__ import annotations

import math
import re
import secrets
from importlib import import_module
from typing import Any

import numpy as np

from infinite_tensor.tilestore.inventory import Garbage
from infinite_tensor_stores.files import LARGEST_DOCUMENT, Unreadable, parsed

DEFINITION, TILES, LOGS = MEMBERS = ("definition", "tiles", "partial")
"""The members of a tensor's group. The group of a `TensorGroup` has a definition only."""

TILE = r"-?\d{1,19}(,-?\d{1,19})*"
"""The name of a tile, or of the log of a tile."""

_LIBVER = ("v110", "latest")
"""The format of new objects: a dataset of a single chunk needs no index, and a large group is searched like a tree."""

_METADATA = 2**25


def import_h5py() -> Any:
    """Import h5py, which only HDF5 stores need."""
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ImportError("HDF5TileStore needs the package h5py: pip install h5py") from error


def open_h5(path: Any, mode: str, **options: Any) -> Any:
    """Open a file as `h5py.File`, so that new objects get the format `_LIBVER`.

    A file that is written has a large cache of HDF5's own structures, so that only a flush writes them, and a kill
    between flushes leaves the file as the last flush did.
    """
    h5 = import_h5py().File(path, mode, libver=_LIBVER, **options)
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
    return import_h5py().File(name, "w", driver="core", backing_store=False, libver=("earliest", "latest"))


def has(group: Any, name: str) -> bool:
    """Return whether a group has a member or link of this name."""
    return bool(group.id.links.exists(name.encode()))


def group_at(group: Any, name: str) -> Any:
    """Return the subgroup with a name.

    Return None if there is nothing, a dataset, or a link to another location, which may belong to another program.
    """
    h5py = import_h5py()
    found = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    return found if isinstance(found, h5py.Group) else None


def names_in(group: Any, pattern: str) -> list[str]:
    """List the members of a group that match a regular expression as a whole. Names not in UTF-8 are bytes."""
    return [name for name in group if isinstance(name, str) and re.fullmatch(pattern, name)]


def put(group: Any, name: str, data: Any) -> None:
    """Give a finished dataset its name.

    A dataset that has the name is replaced, and stays if there was no room for the new one.
    """
    if has(group, name):
        group.id.unlink(name.encode())
    import_h5py().h5o.link(data, group.id, name.encode())


def check_size(data: Any, most: int) -> None:
    """Check a dataset, given by its `h5py.h5d.DatasetID`, before it is read.

    Raise ValueError if the dataset or a chunk has more than `most` bytes after decompression, or if chunks are
    compressed twice. HDF5 allocates the memory for a whole chunk, however few bytes of the chunk are in the file.
    """
    h5py, created = import_h5py(), data.get_create_plist()
    shapes = [data.shape, *([created.get_chunk()] if created.get_layout() == h5py.h5d.CHUNKED else [])]
    size = max(map(math.prod, shapes)) * data.get_type().get_size()
    if size > most:
        raise ValueError(Unreadable.too_large(size, most).reason)
    filters = {created.get_filter(number)[0]: number for number in range(created.get_nfilters())}
    harmless = filters.keys() & {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
    if created.get_nfilters() > len(harmless) + 1:
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
    if group is None or DEFINITION not in group:
        return None
    try:
        return parsed(content(group, DEFINITION, LARGEST_DOCUMENT))
    except ValueError as error:
        return error


def sizes(group: Any) -> list[int]:
    """Return the stored bytes of each dataset in a group and its subgroups. Links are not followed."""
    h5py, found = import_h5py(), []

    def look_at(name: bytes, info: Any) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            found.append(h5py.h5d.open(group.id, name).get_storage_size())

    h5py.h5o.visit(group.id, look_at, info=True)
    return found


def prune(group: Any, *, complete: bool) -> Garbage:
    """Delete the logs of the complete, or of the incomplete, tiles in the group of a tensor."""
    pruned, tiles, logs = Garbage(), group_at(group, TILES), group_at(group, LOGS)
    for name in () if tiles is None or logs is None else names_in(logs, TILE):
        if has(tiles, name) is complete and (log := group_at(logs, name)) is not None:
            parts = sizes(log)
            pruned += Garbage(len(parts), sum(parts), 0 if complete else 1, 0 if complete else sum(parts))
            del logs[name]
    return pruned
