"""Formulas: tensors that are computed where they are read, on exactly the region of the read.

A formula is not stored. A region of it is computed from regions of its args, which may be formulas too. Of the tensors
with windows at the ends of formulas, only the pixels under the region are needed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from infinite_tensor.engine.chain import Input, Node, Units, chain_of
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.geometry.window import followed, starts_of

FEW_PIXELS = 2**18
"""So few pixels are computed without a warning that they are too many."""
_PER_PIXEL = 20
"""So many pixels may be computed for one that is read."""
_PER_NEEDED = 4
"""So many pixels may be computed for one that is needed: halos and coarser pixels need many for one."""

Corners: TypeAlias = tuple[list[int], list[int]]
"""The first pixel, and the pixel after the last."""


def formulas_of(nodes: Sequence[Node], *, everything: bool = False) -> tuple[list[Node], list[Node]]:
    """Return all formulas under `nodes`, each before its args, and the other tensors at their ends.

    Args that formulas ask for themselves are left out, unless `everything` is listed.
    """
    formulas: dict[Node, None] = {}
    ends: dict[Node, None] = {}
    waiting = [(node, False) for node in reversed(nodes)]
    while waiting:
        node, is_left = waiting.pop()
        if node in formulas or node in ends:
            continue
        if node.computation.formula is None:
            ends[node] = None
        elif is_left:
            formulas[node] = None
        else:
            waiting.append((node, True))
            args = node.computation.inputs if everything else node.computation.planned
            waiting += [(upstream.node, False) for upstream in reversed(args)]
    return [*formulas][::-1], [*ends]


def never_lacks(node: Node) -> bool:
    """Return whether a tensor, or a formula with all its args, can be read without any window."""
    return all(end.computation.copied for end in formulas_of([node], everything=True)[1])


def spread(
    through: Sequence[Node], wanted: Mapping[Node, NumberedRegions], *, everything: bool = False
) -> dict[Node, NumberedRegions]:
    """Return the boxes of all tensors needed to compute the `wanted` boxes.

    `through` has the tensors from which to go on to the args, such as formulas, each before its args. Boxes needed by
    the same region of the read are joined where they overlap, so that a formula with several readers is computed once.
    `everything` includes what formulas may ask for themselves.
    """
    found = {node: [boxes] for node, boxes in wanted.items()}
    needed: dict[Node, NumberedRegions] = {}
    for node in through:
        if node in found:
            needed[node] = boxes = united(found.pop(node))
            for upstream, read in reads_of(node, boxes, everything=everything):
                found.setdefault(upstream.node, []).append(read)
    return needed | {node: united(each) for node, each in found.items()}


def boxes_under(formulas: Sequence[Node], node: Node, box: Corners) -> dict[Node, list[Corners]]:
    """Like `spread`, for one box, in plain Python: small reads spend most of their time here."""
    found = {node: [box]}
    for each in formulas:
        for start, stop in found.get(each, ()):
            low, high = each.grid.box(start, stop)
            for upstream in each.computation.planned:
                own = found.setdefault(upstream.node, [])
                for begin, end in upstream.reads.boxes(*region_under(upstream, low, high)):
                    _add(own, begin, end)
    return found


def reads_of(
    node: Node, boxes: NumberedRegions, *, everything: bool = False
) -> Iterator[tuple[Input, NumberedRegions]]:
    """Yield the args of a tensor, each with the boxes that any windows must read for `boxes` of the tensor.

    Args that a formula asks for itself are left out, unless `everything` is wanted.
    """
    units = node.computation.units
    grid, args = (node.grid, node.computation.args) if units is None else (units.grid, units.inputs)
    if node.computation.asks and not everything:
        return
    low, high = grid.boxes(boxes.starts, boxes.stops)
    for upstream in args:
        begin = starts_of(upstream.window, low)
        end = starts_of(upstream.window, high - 1) + np.array(upstream.window.size, dtype=np.int64)
        yield upstream, NumberedRegions(*upstream.reads.inside(boxes.numbers, begin, end))


def region_under(upstream: Input, low: Sequence[int], high: Sequence[int]) -> Corners:
    """Return the region of an arg for a box of units, padding included."""
    start, stop, window = [], [], upstream.window
    for k, size, stride, offset in zip(followed(window), window.size, window.stride, window.offset, strict=True):
        start.append(offset if k is None else low[k] * stride + offset)
        stop.append((offset if k is None else (high[k] - 1) * stride + offset) + size)
    return start, stop


def united(boxes: Sequence[NumberedRegions]) -> NumberedRegions:
    """Join the boxes needed by the same region where they overlap."""
    columns = [(each.numbers, each.starts, each.stops) for each in boxes]
    numbers, starts, stops = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    if len(np.unique(numbers)) == len(numbers):
        return NumberedRegions(numbers, starts, stops)
    found: dict[int, list[Corners]] = {}
    for start, stop, number in zip(starts.tolist(), stops.tolist(), numbers.tolist(), strict=True):
        own = found.setdefault(number, [])
        _add(own, start, stop)
    kept = [(number, start, stop) for number, own in found.items() for start, stop in own]
    return NumberedRegions(*(np.array(column, dtype=np.int64) for column in zip(*kept, strict=True)))


def _add(boxes: list[Corners], start: list[int], stop: list[int]) -> None:
    """Add a box to others, joined with those that it overlaps or touches."""
    at = 0
    while at < len(boxes):
        low, high = boxes[at]
        if all(a <= d and c <= b for a, b, c, d in zip(low, high, start, stop, strict=True)):
            start, stop = list(map(min, low, start)), list(map(max, high, stop))
            del boxes[at]
            at = 0
        else:
            at += 1
    boxes.append((start, stop))


def pixels_in(boxes: Sequence[Corners]) -> int:
    """Return the number of pixels in boxes, all together."""
    return sum([math.prod(map(operator.sub, stop, start)) for start, stop in boxes])


def most_bytes(needed: Mapping[Node, Sequence[Corners]]) -> int:
    """Return the memory of the tensor that takes most for its boxes, in bytes. Formulas compute whole units."""
    return max(_pixels_of(node, boxes) * node.spec.dtype.itemsize for node, boxes in needed.items())


def _pixels_of(node: Node, boxes: Sequence[Corners]) -> int:
    units = node.computation.formula
    if units is None or units.pixels == 1:
        return pixels_in(boxes)
    return units.pixels * pixels_in([units.grid.box(*box) for box in boxes])


def count_in(boxes: NumberedRegions) -> int:
    """Return the number of pixels in boxes, all together."""
    return int((boxes.stops - boxes.starts).prod(axis=1, dtype=np.float64).sum())


def nbytes_per_pixel(node: Node, units: Units) -> float:
    """Estimate the memory for computing one of many pixels of a formula and of its args, in bytes."""
    if not units.nbytes_per_pixel:
        size = [*node.spec.grid.window.size]
        needed = boxes_under(formulas_of([node])[0], node, ([0] * len(size), size))
        units.nbytes_per_pixel = most_bytes(needed) / math.prod(size)
    return units.nbytes_per_pixel


def most_wasteful(wanted: Mapping[Node, NumberedRegions], pixels: int, work: Mapping[Node, int]) -> Node | None:
    """Return the map that computes most pixels in vain, because its windows are too large, or None.

    To read `pixels` pixels in the boxes `wanted`, ``work[node]`` pixels of each tensor are computed. The result is None
    too if few pixels are computed in vain.
    """
    computed = {node: count for node, count in work.items() if node.computation.units and not node.computation.formula}
    total = sum(computed.values())
    if total <= max(FEW_PIXELS, _PER_PIXEL * pixels):
        return None
    needed = {node: count_in(boxes) for node, boxes in spread(chain_of(wanted)[::-1], wanted).items()}
    if total <= _PER_NEEDED * sum(needed.get(node, 0) for node in computed):
        return None
    return max(computed, key=lambda node: computed[node] - needed.get(node, 0))
