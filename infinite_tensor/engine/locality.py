"""Finds out, before a formula is first used, whether its function is local.

A formula is computed on whatever region is read. So a pixel must not depend on the region: not on its mean, nor on
pixels farther away than the halo. Each function is called on two regions, one around the other. If a pixel in both
differs by more than rounding, the tensor is computed in windows from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch

from infinite_tensor.engine.chain import Node, watching_first_calls
from infinite_tensor.engine.formulas import Box, boxes_under, formulas_of, pixels_in
from infinite_tensor.engine.reads import Views
from infinite_tensor.engine.returned import named
from infinite_tensor.engine.straight import Computed, compute
from infinite_tensor.support.forks import Lock
from infinite_tensor.support.functions import Formula
from infinite_tensor.support.interrupts import running_f
from infinite_tensor.tilestore.messages import warn_of_windows
from infinite_tensor.values.checks import differ

_LEAST = 8
"""Shortest side of a region that is looked at without pixels around it, in units of the formula."""
_MOST = 24
"""Longest side of a region to look at, in units."""
_FEW = 2**14
"""Pixels of a tensor to look at, if fewer units than `_MOST` can do that."""
_BEFORE, _AFTER = 3, 2
"""How much larger the outer region is, in units. One is odd, for functions that take pixels in pairs."""
_DECIDING = Lock()


def settle(top: Node, box: Box, views: Views) -> None:
    """Find out which formulas from `top` up are local, if that is not known yet.

    `box` is about to be read of `top`. A formula that is not local has windows from then on.
    """
    while not (top.computation.settled or top.computation.formula is None):
        formulas, _ = formulas_of([top])
        # A mean over many pixels hardly depends on the region, so small regions show more.
        for most in (_MOST, _LEAST):
            needed = [boxes_under(formulas, top, region) for region in _surroundings(top, box, most)]
            if all(pixels_in(each) <= _FEW for boxes in needed for each in boxes.values()):
                break
        # The pixels are read before the lock is taken, because another thread may be computing them, with an `f` that
        # reads a formula itself.
        with running_f():
            try:
                pixels = _pixels_of_args(formulas, needed, views)
            except Exception:  # noqa: BLE001  (the read itself raises it, if it needs these pixels)
                pixels = None
        with _DECIDING:
            if not top.computation.settled and formulas_of([top])[0] == formulas:
                top.computation.settled = _decided(formulas, needed, pixels)


def _pixels_of_args(
    formulas: Sequence[Node], needed: Sequence[Mapping[Node, Sequence[Box]]], views: Views
) -> dict[Node, Computed]:
    """Read the boxes of the args that are no formulas."""
    found: dict[Node, Computed] = {}
    for boxes in needed:
        for node in boxes.keys() - {*formulas}:
            for start, stop in boxes[node]:
                read = type(views).read_anew(node, start, stop, views.reader.work)
                found.setdefault(node, Computed([])).boxes.append((start, read))
    return found


def _decided(
    formulas: Sequence[Node], needed: Sequence[Mapping[Node, Sequence[Box]]], pixels: Mapping[Node, Computed] | None
) -> bool:
    """Decide for all formulas up to the first one that is not local. Return whether all are decided.

    Without `pixels` of args, all count as local.
    """
    found: list[dict[Node, Computed]] = [{}, {}]
    failed = None
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for node in formulas:
            stack.enter_context(watching_first_calls(node.computation))
        try:
            for boxes, results in zip(needed, found, strict=True):
                if pixels is not None:
                    compute(formulas, boxes, pixels.__getitem__, results, keep=True)
        except Exception:  # noqa: BLE001  (of a user's function, which may take regions of some sizes only)
            failed = next(node for node in reversed(formulas) if boxes.get(node) and node not in results)
    for node in reversed(formulas):
        f = node.computation.f
        assert isinstance(f, Formula)
        if f.is_local:
            continue
        differs = f.is_formula and node is not failed and _differs(node, *found)
        f.is_local = f.is_formula and node is not failed and not differs
        if not f.is_local:
            f.is_formula, node.computation.formula = False, None
            if differs:
                warn_of_windows(named(node.computation), node.spec.grid.window.size)
            return False
    return True


def _differs(node: Node, around: Mapping[Node, Computed], within: Mapping[Node, Computed]) -> bool:
    if node not in around or node not in within:
        return False
    return any(differ(around[node].part(start, pixels.shape), pixels) for start, pixels in within[node].boxes)


def _surroundings(top: Node, box: Box, most: int) -> tuple[Box, Box]:
    """Return two regions to compute, one around the other, of at most `most` units a side.

    They lie in `box`, if it is large enough.
    """
    outer: Box = ([], [])
    inner: Box = ([], [])
    moving, sides = top.spec.grid.moving, top.grid.window.size
    for d, (start, stop, extent, side) in enumerate(zip(*box, top.spec.shape, sides, strict=True)):
        last = min(stop, start + most * side)
        around = within = start, last
        if d in moving and last - start >= _LEAST * side:
            within = start + _BEFORE * side, last - _AFTER * side
        elif d in moving:
            around = start - _BEFORE * side, last + _AFTER * side
            if extent is not None:
                around = max(0, around[0]), min(extent, around[1])
            if around == within and last - start > 2:
                within = start + 1, last - 1
        for region, (first, end) in ((outer, around), (inner, within)):
            region[0].append(first)
            region[1].append(end)
    return outer, inner
