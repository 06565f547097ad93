"""Stores that outlive the process. Import them from `infinite_tensor`."""

from infinite_tensor_stores.hdf5.store import HDF5TileStore
from infinite_tensor_stores.locate import open_store
from infinite_tensor_stores.zarr.store import ZarrTileStore

__all__ = ["HDF5TileStore", "ZarrTileStore", "open_store"]
