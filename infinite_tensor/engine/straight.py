"""Access to tensors of which no window is ever missing.

Pixels are copied from memory, or computed where they are read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.args import Readable, region_of
from infinite_tensor.engine.chain import Node, Units, watching_first_calls
from infinite_tensor.engine.formulas import Box, boxes_under, formulas_of, region_under
from infinite_tensor.engine.returned import Check, named
from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.geometry.window import followed
from infinite_tensor.support.allocation import IN_PARTS, Array, as_tensor, new_block
from infinite_tensor.support.functions import Formula, RegionWriter
from infinite_tensor.support.interrupts import running_f
from infinite_tensor.tilestore.contents import Access
from infinite_tensor.tilestore.messages import warn_of_windows
from infinite_tensor.values.checks import differ

if TYPE_CHECKING:
    from infinite_tensor.engine.reads import Views


class StraightAccess(Access):
    """Access for copying pixels directly to the result.

    No window is ever missing.

    Parameters
    ----------
    writer : RegionWriter
        Copies the pixels.
    stored : Access
        The access to the tensor's store. It knows whether windows were dropped.
    """

    def __init__(self, writer: RegionWriter, stored: Access) -> None:
        self._writer = writer
        self._stored = stored

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:  # noqa: ARG002
        """Return no windows, because none is ever missing."""
        return np.empty((0, starts.shape[1]), dtype=np.int64)

    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """Return all tiles, because every tile can be read."""
        return list(tiles)

    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Return False for each window, because none is ever absent."""
        return np.zeros(len(windows), dtype=bool)

    def deposit(self, windows: IntArray, outputs: Array) -> None:  # noqa: ARG002
        """Never called, because no window is missing."""
        raise AssertionError

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on, by a call of the writer."""
        pixels = out if out.is_contiguous() else new_block(out.shape, out.dtype, out.device, IN_PARTS)
        with running_f():
            self._writer.write(start, pixels)
        if pixels is not out:
            out.copy_(pixels)

    def keep(self, start: Sequence[int] | None) -> None:
        """Do nothing, because there is nothing to release."""

    @property
    def outdated(self) -> bool:
        """Whether windows were dropped since the access was opened.

        If so, results must no longer be stored.
        """
        return self._stored.outdated

    def detach(self) -> None:
        """Do nothing, because nothing is ever stored."""

    def close(self) -> None:
        """Close the access to the store."""
        self._stored.close()


class FormulaAccess(StraightAccess):
    """Access to a formula, computed by each read."""

    def __init__(self, node: Node, stored: Access, views: Views) -> None:
        self._node = node
        self._stored = stored
        self._views = views

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on, computed from the args."""
        try:
            formulas, _ = formulas_of([self._node])
            with torch.no_grad():
                self._compute(formulas, start, out)
        except _NotLocalError:
            # Windows are needed now, which the read has not planned.
            with running_f():
                type(self._views).read_anew(self._node, start, out)

    def _compute(self, formulas: Sequence[Node], start: Sequence[int], out: torch.Tensor) -> None:
        needed = boxes_under(formulas, self._node, (list(start), list(map(operator.add, start, out.shape))))
        if max(map(_nbytes_of, needed, needed.values())) > _MOST_BYTES and (at := self._middle(start, out)):
            # Coarse pixels may need very many pixels of an arg.
            d, middle = at
            self._compute(formulas, start, out.narrow(d, 0, middle))
            begin = [a + middle * (k == d) for k, a in enumerate(start)]
            self._compute(formulas, begin, out.narrow(d, middle, out.shape[d] - middle))
            return
        last = {each.node: node for node in reversed(formulas) for each in node.computation.inputs}
        computed: dict[Node, Readable] = {}
        for node in reversed(formulas):
            if node in needed:
                computed[node] = _Computed(
                    [(box[0], _result(node, box, computed, self._views)) for box in needed[node]]
                )
                for upstream in node.computation.inputs:
                    # Release pixels after their last reader.
                    if last[upstream.node] is node:
                        computed.pop(upstream.node, None)
        computed[self._node].read(start, out)

    def _middle(self, start: Sequence[int], out: torch.Tensor) -> tuple[int, int] | None:
        """Return where to cut a region in two at a border of units: the dimension, and pixels before the cut."""
        sides = self._node.grid.window.size
        for d in sorted(range(out.ndim), key=lambda d: -out.shape[d] // sides[d]):
            middle = (start[d] + out.shape[d] // 2 + sides[d] - 1) // sides[d] * sides[d] - start[d]
            if 0 < middle < out.shape[d]:
                return d, middle
        return None


def _nbytes_of(node: Node, boxes: Sequence[Box]) -> int:
    pixels: int = sum([math.prod(map(operator.sub, stop, start)) for start, stop in boxes])
    return pixels * node.spec.dtype.itemsize


_MOST_BYTES = 2**26
"""Larger regions are computed in parts."""


class _Computed(NamedTuple):
    """Computed boxes of a formula: for each, the first pixel and the pixels."""

    boxes: list[tuple[list[int], torch.Tensor]]

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on."""
        for first, pixels in self.boxes:
            begin = list(map(operator.sub, start, first))
            if all(a >= 0 and a + n <= m for a, n, m in zip(begin, out.shape, pixels.shape, strict=True)):
                out.copy_(pixels[tuple([slice(a, a + n) for a, n in zip(begin, out.shape, strict=True)])])
                return
        raise AssertionError


def _result(node: Node, box: Box, computed: Mapping[Node, Readable], views: Views) -> torch.Tensor:
    """Compute a box of a formula from its args."""
    computation, units = node.computation, node.computation.formula
    if units is None:
        raise _NotLocalError
    (start, stop), sides = box, units.grid.window.size
    low, high = units.grid.box(start, stop)
    begin = list(map(operator.mul, low, sides))
    size = [(b - a) * side for a, b, side in zip(low, high, sides, strict=True)]
    regions = []
    for upstream in units.inputs:
        first, end = region_under(upstream, low, high)
        source = computed.get(upstream.node) or views.of(upstream.node)
        regions.append(region_of(upstream, source, first, list(map(operator.sub, end, first))))
    try:
        found = _called(node, units, begin, size, regions)
    except Exception as error:
        if not isinstance(error, _NotLocalError):
            pixels = ", ".join(f"{a}:{b}" for a, b in zip(start, stop, strict=True))
            error.add_note(f"while computing pixels [{pixels}] of {named(computation)}")
        raise
    return found[tuple([slice(a - b, c - b) for a, b, c in zip(start, begin, stop, strict=True)])]


def _called(
    node: Node, units: Units, start: Sequence[int], size: Sequence[int], regions: Sequence[torch.Tensor]
) -> torch.Tensor:
    f = node.computation.f
    assert isinstance(f, Formula)

    def call(size: Sequence[int], regions: Sequence[torch.Tensor]) -> torch.Tensor:
        with running_f():
            output = f.over(start, size, *regions)
        return as_tensor(Check(node.spec, size).array_of(output))

    if f.is_local:
        return call(size, regions)
    with units.lock, watching_first_calls(node.computation):
        found = call(size, regions)
        if not f.is_formula:
            raise _NotLocalError
        if not f.is_local:
            f.is_local = _is_local(units, size, regions, found, call)
            f.is_formula = f.is_local
    if f.is_local:
        return found
    node.computation.formula = None
    warn_of_windows(named(node.computation), node.spec.grid.window.size)
    raise _NotLocalError


class _NotLocalError(Exception):
    """A formula turned out to need windows."""


def _is_local(
    units: Units,
    size: Sequence[int],
    regions: Sequence[torch.Tensor],
    found: torch.Tensor,
    call: Callable[[Sequence[int], Sequence[torch.Tensor]], torch.Tensor],
) -> bool:
    """Whether a part of `found` stays the same if computed with less around it, or with more if it is small."""
    sides = units.grid.window.size
    moving = {k for upstream in units.inputs for k in followed(upstream.window)}
    counts = [n // side for n, side in zip(size, sides, strict=True)]
    small = all(k not in moving or n * side <= _PART for k, (n, side) in enumerate(zip(counts, sides, strict=True)))
    parts = []
    for d, (count, side) in enumerate(zip(counts, sides, strict=True)):
        if d not in moving:
            parts.append((0, count))
        elif small:
            parts.append((-_AROUND, count + _AROUND))
        else:
            kept = min(count, max(1, _PART // side))
            parts.append(((count - kept) // 2, (count - kept) // 2 + kept))
    others = []
    for upstream, region in zip(units.inputs, regions, strict=True):
        other = region
        for d, k in enumerate(followed(upstream.window)):
            if k is not None:
                (first, last), stride = parts[k], upstream.window.stride[d]
                length = upstream.window.size[d] + (last - 1 - first) * stride
                index = torch.arange(length, device=region.device) + first * stride
                other = other.index_select(d, index.clamp(0, region.shape[d] - 1))
        others.append(other)
    try:
        other = call([(b - a) * side for (a, b), side in zip(parts, sides, strict=True)], others)
    except Exception:  # noqa: BLE001  (a user's function that takes regions of one size)
        return False
    both = [
        (slice(max(a, 0) * side, min(b, n) * side), slice(max(-a, 0) * side, (min(b, n) - a) * side))
        for (a, b), n, side in zip(parts, counts, sides, strict=True)
    ]
    here, there = zip(*both, strict=True)
    return not differ(found[here], other[there])


_PART = 32
"""Longest side of the part computed twice, in pixels."""
_AROUND = 8
"""Units to add on each side of a small region."""
