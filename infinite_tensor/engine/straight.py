"""Access to tensors of which no window is ever missing.

Pixels are copied from memory, or computed where they are read.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.args import PixelSource, region_of
from infinite_tensor.engine.chain import Input, Node
from infinite_tensor.engine.formulas import Corners, boxes_under, formulas_of, most_bytes, never_lacks, region_under
from infinite_tensor.engine.returned import Check, named
from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.support.allocation import IN_PARTS, Array, as_tensor, new_block
from infinite_tensor.support.functions import Formula, RegionWriter
from infinite_tensor.support.interrupts import running_f
from infinite_tensor.tilestore.access import Access

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

    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """Return all tiles if no window of any arg can be missing, otherwise none."""
        return list(tiles) if never_lacks(self._node) else []

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on, computed from the args."""
        formulas, _ = formulas_of([self._node])
        with torch.no_grad():
            self._compute(formulas, start, out)

    def _compute(self, formulas: Sequence[Node], start: Sequence[int], out: torch.Tensor) -> None:
        needed = boxes_under(formulas, self._node, (list(start), list(map(operator.add, start, out.shape))))
        if most_bytes(needed) > _MOST_BYTES and (at := self._middle(start, out)):
            # Coarse pixels may need very many pixels of an arg.
            d, middle = at
            self._compute(formulas, start, out.narrow(d, 0, middle))
            begin = [a + middle * (k == d) for k, a in enumerate(start)]
            self._compute(formulas, begin, out.narrow(d, middle, out.shape[d] - middle))
            return
        alive: dict[Node, PixelBoxes] = {}
        compute(formulas, needed, self._views, alive)
        alive[self._node].read(start, out)

    def _middle(self, start: Sequence[int], out: torch.Tensor) -> tuple[int, int] | None:
        """Return where to cut a region in two at a border of units: the dimension, and pixels before the cut."""
        sides = self._node.grid.window.size
        for d in sorted(range(out.ndim), key=lambda d: -out.shape[d] // sides[d]):
            middle = (start[d] + out.shape[d] // 2 + sides[d] - 1) // sides[d] * sides[d] - start[d]
            if 0 < middle < out.shape[d]:
                return d, middle
        return None


_MOST_BYTES = 2**26
"""Larger regions are computed in parts."""


class PixelBoxes:
    """Pixels of a tensor in memory.

    Parameters
    ----------
    boxes : list of (list of int, Tensor)
        The first pixel, and the pixels, of each box.
    """

    def __init__(self, boxes: list[tuple[list[int], torch.Tensor]]) -> None:
        self.boxes = boxes

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on."""
        out.copy_(self.part(start, out.shape))

    def part(self, start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
        """Return a view of `size` pixels from `start` on, which must lie in one of the boxes."""
        for first, pixels in self.boxes:
            begin = list(map(operator.sub, start, first))
            if all(a >= 0 and a + n <= m for a, n, m in zip(begin, size, pixels.shape, strict=True)):
                return pixels[tuple([slice(a, a + n) for a, n in zip(begin, size, strict=True)])]
        raise AssertionError


def compute(
    formulas: Sequence[Node],
    needed: Mapping[Node, Sequence[Corners]],
    views: Views,
    alive: dict[Node, PixelBoxes],
    *,
    pixels: Mapping[Node, PixelBoxes] | None = None,
) -> None:
    """Compute the `needed` boxes of formulas, args first, and add them to `alive`.

    Other args are read from `pixels`, if these are given, and all results are kept. If not, they are read from `views`,
    and results are released after their last reader.
    """
    last = {each.node: node for node in reversed(formulas) for each in node.computation.inputs}
    for node in reversed(formulas):
        found = PixelBoxes([])
        for box in needed.get(node, ()):
            units = node.grid.box(*box)
            regions = _regions(node, units, alive, views, pixels)
            if len(found.boxes) == len(needed[node]) - 1 and pixels is None:
                for upstream in node.computation.inputs:
                    if last[upstream.node] is node:
                        alive.pop(upstream.node, None)
            for other, result in [*alive.items(), (node, found)]:
                # A function may return the same memory in each call.
                if other.computation.function is node.computation.function:
                    result.boxes[:] = [(first, pixels.clone()) for first, pixels in result.boxes]
            found.boxes.append((box[0], _result(node, box, units, regions)))
        if found.boxes:
            alive[node] = found


def _regions(
    node: Node,
    units: Corners,
    alive: Mapping[Node, PixelBoxes],
    views: Views,
    pixels: Mapping[Node, PixelBoxes] | None,
) -> list[Any]:
    """Read the regions of the args for a box of units of a formula, or return functions to read them."""
    planned = node.computation.planned
    if node.computation.asks:
        return [partial(_asked, node, upstream, views) for upstream in node.computation.inputs]
    sources = [alive.get(each.node) or (pixels[each.node] if pixels else views.of(each.node)) for each in planned]
    return [_under(upstream, source, *units) for upstream, source in zip(planned, sources, strict=True)]


def _asked(node: Node, upstream: Input, views: Views, start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """Read the region of an arg under a part of a formula."""
    return _under(upstream, views.anew(upstream.node), *node.grid.box(start, list(map(operator.add, start, size))))


def _under(upstream: Input, source: PixelSource, low: Sequence[int], high: Sequence[int]) -> torch.Tensor:
    """Read the region of an arg under a box of units."""
    first, end = region_under(upstream, low, high)
    return region_of(upstream, source, first, list(map(operator.sub, end, first)))


def _result(node: Node, box: Corners, units: Corners, regions: Sequence[Any]) -> torch.Tensor:
    """Compute a box of a formula, which lies in a box of units, from regions of its args."""
    f, (start, stop), (low, high), sides = node.computation.f, box, units, node.grid.window.size
    assert isinstance(f, Formula)
    begin = list(map(operator.mul, low, sides))
    size = [(b - a) * side for a, b, side in zip(low, high, sides, strict=True)]
    try:
        with running_f():
            output = f.over(begin, size, *regions)
        found = as_tensor(Check(node.spec, size).array_of(output))
    except Exception as error:
        pixels = ", ".join(f"{a}:{b}" for a, b in zip(start, stop, strict=True))
        error.add_note(f"while computing pixels [{pixels}] of {named(node.computation)}")
        raise
    return found[tuple([slice(a - b, c - b) for a, b, c in zip(start, begin, stop, strict=True)])]
