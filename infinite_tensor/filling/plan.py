"""`FillPlan`: the cost of a fill.

For each tensor, the needed windows and the windows not stored yet are counted.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import Node, consumers_first
from infinite_tensor.engine.formulas import never_lacks, reads_of
from infinite_tensor.engine.lifetimes import NumberedRegions, Regions
from infinite_tensor.engine.plan import arg_starts, reach_error
from infinite_tensor.errors import RegionError
from infinite_tensor.filling.cutting import shard_of_tiles
from infinite_tensor.filling.mask import Target, WantedTiles, clipped
from infinite_tensor.geometry.points import Index, IntArray, as_tuples, joined, unique_points
from infinite_tensor.geometry.window_sets import BoxUnion, gapless, pixels_of, same_windows, windows_over
from infinite_tensor.support.tables import Tabular, bytes_of, count_of, shown_id, times_of
from infinite_tensor.tilestore.inventory import Inventory, windows_over_tiles

StateArray: TypeAlias = npt.NDArray[np.str_]

SKIPPED = "skipped"
"""The state of an unstored tile excluded by a mask."""

_MOST_NAMED = 2**21
"""The maximum number of windows of a tensor to look up in the store. With more windows, all count as not stored."""


@dataclass(frozen=True)
class Demand:
    """Windows and tiles of one tensor, as needed by a fill.

    Attributes
    ----------
    node : Node
        The tensor.
    pixels : BoxUnion
        The pixels to read or to fill.
    needed : int
        The number of windows over these pixels, stored or not. Windows computed only for another output of the same
        ``f`` count too.
    missing : int
        The number of these windows that must be computed.
    runs : int
        The number of windows to call ``f`` for. If ``f`` has several outputs, only the first one counts them.
    tiles : int
        The number of incomplete tiles over `pixels`. Tiles that no window covers do not count.
    work : int
        The number of pixels to compute: all pixels of the windows, or the regions of a formula.
    inventory : Inventory or None
        What is stored of the tensor; None if this was not looked up.
    """

    node: Node
    pixels: BoxUnion
    needed: int
    missing: int
    runs: int
    tiles: int
    work: int
    inventory: Inventory | None = None


@dataclass(frozen=True)
class Estimate:
    """Demand of a fill for each tensor in a chain, if nothing is stored.

    Attributes
    ----------
    demands : list of Demand
        The demand for each tensor. Each comes before the tensors that it reads.
    exact : bool
        Whether the numbers are exact. Otherwise they are upper bounds.
    outside : RegionError or None
        The error for a window reading beyond the end of an arg; None if no such window is known.
    """

    demands: list[Demand]
    exact: bool
    outside: RegionError | None = None

    @property
    def windows(self) -> int:
        """The number of windows to compute, in total."""
        return sum(demand.runs for demand in self.demands)


def estimated(targets: Sequence[Target]) -> Estimate:
    """Estimate the demand for each tensor, by arithmetic alone.

    Masks are ignored.
    """
    pixels: dict[Node, BoxUnion] = {}
    for target in targets:
        _read(pixels, target.node, BoxUnion.of([target.start], [target.stop]))
    found: list[Demand] = []
    exact, outside = True, None
    for computation, nodes in consumers_first(list(pixels)):
        needs = {node: windows_over(node.grid, pixels[node]) for node in nodes if node in pixels}
        if not needs:
            continue
        few = computation.coordinates
        runs = reduce(BoxUnion.joined, [BoxUnion.of(need.low[:, :few], need.high[:, :few]) for need in needs.values()])
        exact &= runs.is_counted
        for at, upstream in enumerate(computation.inputs if runs else ()):
            if exact and outside is None:
                ends = zip(runs.low.tolist(), (runs.high - 1).tolist(), strict=True)
                errors = (reach_error(computation, at, upstream, *each) for each in ends)
                outside = next(filter(None, errors), None)
            exact &= gapless(upstream.window, runs)
            _read(pixels, upstream.node, upstream.reads.pixels(runs))
        for node in computation.nodes:
            missing = same_windows(runs, computation.coordinates, node.grid)
            # If f runs only for another output, all pixels of the windows count.
            own = pixels.get(node) or pixels_of(node.grid, missing)
            if not own:
                continue
            needed = missing.joined(needs[node]) if node in needs else missing
            tiles = _covered_tiles(node, own)
            exact &= needed.is_counted and tiles.is_counted and gapless(node.spec.grid.window, needed)
            _add(found, node, own, needed.count, missing.count, runs.count, tiles.count)
    return Estimate(found, exact, outside)


def _read(pixels: dict[Node, BoxUnion], node: Node, more: BoxUnion) -> None:
    if more:
        pixels[node] = pixels[node].joined(more) if node in pixels else more


def _covered_tiles(node: Node, pixels: BoxUnion) -> BoxUnion:
    """Return the tiles over `pixels` that windows cover."""
    tile_grid, grid = node.contents.layout(node.spec).grid, node.spec.grid
    low, high = grid.boxes(pixels.low, pixels.high)
    some = (low < high).all(axis=1)
    low, high = low[some], high[some]
    tiles = tile_grid.boxes(pixels.low[some], pixels.high[some])
    covered = tile_grid.boxes(grid.bounds(low)[0], grid.bounds(high - 1)[1])
    return BoxUnion.of(np.maximum(tiles[0], covered[0]), np.minimum(tiles[1], covered[1]))


def _add(
    found: list[Demand],
    node: Node,
    pixels: BoxUnion,
    needed: int,
    missing: int,
    runs: int,
    tiles: int,
    inventory: Inventory | None = None,
) -> None:
    work = missing * math.prod(node.grid.window.size)
    if node.computation.copied:
        work = 0
    if node.computation.is_direct:
        missing = runs = tiles = 0
    if node.computation.formula is not None:
        needed = 0
    if found and found[-1].node.computation == node.computation:
        runs = 0
    found.append(Demand(node, pixels, needed, missing, runs, tiles, work, inventory))


def demands(targets: Sequence[Target], *, named: bool = False) -> tuple[list[Demand], bool]:
    """Count the windows and tiles to compute, for each tensor in the chain.

    Each tensor comes before its args. Also return whether the counts are exact. For very many windows they are upper
    bounds, as if there were no mask and no stored windows. With ``named=True`` they are always exact.

    Raises
    ------
    RegionError
        If a window reads beyond the end of an arg.
    """
    estimate = estimated(targets)
    inventories = {
        demand.node: demand.node.contents.inventory(demand.node.spec, *demand.pixels.hull)
        for demand in estimate.demands
    }
    plain = all(target.is_whole for target in targets)
    if plain and estimate.exact and all(inventory.empty for inventory in inventories.values()):
        if estimate.outside is not None:
            raise estimate.outside
        return estimate.demands, True
    if not named and any(demand.needed * share_of(targets) > _MOST_NAMED for demand in estimate.demands):
        return estimate.demands, False
    return _named(targets, inventories), True


def share_of(targets: Sequence[Target]) -> Fraction:
    """Return the fraction of tiles selected by the masks of the targets; 1 without masks."""
    return Fraction(sum(target.tile_count for target in targets), sum(target.box_count for target in targets) or 1)


def _named(targets: Sequence[Target], inventories: dict[Node, Inventory]) -> list[Demand]:
    pixels: dict[Node, list[Regions]] = {}
    for target in targets:
        pixels.setdefault(target.node, []).append(target.all_regions)
    found: list[Demand] = []
    for computation, nodes in consumers_first(list(pixels)):
        if computation.formula is not None:
            for node in pixels.keys() & nodes:
                _add_formula(found, node, pixels)
            continue
        missing = [
            inventories[node].missing(node.spec.grid, *_joined(pixels[node]))[:, : computation.coordinates]
            for node in nodes
            if node in pixels
        ]
        if not missing:
            continue
        windows = reduce(joined, missing)
        for at, upstream in enumerate(computation.inputs if len(windows) else ()):
            read = upstream.reads.regions(arg_starts(computation, at, upstream, windows))
            # Windows in constant padding read no pixel.
            if len(read[0]):
                pixels.setdefault(upstream.node, []).append(read)
        for node in computation.nodes:
            if node in inventories:
                _add_named(found, node, pixels.get(node), windows, inventories[node])
    return found


def _add_formula(found: list[Demand], node: Node, pixels: dict[Node, list[Regions]]) -> None:
    """Append the pixels of a formula to `found`, and the pixels of its args to `pixels`."""
    starts, stops = _joined(pixels[node])
    for upstream, read in reads_of(node, NumberedRegions.alone(starts, stops), everything=True):
        if len(read.starts):
            pixels.setdefault(upstream.node, []).append((read.starts, read.stops))
    units = int((stops - starts).prod(axis=1).sum()) // math.prod(node.grid.window.size)
    _add(found, node, BoxUnion(starts, stops), units, units, 0, 0)


def _add_named(
    found: list[Demand], node: Node, pixels: list[Regions] | None, windows: IntArray, inventory: Inventory
) -> None:
    """Append the counts of windows and tiles of `node` to `found`, counted one by one.

    `pixels` are the regions to read; None if only other outputs of the same ``f`` are read. ``f`` will be called for
    `windows`.
    """
    grid, layout = node.spec.grid, inventory.layout
    missing = node.indices(windows)
    if len(node.computation.tensors) > 1:
        missing = missing[grid.exist(missing)]
        needed = missing if pixels is None else unique_points(np.concatenate([grid.windows(*_joined(pixels)), missing]))
    else:
        # An f with a single output is called only for readers of the output.
        assert pixels is not None
        needed = grid.windows(*_joined(pixels))
    own = _joined(pixels) if pixels else grid.pixels(missing, missing + 1)
    tiles = layout.grid.windows(*own)
    first, last = windows_over_tiles(grid, layout, tiles)
    covered = tiles[np.asarray((first < last).all(axis=1))]
    incomplete = sum(tile not in inventory.complete for tile in as_tuples(covered))
    _add(found, node, BoxUnion(*own), len(needed), len(missing), len(windows), incomplete, inventory)


def _joined(regions: Sequence[Regions]) -> Regions:
    starts, stops = (np.concatenate(bounds) for bounds in zip(*regions, strict=True))
    return starts, stops


class Share(NamedTuple):
    """The demand of one shard for a tensor.

    Attributes
    ----------
    starts, stops : int64 array of shape (N, ndim)
        The regions to fill. No tile belongs to two shares.
    missing : int
        The number of windows over these regions that must be computed.
    """

    starts: IntArray
    stops: IntArray
    missing: int


def shares_of(demand: Demand, count: int) -> Iterator[Share]:
    """Yield the regions and the number of missing windows of each shard.

    The pixels of `demand` are cut into at most `count` shards. A window over several shards counts in each.
    """
    layout, grid = demand.node.contents.layout(demand.node.spec), demand.node.spec.grid
    box = layout.box(*demand.pixels.hull)
    for rank in range(min(count, math.prod(map(operator.sub, *reversed(box))))):
        tiles = shard_of_tiles(*box, rank, count)
        start, stop = (list(map(operator.mul, side, layout.tile_shape)) for side in tiles)
        regions = clipped((demand.pixels.low, demand.pixels.high), start, stop)
        if not len(regions[0]):
            continue
        if demand.inventory is None:
            missing = windows_over(grid, BoxUnion(*regions)).count
        else:
            missing = len(demand.inventory.missing(grid, *regions))
        yield Share(*regions, missing)


def in_shares(demand: Demand, count: int) -> Demand:
    """Return `demand` with the counts for a fill in `count` shards.

    A window over several shards counts in each, because each shard computes it. A tensor in memory is not cut.
    """
    if not demand.node.contents.outlives_process:
        return demand
    missing = sum(share.missing for share in shares_of(demand, count))
    needed = demand.needed - demand.missing + missing
    work = missing * math.prod(demand.node.spec.grid.window.size)
    return replace(demand, needed=needed, missing=missing, runs=missing if demand.runs else 0, work=work)


@dataclass(frozen=True)
class TensorPlan:
    """One tensor's part of a `FillPlan`.

    Attributes
    ----------
    tensor_id : str
        The id of the tensor.
    needed : int
        The number of windows that are needed.
    stored : int
        The number of these windows that are already stored.
    windows : int
        The number of windows to compute. If ``f`` has several outputs, only the first one counts them, and the calls.
    calls : int
        The least number of calls of ``f`` for these windows. A fill in several steps may make more calls, with smaller
        batches.
    tiles : int
        The number of incomplete tiles that contain needed pixels. Tiles that no window covers do not count.
    bytes_written : int
        The uncompressed size of these tiles in bytes; 0 for a tensor in memory.
    work : float
        The number of pixels to compute for each pixel of the filled regions. A map without windows computes regions of
        any size, and counts only here.
    """

    tensor_id: str
    needed: int
    stored: int
    windows: int
    calls: int
    tiles: int
    bytes_written: int
    work: float


@dataclass(frozen=True)
class FilledRegion:
    """The pixels of one tensor stored by a fill.

    A fill stores all tiles touching a region.

    Attributes
    ----------
    tensor_id : str
        The id of the tensor.
    start, stop : tuple of int
        The first pixel, and the pixel after the last one, in each dimension.
    """

    tensor_id: str
    start: Index
    stop: Index

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{b}' for a, b in zip(self.start, self.stop, strict=True))}]"


@dataclass(frozen=True, repr=False)
class FillPlan(Tabular):
    """The cost of filling a region, or regions of several tensors.

    Attributes
    ----------
    regions : tuple of FilledRegion
        For each filled tensor, the region that would be stored; empty if there is nothing to fill.
    tensors : tuple of TensorPlan
        The filled tensors and all upstream tensors. Each tensor occurs once, after the tensors that it reads.
    peak_memory : int
        The expected peak memory of the fill in bytes, without the memory of ``f`` itself.
    exact : bool
        Whether the counts are exact. Otherwise there are too many windows to check. The counts are upper bounds, and
        are shown with "about".
    bands : int
        The number of bands into which the regions are cut. Bands are filled one after the other. With less memory,
        there are more bands.
    wasteful : str or None
        The id of a map that should get a smaller window: far more of its pixels are computed than are needed.
    """

    regions: tuple[FilledRegion, ...]
    tensors: tuple[TensorPlan, ...]
    peak_memory: int
    exact: bool
    bands: int = 1
    wasteful: str | None = None

    _COLUMNS: ClassVar = {
        "needed": ("needed", count_of),
        "stored": ("stored", count_of),
        "to compute": ("windows", count_of),
        "calls of f": ("calls", count_of),
        "tiles": ("tiles", count_of),
        "written": ("bytes_written", bytes_of),
        "work": ("work", times_of),
    }

    @property
    def work(self) -> float:
        """The number of pixels to compute for each pixel of the filled regions, in total."""
        return sum(tensor.work for tensor in self.tensors)

    @property
    def windows(self) -> int:
        """The number of windows to compute, in total."""
        return sum(tensor.windows for tensor in self.tensors)

    @property
    def calls(self) -> int:
        """The number of calls of ``f``, in total."""
        return sum(tensor.calls for tensor in self.tensors)

    @property
    def bytes_written(self) -> int:
        """The uncompressed size in bytes of all tiles to be stored."""
        return sum(tensor.bytes_written for tensor in self.tensors)

    @property
    def _title(self) -> str:
        names = [f"{shown_id(each.tensor_id)} " if len(self.regions) > 1 else "" for each in self.regions]
        filled = ", ".join(f"{name}{region}" for name, region in zip(names, self.regions, strict=True))
        bound = "" if self.exact else "; counts are upper bounds"
        bands = f" in {count_of(self.bands)} bands" if self.bands > 1 else ""
        waste = f"; give {shown_id(self.wasteful)} a smaller window=" if self.wasteful else ""
        return f"fill {filled or 'nothing'}{bands}, about {bytes_of(self.peak_memory)} of memory{bound}{waste}"

    def _cells(self, figures: object) -> list[str]:
        cells = super()._cells(figures)
        return cells if self.exact else [f"about {cell}" if cell else cell for cell in cells]


def tensor_plan(demand: Demand, pixels: int) -> TensorPlan:
    """Return the part of a `FillPlan` for one tensor. `pixels` is the number of filled pixels."""
    node, runs = demand.node, demand.runs
    tile_bytes = node.contents.layout(node.spec).tile_bytes if node.contents.outlives_process else 0
    calls, stored = node.computation.batching.calls(runs), demand.needed - demand.missing
    counts = demand.needed, stored, runs, calls, demand.tiles, demand.tiles * tile_bytes
    return TensorPlan(node.spec.tensor_id, *counts, demand.work / max(1, pixels))


def tile_states(target: Target) -> StateArray:
    """Return the state of each tile in a region.

    A state is one of `TILE_STATES`, or "skipped".
    """
    node, start, stop = target.node, target.start, target.stop
    inventory = node.contents.inventory(node.spec, start, stop)
    states = inventory.states(node.spec.grid, *inventory.layout.box(start, stop))
    if never_lacks(node):
        states[states == "missing"] = "stored"
    if isinstance(target.wanted, WantedTiles):
        states[(states == "missing") & ~target.wanted.wanted] = SKIPPED
    return states
