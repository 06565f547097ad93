"""How xarray reads what is not in memory: the interface that it has for backends.

Most of it lies in `xarray.core`, from where xarray's guide for authors of backends takes it.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pandas as pd
from xarray.backends import BackendArray
from xarray.core.indexing import (
    CopyOnWriteArray,
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


def lazily(pixels: Pixels) -> CopyOnWriteArray:
    """An array for an `xarray.Variable` that reads what is used of it. It is not copied until it is written to."""
    # As xarray does itself, against the types that it declares.
    return CopyOnWriteArray(LazilyIndexedArray(_Lazy(pixels)))  # type: ignore[arg-type]


def span(first: int, extent: int) -> pd.RangeIndex:
    """The coordinates from a first one on, which take no memory."""
    return pd.RangeIndex(first, first + extent)
