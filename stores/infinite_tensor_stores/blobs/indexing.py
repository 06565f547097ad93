"""What may stand between the brackets of a blob, and the rows that it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import RegionError
from infinite_tensor.geometry.window import as_index
from infinite_tensor_stores.blobs.incoming import without_values

Array: TypeAlias = npt.NDArray[Any]
RowIndex: TypeAlias = "int | slice | Array"

_SUPPORTED = "an index is an int, a slice, a list or tuple of ints, or a tensor or array of ints or bools"


def parsed(index: Any) -> RowIndex:
    """An index in one of three forms; an array holds int64 or bool. TypeError if `index` is of another kind."""
    if isinstance(index, slice):
        return index
    number = as_index(index)
    if number is not None:
        return number
    if isinstance(index, torch.Tensor):
        if (reason := without_values(index)) is not None:
            raise TypeError(f"{_SUPPORTED}; got {reason}")
        array = index.numpy(force=True)
    elif isinstance(index, np.ndarray):
        array = index
    elif isinstance(index, Sequence) and not isinstance(index, str | bytes):
        array = _listed(index)
    else:
        raise TypeError(f"{_SUPPORTED}; got {type(index).__name__} {index!r:.200}")
    if array.dtype.kind not in "biu":
        raise TypeError(f"{_SUPPORTED}; got {type(index).__name__} of {array.dtype}")
    if array.ndim != 1:
        raise RegionError(f"an index array has one dimension, along the rows; got shape {array.shape}")
    return array if array.dtype == np.bool_ else array.astype(np.int64, copy=False)


def reach(index: RowIndex) -> int:
    """How long a blob must be to hold all rows that `index` names; 0 where it counts from the end only."""
    if isinstance(index, int):
        return index + 1
    if isinstance(index, slice):
        return max((part for part in map(as_index, (index.start, index.stop)) if part is not None), default=0)
    if index.dtype == np.bool_:
        return len(index)
    return int(index.max()) + 1 if index.size else 0


def rows_of(index: RowIndex, length: int) -> int | range | npt.NDArray[np.int64]:
    """The rows that `index` means in a blob of `length` rows: one, some that lie evenly, or any.

    Raises
    ------
    RegionError
        (an IndexError) If a row is out of range, a mask has another length, or the step of a slice is 0.
    """
    if isinstance(index, int):
        if not -length <= index < length:
            raise RegionError(f"row {index} is out of range for a blob of {length} rows")
        return index + length if index < 0 else index
    if isinstance(index, slice):
        if index.step is not None and as_index(index.step) == 0:
            raise RegionError(f"slice step cannot be zero, got {index!r}")
        return range(length)[index]
    if index.dtype == np.bool_:
        if len(index) != length:
            raise RegionError(f"a mask has one entry for each of the {length} rows, got {len(index)}")
        return np.flatnonzero(index)
    if index.size and not -length <= index.min() <= index.max() < length:
        raise RegionError(f"rows {index.min()} to {index.max()} are out of range for a blob of {length} rows")
    return np.where(index < 0, index + length, index)


def _listed(index: Sequence[Any]) -> Array:
    if index and all(isinstance(entry, bool | np.bool_) for entry in index):
        return np.array(index, dtype=np.bool_)
    numbers = [as_index(entry) for entry in index]
    for entry, number in zip(index, numbers, strict=True):
        if number is None:
            raise TypeError(f"{_SUPPORTED}; got a {type(index).__name__} that holds {entry!r:.200}")
    return np.array(numbers, dtype=np.int64)
