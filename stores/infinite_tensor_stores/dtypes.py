"""Tiles as numpy arrays that zarr and h5py take: both lack bfloat16, which is stored as its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from infinite_tensor.support.allocation import as_array


def stored_dtype(dtype: torch.dtype) -> str:
    """Name of the numpy dtype that tiles of `dtype` are stored in."""
    return "uint16" if dtype is torch.bfloat16 else str(dtype).removeprefix("torch.")


def to_stored(tile: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tile on the CPU as an array of `stored_dtype`, without a copy."""
    array: np.ndarray[Any, Any] = as_array(tile.view(torch.uint16) if tile.dtype is torch.bfloat16 else tile)
    return array


def from_stored(block: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """The tile of `dtype` that `to_stored` gave an array of."""
    tile = torch.from_numpy(block if block.flags.writeable else block.copy())
    return tile.view(dtype) if dtype is torch.bfloat16 else tile
