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

from zarr.abc.store import Store
from zarr.storage import LocalStore

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.persistent import FORMAT
from infinite_tensor_stores.documents import GROUP, TENSOR
from infinite_tensor_stores.files import Unreadable
from infinite_tensor_stores.loop import sync
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
from infinite_tensor_stores.zarr.objects import (
    concurrently,
    create,
    delete_folder,
    delete_link,
    get_many,
    get_one,
    put_many,
)

# Some storages list the folder itself, without a name.
_LEFT_BEHIND = re.compile(r"|.*\.partial|\.DS_Store|Thumbs\.db|lost\+found|\.nfs.*", re.DOTALL)
_MOST_TOLD = 3

_MARK = {"format": FORMAT}
_CREATES = "mode 'a' or 'w' creates one in an empty folder"


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


def is_empty(store: Store) -> bool:
    """Whether nothing lies at the root."""
    return not sync(_names, store, "")


def strangers_at_root(store: Store) -> list[str]:
    """Some of what lies at the root and is not ours; none where nothing does."""

    async def find() -> list[str]:
        strangers: list[str] = []
        for name in await _names(store, ""):
            place = await _look(store, name) if _is_name_of_ours(name) else _Place(name, [], name, marked=False)
            if place.stranger is not None and name != DOCUMENT:
                strangers.append(place.stranger)
            if len(strangers) == _MOST_TOLD:
                break
        return strangers

    return sync(find)


def ours_at_root(store: Store, concurrency: int) -> dict[str, list[str]]:
    """The folders of tensors and groups, those without a definition too, each with what lies right below it."""
    places = concurrently(lambda name: _look(store, name), _named_as_ours(store), concurrency)
    return {place.name: place.inside for place in places if place.stranger is None}


def is_of_others(store: Store, name: str, document: bytes) -> bool:
    """Whether `document`, found where the definition of a tensor or group of ours would be, is somebody else's."""
    return is_zarr_of_others(document) and sync(_look, store, name).stranger is not None


def check_ours(store: Store, name: str, document: bytes, what: str, owner: object) -> None:
    """StoreError if `document`, found where `what` would be defined, is somebody else's."""
    if is_of_others(store, name, document):
        raise _in_the_way(f"{name}/{DOCUMENT}", what, owner)


def check_free(store: Store, name: str, what: str, owner: object) -> None:
    """StoreError if something that is not ours lies where `what`, a tensor or a group, is to be kept."""
    # Elsewhere a listing would be one more request, and mode 'w' tells what it finds later.
    stranger = sync(_look, store, name).stranger if isinstance(store, LocalStore) else None
    if stranger is not None:
        raise _in_the_way(stranger, what, owner)


def _in_the_way(stranger: str, what: str, owner: object) -> StoreError:
    return StoreError(
        f"{owner!r}: {stranger!r} is not of this library, and lies where {what} is kept; choose another id, or move it "
        "away"
    )


def delete_ours(store: Store, owner: object) -> None:
    """Delete all tensors and groups, and nothing else at the root.

    Raises
    ------
    StoreError
        If something else lies in the folder of one. Nothing has been deleted then.
    """
    places = concurrently(lambda name: _look(store, name), _named_as_ours(store))
    for place in places:
        if place.stranger is not None and place.marked:
            raise StoreError(
                f"{owner!r}: {place.stranger!r} is not of this library, and lies in {place.name!r}, which mode 'w' "
                "would delete; move it away"
            )
    ours = [place.name for place in places if place.stranger is None]
    # Groups name tensors: the other way round, a kill could leave one that names what is gone.
    for kind in (GROUP, TENSOR):
        concurrently(lambda name: _delete(store, name), [name for name in ours if name.startswith(kind)])


async def _look(store: Store, name: str) -> _Place:
    inside = await _names(store, name)
    strangers = [f"{name}/{child}" for child in inside if child != DOCUMENT and incarnation_of(child) is None]
    document = None
    # Where tiles lie beside it and nothing else, it is ours, intact or not.
    if DOCUMENT in inside and (strangers or len(inside) == 1):
        document = await get_one(store, f"{name}/{DOCUMENT}")
    if document is not None and is_zarr_of_others(document):
        strangers.append(f"{name}/{DOCUMENT}")
    if not inside and await _is_object(store, name):
        strangers.append(name)
    marked = document is not None and has_our_mark(document)
    return _Place(name, inside, strangers[0] if strangers else None, marked)


async def _is_object(store: Store, name: str) -> bool:
    # Elsewhere an object is not in the way of a folder of its name.
    return isinstance(store, LocalStore) and await store.exists(name)


async def _names(store: Store, prefix: str) -> list[str]:
    """What lies right below a folder, without what counts for nothing."""
    found = dict.fromkeys([name.rstrip("/") async for name in store.list_dir(prefix)])
    return [name for name in found if not _LEFT_BEHIND.fullmatch(name)]


