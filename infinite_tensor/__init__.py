"""Tensors with unbounded dimensions, computed on demand and stored tile by tile."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from infinite_tensor import reopen as _reopen  # noqa: F401  (lets stores open tensors)
from infinite_tensor.errors import (
    DamagedDataWarning,
    DeviceMismatchError,
    DtypeMismatchError,
    FunctionChangedWarning,
    InfiniteTensorError,
    RegionError,
    ShapeMismatchError,
    StoreError,
    TileAccessError,
    ValidationError,
)
from infinite_tensor.indexing import sl
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import Damage, Garbage, MemoryTileStore, TensorInfo, TileStore
from infinite_tensor.window import TensorWindow

if TYPE_CHECKING:
    from infinite_tensor_stores import HDF5TileStore, ZarrTileStore, open_store

try:
    __version__ = version("infinite-tensor")
except PackageNotFoundError:
    __version__ = "0.0.0"

_PERSISTENT = ("HDF5TileStore", "ZarrTileStore", "open_store")
"""Imported when first used, so that `import infinite_tensor` loads neither zarr nor h5py."""

__all__ = [
    "Damage",
    "DamagedDataWarning",
    "DeviceMismatchError",
    "DtypeMismatchError",
    "FunctionChangedWarning",
    "Garbage",
    "HDF5TileStore",
    "InfiniteTensor",
    "InfiniteTensorError",
    "MemoryTileStore",
    "RegionError",
    "ShapeMismatchError",
    "StoreError",
    "TensorInfo",
    "TensorWindow",
    "TileAccessError",
    "TileStore",
    "ValidationError",
    "ZarrTileStore",
    "open_store",
    "sl",
]


def __getattr__(name: str) -> Any:
    if name in _PERSISTENT:
        return getattr(import_module("infinite_tensor_stores"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PERSISTENT})
