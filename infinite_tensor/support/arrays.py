"""Blocks of pixels: torch tensors on any device, and numpy views of those on the CPU, which are faster to slice."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

Array: TypeAlias = Any
"""A torch tensor or a numpy view of one: both take the slicing and arithmetic used here."""


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


def copied(array: Array) -> Array:
    """A contiguous copy."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone(memory_format=torch.contiguous_format)
