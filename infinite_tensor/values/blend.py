"""Blends overlapping windows into pixels.

Windows are always folded in lexicographic order of their index. So the bits of a pixel do not depend on the order in
which windows were computed.

The default sum starts from the first window that covers a pixel, not from 0. Adding to 0 could change bits: ``0.0 +
-0.0`` is ``0.0``, and an addition may change a NaN. A window is the first over a pixel if, along every coordinate, the
previous window does not cover the pixel. Such pixels form a few boxes, the same for every inner window, so no mask is
needed. The blends "first" and "last" also start from the first window, so they never use `blend_init`.

On the CPU, torch computes most of a block with vector instructions, and the remainder one element at a time. The two
ways may differ in the last bit (logaddexp, atan2, pow), or in the sign of a zero (maximum). A user's blend is therefore
called on flat blocks that leave no remainder. So the bits of a pixel do not depend on its position in a block. A GPU
computes all pixels in the same way.

A weighted mean is folded like the sum, in the accumulator's dtype. At the end it is divided by the sum of the weights.
Other blends need no such last step.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index, with_entry
from infinite_tensor.geometry.window import WindowGrid, followed
from infinite_tensor.support.allocation import Array, as_array, as_tensor, copied
from infinite_tensor.support.forks import cached_property
from infinite_tensor.values.definition import Blend, Number
from infinite_tensor.values.reduction import LANES, flattened
from infinite_tensor.values.weights import (
    AT_ONCE,
    Averaging,
    Unknown,
    WeightedMean,
    accumulator_of,
    parts_of,
)

_LEFT_TO_NUMPY = frozenset(map(np.dtype, ("uint16", "uint32", "uint64", "complex64", "complex128")))
"""Dtypes to add with numpy. torch cannot add some unsigned integers, and may turn a complex inf into NaN."""
_FLAT = 2**14
"""Maximum number of elements in a flat block.

torch may split larger blocks among threads, at any element. `torch.nn.functional.gelu` has the lowest limit of all
functions, if there are more than two threads.
"""
_SAME_EVERYWHERE = (torch.fmax, torch.fmin)
"""Blends with the same bits for any shape of block and any position in the block."""
_SAME_INTEGERS = (torch.maximum, torch.minimum)
"""Blends with the same bits for integers only. torch's vector and scalar loops differ for NaNs and signed zeros."""

