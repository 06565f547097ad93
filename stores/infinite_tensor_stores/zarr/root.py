"""The root of a Zarr store: whose it is, which version wrote it, and what of it is of this library.

Ours is a folder ``t-...`` or ``g-...`` that holds nothing but ``zarr.json``, ``tiles-<incarnation>`` and
``partial-<incarnation>``, told by its name and by what is in it; all else is not touched. What killed writers and
operating systems leave in any folder counts for nothing.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.failures import in_the_way
from infinite_tensor.tilestore.persistent import FORMAT
from infinite_tensor.tilestore.persistent.documents import GROUP, TENSOR
from infinite_tensor_stores.files import Unreadable
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.targets import check_format, check_found
from infinite_tensor_stores.zarr.layout import (
    DOCUMENT,
    attributes_in,
    attributes_of_others,
    group_document,
    has_our_mark,
    incarnation_of,
    is_array,
    is_temporary,
    is_zarr_of_others,
    marked,
)
from infinite_tensor_stores.zarr.objects import Objects

# Some storages list the folder itself, without a name.
_LEFT_BEHIND = re.compile(r"|.*\.partial|\.DS_Store|Thumbs\.db|lost\+found|\.nfs.*", re.DOTALL)
_MOST_TOLD = 3
_PLACE = "an empty folder"

_MARK = {"format": FORMAT}


@dataclass(frozen=True)
class _Place:
    """A folder of the root that has a name of ours.

    Attributes
    ----------
    name : str
        Its name.
    inside : list of str
        What lies right below it.
    stranger : str or None
        The key of something that is not ours in it.
    marked : bool
        Whether a definition of ours lies in it.
    """

    name: str
    inside: list[str]
    stranger: str | None
    marked: bool


def is_empty(objects: Objects) -> bool:
    """Whether nothing lies at the root."""
    return not sync(_names, objects, "")


def strangers_at_root(objects: Objects) -> list[str]:
    """Some of what lies at the root and is not ours; none where nothing does."""

    async def find() -> list[str]:
        strangers: list[str] = []
        for name in await _names(objects, ""):
            place = await _look(objects, name) if _is_name_of_ours(name) else _Place(name, [], name, marked=False)
            if place.stranger is not None and name != DOCUMENT:
                strangers.append(place.stranger)
            if len(strangers) == _MOST_TOLD:
                break
        return strangers

    return sync(find)


def ours_at_root(objects: Objects) -> dict[str, list[str]]:
    """The folders of tensors and groups, those without a definition too, each with what lies right below it."""
    places = objects.each(lambda name: _look(objects, name), _named_as_ours(objects))
    return {place.name: place.inside for place in places if place.stranger is None}


def is_of_others(objects: Objects, name: str) -> bool:
    """Whether what lies where the definition of a tensor or group of ours would be is somebody else's."""
    (document,) = objects.get([f"{name}/{DOCUMENT}"])
    # To look costs more.
    return document is not None and is_zarr_of_others(document) and sync(_look, objects, name).stranger is not None


def check_free(objects: Objects, name: str, what: str, owner: object) -> None:
    """StoreError if something that is not ours lies where `what`, a tensor or a group, is to be kept."""
    # Elsewhere a listing would be one more request, and mode 'w' tells what it finds later.
    stranger = None if objects.root is None else sync(_look, objects, name).stranger
    if stranger is not None:
        raise in_the_way(owner, stranger, what)


def delete_ours(objects: Objects, owner: object) -> None:
    """Delete all tensors and groups, and nothing else at the root.

    Raises
    ------
    StoreError
        If something else lies in the folder of one. Nothing has been deleted then.
    """
    places = objects.each(lambda name: _look(objects, name), _named_as_ours(objects))
    for place in places:
        if place.stranger is not None and place.marked:
            raise StoreError(
                f"{owner!r}: {place.stranger!r} is not of this library, and lies in {place.name!r}, which mode 'w' "
                "would delete; move it away"
            )
    ours = [place.name for place in places if place.stranger is None]
    # Groups name tensors: the other way round, a kill could leave one that names what is gone.
    for kind in (GROUP, TENSOR):
        objects.each(lambda name: _delete(objects, name), [name for name in ours if name.startswith(kind)])


async def _look(objects: Objects, name: str) -> _Place:
    inside = await _names(objects, name)
    strangers = [f"{name}/{child}" for child in inside if child != DOCUMENT and incarnation_of(child) is None]
    document = None
    # Where tiles lie beside it and nothing else, it is ours, intact or not.
    if DOCUMENT in inside and (strangers or len(inside) == 1):
        document = await objects.get_one(f"{name}/{DOCUMENT}")
    if document is not None and is_zarr_of_others(document):
        strangers.append(f"{name}/{DOCUMENT}")
    if not inside and await _is_object(objects, name):
        strangers.append(name)
    marked = document is not None and has_our_mark(document)
    return _Place(name, inside, strangers[0] if strangers else None, marked)


async def _is_object(objects: Objects, name: str) -> bool:
    # Elsewhere an object is not in the way of a folder of its name.
    return objects.root is not None and await objects.store.exists(name)