async def _delete(store: Store, name: str) -> None:
    """Delete what is ours in a folder, and the folder if nothing is left."""
    if await delete_link(store, name):
        return
    # The definition first: without it the rest is garbage, whatever happens to this process.
    await store.delete(f"{name}/{DOCUMENT}")
    for child in [child async for child in store.list_dir(name)]:
        if incarnation_of(child.rstrip("/")) is not None:
            await delete_folder(store, f"{name}/{child.rstrip('/')}")
        elif is_temporary(child):
            await store.delete(f"{name}/{child}")
    if isinstance(store, LocalStore):
        # Something that counts for nothing may keep it there, or another process.
        with suppress(OSError):
            (store.root / name).rmdir()


def _named_as_ours(store: Store) -> list[str]:
    return list(filter(_is_name_of_ours, sync(_names, store, "")))


def _is_name_of_ours(name: str) -> bool:
    return name.startswith((TENSOR, GROUP))


def open_root(store: Store, mode: str, owner: object) -> None:
    """Open the root of a store in a mode, or create it there.

    Parameters
    ----------
    store : zarr Store
        Where it is.
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
        _open(store, mode, owner)
    except StoreError:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and mode in ("r", "r+"):
            raise StoreError(f"{owner!r}: there is no store; {_CREATES}") from error
        raise StoreError(f"{owner!r} cannot be opened: {type(error).__name__}: {error}") from error


def _open(store: Store, mode: str, owner: object) -> None:
    _check_folder(store, owner)
    (document,) = get_many(store, [DOCUMENT])
    ours = None if document is None else _mark_in(document, store, owner)
    _check_mode(store, mode, document is not None, ours, owner)
    if mode != "r":
        _check_writable(store, owner)
    if document is None:
        _check_no_strangers(store, owner)
    if mode == "w":
        delete_ours(store, owner)
    if document is None:
        if not sync(create, store, DOCUMENT, group_document(_MARK)):
            if mode == "w-":
                raise StoreError(f"{owner!r}: somebody else has just created it; mode 'a' opens it")
            # Somebody else was first.
            _open(store, "r+", owner)
    elif ours is None or (mode == "w" and ours != _MARK):
        # Attributes of somebody else stay.
        put_many(store, {DOCUMENT: marked(document, _MARK)})


def _check_mode(store: Store, mode: str, exists: bool, ours: dict[str, Any] | None, owner: object) -> None:
    """StoreError if a mode is not for what is there: a root with our mark, one that `exists` without it, or none."""
    if ours is not None and ours["format"] > FORMAT:
        raise StoreError(f"{owner!r} has format {ours['format']}, this version reads up to {FORMAT}")
    if not exists and mode in ("r", "r+"):
        raise StoreError(f"{owner!r}: there is no store; {_CREATES}")
    if ours is None and mode == "r":
        raise StoreError(f"{owner!r}: there is a Zarr group, but no store in it; mode 'a' creates one there")
    if mode == "w-" and (exists or not is_empty(store)):
        raise StoreError(
            f"{owner!r}: there is something already; mode 'a' opens it if it is a store, else choose an empty folder"
        )


def _check_folder(store: Store, owner: object) -> None:
    """StoreError if a file lies where the folder of the store would be, or a link that leads nowhere."""
    root = store.root if isinstance(store, LocalStore) else None
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


def _check_no_strangers(store: Store, owner: object) -> None:
    strangers = strangers_at_root(store)
    if strangers:
        raise StoreError(
            f"{owner!r}: there is no store, but something that is not of this library: "
            f"{', '.join(map(repr, strangers))}; choose an empty folder"
        )


def _check_writable(store: Store, owner: object) -> None:
    """A folder tells at once that it cannot be written to; elsewhere the first write does."""
    root = store.root if isinstance(store, LocalStore) else None
    if root is not None and root.exists() and not os.access(root, os.W_OK):
        raise StoreError(f"{owner!r} cannot be opened: its folder cannot be written to; mode 'r' reads what is there")


def _mark_in(document: bytes, store: Store, owner: object) -> dict[str, Any] | None:
    """What our mark says in the document of a root; None where that is a group of somebody else."""
    if is_array(document):
        raise StoreError(f"{owner!r}: there is a Zarr array that is not of this library; choose another path")
    try:
        ours = attributes_in(document)
        if ours is not None and (not isinstance(ours.get("format"), int) or ours["format"] < 1):
            raise ValueError(f"its format is {ours.get('format')!r}")
    except ValueError as error:
        theirs = [*strangers_at_root(store), *attributes_of_others(document)]
        if isinstance(document, Unreadable):
            advice = "Move it away"
        elif theirs:
            advice = f"Put an intact copy back; there is something that is not of this library, such as {theirs[0]!r}"
        else:
            advice = "It holds nothing but the version of the store: delete it, and open the store with mode 'a'"
        raise StoreError(f"{owner!r}: {DOCUMENT} of the store is damaged ({error}). {advice}") from error
    return ours