_LARGE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Dtypes without a maximum or minimum in torch."""

_Box: TypeAlias = tuple[Index, Index]


class _Action(enum.Enum):
    """Ways to combine a window with a block of pixels."""

    COPY = enum.auto()
    ADD = enum.auto()
    BLEND = enum.auto()
    KEEP = enum.auto()


class _WindowBox(NamedTuple):
    """A box within a window, relative to the start of the window."""

    low: Index
    high: Index
    action: _Action


class Blender:
    """Folds windows of a tensor into blocks of pixels.

    Parameters
    ----------
    grid : WindowGrid
        The windows of the tensor.
    dtype : torch.dtype
        The dtype of the tensor.
    blend : callable, WeightedMean, "first", "last" or None
        ``blend(existing, incoming) -> combined``, elementwise; on the CPU it is called on flat blocks. "first" and
        "last" keep the first or the last window over each pixel. None adds the windows.
    blend_init : number or None
        The value of a pixel before its first window; None is 0.

    Attributes
    ----------
    accumulator : torch.dtype
        The dtype in which windows are folded. It is `dtype`, except for a weighted mean.
    """

    def __init__(self, grid: WindowGrid, dtype: torch.dtype, blend: Blend | None, blend_init: Number | None) -> None:
        self._grid = grid
        self._dtype = dtype
        self.accumulator = dtype
        self._mean: Averaging | None = None
        self._weighs = False
        if isinstance(blend, WeightedMean):
            self.accumulator = accumulator_of(dtype)
            sums = Blender(grid, self.accumulator.to_real(), None, None)
            self._mean = Averaging(blend, grid, self.accumulator, sums.fold_row)
            kind = blend.weights
            # If all weights are 1, the weighted sum is a plain sum.
            self._weighs = not isinstance(kind, str) or kind != "mean" or self.accumulator != dtype
            blend = None
        self._blend = blend
        self._init = blend_init
        if isinstance(blend, str):
            self._first, self._later = _Action.COPY, _Action.KEEP if blend == "first" else _Action.COPY
        elif blend is not None:
            self._first = self._later = _Action.BLEND
        else:
            self._first, self._later = _Action.COPY if blend_init is None else _Action.ADD, _Action.ADD
        same = _SAME_EVERYWHERE if dtype.is_floating_point else _SAME_EVERYWHERE + _SAME_INTEGERS
        self._takes_any_shape = any(blend is each for each in same)
        self._parts: dict[tuple[bool, ...], list[_WindowBox]] = {}
        self._row_parts: dict[tuple[bool, ...], list[_WindowBox]] = {}

    def begun(self, target: Array) -> Array:
        """Return the block to fold windows into.

        This is `target`, or a new block if the accumulator has another dtype.
        """
        if self.accumulator == self._dtype:
            return target
        return as_array(torch.empty(target.shape, dtype=self.accumulator, device=as_tensor(target).device))

    def finish(self, block: Array, start: Sequence[int], target: Array) -> None:
        """Compute final pixels from a folded block, and write them to `target`.

        All windows must already be folded into `block`. Both blocks begin at pixel `start`, and may be the same block.
        Only a weighted mean needs this step.
        """
        if self._mean is not None:
            self._mean.divide(block, start, target)

    def blank(self, block: Array) -> None:
        """Fill a block with the initial value of pixels."""
        init = 0 if self._init is None else self._init
        if isinstance(block, np.ndarray):
            # Fill with numpy: torch would use threads, and forked processes lack threads.
            block.fill(init)
        else:
            block.fill_(init)

    def prepare(self, block: Array, start: Sequence[int]) -> None:
        """Fill a block with the initial value of pixels, if needed.

        The block begins at pixel `start`. Nothing is done if windows will overwrite all pixels.
        """
        stop = list(map(operator.add, start, block.shape))
        if not (self._first is _Action.COPY and self._grid.covers(start, stop)):
            self.blank(block)

    def fold(
        self, target: Array, target_start: Sequence[int], source: Array, source_start: Sequence[int], index: Index
    ) -> None:
        """Blend part of a window into a block.

        `source` is a part of window `index`. It is blended into `target` where the two overlap. `target_start` and
        `source_start` are the first pixels of the two blocks. Earlier windows must already be folded into `target`.
        """
        low, high, to, of = [], [], [], []
        for a, n, b, m in zip(target_start, target.shape, source_start, source.shape, strict=True):
            begin = max(a, b)
            end = min(b + m, a + n)
            low.append(begin)
            high.append(end)
            to.append(slice(begin - a, end - a))
            of.append(slice(begin - b, end - b))
        parts = self._parts_of(index)
        # The position in a window matters only for its weights.
        origin = self._grid.window.start(index) if self._weighs else None
        if len(parts) == 1:
            within = of if origin is None else _slices(low, high, origin)
            self._put(parts[0].action, target, tuple(to), source[tuple(of)], within)
            return
        window_start = self._grid.window.start(index)
        for part in parts:
            first = [max(p, s + q) for p, s, q in zip(low, window_start, part.low, strict=True)]
            last = [min(p, s + q) for p, s, q in zip(high, window_start, part.high, strict=True)]
            if all(map(operator.lt, first, last)):
                there, here = _slices(first, last, target_start), _slices(first, last, source_start)
                within = here if origin is None else _slices(first, last, origin)
                self._put(part.action, target, there, source[here], within)

    def fold_row(
        self,
        target: Array,
        target_start: Sequence[int],
        row: Array,
        index: Index,
        row_start: Sequence[int] | None = None,
    ) -> None:
        """Fold a row of windows at once.

        ``row[0]`` is the window at `index`. The indices of the next windows are consecutive in the last coordinate. If
        windows are cut to the rows of pixels that `target` has, `row_start` is the first pixel of ``row[0]``.
        """
        grid = self._grid
        count = len(row)
        if count == 1 and row_start is not None:
            self.fold(target, target_start, row[0], row_start, index)
            return
        if count == 1 and self.copies:
            self._copy(target, target_start, row[0], index)
            return
        # Along a coordinate, the first window has different parts from all later windows.
        singles = count if grid.row_dim is None or count == 1 else int(index[-1] == grid.first[-1])
        for i in range(singles):
            moved = (*index[:-1], index[-1] + i)
            start = grid.window.start(moved) if row_start is None else grid.moved(row_start, i)
            self.fold(target, target_start, row[i], start, moved)
        if singles < count:
            rest = None if row_start is None else grid.moved(row_start, singles)
            self._fold_row(target, target_start, row[singles:], (*index[:-1], index[-1] + singles), rest)

    def _copy(self, target: Array, target_start: Sequence[int], window: Array, index: Index) -> None:
        """Copy the part of a window inside `target`.

        This is enough for windows without overlap, and for the blend "last".
        """
        to, of = [], []
        for (k, size, stride, offset, _), a, n in zip(self._grid.dimensions, target_start, target.shape, strict=True):
            begin = (offset if k is None else index[k] * stride + offset) - a
            low, high = max(0, begin), min(n, begin + size)
            to.append(slice(low, high))
            of.append(slice(low - begin, high - begin))
        target[tuple(to)] = window[tuple(of)]

    def _fold_row(
        self, target: Array, target_start: Sequence[int], row: Array, index: Index, row_start: Sequence[int] | None
    ) -> None:
        axis = self._grid.row_dim
        assert axis is not None
        start, stride = self._grid.window.start(index), self._grid.window.stride[axis]
        cut = [0] * len(start) if row_start is None else list(map(operator.sub, row_start, start))
        begin, end = target_start[axis], target_start[axis] + target.shape[axis]
        for part in self._row_parts_of(index):
            low = [max(s + p, t) for s, p, t in zip(start, part.low, target_start, strict=True)]
            high = [min(s + p, t + n) for s, p, t, n in zip(start, part.high, target_start, target.shape, strict=True)]
            # This part of window i covers [low + i * stride, high + i * stride) along the row.
            low[axis], high[axis] = start[axis] + part.low[axis], start[axis] + part.high[axis]
            first = max(0, (begin - high[axis]) // stride + 1)
            last = min(len(row), -((low[axis] - end) // stride))
            if first >= last or not all(map(operator.lt, low, high)):
                continue
            # The target contains a whole stride of each window from `inner` to `outer`. Fold these strides at once.
            inner, outer = max(first, -((low[axis] - begin) // stride)), min(last, (end - low[axis]) // stride)
            if outer - inner < 2:
                inner = outer = last
            to, within = list(_slices(low, high, target_start)), list(_slices(low, high, start))
            of = [slice(each.start - n, each.stop - n) for each, n in zip(within, cut, strict=True)]
            for i in (*range(first, inner), *range(outer, last)):
                a, b = max(low[axis] + i * stride, begin), min(high[axis] + i * stride, end)
                to[axis] = slice(a - begin, b - begin)
                of[axis] = within[axis] = slice(a - start[axis] - i * stride, b - start[axis] - i * stride)
                self._put(part.action, target, tuple(to), row[i][tuple(of)], within)
            if inner < outer:
                to[axis] = slice(low[axis] + inner * stride - begin, low[axis] + outer * stride - begin)
                of[axis] = within[axis] = slice(part.low[axis], part.high[axis])
                cells = _cells(target[tuple(to)], axis, stride)
                covered = (slice(None),) * (axis + 1) + (slice(0, high[axis] - low[axis]),)
                self._put(part.action, cells, covered, row[inner:outer][(slice(None), *of)], within)

    def _put(
        self, action: _Action, target: Array, to: tuple[slice, ...], incoming: Array, within: Sequence[slice]
    ) -> None:
        """Copy, add or blend `incoming` into ``target[to]``, depending on `action`.

        `within` is the position of `incoming` in the window, as slices.
        """
        if self._weighs:
            assert self._mean is not None
            self._mean.put(target[to], incoming, within, first=action is _Action.COPY)
        elif action is _Action.COPY:
            target[to] = incoming
        elif action is _Action.ADD:
            _add(target[to], incoming)
        elif action is _Action.BLEND:
            assert callable(self._blend)
            target[to] = self._combined(self._blend, target[to], incoming)

    def _combined(self, blend: Callable[..., torch.Tensor], existing: Array, incoming: Array) -> Array:
        # Copy, because a blend may write into its arguments.
        if self._takes_any_shape or as_tensor(existing).device.type != "cpu":
            combined = _called(blend, *(as_tensor(copied(block)) for block in (existing, incoming)))
        else:
            flat, more = flattened(existing[None])[0], flattened(incoming[None])[0]
            for begin in range(0, len(flat), _FLAT):
                part = flat[begin : begin + _FLAT]
                part.copy_(_called(blend, part, more[begin : begin + _FLAT]))
            combined = flat[: math.prod(existing.shape)].reshape(existing.shape)
        return as_array(combined) if isinstance(existing, np.ndarray) else combined

    def _parts_of(self, index: Index) -> list[_WindowBox]:
        """Cut a window into boxes, each with the action for folding the box.

        For a sum, boxes overlapping an earlier window are added to the block, and other boxes are copied.
        """
        # Where all actions are alike, every window is split like the first one: not at all.
        inner = () if self._alike else tuple(map(operator.gt, index, self._grid.first))
        if inner not in self._parts:
            self._parts[inner] = self._split(inner)
        return self._parts[inner]

    @cached_property
    def _alike(self) -> bool:
        return self._first is self._later or self._grid.overlap_free

    @cached_property
    def picks(self) -> bool:
        """Whether every pixel is a value of one window, or the initial value."""
        actions = {self._first} if self._alike else {self._first, self._later}
        return not self._weighs and actions <= {_Action.COPY, _Action.KEEP}

    @cached_property
    def copies(self) -> bool:
        """Whether the pixels of every window are copied as they are."""
        return self._alike and self._first is _Action.COPY and not self._weighs

    def _row_parts_of(self, index: Index) -> list[_WindowBox]:
        """Cut the windows of a row into short parts, and return the parts in folding order.

        `index` is the first window of the row. A part is not longer than the stride. So the first parts of all windows
        do not overlap, and can be folded in one operation; likewise the second parts, and so on.
        """
        inner = tuple(map(operator.gt, index, self._grid.first))
        if inner not in self._row_parts:
            axis = self._grid.row_dim
            assert axis is not None
            stride = self._grid.window.stride[axis]
            parts = [
                _WindowBox(
                    with_entry(part.low, axis, at),
                    with_entry(part.high, axis, min(at + stride, part.high[axis])),
                    part.action,
                )
                for part in self._parts_of(index)
                for at in range(part.low[axis], part.high[axis], stride)
            ]
            # Fold ends of windows first: their pixels are in the beginnings of later windows.
            self._row_parts[inner] = sorted(parts, key=lambda part: part.low[axis], reverse=True)
        return self._row_parts[inner]

    def _split(self, inner: tuple[bool, ...]) -> list[_WindowBox]:
        window = self._grid.window
        fresh: list[_Box] = [((0,) * window.ndim, window.size)]
        seen: list[_Box] = []
        for k, has_previous in enumerate(inner):
            followers = [d for d, follows in enumerate(followed(window)) if follows == k]
            shared = [window.size[d] - window.stride[d] for d in followers]
            if not has_previous or not followers or min(shared) <= 0:
                continue
            for box in list(fresh):
                fresh.remove(box)
                rest, covered = _cut(box, followers, shared)
                fresh += rest
                seen.append(covered)
        parts = [_WindowBox(*box, self._first) for box in fresh] + [_WindowBox(*box, self._later) for box in seen]
        return [part for part in parts if all(map(operator.lt, part.low, part.high))]


def _cut(box: _Box, dims: list[int], extents: list[int]) -> tuple[list[_Box], _Box]:
    """Cut off the parts of a box beyond ``extents[i]`` along each dimension ``dims[i]``.

    Return the parts, and the remaining box.
    """
    rest: list[_Box] = []
    low, high = box
    for d, extent in zip(dims, extents, strict=True):
        at = min(max(extent, low[d]), high[d])
        if at < high[d]:
            rest.append((with_entry(low, d, at), high))
        high = with_entry(high, d, at)
    return rest, (low, high)


def _cells(block: Array, axis: int, stride: int) -> Array:
    """Return a view of a block as a stack of cells.

    The block is cut every `stride` pixels along `axis`. The cells are stacked along a new first dimension.
    """
    shape = block.shape
    cut = block.reshape((*shape[:axis], shape[axis] // stride, stride, *shape[axis + 1 :]))
    order = (axis, *range(axis), *range(axis + 1, len(shape) + 1))
    return cut.transpose(order) if isinstance(cut, np.ndarray) else cut.permute(order)


def _slices(low: Sequence[int], high: Sequence[int], start: Sequence[int]) -> tuple[slice, ...]:
    return tuple(map(slice, map(operator.sub, low, start), map(operator.sub, high, start)))


def _add(target: Array, source: Array) -> None:
    if not isinstance(target, np.ndarray):
        target += source
    elif target.dtype in _LEFT_TO_NUMPY:
        # This order of operands keeps the same NaN as torch's addition. torch does not warn, so numpy must not either.
        with np.errstate(all="ignore"):
            np.add(source, target, out=target)
    elif target.size <= AT_ONCE:
        # torch takes a third of numpy's time.
        torch.from_numpy(target).add_(torch.from_numpy(source))
    else:
        for into, part, _ in parts_of((target, source, source)):
            _add(into, part)


def check_blend(blend: Blend | None, dtype: torch.dtype, device: torch.device) -> None:
    """Try a blend once on a small block.

    Raises
    ------
    ValidationError
        If the blend fails on `dtype`, or returns another dtype, device or shape than it was given.
    """
    if not callable(blend) or isinstance(blend, Unknown):
        return
    pair = [torch.zeros(LANES, dtype=dtype, device=device) for _ in range(2)]
    try:
        _called(blend, *pair)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, ValidationError):
            raise
        raise ValidationError(
            f"blend {blend!r} does not work on {dtype} tensors of shape ({LANES},): {error}"
        ) from error


def _called(blend: Callable[..., torch.Tensor], existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    expected = existing.dtype, existing.device, existing.shape
    if existing.dtype in _LARGE_UNSIGNED and any(blend is each for each in _SAME_INTEGERS) and existing.is_cpu:
        larger = np.maximum if blend is torch.maximum else np.minimum
        return as_tensor(larger(as_array(existing), as_array(incoming)))
    combined = blend(existing, incoming)
    is_dense = isinstance(combined, torch.Tensor) and not combined.is_nested and combined.layout is torch.strided
    if not is_dense or (combined.dtype, combined.device, combined.shape) != expected:
        got = "a tensor that is not dense" if isinstance(combined, torch.Tensor) else repr(combined)
        if is_dense:
            got = f"{combined.dtype} on {combined.device} of shape {tuple(combined.shape)}"
        raise ValidationError(
            f"blend must be elementwise: for two tensors of {expected[0]} and shape {tuple(expected[2])} on "
            f"{expected[1]}, return such a tensor, got {got}"
        )
    return combined
