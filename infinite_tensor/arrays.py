"""Blocks of pixels: torch tensors on any device, and numpy views of those on the CPU, which are faster to slice."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

Array: TypeAlias = Any
"""A torch tensor or a numpy view of one: both take the slicing and arithmetic used here."""

_LARGE_BYTES = 2**21


def as_tensor(array: Array) -> torch.Tensor:
    """The tensor that `as_array` gave a view of."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def as_array(tensor: torch.Tensor) -> Array:
    """A view of `tensor` that is fast to slice: numpy on the CPU, the tensor itself elsewhere.

    numpy moves a small block in half of torch's time, but knows no bfloat16.
    """
    if tensor.device.type == "cpu" and tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    return tensor


def allocated(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A new tensor with nothing written to it yet."""
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or nbytes < _LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    # Large pages take a third of the time to write to for the first time; and all of them are given back at once, where
    # an allocator would keep what lies between smaller blocks.
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        # So much that torch will say what is wrong with it.
        return torch.empty(shape, dtype=dtype, device=device)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(tuple(shape))


def copied(array: Array) -> Array:
    """A contiguous copy."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone(memory_format=torch.contiguous_format)
