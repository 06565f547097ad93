"""Finds out, before a formula is first used, whether its function is local.

A formula is computed on whatever region is read. So a pixel must not depend on the region: not on its mean, nor on
pixels farther away than the halo. Each function is called on two regions, one around the other. If a pixel in both
differs by more than rounding, the tensor is computed in windows from then on.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch

from infinite_tensor.engine.chain import Node, watching_first_calls
from infinite_tensor.engine.formulas import Corners, boxes_under, formulas_of, pixels_in
from infinite_tensor.engine.reads import Views
from infinite_tensor.engine.returned import named
from infinite_tensor.engine.straight import PixelBoxes, compute
from infinite_tensor.support.forks import Lock
from infinite_tensor.support.functions import Formula
from infinite_tensor.support.interrupts import running_f
from infinite_tensor.tilestore.messages import warn_of_windows
from infinite_tensor.values.checks import differ

_LEAST = 12
"""Shortest side of a region that is looked at without pixels around it, in units of the formula."""
_MOST = 24
"""Longest side of a region to look at, in units."""
_FEW = 2**14
"""Pixels of a tensor to look at, if fewer units than `_MOST` can do that."""
_BEFORE, _AFTER = 7, 2
"""How much farther the outer region reaches than the inner one, in units. Few functions take pixels by seven."""
_PLACES = ((_BEFORE, _AFTER), (0, _BEFORE + _AFTER), (_BEFORE + _AFTER, 0))
"""How much the outer region of a shorter one is larger before and after that."""
_LEAST_PLACE = (1, 0)
"""The same if each of these would need further windows: units may be as large as windows."""
_DECIDING = Lock()


def settle(top: Node, box: Corners, views: Views) -> None:
    """Find out which formulas from `top` up are local, if that is not known yet.

    `box` is about to be read of `top`. A formula that is not local has windows from then on.
    """
    while not (top.computation.settled or top.computation.formula is None):
        formulas = _to_decide(top)
        if all(isinstance(node.computation.f, Formula) and node.computation.f.is_local for node in formulas):
            top.computation.settled = True
            return
        # A mean over many pixels hardly depends on the region, so small regions show more.
        for most in (_MOST, _LEAST):
            needed, is_more = _needed(formulas, top, box, most)
            if all(pixels_in(each) <= _FEW for boxes in needed for each in boxes.values()):
                break
        # The pixels are read before the lock is taken, because another thread may be computing them, with an `f` that
        # reads a formula itself.
        with running_f():
            try:
                pixels = _pixels_of_args(formulas, needed, views)
            except Exception:
                if is_more:
                    return
                raise
        with _DECIDING:
            if not top.computation.settled and _to_decide(top) == formulas:
                top.computation.settled = _decided(formulas, needed, pixels, views)


def _to_decide(top: Node) -> list[Node]:
    """Return the formulas to call. Those that ask for their args are read like any other arg, without the lock."""
    return [node for node in formulas_of([top])[0] if not node.computation.asks]


def _pixels_of_args(
    formulas: Sequence[Node], needed: Sequence[Mapping[Node, Sequence[Corners]]], views: Views
) -> dict[Node, PixelBoxes]:
    """Read the boxes of the args that are no formulas."""
    found: dict[Node, PixelBoxes] = {}
    for boxes in needed:
        for node in boxes.keys() - {*formulas}:
            for start, stop in boxes[node]:
                read = views.read_anew(node, start, stop, views)
                found.setdefault(node, PixelBoxes([])).boxes.append((start, read))
    return found


def _decided(
    formulas: Sequence[Node],
    needed: Sequence[Mapping[Node, Sequence[Corners]]],
    pixels: Mapping[Node, PixelBoxes],
    views: Views,
) -> bool:
    """Decide for all formulas up to the first one that is not local. Return whether all are decided."""
    found: list[dict[Node, PixelBoxes]] = [{}, {}]
    failed = None
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for node in formulas:
            stack.enter_context(watching_first_calls(node.computation))
        try:
            for boxes, results in zip(needed, found, strict=True):
                compute(formulas, boxes, views, results, pixels=pixels)
                for node, computed in results.items():
                    # A function may return the same memory in each call.
                    results[node] = PixelBoxes([(start, region.clone()) for start, region in computed.boxes])
        except Exception:  # noqa: BLE001  (of a user's function, which may take regions of some sizes only)
            failed = next(node for node in reversed(formulas) if boxes.get(node) and node not in results)
    for node in reversed(formulas):
        f = node.computation.f
        assert isinstance(f, Formula)
        if f.is_local:
            continue
        around, within = (results.get(node) for results in found)
        differs = around and within and any(differ(around.part(at, box.shape), box) for at, box in within.boxes)
        if f.is_formula and node is not failed and not differs:
            f.is_local = True
            continue
        if f.is_formula and node is not failed:
            warn_of_windows(named(node.computation), node.spec.grid.window.size)
        f.is_formula = False
        node.computation.use_windows()
        return False
    return True


def _needed(
    formulas: Sequence[Node], top: Node, box: Corners, most: int
) -> tuple[list[dict[Node, list[Corners]]], bool]:
    """Return what two regions need, one around the other: all boxes of the formulas and their args.

    Both lie in `box`, if it is large enough. If not, they need no other windows of args than `box`, if possible. Also
    return whether they do need others.
    """
    start, stop = box
    sides = [min(b - a, most * side) for a, b, side in zip(start, stop, top.grid.window.size, strict=True)]
    asked = _windows(boxes_under(formulas, top, (start, list(map(operator.add, start, sides)))))
    ndim = top.spec.grid.ndim
    for places in (*itertools.product(_PLACES, repeat=ndim), (_LEAST_PLACE,) * ndim):
        needed = [boxes_under(formulas, top, region) for region in _surroundings(top, start, sides, places)]
        if _windows(needed[0]) == asked:
            return needed, False
    return needed, True


def _windows(needed: Mapping[Node, Sequence[Corners]]) -> dict[Node, list[Corners]]:
    """Return the windows under boxes of tensors with windows."""
    computed = [node for node in needed if not node.computation.is_direct]
    return {node: [node.grid.box(*box) for box in needed[node]] for node in computed}


def _surroundings(
    top: Node, start: Sequence[int], sides: Sequence[int], places: Sequence[tuple[int, int]]
) -> tuple[Corners, Corners]:
    """Return two regions, one around the other, near the region of `sides` from `start` on."""
    outer: Corners = ([], [])
    inner: Corners = ([], [])
    units = top.grid.window.size
    for d, (first, n, extent, unit, place) in enumerate(zip(start, sides, top.spec.shape, units, places, strict=True)):
        low, high = first, first + n
        if d in top.spec.grid.moving and n < _LEAST * unit:
            low, high = low - place[0] * unit, high + place[1] * unit
            if extent is not None:
                low, high = max(0, low), min(extent, high)
        outer[0].append(low)
        outer[1].append(high)
        if d in top.spec.grid.moving:
            length = -(-(high - low) // unit)
            before = min(_BEFORE, max(length - _AFTER, length // 2))
            # An odd number, for functions that take pixels in pairs.
            before -= before > 0 and before % 2 == 0
            low, high = low + before * unit, high - min(_AFTER, max(0, length - before - 1)) * unit
        inner[0].append(low)
        inner[1].append(high)
    return outer, inner
