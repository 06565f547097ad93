"""Folding windows into pixels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from infinite_tensor import TensorWindow
from infinite_tensor.blend import Blender
from infinite_tensor.window import Shape, WindowGrid

GRIDS: list[tuple[TensorWindow, Shape]] = [
    (TensorWindow((4, 5), stride=(2, 2)), (None, None)),
    (TensorWindow((4, 5), stride=(1, 7)), (9, None)),
    (TensorWindow((3, 4), stride=(1, 2), dimension_map=(0, 0)), (None, None)),
    (TensorWindow((2, 3), stride=2, offset=(1, 0), dimension_map=(None, 1)), (None, None)),
    (TensorWindow((4, 3, 2), stride=(2, 1, 1), dimension_map=(1, 1, 0)), (None, None, None)),
]


@pytest.mark.parametrize(("window", "shape"), GRIDS)
def test_exactly_the_first_window_over_a_pixel_is_copied(window: TensorWindow, shape: Shape) -> None:
    grid = WindowGrid(window, shape)
    blender = Blender(grid, torch.float32, None, None)
    start = [1] * window.ndim
    extent = [6] * window.ndim
    low, high = grid.box(start, [a + n for a, n in zip(start, extent, strict=True)])
    target = np.full(extent, np.nan, dtype=np.float32)
    covered = np.zeros(extent, dtype=bool)
    for index in itertools.product(*map(range, low, high)):
        begin = window.start(index)
        blender.fold(target, start, np.ones(window.size, dtype=np.float32), begin, index)
        inside = tuple(
            slice(max(a - s, 0), max(a + n - s, 0)) for a, n, s in zip(begin, window.size, start, strict=True)
        )
        covered[inside] = True
        # A pixel that was added to before it was copied to is still NaN.
        assert not np.isnan(target[covered]).any()
    assert np.isnan(target[~covered]).all()


def test_a_sum_keeps_negative_zero_and_nan_payloads() -> None:
    blender = Blender(WindowGrid(TensorWindow((2,), stride=1), (3,)), torch.float32, None, None)
    odd = np.array([0x80000000, 0x7FC12345], dtype=np.uint32).view(np.float32)
    target = np.zeros(2, dtype=np.float32)
    blender.fold(target, (0,), odd, (0,), (0,))
    assert target.view(np.uint32).tolist() == [0x80000000, 0x7FC12345]


def test_a_blend_may_write_into_its_arguments() -> None:
    def careless(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        return existing.copy_(incoming.mul_(2))

    blender = Blender(WindowGrid(TensorWindow((2,)), (None,)), torch.float32, careless, None)
    window = np.ones(2, dtype=np.float32)
    target = np.zeros(2, dtype=np.float32)
    blender.fold(target, (0,), window, (0,), (0,))
    assert target.tolist() == [2, 2]
    assert window.tolist() == [1, 1]
