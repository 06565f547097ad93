"""Rows as a user gives them to be written."""

from __future__ import annotations

from math import prod
from typing import Any, cast

import numpy as np
import torch

from infinite_tensor.errors import ValidationError


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
