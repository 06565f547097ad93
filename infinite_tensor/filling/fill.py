"""Computing and storing a region ahead of reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from infinite_tensor.engine.chain import Computation, Node, chain_of, resolved
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.engine.reads import Views
from infinite_tensor.engine.run import run_steps
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.cutting import Bands, cut_into_bands, held_bytes, shard_of, side_by_side
from infinite_tensor.filling.plan import Box, FillPlan, demands, estimated, fill_plan, uncovered_tiles
from infinite_tensor.filling.progress import FillReport, Tally, TensorReport, Watcher
from infinite_tensor.geometry.points import Index, is_empty
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.geometry.window_sets import IndexProduct, Intervals
from infinite_tensor.support.interrupts import Mark, store_call
from infinite_tensor.support.tables import bytes_of
from infinite_tensor.tilestore.inventory import TILE_STATES
from infinite_tensor.tilestore.store import TileStore

_DEFAULT_HELD = 2**29
_LENT = 2**26
"""What stores without a limit may keep."""
_OVERHEAD = 2**26
"""What waits to be written, and results that have not been handed to a store yet."""


@dataclass(frozen=True)
class Job:
    """Regions to fill, and how.

    Attributes
    ----------
    passes : tuple of mapping of Node to Bands
        The regions, which begin and end with tiles, each with its order. Those of one pass are filled side by side.
    peak_memory : int
        The most memory that it is expected to hold, in bytes.
    """

    passes: tuple[Mapping[Node, Bands], ...]
    peak_memory: int

    @property
    def boxes(self) -> list[Box]:
        """The regions. A tensor comes after those that it reads."""
        return [(node, bands.start, bands.stop) for each in self.passes for node, bands in each.items()]

    @property
    def chain(self) -> list[Node]:
        """The tensors that are filled and all upstream, each after those that it reads."""
        return chain_of([node for node, _, _ in self.boxes])

    @property
    def uncovered(self) -> dict[str, int]:
        """How many tiles of the regions no window covers, per tensor that is filled."""
        return {
            node.spec.tensor_id: uncovered_tiles(node, [Intervals.of_box(start, stop)])
            for node, start, stop in self.boxes
        }

    @property
    def stores(self) -> list[TileStore]:
        """Where these are stored."""
        return _stores_of(self.chain)

    def plan(self) -> FillPlan:
        """What it costs, beside what is stored."""
        needs, exact = demands(self.boxes)
        return fill_plan(self.boxes, needs, self.peak_memory, exact=exact)


def prepare(
    targets: Sequence[tuple[Node, Selection]], max_memory: int | None, shard: tuple[int, int] | None = None
) -> Job:
    """What it takes to fill regions of some tensors, or a shard of them.

    Raises
    ------
    ValidationError
        If it cannot be done within `max_memory`.
    """
    nodes = resolved([node for node, _ in targets])
    order = chain_of(nodes)
    boxes: list[Box] = []
    selections = [selection for _, selection in targets]
    for node, selection in sorted(zip(nodes, selections, strict=True), key=lambda target: order.index(target[0])):
        start, stop = _to_fill(node, selection)
        if shard is not None:
            start, stop = shard_of(node.contents.layout(node.spec), start, stop, *shard)
        if not is_empty(start, stop):
            boxes.append((node, start, stop))
    passes = [found for family in _families(boxes) for found in _passes(family, max_memory)]
    return Job(tuple(cuts for cuts, _ in passes), max((most for _, most in passes), default=0))


def _families(boxes: Sequence[Box]) -> list[list[Box]]:
    """Regions, those together whose tensors share some upstream, or read each other."""
    families: list[tuple[set[Computation], list[Box]]] = []
    for box in boxes:
        chain, together, apart = {node.computation for node in chain_of([box[0]])}, [box], []
        for family in families:
            if chain.isdisjoint(family[0]):
                apart.append(family)
            else:
                chain, together = chain | family[0], [*family[1], *together]
        families = [*apart, (chain, together)]
    return [together for _, together in families]


def _passes(boxes: Sequence[Box], max_memory: int | None) -> list[tuple[dict[Node, Bands], int]]:
    """How regions are worked through: side by side where memory allows it. And how much memory each pass takes."""
    nodes = [node for node, _, _ in boxes]
    limits = [store.contents.cache_limit for store in _stores_of(chain_of(nodes))]
    caches = sum(_LENT if limit is None else limit for limit in limits)
    held = _DEFAULT_HELD if max_memory is None else max_memory - caches - _OVERHEAD
    if len(set(nodes)) == len(nodes):
        cuts = _cut(boxes, held // len(boxes))
        even = len({bands.band_count for bands in cuts.values()}) == 1
        needed = held_bytes(cuts) if even else 0
        if len(boxes) == 1 and max_memory is not None and needed > held:
            raise ValidationError(
                f"max_memory is {bytes_of(max_memory)}, but the caches of the stores may take {bytes_of(caches)}, a "
                f"step {bytes_of(needed)}, and what waits to be written {bytes_of(_OVERHEAD)}: allow that much, or "
                "give smaller tiles or a smaller cache_size_bytes"
            )
        if len(boxes) == 1 or (even and needed <= held):
            return [(cuts, needed + caches + _OVERHEAD)]
    return [found for box in boxes for found in _passes([box], max_memory)]


def _cut(boxes: Sequence[Box], most_bytes: int) -> dict[Node, Bands]:
    """Regions of different tensors, cut into as many bands each, if that can be."""
    cuts = {box[0]: cut_into_bands(*box, most_bytes) for box in boxes}
    most = max(bands.band_count for bands in cuts.values())
    return cuts | {box[0]: cut_into_bands(*box, most_bytes, most) for box in boxes if cuts[box[0]].band_count < most}


def _stores_of(nodes: Sequence[Node]) -> list[TileStore]:
    """The stores of some tensors, each once."""
    return list({id(node.store): node.store for node in nodes}.values())


def is_filled(node: Node, selection: Selection) -> bool:
    """Whether no window is missing that a fill would compute."""
    start, stop = _to_fill(node, selection)
    if is_empty(start, stop):
        return True
    inventory, grid = node.contents.inventory(node.spec, start, stop), node.spec.grid
    if inventory.empty:
        return IndexProduct.touching(grid, Intervals.of_box(start, stop)).count == 0
    return not len(inventory.missing(grid, np.array([start]), np.array([stop])))


def coverage(node: Node, selection: Selection, state: object) -> torch.Tensor:
    """Which tiles are in a state, for each tile that a region touches; see `InfiniteTensor.coverage`."""
    if state is not None and (not isinstance(state, str) or state not in TILE_STATES):
        raise ValidationError(f"state must be None or one of {', '.join(map(repr, TILE_STATES))}, got {state!r:.200}")
    start, stop = selection.start, selection.stop
    if is_empty(start, stop):
        return torch.ones([0] * len(start), dtype=torch.bool, device="cpu")
    inventory = node.contents.inventory(node.spec, start, stop)
    states = inventory.states(node.spec.grid, *inventory.layout.box(start, stop))
    return torch.from_numpy(states != "missing" if state is None else states == state)


def _to_fill(node: Node, selection: Selection) -> tuple[Index, Index]:
    """The pixels of all tiles that hold a region; in memory, where windows are kept, those of the region."""
    start, stop = selection.start, selection.stop
    if is_empty(start, stop) or not node.contents.outlives_process:
        return start, stop
    return node.contents.layout(node.spec).whole(start, stop)


def fill(job: Job, workers: int | None, progress: bool | str | Watcher) -> FillReport:
    """Compute and store what is missing, pass after pass.

    A Ctrl-C, or an error of ``f``, ends it after what is done has been stored.
    """
    nodes = job.chain
    before = {node: node.contents.written(node.spec.tensor_id) for node in nodes}
    # What is stored shows as it is met: to look for it beforehand would take a listing.
    total = estimated(job.boxes).windows
    with Tally(total, progress, sum(bands.steps for each in job.passes for bands in each.values())) as tally:
        try:
            lent = Mark()
            with lent.running:
                _lend(job, lent)
                for cuts in job.passes:
                    _fill(cuts, tally, workers)
        finally:
            for store in job.stores:
                store.flush()
    reports = []
    for node in nodes:
        # A tensor that has been cleared meanwhile is counted from 0 again.
        counts = zip(node.contents.written(node.spec.tensor_id), before[node], strict=True)
        tiles, nbytes = (max(0, now - earlier) for now, earlier in counts)
        reports.append(TensorReport(node.spec.tensor_id, tally.windows[node], tiles, nbytes))
    return FillReport(tuple(reports), tally.seconds)


def _fill(cuts: Mapping[Node, Bands], tally: Tally, workers: int | None) -> None:
    for bands in side_by_side(cuts):
        rest = _renumbered({node: _unfinished(node, band) for node, band in bands.items()})
        count = sum(len(band.numbers) for band in rest.values())
        tally.pass_steps(sum(len(band.numbers) for band in bands.values()) - count)
        if count:
            call = store_call()
            with call.running, Views(CLAIMS.reader(workers, tally.count)) as views:
                call.begin(*[node.contents for node in rest], reads=True)
                steps = [range(at, at + 1) for at in range(count)]
                run_steps(rest, steps, views, lambda _: tally.pass_steps(1))


def _unfinished(node: Node, band: NumberedRegions) -> NumberedRegions:
    """The steps of a band from where it is not complete on, without those that are."""
    # Where nothing is stored, to ask for each tile would only cost time.
    if not node.contents.is_complete(node.spec, band.starts[0].tolist(), band.stops[0].tolist()):
        return band
    rest = zip(band.starts[1:].tolist(), band.stops[1:].tolist(), strict=True)
    kept = [number for number, step in enumerate(rest, 1) if not node.contents.is_complete(node.spec, *step)]
    return NumberedRegions(band.numbers[kept], band.starts[kept], band.stops[kept])


def _renumbered(bands: Mapping[Node, NumberedRegions]) -> dict[Node, NumberedRegions]:
    """The bands that have steps, numbered without gaps."""
    numbers = np.sort(np.concatenate([band.numbers for band in bands.values()]))
    return {
        node: NumberedRegions(np.searchsorted(numbers, band.numbers), band.starts, band.stops)
        for node, band in bands.items()
        if len(band.numbers)
    }


def writable(job: Job) -> Job:
    """What is left to fill where some stores are read-only; ValidationError where one of these lacks something."""
    for node, start, stop in job.boxes:
        if node.contents.read_only and not node.contents.is_complete(node.spec, start, stop):
            raise ValidationError(
                f"{node.store!r} is read-only, and lacks some of tensor {node.spec.tensor_id!r}: open it with mode='a' "
                "or 'r+' to fill a tensor"
            )
    left = [{node: bands for node, bands in cuts.items() if not node.contents.read_only} for cuts in job.passes]
    return replace(job, passes=tuple(filter(None, left)))


def _lend(job: Job, mark: Mark) -> None:
    """Give stores that have no limit one for the time of a fill, but for those in memory that are filled."""
    filled = {id(node.store) for node, _, _ in job.boxes}
    for store in job.stores:
        if id(store) not in filled or store.contents.outlives_process:
            store.contents.lend(mark, _LENT)
