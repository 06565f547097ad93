"""Stores that outlive the process. Import them from `infinite_tensor`."""

from __future__ import annotations

import os
from typing import Any

from zarr.abc.store import Store

from infinite_tensor.errors import ValidationError
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor_stores.hdf5.store import HDF5TileStore
from infinite_tensor_stores.targets import local_path
from infinite_tensor_stores.zarr.store import ZarrTileStore

__all__ = ["HDF5TileStore", "ZarrTileStore", "open_store"]


def open_store(target: str | os.PathLike[str] | Store, **options: Any) -> PersistentTileStore:
    """The persistent store that lives at `target`.

    Parameters
    ----------
    target : str, path or zarr Store
        A path that ends in ``.h5``, ``.hdf5`` or ``.hdf`` is an `HDF5TileStore`, everything else a `ZarrTileStore`.
    **options
        Passed on to the store.

    Raises
    ------
    ValidationError
        If `target` is none of these.
    """
    if not isinstance(target, str | os.PathLike | Store):
        raise ValidationError(f"target must be a path, an fsspec URL or a zarr Store, got {target!r}")
    if not isinstance(target, Store) and os.fspath(target).lower().endswith((".h5", ".hdf5", ".hdf")):
        return HDF5TileStore(local_path(os.fspath(target)), **options)
    return ZarrTileStore(target, **options)
