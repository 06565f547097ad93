"""How xarray reads what is not in memory: the interface that it has for backends."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from xarray.backends import BackendArray
from xarray.core.indexing import (
    ExplicitIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    explicit_indexing_adapter,
)

from infinite_tensor.views.pixels import Pixels


class _Lazy(BackendArray):
    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels
        self.shape = pixels.shape
        self.dtype = pixels.dtype

    def __getitem__(self, key: ExplicitIndexer) -> npt.NDArray[Any]:
        read = self.pixels.__getitem__
        found: npt.NDArray[Any] = explicit_indexing_adapter(key, self.shape, IndexingSupport.BASIC, read)
        return found


def lazily(pixels: Pixels) -> LazilyIndexedArray:
    """An array for a `xarray.Variable` that reads what is used of it."""
    return LazilyIndexedArray(_Lazy(pixels))
