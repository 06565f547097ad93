"""What a store holds, as its documents alone tell it: without torch, which takes longer to import than to list them.

Only what is plainly in order is listed so. Whoever gets None opens the store, which tells what is the matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.formats import FORMAT, LATEST_FORMAT
from infinite_tensor.tilestore.persistent.sealed import GROUP, TENSOR, Document, intact
from infinite_tensor_stores.files import HDF5_SUFFIXES, LARGEST_DOCUMENT, read_file
from infinite_tensor_stores.zarr.zarr_json import DOCUMENT, attributes_in, member_in


@dataclass(frozen=True)
class Listing:
    """What a store holds.

    Attributes
    ----------
    tensors : dict of str to dict
        The definitions of tensors by their ids, in the order of these.
    groups : list of str
        The ids of groups of tensors, sorted.
    """

    tensors: dict[str, dict[str, Any]]
    groups: list[str]


def listing_of(target: str) -> Listing | None:
    """What the store at a path or URL holds; None where that takes the store itself to tell.

    Raises
    ------
    StoreError
        If the storage does not answer.
    """
    try:
        if "://" in target:
            return _listing(*_remote_documents(target))
        path = Path(target).expanduser()
        return _listing(*(_hdf5_documents if target.lower().endswith(HDF5_SUFFIXES) else _local_documents)(path))
    except StoreError:
        raise
    except Exception:  # noqa: BLE001  (h5py and file systems raise what they please)
        return None


def _listing(mark: object, names: Sequence[str], documents: Sequence[Document]) -> Listing:
    if not _is_format(mark, FORMAT):
        raise ValueError("it is no store of this version")
    found = {name: intact(each, name) for name, each in zip(names, documents, strict=True) if each is not None}
    tensors = {each["tensor_id"]: each for name, each in found.items() if name.startswith(TENSOR)}
    if not all(map(_is_plain, tensors.values())):
        raise ValueError("it holds what this version does not read")
    groups = [each["group_id"] for name, each in found.items() if name.startswith(GROUP)]
    return Listing(dict(sorted(tensors.items())), sorted(groups))


def _is_plain(definition: dict[str, Any]) -> bool:
    """Whether what is listed of a tensor is what it should be."""
    shape, tile, dims = definition["shape"], definition["tile_size"], definition.get("dims")
    return (
        _is_format(definition["format"], LATEST_FORMAT)
        and isinstance(definition["dtype"], str)
        and all(isinstance(extent, int | None) for extent in shape)
        and all(isinstance(extent, int) for extent in tile)
        and (dims is None or all(isinstance(name, str) for name in dims))
        and len(shape) == len(tile) == len(shape if dims is None else dims)
    )


def _is_format(given: object, latest: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= latest


_Read = Callable[[Sequence[str]], Sequence[bytes | None]]


def _zarr_documents(children: Sequence[str], read: _Read) -> tuple[object, list[str], list[Document]]:
    names = [name for name in children if name.startswith((TENSOR, GROUP))]
    root, *found = read([DOCUMENT, *(f"{name}/{DOCUMENT}" for name in names)])
    mark = {} if root is None else attributes_in(root) or {}
    if root is None or member_in(mark) is not None:
        raise ValueError("there is no store")
    return mark.get("format"), names, list(map(_document_in, found))


def _document_in(found: bytes | None) -> Document:
    return None if found is None else attributes_in(found) or ValueError("there is no definition")


def _local_documents(folder: Path) -> tuple[object, list[str], list[Document]]:
    names = [path.name for path in folder.iterdir()]
    return _zarr_documents(names, lambda keys: [read_file(folder / key, LARGEST_DOCUMENT) for key in keys])


def _remote_documents(url: str) -> tuple[object, list[str], list[Document]]:
    # Zarr, and the file system.
    from infinite_tensor_stores.targets import shown, zarr_store  # noqa: PLC0415
    from infinite_tensor_stores.zarr.objects import Objects  # noqa: PLC0415

    objects = Objects(partial(zarr_store, url, None, True))
    try:
        return _zarr_documents(objects.children(""), objects.get)
    except (FileNotFoundError, ValueError):
        raise
    except Exception as error:
        raise StoreError(f"{shown(url)} cannot be read: {type(error).__name__}: {error}") from error
    finally:
        objects.disconnect()


def _hdf5_documents(path: Path) -> tuple[object, list[str], list[Document]]:
    from infinite_tensor_stores.hdf5.members import (  # noqa: PLC0415
        MARK,
        groups_in,
        names_in,
        opened,
        read_document,
    )

    if not path.is_file():
        # To open a pipe would take until somebody writes to it.
        raise ValueError("there is no file")
    with opened(path, "r") as h5:
        names = [*(name for name in names_in(h5) if name.startswith(TENSOR)), *groups_in(h5)]
        return int(h5.attrs[MARK]), names, [read_document(h5, name) for name in names]
