"""The root of a Zarr store: whose it is, and which version wrote it."""

from __future__ import annotations

import os
from typing import Any

from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import LocalStore

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.persistent import FORMAT
from infinite_tensor_stores.zarr_layout import DOCUMENT, attributes_in, group_document
from infinite_tensor_stores.zarr_objects import create, get_many


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
            raise StoreError(f"{owner!r}: there is no store; mode 'a' or 'w' creates one") from error
        raise StoreError(f"{owner!r} cannot be opened: {type(error).__name__}: {error}") from error


def _open(store: Store, mode: str, owner: object) -> None:
    document = get_many(store, [DOCUMENT])[0]
    ours = None if document is None else _root_in(document, owner)
    if document is not None and ours is None:
        raise StoreError(f"{owner!r}: there is a Zarr hierarchy that is not of this library; choose another path")
    if ours is not None and ours["format"] > FORMAT:
        raise StoreError(f"{owner!r} has format {ours['format']}, this version reads up to {FORMAT}")
    if mode in ("r", "r+") and ours is None:
        raise StoreError(f"{owner!r}: there is no store; mode 'a' or 'w' creates one")
    if mode == "w-" and (ours is not None or not sync(store.is_empty(""))):
        raise StoreError(f"{owner!r}: there is something already; mode 'a' opens it, 'w' deletes it")
    if mode != "r":
        _check_writable(store, owner)
    if mode == "w" and ours is not None:
        sync(store.clear())
        ours = None
    elif mode == "w" and not sync(store.is_empty("")):
        raise StoreError(f"{owner!r}: what is there is not of this library, so mode 'w' does not delete it")
    if ours is None:
        sync(create(store, DOCUMENT, group_document({"format": FORMAT})))


def _check_writable(store: Store, owner: object) -> None:
    """A folder tells at once that it cannot be written to; elsewhere the first write does."""
    root = store.root if isinstance(store, LocalStore) else None
    if root is not None and root.exists() and not os.access(root, os.W_OK):
        raise StoreError(f"{owner!r} cannot be opened: its folder cannot be written to; mode 'r' reads what is there")


def _root_in(document: bytes, owner: object) -> dict[str, Any] | None:
    try:
        ours = attributes_in(document)
        if ours is not None and (not isinstance(ours.get("format"), int) or ours["format"] < 1):
            raise ValueError(f"its format is {ours.get('format')!r}")
    except ValueError as error:
        raise StoreError(
            f"{owner!r}: {DOCUMENT} of the store is damaged ({error}). It holds nothing but the version of the "
            "store: delete it, and open the store with mode 'a'"
        ) from error
    return ours
