"""Tensors for tests of stores, where any would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from infinite_tensor import InfiniteTensor, TensorWindow
from tests.support.counting import Constant

_PLANE = Constant()


def ones(_ctx: object) -> torch.Tensor:
    return torch.ones(4)


def numbers(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((4,), float(ctx[0]))


def line(
    store: Any, f: Callable[..., Any] = ones, tensor_id: str | None = "t", *, stride: int = 4, **options: Any
) -> InfiniteTensor:
    """One dimension without end, in windows of four pixels, which are full of ones unless `f` says otherwise."""
    return InfiniteTensor((None,), f, TensorWindow((4,), stride), tile_store=store, tensor_id=tensor_id, **options)


def halves(store: Any, tensor_id: str = "t") -> InfiniteTensor:
    """Two windows to a tile of eight pixels, each full of its index."""
    return line(store, numbers, tensor_id)


def overlapping(store: Any, f: Callable[..., Any] = _PLANE, tensor_id: str = "t", **options: Any) -> InfiniteTensor:
    """A plane in windows of 4x4 pixels, each of which shares a row or column with those beside it."""
    window = TensorWindow((4, 4), stride=3)
    return InfiniteTensor((None, None), f, window, tile_store=store, tensor_id=tensor_id, **options)
