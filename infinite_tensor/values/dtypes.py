"""The dtypes that every store can hold, and their names."""

from __future__ import annotations

import torch

from infinite_tensor.errors import ValidationError
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
    """``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: object) -> torch.dtype:
    """``torch.float32`` for ``"float32"``; ValidationError for what is no name of a supported dtype."""
    if not isinstance(name, str) or name not in _DTYPE_NAMES:
        raise ValidationError(f"unknown dtype {quoted(name)}; supported are {', '.join(_DTYPE_NAMES)}")
    return _DTYPE_NAMES[name]


def checked_dtype(dtype: object) -> torch.dtype:
    """`dtype`, if it is one that every store can hold; a str names it, with or without ``torch.``."""
    name = word(dtype)
    if name is not None:
        return dtype_of(name.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise ValidationError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {quoted(dtype)}")
    return dtype
