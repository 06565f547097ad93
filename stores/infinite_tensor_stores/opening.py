"""Opening the store at a path or URL."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from zarr.abc.store import Store

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.forks import Lock
from infinite_tensor.support.given import quoted
from infinite_tensor_stores.files import HDF5_SUFFIXES
from infinite_tensor_stores.targets import Mode, absolute, is_local, local_path, text_of
from infinite_tensor_stores.zarr.store import ZarrTileStore

if TYPE_CHECKING:
    from infinite_tensor_stores.hdf5.store import HDF5TileStore

_opening = Lock()
"""Held while a shared store is opened, so that threads opening the same path at once get the same store."""

_shared: WeakValueDictionary[str, HDF5TileStore | ZarrTileStore] = WeakValueDictionary()
"""The stores opened by `shared_store`, by path or URL."""

_ENDINGS_OF_FILES = (".npy", ".png", ".tif", ".tiff")
"""The endings of files written by `export`."""


def open_store(
    target: str | os.PathLike[str] | Store, mode: Mode = "a", **options: Any
) -> HDF5TileStore | ZarrTileStore:
    """Open the persistent store at `target`.

    Parameters
    ----------
    target : str, path or zarr Store
        A path that ends in ``.h5``, ``.hdf5`` or ``.hdf`` opens an `HDF5TileStore`, everything else a `ZarrTileStore`.
    mode : str
        "r", "r+", "a", "w" or "w-", as for the constructor of the store. Default: "a".
    **options
        Passed to the constructor of the store.

    Raises
    ------
    ValidationError
        If `target` is neither a path, a URL nor a zarr Store.
    """
    if not isinstance(target, str | os.PathLike | Store):
        raise ValidationError(f"target must be a path, an fsspec URL or a zarr Store, got {quoted(target)}")
    if not isinstance(target, Store) and text_of(target).lower().endswith(HDF5_SUFFIXES):
        # Imported here, because h5py is optional.
        from infinite_tensor_stores.hdf5.store import HDF5TileStore  # noqa: PLC0415

        return HDF5TileStore(local_path(text_of(target)), mode=mode, **options)
    return ZarrTileStore(target, mode=mode, **options)


def shared_store(target: str | os.PathLike[str]) -> HDF5TileStore | ZarrTileStore:
    """Open the store at a path or URL once per process.

    Like `open_store`, but all callers in the process share one object. The object lives as long as any of them keeps
    it.

    Raises
    ------
    ValidationError
        If the path does not exist, and has the ending of a file written by `export`.
    """
    place = os.fspath(absolute(target))
    with _opening:
        store = _shared.get(place)
        # Not a store that is just being freed: it has begun to store its last windows.
        if store is None or store.closed or gc.is_finalized(store) or store._backend.vanished:  # noqa: SLF001  (our own)
            _check_ending(target, Path(place))
            store = _shared[place] = open_store(target)
        return store


def _check_ending(target: str | os.PathLike[str], path: Path) -> None:
    if path.suffix.lower() in _ENDINGS_OF_FILES and is_local(text_of(target)) and not os.path.lexists(path):
        store = f"{path.stem}.zarr"
        raise ValidationError(
            f"a new store at {quoted(str(path))} would be a folder, not a file: store the tensor at {store!r}, and "
            f"then write the file, as in predict(..., {store!r}).export(..., {path.name!r})"
        )
