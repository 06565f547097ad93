"""The root of a Zarr store: whose it is, and which version wrote it."""

from __future__ import annotations

import os
from typing import Any

from zarr.abc.store import Store
from zarr.storage import LocalStore

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.persistent import FORMAT
from infinite_tensor_stores.files import Unreadable
from infinite_tensor_stores.zarr_layout import (
    DOCUMENT,
    attributes_in,
    attributes_of_others,
    group_document,
    is_array,
    marked,
)
from infinite_tensor_stores.zarr_loop import sync
from infinite_tensor_stores.zarr_objects import create, get_many, put_many
from infinite_tensor_stores.zarr_ours import delete_ours, is_empty, strangers_at_root

_MARK = {"format": FORMAT}
_CREATES = "mode 'a' or 'w' creates one in an empty folder"


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
