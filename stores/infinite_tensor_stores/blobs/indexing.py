"""Conversion of indices and rows given by users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import RegionError, ValidationError
from infinite_tensor.support.given import as_index
from infinite_tensor.values.arrays import check_unmasked
from infinite_tensor.values.checks import dense
from infinite_tensor.values.dtypes import dtype_name, to_stored

_SUPPORTED = "an index must be an int, a slice, a list or tuple of ints, or a tensor or array of ints or bools"


RowNumbers: TypeAlias = npt.NDArray[np.int64]
BlockPart: TypeAlias = tuple[int, slice | RowNumbers, slice | RowNumbers]


def parts_of(rows: range | RowNumbers, block_size: int) -> Iterator[BlockPart]:
    """Split rows by block.

    For each block with some of the rows, yield three values: the number of the block, the positions of the rows in
    `rows`, and the positions of the rows in the block. Positions are slices if `rows` is a range, otherwise arrays. A
    range must have step 1.
    """
    if not len(rows):
        return
    if isinstance(rows, range):
        for number in range(rows.start // block_size, -(-rows.stop // block_size)):
            first = number * block_size
            low, high = max(rows.start, first), min(rows.stop, first + block_size)
            yield number, slice(low - rows.start, high - rows.start), slice(low - first, high - first)
        return
    numbers, at = np.divmod(rows, block_size)
    order = np.argsort(numbers, kind="stable")
    for which in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        yield int(numbers[which[0]]), which, at[which]


def indexable(tensor: torch.Tensor, rows: range | RowNumbers) -> Any:
    """Return `tensor` or a numpy view of the same memory, whichever copies rows faster.

    For a range of rows, return `tensor`, because torch copies slices on several threads. For an array of row numbers,
    return a numpy view with one element per row. If a row of this view is assigned twice, the last value is kept.
    `tensor` must be contiguous.
    """
    if isinstance(rows, range):
        return tensor
    array = to_stored(tensor)
    width = array.itemsize * prod(array.shape[1:])
    return array.reshape(-1).view(np.uint8).view(np.dtype((np.void, width)))


def as_rows(given: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Convert rows to write to a tensor on the CPU.

    The tensor has the shape (n, *shape), and may share memory with `given`.

    Parameters
    ----------
    given : torch.Tensor or numpy.ndarray
        One row, rows along any number of leading dimensions, or the elements of whole rows flattened to one dimension.
    dtype : torch.dtype
        The required dtype.
    shape : tuple of int
        Shape of a row.

    Raises
    ------
    TypeError
        If `given` has another dtype, or is neither a tensor nor an array.
    ValidationError
        If the shape of `given` does not end with `shape`, if `given` is not dense, or if elements are masked.
    """
    if isinstance(given, np.ndarray):
        check_unmasked(given, "rows have")
        given = _of_array(given, dtype)
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"rows must be a torch.Tensor or a numpy.ndarray, got {type(given).__name__}")
    rows = dense(given, "rows").cpu()
    if rows.dtype != dtype:
        raise TypeError(f"rows must be of {dtype}, got {rows.dtype}; convert them with .to({dtype})")
    flat = rows.ndim == 1 and len(rows) % prod(shape) == 0
    if rows.shape[max(0, rows.ndim - len(shape)) :] != shape and not flat:
        raise ValidationError(f"the last dimensions of rows must be {shape}, got shape {tuple(rows.shape)}")
    return rows.reshape(-1, *shape)


def spread(values: Any, count: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Expand values to `count` rows.

    `values` is a number, one row for all, or `count` rows. Raises the errors of `as_rows`.
    """
    if isinstance(values, bool | int | float | complex):
        return torch.full((count, *shape), cast("float", values), dtype=dtype, device="cpu")
    rows = as_rows(values, dtype, shape)
    if len(rows) == 1:
        return rows.expand(count, *shape)
    if len(rows) != count:
        raise ValidationError(
            f"the index selects {count} rows, got values for {len(rows)}; give {count} rows, or one row for all"
        )
    return rows


def rows_of(index: Any, length: Callable[[int], int]) -> int | range | RowNumbers:
    """Return the rows selected by an index.

    The result is an int, a range of adjacent rows, or an array of the shape of the index.

    Parameters
    ----------
    index
        The expression between the brackets.
    length : callable
        ``length(7)`` returns the number of rows of the blob, after looking for new rows if fewer than 7 are known.

    Raises
    ------
    TypeError
        If `index` has an unsupported type.
    RegionError
        (an IndexError) If a row is out of range, a mask has another length, or the step of a slice is 0.
    """
    if isinstance(index, slice):
        if index.step is not None and as_index(index.step) == 0:
            raise RegionError(f"slice step cannot be zero, got {index!r}")
        least = max([as_index(end) or 0 for end in (index.start, index.stop) if end is not None], default=0)
        found = range(length(least))[index]
        return found if found.step == 1 else np.arange(found.start, found.stop, found.step, dtype=np.int64)
    number = as_index(index)
    if number is not None:
        rows = length(number + 1)
        if not -rows <= number < rows:
            raise RegionError(f"row {number} is out of range for a blob of {rows} rows")
        return number % rows
    return _any_rows(_as_array(index), length)


def _any_rows(index: np.ndarray[Any, Any], length: Callable[[int], int]) -> RowNumbers:
    if index.dtype == np.bool_:
        if index.ndim != 1:
            raise RegionError(f"a mask must have one dimension, along the rows; got shape {index.shape}")
        rows = length(len(index))
        if len(index) != rows:
            raise RegionError(f"a mask must have one entry for each of the {rows} rows, got {len(index)}")
        return np.flatnonzero(index)
    index = index.astype(np.int64, copy=False)
    least, most = (int(index.min()), int(index.max())) if index.size else (0, -1)
    rows = length(most + 1)
    if least < -rows or most >= rows:
        raise RegionError(f"rows {least} to {most} are out of range for a blob of {rows} rows")
    return np.where(index < 0, index + rows, index)


def _as_array(index: Any) -> np.ndarray[Any, Any]:
    if isinstance(index, torch.Tensor):
        array = dense(index, "index").numpy(force=True)
    elif isinstance(index, Sequence) and not isinstance(index, str | bytes):
        array = _of_entries(index)
    elif isinstance(index, np.ndarray):
        check_unmasked(index, "an index has")
        array = index
    else:
        raise TypeError(f"{_SUPPORTED}; got {type(index).__name__} {index!r:.200}")
    if array.dtype.kind not in "biu":
        raise TypeError(f"{_SUPPORTED}; got {type(index).__name__} of {array.dtype}")
    return array


def _of_entries(index: Sequence[Any]) -> np.ndarray[Any, Any]:
    if index and all(isinstance(entry, bool | np.bool_) for entry in index):
        return np.array(index, dtype=np.bool_)
    numbers = [as_index(entry) for entry in index]
    for entry, number in zip(index, numbers, strict=True):
        if number is None:
            raise TypeError(f"{_SUPPORTED}; got a {type(index).__name__} with {entry!r:.200}")
    return np.array(numbers, dtype=np.int64)


def _of_array(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    try:
        fits = array.flags.writeable and min(array.strides, default=0) >= 0
        return torch.from_numpy(array if fits else array.copy())
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"rows must be of {dtype}, got an array of {array.dtype}; convert it with .astype({dtype_name(dtype)!r})"
        ) from error
