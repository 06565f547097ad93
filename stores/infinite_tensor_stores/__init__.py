"""Persistent stores, to be imported from `infinite_tensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infinite_tensor.support import offered_by

if TYPE_CHECKING:
    from infinite_tensor_stores.hdf5.store import HDF5TileStore
    from infinite_tensor_stores.opening import open_store, shared_store
    from infinite_tensor_stores.zarr.store import ZarrTileStore
else:
    __getattr__, __dir__ = offered_by(
        globals(),
        {
            "infinite_tensor_stores.hdf5.store": ["HDF5TileStore"],
            "infinite_tensor_stores.opening": ["open_store", "shared_store"],
            "infinite_tensor_stores.zarr.store": ["ZarrTileStore"],
        },
    )

__all__ = ["HDF5TileStore", "ZarrTileStore", "open_store", "shared_store"]