async def _names(objects: Objects, prefix: str) -> list[str]:
    """What lies right below a folder, without what counts for nothing."""
    found = dict.fromkeys(await objects.names_in(prefix))
    return [name for name in found if not _LEFT_BEHIND.fullmatch(name)]


async def _delete(objects: Objects, name: str) -> None:
    """Delete what is ours in a folder, and the folder if nothing is left."""
    if await objects.delete_link(name):
        return
    # The definition first: without it the rest is garbage, whatever happens to this process.
    await objects.store.delete(f"{name}/{DOCUMENT}")
    for child in await objects.names_in(name):
        if incarnation_of(child) is not None:
            await objects.delete_folder(f"{name}/{child}")
        elif is_temporary(child):
            await objects.store.delete(f"{name}/{child}")
    if objects.root is not None:
        # Something that counts for nothing may keep it there, or another process.
        with suppress(OSError):
            (objects.root / name).rmdir()


def _named_as_ours(objects: Objects) -> list[str]:
    return list(filter(_is_name_of_ours, sync(_names, objects, "")))


def _is_name_of_ours(name: str) -> bool:
    return name.startswith((TENSOR, GROUP))


def open_root(objects: Objects, mode: str, owner: object) -> None:
    """Open the root of a store in a mode, or create it there.

    Parameters
    ----------
    objects : Objects
        Of the store.
    mode : str
        One of `MODES`.
    owner : object
        Whose repr stands in messages.

    Raises
    ------
    StoreError
        If there is no store where one must be, one where none may be, something else, or no way to look.
    """
    try:
        _open(objects, mode, owner)
    except StoreError:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and mode in ("r", "r+"):
            check_found(mode, owner, None, is_store=False, place=_PLACE)
        raise StoreError(f"{owner!r} cannot be opened: {type(error).__name__}: {error}") from error


def _open(objects: Objects, mode: str, owner: object) -> None:
    _check_folder(objects, owner)
    (document,) = objects.get([DOCUMENT])
    ours = None if document is None else _mark_in(document, objects, owner)
    if ours is not None:
        check_format(ours["format"], owner)
    found = "a Zarr group" if document is not None else None
    if mode == "w-" and found is None and not is_empty(objects):
        found = "something"
    check_found(mode, owner, found, is_store=ours is not None, place=_PLACE)
    if mode != "r":
        _check_writable(objects, owner)
    if document is None:
        _check_no_strangers(objects, owner)
    if mode == "w":
        delete_ours(objects, owner)
    if document is None:
        if not sync(objects.create, DOCUMENT, group_document(_MARK)):
            if mode == "w-":
                raise StoreError(f"{owner!r}: somebody else has just created it; mode 'a' opens it")
            # Somebody else was first.
            _open(objects, "r+", owner)
    elif ours is None or (mode == "w" and ours != _MARK):
        # Attributes of somebody else stay.
        objects.put({DOCUMENT: marked(document, _MARK)})


def _check_folder(objects: Objects, owner: object) -> None:
    """StoreError if a file lies where the folder of the store would be, or a link that leads nowhere."""
    root = objects.root
    if root is None:
        return
    # In this order a folder that somebody else creates meanwhile is no file.
    if root.exists():
        what = "" if root.is_dir() else "a file"
    else:
        what = "a link that leads nowhere" if root.is_symlink() else ""
    if what:
        raise StoreError(
            f"{owner!r}: there is {what}, and a Zarr store is a folder; choose another path, or open an HDF5 file with "
            "HDF5TileStore"
        )


def _check_no_strangers(objects: Objects, owner: object) -> None:
    strangers = strangers_at_root(objects)
    if strangers:
        raise StoreError(
            f"{owner!r}: there is no store, but something that is not of this library: "
            f"{', '.join(map(repr, strangers))}; choose an empty folder"
        )


def _check_writable(objects: Objects, owner: object) -> None:
    """A folder tells at once that it cannot be written to; elsewhere the first write does."""
    root = objects.root
    if root is not None and root.exists() and not os.access(root, os.W_OK):
        raise StoreError(f"{owner!r} cannot be opened: its folder cannot be written to; mode 'r' reads what is there")


def _mark_in(document: bytes, objects: Objects, owner: object) -> dict[str, Any] | None:
    """What our mark says in the document of a root; None where that is a group of somebody else."""
    if is_array(document):
        raise StoreError(f"{owner!r}: there is a Zarr array that is not of this library; choose another path")
    try:
        ours = attributes_in(document)
        if ours is not None and (not isinstance(ours.get("format"), int) or ours["format"] < 1):
            raise ValueError(f"its format is {ours.get('format')!r}")
    except ValueError as error:
        theirs = [*strangers_at_root(objects), *attributes_of_others(document)]
        if isinstance(document, Unreadable):
            advice = "Move it away"
        elif theirs:
            advice = f"Put an intact copy back; there is something that is not of this library, such as {theirs[0]!r}"
        else:
            advice = "It holds nothing but the version of the store: delete it, and open the store with mode 'a'"
        raise StoreError(f"{owner!r}: {DOCUMENT} of the store is damaged ({error}). {advice}") from error
    return ours
