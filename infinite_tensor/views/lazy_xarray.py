"""Lazy arrays and indexes for xarray.

They implement xarray's interfaces for authors of backends and of indexes. Most of these interfaces are in
`xarray.core`; xarray's guide for authors of backends imports them from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
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
from infinite_tensor.support.given import number, quoted
from infinite_tensor.views.frame import Frame

_MOST_ORDINARY = 2**24
"""Maximum number of coordinates, of 8 bytes each, in a pandas index.

Longer dimensions have an index of another type. xarray does not align both types.
"""


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


class _Span(PandasIndex):
    """An index of consecutive ints. Unlike in pandas, looking up a float creates no array of all the ints."""

    def _replace(self, index: pd.Index, dim: Hashable = None, coord_dtype: Any = None) -> PandasIndex:
        return _index_of(index, self.dim if dim is None else dim, coord_dtype)

    @classmethod
    def concat(cls, indexes: Sequence[PandasIndex], dim: Hashable, positions: Any = None) -> Any:
        joined = PandasIndex.concat(indexes, dim, positions)
        return _index_of(joined.index, joined.dim, joined.coord_dtype)

    def join(self, other: Any, how: str = "inner") -> Any:
        joined = super().join(other, how)
        return _index_of(joined.index, joined.dim, joined.coord_dtype)

    def sel(self, labels: dict[Any, Any], method: str | None = None, tolerance: Any = None) -> Any:
        """Round the numbers in `labels` to coordinates, then look up the coordinates."""
        ((name, label),) = labels.items()
        if isinstance(label, slice):
            return super().sel({name: self._of_ints(label)}, method, tolerance)
        is_mask = np.asarray(label).dtype.kind == "b" and method is None
        if is_mask or method not in _ROUNDINGS or (method is None and tolerance is not None):
            return super().sel(labels, method, tolerance)
        found = self._found(label, method, tolerance)
        if found is None:
            raise KeyError(f"not all values found in index {name!r}")
        if isinstance(label, xarray.DataArray | xarray.Variable):
            found = label.copy(data=found)
        return super().sel({name: found})

    def _found(self, label: Any, method: str | None, tolerance: Any) -> Any:
        values = np.asarray(label)
        if values.dtype.kind not in "iuf":
            return None
        # float64 represents all coordinates exactly, but smaller floats do not.
        values = values.astype(np.float64)
        first, last = self.index[0], self.index[-1]
        found = _ROUNDINGS[method](values).clip(first, last)
        known = np.abs(found - values) <= (np.inf if tolerance is None else tolerance)
        if method is None:
            known = found == values
        elif method in ("pad", "ffill"):
            known &= values >= first
        elif method != "nearest":
            known &= values <= last
        return found.astype(np.int64) if known.all() else None

    def _of_ints(self, label: slice) -> slice:
        """Round the bounds of a slice to ints: 0.5 to 3.5 selects the same coordinates as 1 to 3."""
        is_backwards = label.step is not None and label.step < 0
        low: Callable[[float], int] = math.floor if is_backwards else math.ceil
        high: Callable[[float], int] = math.ceil if is_backwards else math.floor
        return slice(self._rounded(label.start, low), self._rounded(label.stop, high), label.step)

    def _rounded(self, bound: Any, to_int: Callable[[float], int]) -> Any:
        if bound is None:
            return None
        value = number(np.asarray(bound)[()])
        if not isinstance(value, int | float):
            raise TypeError(f"bounds of a slice of coordinates must be numbers, got {quoted(bound)}")
        outside = self.index[-1] + 1
        # As in pandas, NaN sorts last.
        return outside if math.isnan(value) else to_int(min(max(value, self.index[0] - 1), outside))


_ROUNDINGS: dict[str | None, Callable[[Any], Any]] = {
    None: np.floor,
    "pad": np.floor,
    "ffill": np.floor,
    "backfill": np.ceil,
    "bfill": np.ceil,
    # As in pandas: of two equally near coordinates, the larger.
    "nearest": lambda values: np.floor(values + 0.5),
}


def coordinates(dim: str, first: int, extent: int) -> xarray.Coordinates:
    """Return the coordinates ``first, first + 1, ...`` without an array in memory."""
    index = _index_of(pd.RangeIndex(first, first + extent, name=dim), dim)
    return xarray.Coordinates(index.create_variables(), {dim: index})


def _index_of(index: pd.Index, dim: Hashable, coord_dtype: Any = None) -> PandasIndex:
    is_long = isinstance(index, pd.RangeIndex) and index.step == 1 and len(index) > _MOST_ORDINARY
    return (_Span if is_long else PandasIndex)(index, dim, coord_dtype)
