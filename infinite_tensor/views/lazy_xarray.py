"""Lazy arrays for xarray.

They implement xarray's interface for authors of backends. Most of it is in `xarray.core`, from where xarray's own guide
for authors of backends imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray
from xarray.backends import BackendArray
from xarray.core.indexing import (
    BasicIndexer,
    CopyOnWriteArray,
    ExplicitIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    OuterIndexer,
    explicit_indexing_adapter,
)
from xarray.indexes import PandasIndex

from infinite_tensor.geometry.points import Index
from infinite_tensor.views.frame import Frame


class _Lazy(BackendArray):
    """A frame as an array of xarray, with dimensions transposed to `order`."""

    def __init__(self, frame: Frame, order: Index) -> None:
        self.frame = frame
        self.order = order
        self.shape = tuple([frame.shape[d] for d in order])
        self.dtype = frame.dtype

    def __getitem__(self, key: ExplicitIndexer) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = explicit_indexing_adapter(key, self.shape, IndexingSupport.BASIC, self._read)
        return found

    def _read(self, key: tuple[int | slice, ...]) -> npt.NDArray[Any]:
        entries = dict(zip(self.order, key, strict=True))
        kept = [d for d in self.order if isinstance(entries[d], slice)]
        found = self.frame[tuple([entries[d] for d in range(len(key))])]
        return found.transpose([sorted(kept).index(d) for d in kept])


class _LazilyIndexed(LazilyIndexedArray):
    """A lazy array for xarray, cheap to transpose.

    When xarray's own class is transposed, it creates an array of all indices along each dimension.
    """

    def transpose(self, order: Sequence[int]) -> CopyOnWriteArray:
        entries, lazy = self.key.tuple, self.array
        kept = [d for d, entry in enumerate(entries) if isinstance(entry, slice | np.ndarray)]
        dims = [*(kept[place] for place in order), *(d for d in range(len(entries)) if d not in kept)]
        moved = tuple([entries[d] for d in dims])
        kind = OuterIndexer if any(isinstance(entry, np.ndarray) for entry in moved) else BasicIndexer
        array = _Lazy(lazy.frame, tuple([lazy.order[d] for d in dims]))
        return CopyOnWriteArray(type(self)(array, kind(moved)))  # type: ignore[arg-type]  # as `lazily` does


def lazily(frame: Frame) -> CopyOnWriteArray:
    """Return a lazy array for an `xarray.Variable`.

    Pixels are read when they are used. Writing to the array copies it.
    """
    # xarray does the same, against its declared types.
    return CopyOnWriteArray(_LazilyIndexed(_Lazy(frame, tuple(range(frame.ndim)))))  # type: ignore[arg-type]


def coordinates(dim: str, first: int, extent: int) -> xarray.Coordinates:
    """Return the coordinates ``first, first + 1, ...`` without an array in memory."""
    index = PandasIndex(pd.RangeIndex(first, first + extent, name=dim), dim)
    return xarray.Coordinates(index.create_variables(), {dim: index})
