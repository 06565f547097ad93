"""Modules with virtual tensors, at the top of a module so that they can be pickled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from infinite_tensor import InfiniteBuffer, InfiniteTensor, TensorWindow, VirtualTensor


def doubled(owner: Doubling, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What a callable materializer is: of the module that it is given, and of no other."""
    if not torch.compiler.is_compiling():
        owner.calls += 1
    return (2 * owner.base).to(dtype=dtype, device=device)


class Doubling(nn.Module):
    """Has a parameter `base`, and a virtual tensor `twice`; counts in `calls` how often that was computed."""

    twice: VirtualTensor

    def __init__(self, materializer: Any = "compute", **options: Any) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.arange(4.0).reshape(2, 2) + 1)
        self.calls = 0
        VirtualTensor.create(self, "twice", materializer, **options)

    def compute(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return doubled(self, dtype, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.twice.value)

    @property
    def gradient(self) -> torch.Tensor:
        assert self.base.grad is not None
        return self.base.grad


def ramp(ctx: tuple[int, ...]) -> torch.Tensor:
    """One window of a plane in which each pixel is its row and a hundredth of its column."""
    rows = torch.arange(4)[:, None] + 4 * ctx[0]
    return rows + (torch.arange(4) + 4 * ctx[1]) / 100


def plane(**options: Any) -> InfiniteTensor:
    return InfiniteTensor((None, None), ramp, TensorWindow((4, 4)), **options)


class Field(nn.Module):
    """A layer whose weight is a region of a plane."""

    weight: VirtualTensor

    def __init__(self, tensor: InfiniteTensor | None, columns: int = 3, **options: Any) -> None:
        super().__init__()
        self.columns = columns
        self.field = InfiniteBuffer(tensor)
        VirtualTensor.create(self, "weight", "region", **options)

    def region(self, _dtype: torch.dtype, _device: torch.device) -> Any:
        return self.field[-1:1, 0 : self.columns]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight)


def virtual(value: torch.Tensor) -> VirtualTensor:
    module: Any = nn.Module()
    VirtualTensor.create(module, "x", lambda *_: value, dtype=value.dtype)
    KEPT.append(module)
    found: VirtualTensor = module.x
    return found


KEPT: list[nn.Module] = []
"""A virtual tensor does not keep its module."""
