"""Arrays with infinite dimensions for PyTorch, computed on demand and stored tile by tile."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from infinite_tensor import compat as _compat  # noqa: F401  (gives stores their former methods too)
from infinite_tensor.errors import (
    BlobModeError,
    BlobNotFoundError,
    DamagedDataWarning,
    DependantsRemainWarning,
    DeviceMismatchError,
    DtypeMismatchError,
    FunctionChangedWarning,
    InfiniteTensorError,
    OutOfMemoryError,
    RegionError,
    ShapeMismatchError,
    StoreError,
    TileAccessError,
    UncoveredPixelsWarning,
    ValidationError,
)
from infinite_tensor.filling import FillPlan, FillReport, Mask, Progress
from infinite_tensor.geometry.regions import sl
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.outputs import Output
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import Damage, Garbage, MemoryTileStore, TensorInfo, TileStore
from infinite_tensor.values.digest import digest
from infinite_tensor.values.fingerprint import digests
from infinite_tensor.values.networks import no_digest
from infinite_tensor.values.reduction import Reduction
from infinite_tensor.values.weights import WeightedMean

if TYPE_CHECKING:
    from infinite_tensor.datasets import GridDataset, PatchDataset
    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.modules import InfiniteBuffer, VirtualTensor
    from infinite_tensor.pipelines.map import map  # noqa: A004  (users write it with its package, or as t.map)
    from infinite_tensor.pipelines.noise import cell_generator, noise
    from infinite_tensor.pipelines.predict import predict
    from infinite_tensor.pipelines.sources import from_array, from_image, from_raster
    from infinite_tensor.views.copied import CopyProgress, CopyReport
    from infinite_tensor.views.version04 import copy_from_04
    from infinite_tensor_stores import HDF5TileStore, ZarrTileStore, open_store
    from infinite_tensor_stores.blobs import TensorBlob

try:
    __version__ = version("infinite-tensor")
except PackageNotFoundError:
    __version__ = "0.0.0"

_LAZY = {
    "CopyProgress": "infinite_tensor.views.copied",
    "CopyReport": "infinite_tensor.views.copied",
    "copy_from_04": "infinite_tensor.views.version04",
    "GridDataset": "infinite_tensor.datasets",
    "PatchDataset": "infinite_tensor.datasets",
    "InfiniteBuffer": "infinite_tensor.modules",
    "VirtualTensor": "infinite_tensor.modules",
    "TensorGroup": "infinite_tensor.groups",
    "predict": "infinite_tensor.pipelines.predict",
    "map": "infinite_tensor.pipelines.map",
    "HDF5TileStore": "infinite_tensor_stores",
    "TensorBlob": "infinite_tensor_stores.blobs",
    "ZarrTileStore": "infinite_tensor_stores",
    "cell_generator": "infinite_tensor.pipelines.noise",
    "noise": "infinite_tensor.pipelines.noise",
    "open_store": "infinite_tensor_stores",
    "from_array": "infinite_tensor.pipelines.sources",
    "from_image": "infinite_tensor.pipelines.sources",
    "from_raster": "infinite_tensor.pipelines.sources",
}
"""Imported when first used, so that `import infinite_tensor` is quick, and loads neither zarr nor h5py."""

__all__ = [
    "BlobModeError",
    "BlobNotFoundError",
    "CopyProgress",
    "CopyReport",
    "Damage",
    "DamagedDataWarning",
    "DependantsRemainWarning",
    "DeviceMismatchError",
    "DtypeMismatchError",
    "FillPlan",
    "FillReport",
    "FunctionChangedWarning",
    "Garbage",
    "GridDataset",
    "HDF5TileStore",
    "InfiniteBuffer",
    "InfiniteTensor",
    "InfiniteTensorError",
    "Mask",
    "MemoryTileStore",
    "OutOfMemoryError",
    "Output",
    "PatchDataset",
    "Progress",
    "Reduction",
    "RegionError",
    "ShapeMismatchError",
    "StoreError",
    "TensorBlob",
    "TensorGroup",
    "TensorInfo",
    "TensorWindow",
    "TileAccessError",
    "TileStore",
    "UncoveredPixelsWarning",
    "ValidationError",
    "VirtualTensor",
    "WeightedMean",
    "ZarrTileStore",
    "cell_generator",
    "copy_from_04",
    "digest",
    "digests",
    "from_array",
    "from_image",
    "from_raster",
    "map",
    "no_digest",
    "noise",
    "open_store",
    "predict",
    "sl",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
