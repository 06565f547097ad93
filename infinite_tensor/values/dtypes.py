"""The supported dtypes, and conversion between tiles and numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.allocation import as_array
from infinite_tensor.support.given import quoted, word

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype: ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: object) -> torch.dtype:
    """Return the dtype for a name: ``torch.float32`` for ``"float32"``.

    Raise ValidationError if the dtype is not supported.
    """
    if not isinstance(name, str) or name not in _DTYPE_NAMES:
        raise ValidationError(f"unknown dtype {quoted(name)}; supported are {', '.join(_DTYPE_NAMES)}")
    return _DTYPE_NAMES[name]


def checked_dtype(dtype: object) -> torch.dtype:
    """Return a supported dtype, given as a dtype or a name.

    The name may begin with ``torch.``. Raise ValidationError if the dtype is not supported.
    """
    name = word(dtype)
    if name is not None:
        return dtype_of(name.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise ValidationError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {quoted(dtype)}")
    return dtype


def stored_dtype(dtype: torch.dtype) -> str:
    """Return the name of the numpy dtype for stored tiles.

    The name is ``"uint16"`` for bfloat16, and the name of `dtype` in all other cases.
    """
    return "uint16" if dtype is torch.bfloat16 else dtype_name(dtype)


def to_stored(tile: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tile on the CPU as an array of `stored_dtype`, without a copy."""
    array: np.ndarray[Any, Any] = as_array(tile.view(torch.uint16) if tile.dtype is torch.bfloat16 else tile)
    return array


def from_stored(block: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """Convert an array from `to_stored` back to a tile of `dtype`."""
    tile = torch.from_numpy(block if block.flags.writeable else block.copy())
    return tile.view(dtype) if dtype is torch.bfloat16 else tile
