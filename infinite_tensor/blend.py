"""How overlapping windows become one pixel.

Windows are always folded in lexicographic order of their index, so the bits of a pixel do not depend
on the order in which windows were computed. The default sum starts from the first window that covers a
pixel rather than from 0: ``0.0 + -0.0`` is ``0.0`` and an addition may change a NaN, a copy does neither.
Which part of a window comes first is geometry: the part that the previous window along no coordinate
covers. It is a few boxes, the same for every inner window, so no mask is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from infinite_tensor.boxes import Index
from infinite_tensor.definition import Blend, Number
from infinite_tensor.errors import ValidationError
from infinite_tensor.window import WindowGrid

Array: TypeAlias = Any
"""A torch tensor or a numpy view of one: both take the slicing and arithmetic used here."""

_Box: TypeAlias = tuple[Index, Index]


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


class Blender:
    """Folds windows of one tensor into blocks of pixels.

    Parameters
    ----------
    grid : WindowGrid
        The windows of the tensor.
    dtype : torch.dtype
        Its dtype.
    blend : callable or None
        ``blend(existing, incoming) -> combined``, elementwise; None sums.
    blend_init : number or None
        What a pixel holds before its first window; None is 0.
    """

    def __init__(self, grid: WindowGrid, dtype: torch.dtype, blend: Blend | None, blend_init: Number | None) -> None:
        self._grid = grid
        self._dtype = dtype
        self._blend = blend
        self._init = blend_init
        self._sums_from_first = blend is None and blend_init is None
        self._parts: dict[tuple[bool, ...], tuple[list[_Box], list[_Box]]] = {}

    def blank(self, tensor: torch.Tensor) -> None:
        """Set every pixel of `tensor` to what it holds before its first window."""
        # numpy fills without threads, which would not be there in a forked process.
        array = as_array(tensor)
        init = 0 if self._init is None else self._init
        if isinstance(array, np.ndarray):
            array.fill(init)
        else:
            array.fill_(init)

    def prepare(self, tensor: torch.Tensor, start: Sequence[int]) -> None:
        """`blank` for a tensor that begins at pixel `start` and that all its windows will now be folded into.

        Needless, and left out, where every pixel is copied from its first window.
        """
        stop = [a + n for a, n in zip(start, tensor.shape, strict=True)]
        if not (self._sums_from_first and self._grid.covers(start, stop)):
            self.blank(tensor)

    def fold(
        self, target: Array, target_start: Sequence[int], source: Array, source_start: Sequence[int], index: Index
    ) -> None:
        """Blend what `source` holds of window `index` into `target`, where the two overlap.

        `target_start` and `source_start` are the pixels at which the two blocks begin. Every earlier
        window that covers a pixel of both must have been folded into it before.
        """
        low, high = [], []
        for a, n, b, m in zip(target_start, target.shape, source_start, source.shape, strict=True):
            low.append(max(b, a))
            high.append(min(a + n, b + m))
        if self._sums_from_first:
            self._sum(target, target_start, source, source_start, index, low, high)
            return
        to, of = _slices(low, high, target_start), _slices(low, high, source_start)
        if self._blend is None:
            _add(target[to], source[of])
        else:
            target[to] = self._combined(self._blend, target[to], source[of])

    def _sum(
        self,
        target: Array,
        target_start: Sequence[int],
        source: Array,
        source_start: Sequence[int],
        index: Index,
        low: list[int],
        high: list[int],
    ) -> None:
        if self._grid.overlap_free:
            target[_slices(low, high, target_start)] = source[_slices(low, high, source_start)]
            return
        fresh, seen = self._parts_of(index)
        window_start = self._grid.window.start(index)
        for boxes, adds in ((fresh, False), (seen, True)):
            for box_low, box_high in boxes:
                a = [max(p, s + q) for p, s, q in zip(low, window_start, box_low, strict=True)]
                b = [min(p, s + q) for p, s, q in zip(high, window_start, box_high, strict=True)]
                if any(p >= q for p, q in zip(a, b, strict=True)):
                    continue
                to, of = _slices(a, b, target_start), _slices(a, b, source_start)
                if adds:
                    _add(target[to], source[of])
                else:
                    target[to] = source[of]

    def _combined(self, blend: Blend, existing: Array, incoming: Array) -> Array:
        # Copies, so that a blend which writes into its arguments harms nothing that is stored.
        a, b = (as_tensor(copied(block)) for block in (existing, incoming))
        shape = a.shape
        combined = blend(a, b)
        if not isinstance(combined, torch.Tensor) or combined.dtype != self._dtype or combined.shape != shape:
            raise ValidationError(
                f"blend must be elementwise and return {self._dtype} of shape {tuple(shape)}, got {_describe(combined)}"
            )
        return as_array(combined) if isinstance(existing, np.ndarray) else combined

    def _parts_of(self, index: Index) -> tuple[list[_Box], list[_Box]]:
        """Boxes of window `index`, relative to its start: seen first in it, and seen in an earlier window."""
        inner = tuple(c > first for c, first in zip(index, self._grid.first, strict=True))
        if inner not in self._parts:
            self._parts[inner] = self._split(inner)
        return self._parts[inner]

    def _split(self, inner: tuple[bool, ...]) -> tuple[list[_Box], list[_Box]]:
        window = self._grid.window
        fresh: list[_Box] = [((0,) * window.ndim, window.size)]
        seen: list[_Box] = []
        for k, has_previous in enumerate(inner):
            followers = [d for d, follows in enumerate(window.followed) if follows == k]
            shared = [window.size[d] - window.stride[d] for d in followers]
            if not has_previous or not followers or min(shared) <= 0:
                continue
            for box in list(fresh):
                fresh.remove(box)
                rest, covered = _cut(box, followers, shared)
                fresh += rest
                seen.append(covered)
        return fresh, seen


def _cut(box: _Box, dims: list[int], extents: list[int]) -> tuple[list[_Box], _Box]:
    """Cut from `box` what lies below `extents` in all of `dims`: the boxes that remain, and what was cut."""
    rest: list[_Box] = []
    low, high = box
    for d, extent in zip(dims, extents, strict=True):
        at = min(max(extent, low[d]), high[d])
        if at < high[d]:
            rest.append((_with(low, d, at), high))
        high = _with(high, d, at)
    return rest, (low, high)


def _with(values: Index, at: int, value: int) -> Index:
    return (*values[:at], value, *values[at + 1 :])


def _slices(low: Sequence[int], high: Sequence[int], start: Sequence[int]) -> tuple[slice, ...]:
    return tuple([slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True)])


def _add(target: Array, source: Array) -> None:
    if isinstance(target, np.ndarray):
        # Operands in this order keep the NaN that torch's addition keeps, and like torch it does not warn.
        with np.errstate(all="ignore"):
            np.add(source, target, out=target)
    else:
        target += source


def check_blend(blend: Blend | None, dtype: torch.dtype, device: torch.device) -> None:
    """Try `blend` once on a small block, so that a blend that cannot work is found at construction.

    Raises
    ------
    ValidationError
        If it is not callable, fails on `dtype`, or returns something else than it was given.
    """
    if blend is None:
        return
    if not callable(blend):
        raise ValidationError(f"blend must be callable or None, got {blend!r}")
    pair = [torch.zeros(2, dtype=dtype, device=device) for _ in range(2)]
    try:
        combined = blend(*pair)
    except (RuntimeError, TypeError) as error:
        raise ValidationError(f"blend {blend!r} does not work on {dtype}: {error}") from error
    if not isinstance(combined, torch.Tensor) or combined.dtype != dtype or combined.shape != (2,):
        raise ValidationError(
            f"blend must map two blocks of {dtype} to one of the same shape, got {_describe(combined)}"
        )


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return repr(value)
