"""Which windows a fill needs of each tensor of a chain, and which of them are not stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from infinite_tensor.boxes import Index, IntArray
from infinite_tensor.engine.node import Node, consumers_first
from infinite_tensor.filling.needs import Needs, Product, Spans, separable
from infinite_tensor.tilestore.inventory import Inventory, TileCounts
from infinite_tensor.tilestore.layout import TileLayout

_MOST_NAMED = 2**21
"""More windows of one tensor are counted only, as if nothing of them were stored."""


Box: TypeAlias = tuple[Node, Index, Index]
"""Pixels of a tensor: the first, and the one after the last, per dimension."""


@dataclass(frozen=True)
class Demand:
    """What a fill needs of one tensor.

    Attributes
    ----------
    node : Node
        The tensor.
    layout : TileLayout
        Its tiles.
    needed : int
        Windows that are needed.
    missing : int
        How many of these are to be computed.
    tiles : TileCounts
        The tiles that hold what is needed.
    written : int
        Tiles that windows will be stored in.
    windows : int64 array of shape (missing, ndim), or tuple of Product
        The windows to compute; as products where they were counted only.
    """

    node: Node
    layout: TileLayout
    needed: int
    missing: int
    tiles: TileCounts
    written: int
    windows: IntArray | tuple[Product, ...]


@dataclass(frozen=True)
class Estimate:
    """What a fill needs of a chain if nothing is stored.

    Attributes
    ----------
    demands : list of Demand
        Per tensor, consumers first.
    boxes : dict of Node to (start, stop)
        The pixels that are read of each tensor lie in this box.
    exact : bool
        Whether the numbers are exact, and not bounds.
    """

    demands: list[Demand]
    boxes: dict[Node, tuple[list[int], list[int]]]
    exact: bool

    @property
    def windows(self) -> int:
        """Windows to compute, of all tensors."""
        return sum(demand.missing for demand in self.demands)


def estimated(boxes: Sequence[Box]) -> Estimate:
    """What some pixels take, by arithmetic alone."""
    spans: dict[Node, list[Spans]] = {}
    for root, start, stop in boxes:
        spans.setdefault(root, []).append(Spans.of_box(start, stop))
    found: list[Demand] = []
    exact = True
    for node in consumers_first(list(spans)):
        if not spans.get(node):
            continue
        layout, needs, tiles = node.store.layout(node.spec), Needs(), Needs()
        for span in spans[node]:
            needs.add(Product.touching(node.spec.grid, span))
            tiles.add(Product.touching(layout.grid, span))
        if not (needs.countable and tiles.countable):
            needs, tiles, exact = needs.hull(), tiles.hull(), False
        for upstream in node.inputs:
            exact &= separable(upstream.window)
            spans.setdefault(upstream.node, []).extend(Spans.of_windows(upstream.window, part) for part in needs.parts)
        count, tile_count = needs.count(), tiles.count()
        counts = TileCounts(0, 0, tile_count)
        found.append(Demand(node, layout, count, count, counts, tile_count, tuple(needs.parts)))
    return Estimate(found, {node: _hull(parts) for node, parts in spans.items() if parts}, exact)


def demands(boxes: Sequence[Box]) -> tuple[list[Demand], bool]:
    """What some pixels take, beside what is stored, consumers first; whether it is exact."""
    estimate = estimated(boxes)
    inventories = {node: node.store.inventory(node.spec, *box) for node, box in estimate.boxes.items()}
    if estimate.exact and all(inventory.empty for inventory in inventories.values()):
        return estimate.demands, True
    if any(demand.needed > _MOST_NAMED for demand in estimate.demands):
        return estimate.demands, False
    return _named(boxes, inventories), True


def _hull(spans: Sequence[Spans]) -> tuple[list[int], list[int]]:
    starts, stops = zip(*(span.hull for span in spans), strict=True)
    return np.min(starts, axis=0).tolist(), np.max(stops, axis=0).tolist()


def _named(boxes: Sequence[Box], inventories: dict[Node, Inventory]) -> list[Demand]:
    """Window by window, which is exact whatever is stored."""
    regions: dict[Node, list[tuple[IntArray, IntArray]]] = {}
    for root, start, stop in boxes:
        regions.setdefault(root, []).append((_row(start), _row(stop)))
    found: list[Demand] = []
    for node in consumers_first(list(regions)):
        if node not in regions:
            continue
        starts, stops = (np.concatenate(bounds) for bounds in zip(*regions[node], strict=True))
        inventory, grid = inventories[node], node.spec.grid
        missing = inventory.missing(grid, starts, stops)
        if len(missing):
            for upstream in node.inputs:
                regions.setdefault(upstream.node, []).append(upstream.window.bounds(missing))
        tile_grid = inventory.layout.grid
        touched = set(tile_grid.indices(starts, stops))
        into = tile_grid.indices(*grid.window.bounds(missing)) if len(missing) else []
        found.append(
            Demand(
                node,
                inventory.layout,
                len(grid.points(starts, stops)),
                len(missing),
                inventory.counts(len(touched), touched.__contains__),
                sum(tile not in inventory.complete for tile in into),
                missing,
            )
        )
    return found


def _row(point: Sequence[int]) -> IntArray:
    return np.array([point], dtype=np.int64)
