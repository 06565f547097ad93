"""Rows as a user names them between the brackets of a blob, and as they are given to be written."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import RegionError, ValidationError
from infinite_tensor.geometry.window import as_index

_SUPPORTED = "an index is an int, a slice, a list or tuple of ints, or a tensor or array of ints or bools"


def as_rows(given: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """What is to be written, as a tensor of shape (n, *shape) on the CPU, which may share memory with `given`.

    Parameters
    ----------
    given : torch.Tensor or numpy.ndarray
        One row, rows along any number of leading dimensions, or the numbers of several rows in one dimension.
    dtype : torch.dtype
        What it must have.
    shape : tuple of int
        Of a row.

    Raises
    ------
    TypeError
        If it has another dtype, or is something else.
    ValidationError
        If its shape does not end in that of a row, or it is not a dense tensor with values.
    """
    if isinstance(given, np.ndarray):
        given = _of_array(given, dtype)
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"rows are a torch.Tensor or a numpy.ndarray, got {type(given).__name__}")
    if (reason := without_values(given)) is not None:
        raise ValidationError(f"rows are dense tensors with values; got {reason}")
    if given.dtype != dtype:
        raise TypeError(f"rows are of {dtype}, got {given.dtype}; convert them with .to({dtype})")
    if given.requires_grad or given.device.type != "cpu" or given.is_conj() or given.is_neg():
        given = given.detach().cpu().resolve_conj().resolve_neg()
    rows: torch.Tensor = given
    if rows.shape == shape:
        return rows.unsqueeze(0)
    flat = rows.ndim == 1 and len(rows) % prod(shape) == 0
    if not flat and (rows.ndim < len(shape) or rows.shape[rows.ndim - len(shape) :] != shape):
        raise ValidationError(
            f"rows have shape {shape}, perhaps with more dimensions before it; got {tuple(rows.shape)}"
        )
    return rows.reshape(-1, *shape)


def without_values(tensor: torch.Tensor) -> str | None:
    """Why the values of a tensor cannot be copied as they are, and what to do; None where they can."""
    if tensor.is_nested:
        return "a nested one; write its parts, or torch.stack(x.unbind())"
    if tensor.is_quantized:
        return "a quantized one; convert it with .dequantize()"
    if tensor.layout is not torch.strided:
        return f"one of layout {tensor.layout}; convert it with .to_dense()"
    if tensor.is_meta:
        return "one on the meta device, which has no values; compute it on another device"
    return None


def _of_array(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.from_numpy(array.copy() if min(array.strides, default=0) < 0 else array)
    except (TypeError, ValueError) as error:
        name = str(dtype).removeprefix("torch.")
        raise TypeError(
            f"rows are of {dtype}, got an array of {array.dtype}; convert it with .astype({name!r})"
        ) from error


def spread(values: Any, count: int, dtype: torch.dtype, shape: tuple[int, ...], *, single: bool) -> torch.Tensor:
    """`values` as `count` rows: a number, one row for all of them, or as many; errors as of `as_rows`.

    With `single`, they are to be one row.
    """
    if isinstance(values, bool | int | float | complex):
        return torch.full((count, *shape), cast("float", values), dtype=dtype, device="cpu")
    rows = as_rows(values, dtype, shape)
    if len(rows) == 1 and (single or count != 1):
        return rows.expand(count, *shape)
    if len(rows) != count:
        raise ValidationError(f"{count} rows are to be overwritten, got {len(rows)}")
    return rows


Array: TypeAlias = npt.NDArray[Any]
RowIndex: TypeAlias = "int | slice | Array"


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
