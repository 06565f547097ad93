"""Arrays with infinite dimensions for PyTorch, computed on demand and stored tile by tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infinite_tensor.errors import (
    DamagedDataWarning,
    DeviceMismatchError,
    DtypeMismatchError,
    FunctionChangedWarning,
    InfiniteTensorError,
    MeaningLostWarning,
    OutOfMemoryError,
    ShapeMismatchError,
    StoreError,
    TileAccessError,
    UncoveredPixelsWarning,
    ValidationError,
)
from infinite_tensor.support import offered_by

if TYPE_CHECKING:
    from infinite_tensor.datasets import GridDataset, PatchDataset
    from infinite_tensor.filling import FillOptions, Mask
    from infinite_tensor.geometry.periodic import Periodic
    from infinite_tensor.geometry.regions import sl
    from infinite_tensor.geometry.window import TensorWindow
    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.modules import InfiniteBuffer, VirtualTensor
    from infinite_tensor.outputs import Output
    from infinite_tensor.pipelines.arithmetic import overlay, placed
    from infinite_tensor.pipelines.map import map_windows
    from infinite_tensor.pipelines.noise import noise, window_rng
    from infinite_tensor.pipelines.predict import predict
    from infinite_tensor.pipelines.sources import from_array, from_image, from_raster
    from infinite_tensor.tensor import InfiniteTensor
    from infinite_tensor.tilestore import MemoryTileStore, TileStore
    from infinite_tensor.tilestore.map_cache import map_cache
    from infinite_tensor.values.fingerprint import digest
    from infinite_tensor.values.reduction import Reduction
    from infinite_tensor.values.weights import WeightedMean
    from infinite_tensor.views.exports.export import ExportOptions
    from infinite_tensor.views.server.serving import serve
    from infinite_tensor_stores import HDF5TileStore, ZarrTileStore, open_store
    from infinite_tensor_stores.blobs import TensorBlob

    __version__: str

__all__ = [
    "DamagedDataWarning",
    "DeviceMismatchError",
    "DtypeMismatchError",
    "ExportOptions",
    "FillOptions",
    "FunctionChangedWarning",
    "GridDataset",
    "HDF5TileStore",
    "InfiniteBuffer",
    "InfiniteTensor",
    "InfiniteTensorError",
    "Mask",
    "MeaningLostWarning",
    "MemoryTileStore",
    "OutOfMemoryError",
    "Output",
    "PatchDataset",
    "Periodic",
    "Reduction",
    "ShapeMismatchError",
    "StoreError",
    "TensorBlob",
    "TensorGroup",
    "TensorWindow",
    "TileAccessError",
    "TileStore",
    "UncoveredPixelsWarning",
    "ValidationError",
    "VirtualTensor",
    "WeightedMean",
    "ZarrTileStore",
    "digest",
    "from_array",
    "from_image",
    "from_raster",
    "map_cache",
    "map_windows",
    "noise",
    "open_store",
    "overlay",
    "placed",
    "predict",
    "serve",
    "sl",
    "window_rng",
]


_find, _names = offered_by(
    globals(),
    {
        "infinite_tensor.datasets": ["GridDataset", "PatchDataset"],
        "infinite_tensor.filling": ["FillOptions", "Mask"],
        "infinite_tensor.geometry.regions": ["sl"],
        "infinite_tensor.geometry.periodic": ["Periodic"],
        "infinite_tensor.geometry.window": ["TensorWindow"],
        "infinite_tensor.groups": ["TensorGroup"],
        "infinite_tensor.modules": ["InfiniteBuffer", "VirtualTensor"],
        "infinite_tensor.outputs": ["Output"],
        "infinite_tensor.pipelines.arithmetic": ["overlay", "placed"],
        "infinite_tensor.pipelines.map": ["map_windows"],
        "infinite_tensor.pipelines.noise": ["window_rng", "noise"],
        "infinite_tensor.pipelines.predict": ["predict"],
        "infinite_tensor.pipelines.sources": ["from_array", "from_image", "from_raster"],
        "infinite_tensor.tensor": ["InfiniteTensor"],
        "infinite_tensor.tilestore": ["MemoryTileStore", "TileStore"],
        "infinite_tensor.tilestore.map_cache": ["map_cache"],
        "infinite_tensor.values.fingerprint": ["digest"],
        "infinite_tensor.values.reduction": ["Reduction"],
        "infinite_tensor.values.weights": ["WeightedMean"],
        "infinite_tensor.views.exports.export": ["ExportOptions"],
        "infinite_tensor.views.server.serving": ["serve"],
        "infinite_tensor_stores": ["HDF5TileStore", "ZarrTileStore", "open_store"],
        "infinite_tensor_stores.blobs": ["TensorBlob"],
    },
)

# Hidden from mypy: with this function, mypy would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return _version() if name == "__version__" else _find(name)


def __dir__() -> list[str]:
    return sorted([*_names(), "__version__"])


def _version() -> str:
    # Only on demand: the lookup takes as long as importing this package.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("infinite-tensor")
    except PackageNotFoundError:
        return "0.0.0"
