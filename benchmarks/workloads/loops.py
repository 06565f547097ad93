"""The plainest loops that compute the same pixels: what results are checked by, and floors of what reads can take."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from .functions import Function, Window


def assembled(function: Function, counts: tuple[int, int], size: int) -> torch.Tensor:
    """Two copies and a Python call per window: call `function`, copy into a block of one row, copy into the result."""
    rows, columns = counts
    result = torch.empty(rows * size, columns * size)
    by_row = result.numpy().reshape(rows, size, columns, size)
    block = np.empty((columns, size, size), np.float32)
    for row in range(rows):
        for column in range(columns):
            block[column] = function((row, column)).numpy()
        by_row[row] = block.swapaxes(0, 1)
    return result


@cache
def dense(function: Function, ndim: int, start: int, stop: int, size: int, stride: int) -> torch.Tensor:
    """`blended`, computed once per process."""
    return blended(function, ndim, start, stop, size, stride)


def blended(function: Function, ndim: int, start: int, stop: int, size: int, stride: int) -> torch.Tensor:
    """The sum of all windows that cover the region from `start` to `stop` in each of `ndim` dimensions."""
    first, last = -((size - 1 - start) // stride), (stop - 1) // stride
    result = torch.zeros([(last - first) * stride + size] * ndim)
    for window in itertools.product(range(first, last + 1), repeat=ndim):
        begins = [(i - first) * stride for i in window]
        result[tuple([slice(begin, begin + size) for begin in begins])].add_(function(window))
    inside = slice(start - first * stride, stop - first * stride)
    return result[(inside,) * ndim].clone()


def stepped(function: Callable[..., torch.Tensor], pixels: torch.Tensor, size: int, halo: int) -> torch.Tensor:
    """A square through `function`, window by window with a halo; what comes out is a window smaller on each side."""
    extent = len(pixels) - 2 * size
    result = torch.empty(extent, extent)
    into = result.numpy()
    for window, region in regions(pixels, size, halo):
        top, left = (i * size for i in window)
        into[top : top + size, left : left + size] = function(window, region).numpy()
    return result


def regions(pixels: torch.Tensor, size: int, halo: int) -> list[tuple[Window, torch.Tensor]]:
    """Each window of a square but the outermost ones, with a halo."""
    count = len(pixels) // size - 2
    found: list[tuple[Window, torch.Tensor]] = []
    for row, column in itertools.product(range(count), repeat=2):
        top, left = (row + 1) * size - halo, (column + 1) * size - halo
        extent = size + 2 * halo
        found.append(((row, column), pixels[top : top + extent, left : left + extent]))
    return found
