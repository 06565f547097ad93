"""Arrays to make sources of, and what a source must be equal to."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from infinite_tensor import InfiniteTensor


class Recorded:
    """An array of no known library, which notes the regions that are read of it."""

    def __init__(self, values: np.ndarray[Any, Any], chunks: tuple[int, ...] | None = None) -> None:
        self.values = values
        self.shape, self.ndim, self.dtype, self.chunks = values.shape, values.ndim, values.dtype, chunks
        self.regions: list[tuple[slice, ...]] = []

    def __getitem__(self, region: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """A copy, as from a file."""
        self.regions.append(region)
        return self.values[region].copy()

    @property
    def elements(self) -> int:
        """How many elements have been read."""
        return sum(self.values[region].size for region in self.regions)


class Located(torch.Tensor):
    """A tensor of torch with metadata, which has the same method as MONAI's MetaTensor."""

    def as_tensor(self) -> torch.Tensor:
        """The values without the metadata."""
        return self.as_subclass(torch.Tensor)


def numbers(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    """Any bits that a dtype has, in any order: NaNs with payloads among them."""
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(count * np.dtype(dtype).itemsize), dtype).reshape(shape).copy()


def sent(t: InfiniteTensor) -> InfiniteTensor:
    """The tensor as it comes out of its pickle."""
    found: InfiniteTensor = pickle.loads(pickle.dumps(t))  # noqa: S301  (our own)
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """What tells NaNs apart."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_reads(t: InfiniteTensor, expected: torch.Tensor, seed: int = 0, regions: int = 20) -> None:
    """All of `t`, and some random regions of it, have the shape, dtype and bits of `expected`."""
    rng = np.random.default_rng(seed)
    assert t.shape == tuple(expected.shape)
    assert t.dtype == expected.dtype
    boxes: list[tuple[slice, ...]] = [tuple(slice(None) for _ in t.shape)]
    for _ in range(regions):
        ends = [sorted(rng.integers(0, extent + 1, 2).tolist()) for extent in expected.shape]
        boxes.append(tuple(slice(a, b) for a, b in ends))
    for box in boxes:
        found, wanted = t[box], expected[box]
        assert found.shape == wanted.shape
        assert torch.equal(bits(found), bits(wanted))
