"""What a fill would cost: the windows that it needs of each tensor of a chain, and which of them are not stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import Computation, Node, consumers_first
from infinite_tensor.engine.plan import arg_starts, reach_error
from infinite_tensor.errors import RegionError
from infinite_tensor.filling.mask import TakenTiles, Target, taken_tiles
from infinite_tensor.geometry.points import Index, IntArray, as_tuples, joined, unique_points
from infinite_tensor.geometry.window_sets import IndexProduct, Intervals, WindowSet, separable
from infinite_tensor.support.tables import Tabular, bytes_of, count_if_any, count_of, shown_id
from infinite_tensor.tilestore.inventory import Inventory, TileCounts, windows_over_tiles
from infinite_tensor.tilestore.layout import TileLayout

StateArray: TypeAlias = npt.NDArray[np.str_]

SKIPPED = "skipped"
"""A mask leaves the tile out, and it is not stored."""

_MOST_NAMED = 2**21
"""More windows of one tensor are counted only, as if nothing of them were stored."""


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
    runs : int
        Windows that ``f`` is run for: those of several tensors that one computes stand with the first.
    tiles : TileCounts
        The tiles that hold what is needed.
    uncovered : int
        How many more there are that no window covers.
    written : int
        Tiles that windows will be stored in.
    windows : int64 array of shape (N, ndim), or tuple of IndexProduct
        The windows to compute, without those that stand with another tensor which the same ``f`` computes; as products
        where they were counted only.
    """

    node: Node
    layout: TileLayout
    needed: int
    missing: int
    runs: int
    tiles: TileCounts
    uncovered: int
    written: int
    windows: IntArray | tuple[IndexProduct, ...]


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
    outside : RegionError or None
        What there is to say of a window that reads beyond the end of an arg, where one is known to.
    """

    demands: list[Demand]
    boxes: dict[Node, tuple[list[int], list[int]]]
    exact: bool
    outside: RegionError | None = None

    @property
    def windows(self) -> int:
        """Windows to compute, of all tensors."""
        return sum(demand.missing for demand in self.demands)


def estimated(targets: Sequence[Target]) -> Estimate:
    """What some pixels take, by arithmetic alone, which sees no mask."""
    intervals: dict[Node, list[Intervals]] = {}
    for target in targets:
        intervals.setdefault(target.node, []).append(Intervals.of_box(target.start, target.stop))
    found: list[Demand] = []
    exact, outside = True, None
    for computation, nodes in consumers_first(list(intervals)).items():
        needs = {node: WindowSet.touching(node.spec.grid, intervals.get(node, ())) for node in nodes}
        runs = WindowSet.all_of(
            IndexProduct(part.coordinates[: computation.coordinates]) for need in needs.values() for part in need.parts
        )
        exact &= runs.exact and all(need.exact for need in needs.values())
        for at, upstream in enumerate(computation.inputs):
            for part in runs.parts if exact and outside is None else ():
                if part.count:
                    first, last = zip(
                        *[(int(indices[0]), int(indices[-1])) for indices in part.coordinates], strict=True
                    )
                    outside = outside or reach_error(computation, at, upstream, first, last)
            exact &= separable(upstream.window)
            read = [upstream.reads.intervals(part) for part in runs.parts]
            intervals.setdefault(upstream.node, []).extend(pixels for pixels in read if pixels is not None)
        counted, countable = _counted(computation, needs, runs, intervals)
        found += [_copied(demand) for demand in counted] if computation.copied else counted
        exact &= countable
    return Estimate(found, {node: _hull(parts) for node, parts in intervals.items() if parts}, exact, outside)


def _counted(
    computation: Computation, needs: dict[Node, WindowSet], runs: WindowSet, intervals: dict[Node, list[Intervals]]
) -> tuple[list[Demand], bool]:
    """What becomes of the windows that a computation runs, for each of its tensors; whether it is exact."""
    found: list[Demand] = []
    before: list[IndexProduct] = []
    exact = True
    for node in computation.nodes:
        layout, grid = node.contents.layout(node.spec), node.spec.grid
        made = WindowSet.all_of(part.within(grid) for part in runs.parts)
        need = needs.get(node, WindowSet())
        if not intervals.get(node):
            intervals[node] = [Intervals.covered(grid, part) for part in made.parts]
        if not intervals[node]:
            continue
        either = WindowSet.all_of([*made.parts, *need.parts])
        tiles, uncovered = WindowSet.touching(layout.grid, intervals[node]), uncovered_tiles(node, intervals[node])
        fresh = [part for part in need.parts if not any(part.lies_in(other) for other in before)]
        before += need.parts
        runs_here = 0 if found else runs.count()
        counts = TileCounts(0, 0, tiles.count() - uncovered)
        found.append(
            Demand(
                node, layout, either.count(), made.count(), runs_here, counts, uncovered, counts.missing, tuple(fresh)
            )
        )
        exact &= made.exact and either.exact and tiles.exact
    return found, exact


def _copied(demand: Demand) -> Demand:
    """What becomes of windows whose pixels are copied from memory: none is computed."""
    return replace(demand, missing=0, runs=0, written=0, windows=())


def uncovered_tiles(node: Node, intervals: Sequence[Intervals]) -> int:
    """How many tiles over some pixels no window covers; where windows move along a diagonal, at least so many."""
    tile_grid, grid = node.contents.layout(node.spec).grid, node.spec.grid
    tiles, covered = WindowSet(), WindowSet()
    for pixels in intervals:
        here, windows = IndexProduct.touching(tile_grid, pixels), IndexProduct.touching(grid, pixels)
        tiles.add(here)
        if windows.count:
            covered.add(here.meet(IndexProduct.touching(tile_grid, Intervals.covered(grid, windows))))
    return tiles.count() - covered.count() if tiles.countable and covered.countable else 0


def demands(targets: Sequence[Target], *, named: bool = False) -> tuple[list[Demand], bool]:
    """What some pixels take, beside what is stored, consumers first; whether it is exact.

    Where it is not, it is what they take without masks and with nothing stored; never so if `named`.

    Raises
    ------
    RegionError
        If a window is met that reads beyond the end of an arg.
    """
    estimate = estimated(targets)
    inventories = {node: node.contents.inventory(node.spec, *box) for node, box in estimate.boxes.items()}
    plain = all(target.is_whole for target in targets)
    if plain and estimate.exact and all(inventory.empty for inventory in inventories.values()):
        if estimate.outside is not None:
            raise estimate.outside
        return estimate.demands, True
    if not named and any(demand.needed * share_of(targets) > _MOST_NAMED for demand in estimate.demands):
        return estimate.demands, False
    return _named(targets, inventories), True


def share_of(targets: Sequence[Target]) -> Fraction:
    """Which part of the tiles of some regions is wanted."""
    return Fraction(sum(target.tile_count for target in targets), sum(target.box_count for target in targets) or 1)


def _hull(intervals: Sequence[Intervals]) -> tuple[list[int], list[int]]:
    starts, stops = zip(*(span.hull for span in intervals), strict=True)
    return np.min(starts, axis=0).tolist(), np.max(stops, axis=0).tolist()


def _named(targets: Sequence[Target], inventories: dict[Node, Inventory]) -> list[Demand]:
    """Window by window, which is exact whatever is stored."""
    regions: dict[Node, list[tuple[IntArray, IntArray]]] = {}
    for target in targets:
        regions.setdefault(target.node, []).append(target.all_regions)
    taken = taken_tiles(targets)
    found: list[Demand] = []
    for computation, nodes in consumers_first(list(regions)).items():
        missing = {
            node: inventories[node].missing(node.spec.grid, *_concatenated(regions[node]))
            for node in nodes
            if node in regions
        }
        if not missing:
            continue
        windows = reduce(joined, [computation.own(own) for own in missing.values()])
        for at, upstream in enumerate(computation.inputs if len(windows) else ()):
            read = upstream.reads.regions(arg_starts(computation, at, upstream, windows))
            # Where all is constant, no pixel is.
            if len(read[0]):
                regions.setdefault(upstream.node, []).append(read)
        before, runs = windows[:0], len(windows)
        for node in computation.nodes:
            if node in inventories:
                fresh = _without(missing.get(node, node.indices(windows[:0])), node.indices(before))
                demand = _named_demand(node, regions.get(node), windows, inventories[node], taken.get(node))
                demand = replace(demand, runs=runs, windows=fresh)
                found.append(_copied(demand) if computation.copied else demand)
                before, runs = joined(before, computation.own(fresh)), 0
    return found


def _named_demand(
    node: Node,
    regions: Sequence[tuple[IntArray, IntArray]] | None,
    windows: IntArray,
    inventory: Inventory,
    taken: TakenTiles | None,
) -> Demand:
    """What becomes of the windows that a computation runs, for a tensor of which some regions are needed."""
    grid, computation, tile_grid = node.spec.grid, node.computation, inventory.layout.grid
    made = node.indices(windows)
    if len(computation.tensors) > 1:
        made = made[grid.exist(made)]
    covered = grid.bounds(made)
    starts, stops = covered if regions is None else _concatenated(regions)
    needed = grid.points(starts, stops) if regions is not None else made
    if len(computation.tensors) > 1:
        needed = unique_points(np.concatenate([needed, made]))
    tiles = tile_grid.points(starts, stops)
    first, last = windows_over_tiles(grid, inventory.layout, tiles)
    touched = set(as_tuples(tiles[np.asarray((first < last).all(axis=1))]))
    into = tile_grid.indices(*covered) if len(made) else []
    return Demand(
        node,
        inventory.layout,
        len(needed),
        len(made),
        len(windows),
        inventory.counts(len(touched), touched.__contains__),
        len(tiles) - len(touched),
        sum(tile not in inventory.complete and (taken is None or tile in taken) for tile in into),
        made,
    )


def _concatenated(regions: Sequence[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    starts, stops = (np.concatenate(bounds) for bounds in zip(*regions, strict=True))
    return starts, stops


def _without(windows: IntArray, others: IntArray) -> IntArray:
    """Those of some windows that are not among others."""
    if not len(others):
        return windows
    known = set(as_tuples(others))
    fresh: IntArray = windows[np.array([index not in known for index in as_tuples(windows)], dtype=bool)]
    return fresh


@dataclass(frozen=True)
class TensorPlan:
    """One tensor's part of a `FillPlan`.

    Attributes
    ----------
    tensor_id : str
        Its id.
    needed : int
        Windows that are needed.
    stored : int
        How many of these are stored already.
    calls : int
        Calls of ``f`` for the others, at least: where a region takes several steps, batches may be smaller. Those of
        an ``f`` with several outputs stand with its first.
    tiles : TileCounts
        Tiles that hold what is needed, by what is stored of them now: complete, partial, missing.
    uncovered : int
        How many more tiles there are that no window covers: nothing is stored of them.
    skipped : int
        Tiles of the region that the mask leaves out, and that are not stored.
    bytes_read : int
        Complete tiles that are read, in bytes, not compressed.
    bytes_written : int
        Tiles that windows are stored in, in bytes, not compressed; 0 in memory.
    amplification : float
        Windows needed per window that is needed of the tensor that is filled, of several the one that needs most: what
        halos and overlaps cost.
    across_bands : int
        Windows that several bands need, counted once for each of these but one. If the tensor is filled, what they add
        to later bands is stored until then; otherwise they are read again, or computed again if they are not stored.
        0 where there are more than 256 bands: nobody counts these.
    """

    tensor_id: str
    needed: int
    stored: int
    calls: int
    tiles: TileCounts
    uncovered: int
    skipped: int
    bytes_read: int
    bytes_written: int
    amplification: float
    across_bands: int = 0

    @property
    def windows(self) -> int:
        """Windows to compute."""
        return self.needed - self.stored


@dataclass(frozen=True)
class FilledRegion:
    """The pixels of one tensor that a fill stores: those of all tiles that a region touches.

    Attributes
    ----------
    tensor_id : str
        The id of the tensor.
    start, stop : tuple of int
        The first pixel, and the one after the last, per dimension.
    """

    tensor_id: str
    start: Index
    stop: Index

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{b}' for a, b in zip(self.start, self.stop, strict=True))}]"


@dataclass(frozen=True)
class FillPlan(Tabular):
    """What it would cost to fill a region, or regions of several tensors.

    Attributes
    ----------
    regions : tuple of FilledRegion
        What would be stored of each tensor that is filled; empty where there is nothing to fill.
    tensors : tuple of TensorPlan
        The tensors that are filled and all upstream, each after those that it reads, and each once.
    peak_memory : int
        The most memory that the fill is expected to hold, in bytes, beside what ``f`` itself takes.
    exact : bool
        Whether the windows are counted exactly. Otherwise there are too many to look at each, and the numbers are
        bounds: there are at most so many.
    bands : int
        In how many parts the regions are worked through one after the other: more where memory allows no wider ones.
    """

    regions: tuple[FilledRegion, ...]
    tensors: tuple[TensorPlan, ...]
    peak_memory: int
    exact: bool
    bands: int = 1

    _HEADINGS: ClassVar = (
        "tensor",
        "needed",
        "stored",
        "to compute",
        "calls of f",
        "complete",
        "partial",
        "missing",
        "uncovered",
        "skipped",
        "read",
        "written",
        "per window",
        "across bands",
    )

    @property
    def windows(self) -> int:
        """Windows to compute, of all tensors."""
        return sum(tensor.windows for tensor in self.tensors)

    @property
    def calls(self) -> int:
        """Calls of ``f``, of all tensors."""
        return sum(tensor.calls for tensor in self.tensors)

    @property
    def bytes_written(self) -> int:
        """Bytes of tiles that are stored, not compressed."""
        return sum(tensor.bytes_written for tensor in self.tensors)

    @property
    def bytes_read(self) -> int:
        """Bytes of tiles that are read, not compressed."""
        return sum(tensor.bytes_read for tensor in self.tensors)

    def _rows(self) -> list[list[str]]:
        rows = [
            [
                shown_id(tensor.tensor_id),
                *map(count_of, (tensor.needed, tensor.stored, tensor.windows, tensor.calls)),
                *map(count_of, tensor.tiles),
                count_if_any(tensor.uncovered),
                count_if_any(tensor.skipped),
                bytes_of(tensor.bytes_read),
                bytes_of(tensor.bytes_written),
                f"{tensor.amplification:.2f}",
                count_if_any(tensor.across_bands),
            ]
            for tensor in self.tensors
        ]
        total = ["all", "", "", count_of(self.windows), count_of(self.calls), "", "", "", "", ""]
        return [*rows, [*total, bytes_of(self.bytes_read), bytes_of(self.bytes_written), "", ""]]

    @property
    def _title(self) -> str:
        names = [f"{shown_id(each.tensor_id)} " if len(self.regions) > 1 else "" for each in self.regions]
        filled = ", ".join(f"{name}{region}" for name, region in zip(names, self.regions, strict=True))
        bound = "" if self.exact else "; counts are upper bounds"
        bands = f" in {count_of(self.bands)} bands" if self.bands > 1 else ""
        return f"fill {filled or 'nothing'}{bands}, about {bytes_of(self.peak_memory)} of memory{bound}"


def tensor_plans(
    targets: Sequence[Target],
    demands: Sequence[Demand],
    left_out: Mapping[Node, LeftOut],
    across_bands: Mapping[Node, int],
) -> list[TensorPlan]:
    """What filling some pixels takes of each tensor, by these demands, which come consumers first."""
    roots = {target.node for target in targets}
    read = {upstream.node for demand in demands for upstream in demand.node.computation.inputs}
    of_root = max((demand.needed for demand in demands if demand.node in roots), default=0)
    found = []
    for demand in reversed(demands):
        node = demand.node
        tile_bytes = demand.layout.tile_bytes if node.contents.outlives_process else 0
        uncovered, skipped = left_out.get(node, (demand.uncovered, 0))
        found.append(
            TensorPlan(
                node.spec.tensor_id,
                demand.needed,
                demand.needed - demand.missing,
                node.computation.batching.calls(demand.runs),
                demand.tiles,
                uncovered,
                skipped,
                # What is complete of a tensor that is filled is passed over.
                demand.tiles.complete * tile_bytes if node in read else 0,
                demand.written * tile_bytes,
                demand.needed / of_root if of_root else 0.0,
                across_bands.get(node, 0),
            )
        )
    return found


class LeftOut(NamedTuple):
    """Tiles of a region that a fill does not store: those that no window covers, and those that its mask leaves out."""

    uncovered: int
    skipped: int


NOTHING_LEFT_OUT = LeftOut(0, 0)


def tile_states(target: Target) -> StateArray:
    """For each tile of a region, the one of `TILE_STATES` that it is in, or "skipped"."""
    node, start, stop = target.node, target.start, target.stop
    inventory = node.contents.inventory(node.spec, start, stop)
    states = inventory.states(node.spec.grid, *inventory.layout.box(start, stop))
    if target.wanted is not None:
        states[(states == "missing") & ~target.wanted.wanted] = SKIPPED
    return states


def left_out(targets: Sequence[Target]) -> LeftOut:
    """How many tiles of some regions of one tensor a fill does not store, each once."""
    wanted = [target.wanted for target in targets if target.wanted is not None]
    if len(wanted) < len(targets) or all(target.is_whole for target in targets):
        regions = [Intervals.of_box(target.start, target.stop) for target in targets]
        return LeftOut(uncovered_tiles(targets[0].node, regions), 0)
    uncovered = skipped = 0
    for number, (target, own) in enumerate(zip(targets, wanted, strict=True)):
        states = tile_states(target)
        for other in wanted[number + 1 :]:
            here, there = own.shared(other)
            states[here][(states[here] == SKIPPED) & other.wanted[there]] = "missing"
        for other in wanted[:number]:
            states[own.shared(other)[0]] = "counted"
        uncovered += int(np.count_nonzero(states == "uncovered"))
        skipped += int(np.count_nonzero(states == SKIPPED))
    return LeftOut(uncovered, skipped)
