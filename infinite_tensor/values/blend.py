"""How overlapping windows become one pixel.

Windows are always folded in lexicographic order of their index, so the bits of a pixel do not depend
on the order in which windows were computed. The default sum starts from the first window that covers a
pixel rather than from 0: ``0.0 + -0.0`` is ``0.0`` and an addition may change a NaN, a copy does neither.
Which part of a window comes first is geometry: the part that the previous window along no coordinate
covers. It is a few boxes, the same for every inner window, so no mask is needed. A blend that keeps the first
window or the last starts from the first one too, so nothing is blended with `blend_init`.

On the CPU, torch computes most of a block with vector instructions and what remains at its end one by one; the
two may differ in the last bit (logaddexp, atan2, pow), or in the sign of a zero (maximum). A blend that is given
is therefore called on flat blocks that leave no remainder, so that the bits of a pixel do not depend on where in
a block it lies. A graphics processor computes all pixels alike.

A weighted mean is folded like the sum, in its accumulator's dtype, and finished by a division; what has been folded
by any other blend are the pixels.
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
    WeightedMean,
    accumulator_of,
    check_dtype,
    is_even,
    parts_of,
)

_LEFT_TO_NUMPY = frozenset(map(np.dtype, ("uint16", "uint32", "uint64", "complex64", "complex128")))
"""torch cannot add the former, and to add the latter it multiplies: what is infinite becomes NaN."""
_FLAT = 2**14
"""Most elements of a flat block: so many are not shared out among threads, whose parts would end anywhere.

Not even by `torch.nn.functional.gelu`, which shares out more among more than two threads.
"""
_SAME_EVERYWHERE = (torch.fmax, torch.fmin)
"""Blends that give the same bits wherever a pixel lies in a block, of any shape."""
_SAME_INTEGERS = (torch.maximum, torch.minimum)
"""The same holds of these where there is neither NaN nor -0.0, of which torch's loops pick different ones."""

_Box: TypeAlias = tuple[Index, Index]


class _Action(enum.Enum):
    """What happens to pixels of a window."""

    COPY = enum.auto()
    ADD = enum.auto()
    BLEND = enum.auto()
    KEEP = enum.auto()


class _Part(NamedTuple):
    """A box of a window, relative to its start."""

    low: Index
    high: Index
    action: _Action


