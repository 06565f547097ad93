"""How a weighted mean is carried out: weighted windows are summed, and divided by the sum of their weights.

The sum of the weights over a pixel follows from geometry, so nothing but the weighted sum is kept of a tensor. It is
worked out for small blocks of whole strides: nearly all of them lie alike among the windows, and share one.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from infinite_tensor.geometry.points import Index, is_empty
from infinite_tensor.geometry.window import WindowGrid, followed
from infinite_tensor.support.allocation import Array, as_array, as_tensor
from infinite_tensor.support.forks import cached_property
from infinite_tensor.values.weights import WeightedMean, real_dtype, weights_over

_AT_ONCE = 2**15 - 1
"""Elements that are worked on at once: without torch's threads, which a forked process lacks, and in a fast cache."""
_IN_TILE = 2**16
_MOST_IN_TILE = 2**18
_SUMS_BYTES = 2**25

_Place: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


class Averaging:
    """The arithmetic of one tensor's weighted mean. Safe for threads and forks.

    Parameters
    ----------
    mean : WeightedMean
        The weights.
    grid : WindowGrid
        The windows of the tensor.
    accumulator : torch.dtype
        What weighted values are summed in.
    fold_row : callable
        ``fold_row(target, start, row, index)`` sums windows in their order; see `Blender.fold_row`.
    """

    def __init__(
        self,
        mean: WeightedMean,
        grid: WindowGrid,
        accumulator: torch.dtype,
        fold_row: Callable[[Array, Sequence[int], Array, Index], None],
    ) -> None:
        self._mean = mean
        self._grid = grid
        self._dtype = real_dtype(accumulator)
        self._fold_row = fold_row
        self._on: dict[torch.device, Array] = {}
        self._sums: dict[tuple[torch.device, _Place], Array] = {}

    def put(self, target: Array, incoming: Array, within: Sequence[slice], *, first: bool) -> None:
        """Add ``weights * incoming`` to `target`, or, of the first window, write it there.

        `within` is the part of a window that `incoming` holds, maybe of several windows.
        """
        weights = self._weights_on(as_tensor(target).device)[tuple(within)]
        if target.ndim > weights.ndim:
            weights = weights[None]
        for part in _cut((target, incoming, weights)):
            into, values, factor = _tensors(part)
            if first:
                torch.mul(values, factor, out=into)
            else:
                # Rounded by itself: nothing here may become one operation.
                into.add_(values * factor)

    def divide(self, summed: Array, start: Sequence[int], target: Array) -> None:
        """Write what is `summed` of a block that begins at pixel `start`, divided by the sum of the weights."""
        device = as_tensor(summed).device
        for tile, to, of in self._tiles(start, summed.shape):
            for part in _cut((target[to], summed[to], self._sum(tile, device)[of])):
                quotient, dividend, divisor = _tensors(part)
                if quotient.dtype == dividend.dtype:
                    torch.div(dividend, divisor, out=quotient)
                else:
                    quotient.copy_(dividend / divisor)

    def _weights_on(self, device: torch.device) -> Array:
        """The weights of a window, in full extent, on a device."""
        if device not in self._on:
            weights = weights_over(self._mean, self._grid.window).to(device, self._dtype)
            self._on[device] = as_array(weights.expand(self._grid.window.size))
        return self._on[device]

    @cached_property
    def _uniform(self) -> list[bool]:
        """Along which dimensions the sum of the weights is the same: one window spans the tensor, weighted alike."""
        grid, weights = self._grid, weights_over(self._mean, self._grid.window)
        at = grid.window.start(tuple(grid.first))
        return [
            (k is None or grid.first[k] == grid.last[k])
            and extent is not None
            and weights.shape[d] == 1
            and at[d] <= 0
            and extent <= at[d] + grid.window.size[d]
            for d, (k, extent) in enumerate(zip(followed(grid.window), grid.shape, strict=True))
        ]

    @cached_property
    def _tile(self) -> Index:
        """Extents of the blocks that sums of weights are worked out for: whole strides, as square as may be."""
        grid, window = self._grid, self._grid.window
        moving = [d for d, k in enumerate(followed(window)) if k is not None and grid.first[k] < grid.last[k]]
        tile = [window.stride[d] if d in moving else window.size[d] for d in range(window.ndim)]
        tile = [1 if uniform else n for uniform, n in zip(self._uniform, tile, strict=True)]
        room = _IN_TILE / math.prod(tile)
        for number, d in enumerate(sorted(moving, key=lambda d: -tile[d])):
            strides = max(1, round(room ** (1 / (len(moving) - number))))
            tile[d] *= strides
            room /= strides
        while math.prod(tile) > _MOST_IN_TILE:
            largest = tile.index(max(tile))
            tile[largest] = -(-tile[largest] // 2)
        return tuple(tile)

    def _tiles(
        self, start: Sequence[int], shape: Sequence[int]
    ) -> Iterator[tuple[Index, tuple[slice, ...], tuple[slice, ...]]]:
        """The tiles of a block, with where they lie in it, and which part of them lies in it."""
        cuts: list[list[tuple[int, slice, slice]]] = []
        for a, n, size, uniform in zip(start, shape, self._tile, self._uniform, strict=True):
            if uniform:
                cuts.append([(0, slice(None), slice(None))])
                continue
            along = []
            for i in range(a // size, -(-(a + n) // size)):
                low, high = max(a, i * size), min(a + n, (i + 1) * size)
                along.append((i, slice(low - a, high - a), slice(low - i * size, high - i * size)))
            cuts.append(along)
        for cut in itertools.product(*cuts):
            tile, to, of = zip(*cut, strict=True)
            yield tile, to, of

    def _sum(self, tile: Index, device: torch.device) -> Array:
        """The sum of the weights over each pixel of a tile; 1 where there is no window, whose pixels are 0."""
        start = tuple(map(operator.mul, tile, self._tile))
        low, high = self._grid.box(start, list(map(operator.add, start, self._tile)))
        first = self._grid.window.start(tuple(low))
        place = tuple(map(operator.sub, first, start)), tuple(map(operator.sub, high, low))
        if is_empty(low, high):
            place = (), ()
        found = self._sums.get((device, place))
        if found is None:
            found = as_array(self._summed(start, low, high).to(device))
            if (len(self._sums) + 1) * found.nbytes > _SUMS_BYTES:
                self._sums = {}
            self._sums[device, place] = found
        return found

    def _summed(self, start: Index, low: Sequence[int], high: Sequence[int]) -> torch.Tensor:
        summed = torch.zeros(self._tile, dtype=self._dtype, device="cpu")
        block = as_array(summed)
        if not is_empty(low, high):
            weights = as_tensor(self._weights_on(torch.device("cpu")))
            row = as_array(weights.expand((high[-1] - low[-1], *weights.shape)))
            for lead in itertools.product(*map(range, low[:-1], high[:-1])):
                self._fold_row(block, start, row, (*lead, low[-1]))
        block[block == 0] = 1
        return summed


_Blocks: TypeAlias = tuple[Array, Array, Array]


def _cut(blocks: _Blocks) -> list[_Blocks]:
    """Blocks of one shape and what broadcasts to it, on the CPU cut alike into parts that are worked on at once."""
    target, values, factor = blocks
    count = math.prod(target.shape)
    if count <= _AT_ONCE or as_tensor(target).device.type != "cpu":
        return [blocks]
    rows, alike = len(target), len(factor) == 1
    together = _AT_ONCE * rows // count
    if rows == 1 or not together:
        smaller = [(target[i], values[i], factor[0 if alike else i]) for i in range(rows)]
        return [part for each in smaller for part in _cut(each)]
    step = -(-rows // -(-rows // together))
    cuts = [slice(begin, begin + step) for begin in range(0, rows, step)]
    return [(target[cut], values[cut], factor if alike else factor[cut]) for cut in cuts]


def _tensors(blocks: _Blocks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks as tensors. The real and imaginary parts of complex values are a dimension of their own.

    Multiplied as one number, what is infinite in one of them would make the other NaN.
    """
    target, values, factor = as_tensor(blocks[0]), as_tensor(blocks[1]), as_tensor(blocks[2])
    if values.is_complex():
        return torch.view_as_real(target), torch.view_as_real(values), factor.unsqueeze(-1)
    return target, values, factor