class Blender:
    """Folds windows of one tensor into blocks of pixels.

    Parameters
    ----------
    grid : WindowGrid
        The windows of the tensor.
    dtype : torch.dtype
        Its dtype.
    blend : callable, WeightedMean, "first", "last" or None
        ``blend(existing, incoming) -> combined``, elementwise; on the CPU it is called on flat blocks. "first" and
        "last" keep that window of those that cover a pixel; None sums.
    blend_init : number or None
        What a pixel holds before its first window; None is 0.

    Attributes
    ----------
    accumulator : torch.dtype
        What windows are folded in; `dtype` for all but a weighted mean.
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
            # The sum of values whose weights are all 1 is a plain one.
            self._weighs = not is_even(blend) or self.accumulator != dtype
            blend = None
        self._blend = blend
        self._init = blend_init
        self._first, self._later = _actions_of(blend, blend_init)
        same = _SAME_EVERYWHERE if dtype.is_floating_point else _SAME_EVERYWHERE + _SAME_INTEGERS
        self._takes_any_shape = any(blend is each for each in same)
        self._parts: dict[tuple[bool, ...], list[_Part]] = {}
        self._row_parts: dict[tuple[bool, ...], list[_Part]] = {}

    def begun(self, target: Array) -> Array:
        """A block of the accumulator's dtype to fold all windows over `target` into: that itself, if it has it."""
        if self.accumulator == self._dtype:
            return target
        return as_array(torch.empty(target.shape, dtype=self.accumulator, device=as_tensor(target).device))

    def finish(self, block: Array, start: Sequence[int], target: Array) -> None:
        """Write the pixels into `target` that a block is, which begins at `start`, once all windows are folded into it.

        Both may be the same, and are where nothing is left to do.
        """
        if self._mean is not None:
            self._mean.divide(block, start, target)

    def blank(self, block: Array) -> None:
        """Set every pixel of a block to what it holds before its first window."""
        init = 0 if self._init is None else self._init
        if isinstance(block, np.ndarray):
            # Without threads, which would not be there in a forked process.
            block.fill(init)
        else:
            block.fill_(init)

    def prepare(self, block: Array, start: Sequence[int]) -> None:
        """`blank` for a block that begins at pixel `start` and that all its windows will now be folded into.

        Needless, and left out, where every pixel is copied from its first window.
        """
        stop = list(map(operator.add, start, block.shape))
        if not (self._first is _Action.COPY and self._grid.covers(start, stop)):
            self.blank(block)

    def fold(
        self, target: Array, target_start: Sequence[int], source: Array, source_start: Sequence[int], index: Index
    ) -> None:
        """Blend what `source` holds of window `index` into `target`, where the two overlap.

        `target_start` and `source_start` are the pixels at which the two blocks begin. Every earlier
        window that covers a pixel of both must have been folded into it before.
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
        # Where in a window something lies decides its weight only.
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

    def fold_row(self, target: Array, target_start: Sequence[int], row: Array, index: Index) -> None:
        """`fold` for whole windows that follow each other along the last coordinate, at once.

        ``row[i]`` is the window at `index`, moved on by i along the last coordinate.
        """
        grid = self._grid
        count = len(row)
        if count == 1 and self._copies:
            self._copy(target, target_start, row[0], index)
            return
        # The first window along a coordinate has other parts than those after it.
        singles = count if grid.row_dim is None or count == 1 else int(index[-1] == grid.first[-1])
        for i in range(singles):
            moved = (*index[:-1], index[-1] + i)
            self.fold(target, target_start, row[i], grid.window.start(moved), moved)
        if singles < count:
            self._fold_row(target, target_start, row[singles:], (*index[:-1], index[-1] + singles))

    def _copy(self, target: Array, target_start: Sequence[int], window: Array, index: Index) -> None:
        """`fold` for one window of those that are alone over their pixels: what most reads come down to."""
        to, of = [], []
        for (k, size, stride, offset, _), a, n in zip(self._grid.dimensions, target_start, target.shape, strict=True):
            begin = (offset if k is None else index[k] * stride + offset) - a
            low, high = max(0, begin), min(n, begin + size)
            to.append(slice(low, high))
            of.append(slice(low - begin, high - begin))
        target[tuple(to)] = window[tuple(of)]

    def _fold_row(self, target: Array, target_start: Sequence[int], row: Array, index: Index) -> None:
        axis = self._grid.row_dim
        assert axis is not None
        start, stride = self._grid.window.start(index), self._grid.window.stride[axis]
        begin, end = target_start[axis], target_start[axis] + target.shape[axis]
        for part in self._row_parts_of(index):
            low = [max(s + p, t) for s, p, t in zip(start, part.low, target_start, strict=True)]
            high = [min(s + p, t + n) for s, p, t, n in zip(start, part.high, target_start, target.shape, strict=True)]
            # Of window i the part covers [low + i * stride, high + i * stride) along the row.
            low[axis], high[axis] = start[axis] + part.low[axis], start[axis] + part.high[axis]
            first = max(0, (begin - high[axis]) // stride + 1)
            last = min(len(row), -((low[axis] - end) // stride))
            if first >= last or not all(map(operator.lt, low, high)):
                continue
            # Windows that the target holds a whole stride of form a block of cells, one for each.
            inner, outer = max(first, -((low[axis] - begin) // stride)), min(last, (end - low[axis]) // stride)
            if outer - inner < 2:
                inner = outer = last
            to, of = list(_slices(low, high, target_start)), list(_slices(low, high, start))
            for i in (*range(first, inner), *range(outer, last)):
                a, b = max(low[axis] + i * stride, begin), min(high[axis] + i * stride, end)
                to[axis] = slice(a - begin, b - begin)
                of[axis] = slice(a - start[axis] - i * stride, b - start[axis] - i * stride)
                self._put(part.action, target, tuple(to), row[i][tuple(of)], of)
            if inner < outer:
                to[axis] = slice(low[axis] + inner * stride - begin, low[axis] + outer * stride - begin)
                of[axis] = slice(part.low[axis], part.high[axis])
                cells = _cells(target[tuple(to)], axis, stride)
                covered = (slice(None),) * (axis + 1) + (slice(0, high[axis] - low[axis]),)
                self._put(part.action, cells, covered, row[inner:outer][(slice(None), *of)], of)

    def _put(
        self, action: _Action, target: Array, to: tuple[slice, ...], incoming: Array, within: Sequence[slice]
    ) -> None:
        """Carry out one part of a fold, of which `incoming` is the part `within` a window."""
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
        # Copies, so that a blend which writes into its arguments harms nothing that is stored.
        if self._takes_any_shape or as_tensor(existing).device.type != "cpu":
            combined = _called(blend, *(as_tensor(copied(block)) for block in (existing, incoming)))
        else:
            combined = self._combined_flat(blend, flattened(existing[None])[0], flattened(incoming[None])[0])
            combined = combined[: math.prod(existing.shape)].reshape(existing.shape)
        return as_array(combined) if isinstance(existing, np.ndarray) else combined

    def _combined_flat(
        self, blend: Callable[..., torch.Tensor], existing: torch.Tensor, incoming: torch.Tensor
    ) -> torch.Tensor:
        """Blend what `flattened` gave; the pixels that fill it up are still there."""
        if len(existing) <= _FLAT:
            return _called(blend, existing, incoming)
        for begin in range(0, len(existing), _FLAT):
            part = existing[begin : begin + _FLAT]
            part.copy_(_called(blend, part, incoming[begin : begin + _FLAT]))
        return existing

    def _parts_of(self, index: Index) -> list[_Part]:
        """The parts of window `index`, and what is done with each; those that are seen first in it come first."""
        if self._alike:
            return self._whole
        inner = tuple(map(operator.gt, index, self._grid.first))
        if inner not in self._parts:
            self._parts[inner] = self._split(inner)
        return self._parts[inner]

    @cached_property
    def _alike(self) -> bool:
        """Whether the same happens to all pixels of a window."""
        return self._first is self._later or self._grid.overlap_free

    @cached_property
    def _copies(self) -> bool:
        """Whether all pixels of every window are copied."""
        return self._alike and self._first is _Action.COPY and not self._weighs

    @cached_property
    def _whole(self) -> list[_Part]:
        return [_Part((0,) * self._grid.ndim, self._grid.window.size, self._first)]

    def _row_parts_of(self, index: Index) -> list[_Part]:
        """The parts of each window in a row from `index` on, in an order in which all windows can go through one first.

        Cut to at most a stride, one part of neighbouring windows does not overlap. A pixel that several of
        them cover lies the further back in a window the earlier that is: so the parts at the far end come first.
        """
        inner = tuple(map(operator.gt, index, self._grid.first))
        if inner not in self._row_parts:
            axis = self._grid.row_dim
            assert axis is not None
            stride = self._grid.window.stride[axis]
            parts = [
                _Part(
                    with_entry(part.low, axis, at),
                    with_entry(part.high, axis, min(at + stride, part.high[axis])),
                    part.action,
                )
                for part in self._parts_of(index)
                for at in range(part.low[axis], part.high[axis], stride)
            ]
            self._row_parts[inner] = sorted(parts, key=lambda part: part.low[axis], reverse=True)
        return self._row_parts[inner]

    def _split(self, inner: tuple[bool, ...]) -> list[_Part]:
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
        parts = [_Part(*box, self._first) for box in fresh] + [_Part(*box, self._later) for box in seen]
        return [part for part in parts if all(map(operator.lt, part.low, part.high))]


def _actions_of(blend: Blend | None, blend_init: Number | None) -> tuple[_Action, _Action]:
    """What happens to pixels that a window is the first to cover, and to those that an earlier one covers."""
    if isinstance(blend, str):
        return _Action.COPY, _Action.KEEP if blend == "first" else _Action.COPY
    if blend is not None:
        return _Action.BLEND, _Action.BLEND
    return _Action.COPY if blend_init is None else _Action.ADD, _Action.ADD


def _cut(box: _Box, dims: list[int], extents: list[int]) -> tuple[list[_Box], _Box]:
    """Cut from `box` what lies below `extents` in all of `dims`: the boxes that remain, and what was cut."""
    rest: list[_Box] = []
    low, high = box
    for d, extent in zip(dims, extents, strict=True):
        at = min(max(extent, low[d]), high[d])
        if at < high[d]:
            rest.append((with_entry(low, d, at), high))
        high = with_entry(high, d, at)
    return rest, (low, high)


def _cells(block: Array, axis: int, stride: int) -> Array:
    """A view of a block in which `axis` is cut every `stride` pixels; the number of the cut comes first."""
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
        # Operands in this order keep the NaN that torch's addition keeps, and like torch it does not warn.
        with np.errstate(all="ignore"):
            np.add(source, target, out=target)
    elif target.size <= AT_ONCE:
        # In a third of numpy's time.
        torch.from_numpy(target).add_(torch.from_numpy(source))
    else:
        for into, part, _ in parts_of((target, source, source)):
            _add(into, part)


def check_blend(blend: Blend | None, dtype: torch.dtype, device: torch.device) -> None:
    """Try `blend` once on a small block, so that a blend that cannot work is found at construction.

    Raises
    ------
    ValidationError
        If it fails on `dtype`, or returns something else than it was given.
    """
    if blend is None or isinstance(blend, str):
        return
    if isinstance(blend, WeightedMean):
        check_dtype(blend, dtype)
        return
    pair = [torch.zeros(LANES, dtype=dtype, device=device) for _ in range(2)]
    try:
        _called(blend, *pair)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, ValidationError):
            raise
        raise ValidationError(
            f"blend {blend!r} does not work on {dtype}, in flat blocks of shape ({LANES},): {error}"
        ) from error


def _called(blend: Callable[..., torch.Tensor], existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    """What a blend makes of two blocks; ValidationError where it is another kind of block."""
    expected = existing.dtype, existing.device, existing.shape
    combined = blend(existing, incoming)
    is_dense = isinstance(combined, torch.Tensor) and not combined.is_nested and combined.layout is torch.strided
    if not is_dense or (combined.dtype, combined.device, combined.shape) != expected:
        raise ValidationError(
            f"blend must map two blocks of {expected[0]} on {expected[1]} of shape {tuple(expected[2])} to one of the "
            f"same shape, elementwise, got {_describe(combined)}"
        )
    return combined


def _describe(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.is_nested or value.layout is not torch.strided:
        return "one that is not dense"
    return f"{value.dtype} on {value.device} of shape {tuple(value.shape)}"
