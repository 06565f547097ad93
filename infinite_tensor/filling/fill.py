"""Compute and store a region ahead of reads."""

from __future__ import annotations

import itertools
import operator
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from infinite_tensor.engine.assemble import open_views
from infinite_tensor.engine.chain import Computation, Node, NodeHolder, chain_of, node_of, resolved, watching
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.formulas import formulas_of, most_wasteful, spread
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.engine.locality import settle
from infinite_tensor.engine.loop import run_steps
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.cutting import Bands, cut_into_bands, held_bytes, shard_of, side_by_side
from infinite_tensor.filling.mask import PlacedMask, Target, WantedTiles, WritableTiles, writable_tiles
from infinite_tensor.filling.overviews import in_blocks_of, with_levels
from infinite_tensor.filling.plan import (
    SKIPPED,
    FilledRegion,
    FillPlan,
    demands,
    estimated,
    in_shares,
    share_of,
    tensor_plan,
    tile_states,
)
from infinite_tensor.filling.progress import FillReport, Reporting, Tally, TensorReport
from infinite_tensor.geometry.points import Index, is_empty
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.geometry.window_sets import BoxUnion, windows_over
from infinite_tensor.support.allocation import new_block
from infinite_tensor.support.given import MemoryTooSmallError, quoted, whole_mebibytes, word
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.support.tables import bytes_of
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import TILE_STATES

_DEFAULT_HELD = 2**29
_CACHE_BYTES = 2**26
"""The cache limit in bytes for a store without a limit."""
_CACHE_SHARE = 8
"""A store may cache `max_memory` divided by this."""
_OVERHEAD = 2**26
"""The memory for tiles waiting to be written, and for results not yet in a store."""


@dataclass(frozen=True)
class FillJob:
    """Regions to fill, cut into passes and bands.

    Attributes
    ----------
    targets : tuple of Target
        The regions, which begin and end at borders of tiles. Each tensor comes after the tensors that it reads.
    passes : tuple of mapping of Node to Bands
        The passes, which run one after the other. Each fills its regions side by side.
    peak_memory : int
        The expected peak memory of the fill, in bytes.
    max_memory : int or None
        The limit on memory given by the user, in bytes; None for the default limit.
    """

    targets: tuple[Target, ...]
    passes: tuple[Mapping[Node, Bands], ...]
    peak_memory: int
    max_memory: int | None

    @property
    def chain(self) -> list[Node]:
        """The filled tensors and all upstream tensors, sources first."""
        return chain_of([target.node for target in self.targets])

    @property
    def band_count(self) -> int:
        """The number of bands in all passes.

        Bands filled side by side count once.
        """
        return sum(bands.band_count for each in self.passes for bands in itertools.islice(each.values(), 1))

    @property
    def skipped(self) -> Counter[Node]:
        """The number of tiles excluded by masks, per filled tensor."""
        found: Counter[Node] = Counter()
        for target in self.targets:
            found[target.node] += target.box_count - target.tile_count
        return found

    def plan(self, shards: int | None = None) -> FillPlan:
        """Return the cost of the fill.

        If `shards` is given, each tensor in a persistent store is cut into that many shards. A window over several
        shards counts in each shard.
        """
        needs, exact = demands(self.targets)
        if shards is not None:
            needs = [in_shares(demand, shards) for demand in needs]
        pixels = _pixels(self.targets)
        tensors = [tensor_plan(demand, pixels) for demand in reversed(needs)]
        regions = [FilledRegion(target.node.spec.tensor_id, target.start, target.stop) for target in self.targets]
        wanted = {target.node: NumberedRegions.alone(*target.all_regions) for target in self.targets}
        most = most_wasteful(wanted, pixels, {demand.node: demand.work for demand in needs})
        wasteful = None if most is None else most.spec.tensor_id
        return FillPlan(tuple(regions), tuple(tensors), self.peak_memory, exact, self.band_count, wasteful)


class Request(NamedTuple):
    """A region of a tensor to fill, with an optional mask."""

    tensor: NodeHolder
    selection: Selection
    where: PlacedMask | None = None


def prepare(
    requests: Sequence[Request],
    max_memory: int | None,
    shard: tuple[int, int] | None = None,
    levels: Sequence[Sequence[NodeHolder]] = (),
    *,
    in_blocks: bool = True,
) -> FillJob:
    """Create the job for filling regions, or a shard of each region.

    `levels` lists, for each tensor, the levels of its pyramid to fill as well. If `in_blocks`, the job fills a tensor
    and its levels together, block by block.

    Raises
    ------
    MemoryTooSmallError
        If the fill does not fit into `max_memory`.
    ValidationError
        If a mask does not cover a region.
    """
    nodes = resolved([node_of(request.tensor) for request in requests])
    order = chain_of(nodes)
    wanted = sorted(zip(nodes, requests, strict=True), key=lambda each: order.index(each[0]))
    targets = [target for each in wanted if (target := _to_fill(*each, shard)) is not None]
    if not levels:
        return job_for(targets, max_memory)
    stacks = [with_levels(target, [*map(node_of, levels[nodes.index(target.node)])]) for target in targets]
    parts: list[list[Target]] = []
    for stack in stacks:
        in_memory = not stack[0].node.contents.outlives_process
        most = 0 if in_memory or not in_blocks else _held(stack, max_memory) // 2
        parts += in_blocks_of(stack, most)
    return _job([*itertools.chain(*stacks)], parts, max_memory)


def job_for(targets: Sequence[Target], max_memory: int | None) -> FillJob:
    """Create the job for filling `targets`.

    Each tensor must come after its args. Raise MemoryTooSmallError if the fill needs more than `max_memory`.
    """
    return _job(targets, _families(targets), max_memory)


def _job(targets: Sequence[Target], parts: Sequence[Sequence[Target]], max_memory: int | None) -> FillJob:
    passes = _passes_of(parts, max_memory)
    peak_memory = max([most for _, most in passes], default=0)
    return FillJob(tuple(targets), tuple(cuts for cuts, _ in passes), peak_memory, max_memory)


def _families(targets: Sequence[Target]) -> list[list[Target]]:
    """Group targets.

    Two targets are in one group if one tensor reads the other, if both read a common tensor, or if both are outputs of
    the same ``f``.
    """
    families: list[tuple[set[Computation], list[Target]]] = []
    for target in targets:
        chain, together, apart = {node.computation for node in chain_of([target.node])}, [target], []
        for family in families:
            if chain.isdisjoint(family[0]):
                apart.append(family)
            else:
                chain, together = chain | family[0], [*family[1], *together]
        families = [*apart, (chain, together)]
    return [together for _, together in families]


def _passes_of(parts: Sequence[Sequence[Target]], max_memory: int | None) -> list[tuple[dict[Node, Bands], int]]:
    found, refused = [], []
    for targets in parts:
        try:
            found += _passes(targets, max_memory)
        except MemoryTooSmallError as error:
            refused.append(error)
    if refused:
        raise max(refused, key=operator.attrgetter("least"))
    return found


def _passes(targets: Sequence[Target], max_memory: int | None) -> list[tuple[dict[Node, Bands], int]]:
    """Return the passes for `targets`, each with the memory it needs.

    Targets share a pass if memory allows.
    """
    nodes, held = [target.node for target in targets], _held(targets, max_memory)
    if len(set(nodes)) == len(nodes):
        # Levels need little memory compared with their tensor.
        most_bytes = held // max(1, sum(not target.is_level for target in targets))
        cuts = {target.node: cut_into_bands(target, most_bytes) for target in targets}
        most = max(bands.band_count for bands in cuts.values())
        # Those with fewer bands get as many, if possible.
        fewer = [bands.target for bands in cuts.values() if bands.band_count < most]
        cuts |= {target.node: cut_into_bands(target, most_bytes, most) for target in fewer}
        even = len({bands.band_count for bands in cuts.values()}) == 1
        needed = held_bytes(cuts) if even else 0
        if len(targets) == 1 and max_memory is not None and needed > held:
            enough, least = 0, needed + _OVERHEAD
            while enough < least:
                enough = -(-least // 2**20) * 2**20
                least = needed + _OVERHEAD + _kept(nodes, enough)
            raise MemoryTooSmallError(
                f"max_memory must be at least {whole_mebibytes(enough)}, got {bytes_of(max_memory)}: one step takes "
                f"{bytes_of(needed)}, the caches of the stores up to {bytes_of(_kept(nodes, max_memory))}, and tiles "
                f"waiting to be written {bytes_of(_OVERHEAD)}; give more memory, or use smaller tiles",
                enough,
            )
        if len(targets) == 1 or (even and needed <= held):
            return [(cuts, needed + _kept(nodes, max_memory) + _OVERHEAD)]
    return _passes_of([[target] for target in targets], max_memory)


def _held(targets: Sequence[Target], max_memory: int | None) -> int:
    """Return the bytes available to a fill outside of the caches."""
    if max_memory is None:
        return _DEFAULT_HELD
    return max_memory - _kept([target.node for target in targets], max_memory) - _OVERHEAD


def _kept(nodes: Sequence[Node], max_memory: int | None) -> int:
    """Return the bytes that the stores of the chains of `nodes` may cache."""
    computed = [node for node in chain_of(nodes) if not node.computation.is_direct]
    return sum(_kept_by(contents, max_memory) for contents in {node.contents: None for node in computed})


def _kept_by(contents: Contents, max_memory: int | None) -> int:
    limit = contents.cache_limit
    if max_memory is None and limit is not None and contents.outlives_process:
        return limit
    # Windows in memory are soon computed again.
    share = _CACHE_BYTES if max_memory is None else min(_CACHE_BYTES, max_memory // _CACHE_SHARE)
    return share if limit is None else min(share, limit)


def is_filled(request: Request) -> bool:
    """Whether a fill of the request would compute nothing."""
    target = _to_fill(node_of(request.tensor), request)
    if target is None:
        return True
    formulas, _ = formulas_of([target.node], everything=True)
    needed = spread(formulas, {target.node: NumberedRegions.alone(*target.all_regions)}, everything=True)
    for node, boxes in needed.items():
        if node.computation.is_direct or not len(boxes.starts):
            continue
        starts, stops, grid = boxes.starts, boxes.stops, node.spec.grid
        inventory = node.contents.inventory(node.spec, starts.min(axis=0).tolist(), stops.max(axis=0).tolist())
        # With nothing stored, windows need not be listed.
        empty = inventory.empty
        if windows_over(grid, BoxUnion(starts, stops)) if empty else len(inventory.missing(grid, starts, stops)):
            return False
    return True


def coverage(request: Request, state: object) -> torch.Tensor:
    """Return a bool tensor of the tiles in the given state.

    There is one entry per tile touched by the region. See `InfiniteTensor.coverage`.
    """
    node, start = node_of(request.tensor), request.selection.start
    states = TILE_STATES if request.where is None else (*TILE_STATES, SKIPPED)
    named = word(state)
    if state is not None and named not in states:
        hint = "; to find skipped tiles, give where=..." if named == SKIPPED else ""
        raise ValidationError(f"state must be None or one of {', '.join(map(repr, states))}, got {quoted(state)}{hint}")
    target = _masked(node, request, start, request.selection.stop)
    if target is None:
        return torch.ones([0] * len(start), dtype=torch.bool, device="cpu")
    found = tile_states(target)
    return torch.from_numpy(found != "missing" if named is None else found == named)


def _to_fill(node: Node, request: Request, shard: tuple[int, int] | None = None) -> Target | None:
    """Return the pixels to fill for a request, or None for an empty region.

    In a persistent store, the region is enlarged to whole tiles. With `shard`, return only this shard of the region.
    """
    start, stop = request.selection.start, request.selection.stop
    if is_empty(start, stop):
        return None
    layout = node.contents.layout(node.spec)
    if node.contents.outlives_process:
        start, stop = layout.whole(start, stop)
    if shard is None:
        return _masked(node, request, start, stop)
    return _masked(node, request, *shard_of(layout, start, stop, *shard), confined=True)


def _masked(node: Node, request: Request, start: Index, stop: Index, *, confined: bool = False) -> Target | None:
    """Return the target for the pixels ``[start, stop)`` and the mask of the request.

    Return None if there are no pixels. For a shard without a mask, `confined` prevents windows from being stored in
    tiles of other shards.
    """
    if is_empty(start, stop):
        return None
    layout = node.contents.layout(node.spec)
    if request.where is None:
        return Target(node, start, stop, WantedTiles.all_of(layout, start, stop) if confined else None)
    # Whole tiles may reach past the region, and thus past its mask.
    low, high = request.selection.start, request.selection.stop
    return Target(
        node, start, stop, request.where.tiles(layout, tuple(map(max, low, start)), tuple(map(min, high, stop)))
    )


def fill(job: FillJob, workers: int | None, progress: Reporting) -> FillReport:
    """Compute and store missing windows, pass after pass.

    A Ctrl-C or an error of ``f`` ends the fill after finished windows are stored.
    """
    before = {node: node.contents.written(node.spec.tensor_id) for node in job.chain}
    # Stored tiles are looked up on the way, because a lookup in advance would list the storage.
    targets = job.targets
    estimate = estimated(targets)
    if estimate.outside is not None and all(target.is_whole for target in targets):
        # Raise now, not after hours of work. With a mask, the windows outside may not be needed.
        raise estimate.outside
    total = int(estimate.windows * share_of(targets))
    with Tally(total, progress, _pixels(targets)) as tally:
        carry_out(job, workers, tally)
        skipped, tensors = job.skipped, []
        for node, earlier in before.items():
            # If the tensor was cleared during the fill, its counts started from 0 again.
            written = zip(node.contents.written(node.spec.tensor_id), earlier, strict=True)
            tiles, nbytes = (max(0, now - then) for now, then in written)
            tensors.append(TensorReport(node.spec.tensor_id, tally.windows[node], tiles, nbytes, skipped[node]))
        report = FillReport(tuple(tensors), tally.seconds, job.band_count)
        tally.finish(report)
    return report


def _pixels(targets: Sequence[Target]) -> int:
    return sum(int((stops - starts).prod(axis=1).sum()) for starts, stops in (each.all_regions for each in targets))


def carry_out(job: FillJob, workers: int | None, tally: Tally) -> None:
    """Compute and store missing windows, and count them in `tally`."""
    chain, lent = job.chain, threading.Lock()
    try:
        with lent, watching({node.computation for node in chain}):
            # Limit the growth of the caches of all stores. Filled tensors in memory stay there.
            filled = {target.node.contents for target in job.targets}
            for contents in {node.contents: None for node in chain}:
                if contents not in filled or contents.outlives_process:
                    contents.lend(lent, _kept_by(contents, job.max_memory))
            for cuts in job.passes:
                tiles = writable_tiles([bands.target for bands in cuts.values()], job.targets)
                for bands in side_by_side(cuts):
                    regions = {node: _wanted(cuts[node].target, band) for node, band in bands.items()}
                    _fill(regions, tiles, tally, workers)
    finally:
        for store in {id(node.store): node.store for node in chain}.values():
            if not store.closed:
                with store_call(store):
                    store.flush()


def _fill(
    wanted: Mapping[Node, NumberedRegions], tiles: Mapping[Node, WritableTiles], tally: Tally, workers: int | None
) -> None:
    rest, steps = _renumbered({node: _unfinished(node, band) for node, band in wanted.items()})
    sizes, stores = _sizes(rest) if rest else [], [node.contents for node in rest]
    tally.pass_parts(sum(_sizes(wanted)) - sum(sizes))
    with store_call(*stores, CLAIMS), open_views(workers, tally.count, tiles) as views:
        for node, regions in rest.items():
            settle(node, (regions.starts[0].tolist(), regions.stops[0].tolist()), views)
        asked = {number: part for node, regions in rest.items() for number, part in _asked(node, regions)}

        def ready(number: int) -> None:
            if number in asked:
                node, start, shape = asked[number]
                views.of(node).read(start, new_block(shape, node.spec.dtype, node.spec.device))
            tally.pass_parts(sizes[number])

        run_steps(rest, steps, views, ready)


def _asked(node: Node, regions: NumberedRegions) -> Iterator[tuple[int, tuple[Node, list[int], tuple[int, ...]]]]:
    """Yield the regions of a formula that must be read to compute what it asks for, each with its number."""
    if any(each.computation.asks for each in formulas_of([node])[0]):
        shapes = map(tuple, (regions.stops - regions.starts).tolist())
        for number, start, shape in zip(regions.numbers.tolist(), regions.starts.tolist(), shapes, strict=True):
            yield number, (node, start, shape)


def _wanted(target: Target, band: NumberedRegions) -> NumberedRegions:
    if target.wanted is None:
        return band
    regions = itertools.starmap(target.regions, zip(band.starts.tolist(), band.stops.tolist(), strict=True))
    starts, stops = zip(*regions, strict=True)
    return NumberedRegions(band.numbers.repeat(list(map(len, starts))), np.concatenate(starts), np.concatenate(stops))


def _unfinished(node: Node, band: NumberedRegions) -> NumberedRegions:
    # If the first region is incomplete, probably nothing is stored, and further checks would waste time.
    regions = zip(band.starts.tolist(), band.stops.tolist(), strict=True)
    if not any(node.contents.is_complete(node.spec, *first) for first in itertools.islice(regions, 1)):
        return band
    kept = [number for number, region in enumerate(regions, 1) if not node.contents.is_complete(node.spec, *region)]
    return NumberedRegions(band.numbers[kept], band.starts[kept], band.stops[kept])


def _renumbered(bands: Mapping[Node, NumberedRegions]) -> tuple[dict[Node, NumberedRegions], list[range]]:
    """Number the regions of all bands from 0, in the order of their steps.

    In `bands`, the number of a region is the number of its step. For example, two bands have regions in the steps 0, 1,
    2 and 0, 2. The regions get the numbers 0, 2, 3 and 1, 4. Also return the range of numbers of each step: here 0 to
    1, 2 to 2, and 3 to 4. Bands and steps without regions are left out.
    """
    of_each = [band.numbers for band in bands.values()]
    steps = np.concatenate(of_each)
    order = np.argsort(steps, kind="stable")
    own = np.split(np.argsort(order, kind="stable"), np.cumsum([len(numbers) for numbers in of_each])[:-1])
    ends = [*(np.flatnonzero(np.diff(steps[order])) + 1).tolist(), len(steps)]
    return (
        {
            node: NumberedRegions(numbers, band.starts, band.stops)
            for (node, band), numbers in zip(bands.items(), own, strict=True)
            if len(numbers)
        },
        list(itertools.starmap(range, itertools.pairwise([0, *ends]))),
    )


def _sizes(bands: Mapping[Node, NumberedRegions]) -> list[int]:
    numbers = np.concatenate([band.numbers for band in bands.values()])
    sizes = np.concatenate([(band.stops - band.starts).prod(axis=1) for band in bands.values()])
    found: list[int] = sizes[np.argsort(numbers, kind="stable")].tolist()
    return found


def writable(job: FillJob) -> FillJob:
    """Return the job without tensors in read-only stores.

    Raise ValidationError if such a tensor lacks tiles.
    """
    for target in job.targets:
        node, regions = target.node, zip(*target.all_regions, strict=True)
        if node.contents.read_only and not all(node.contents.is_complete(node.spec, *each) for each in regions):
            raise ValidationError(
                f"tensor {node.spec.tensor_id!r} cannot be filled, because {node.store!s} is read-only and lacks "
                "tiles; open the store with mode='a' or 'r+'"
            )
    targets = tuple([target for target in job.targets if not target.node.contents.read_only])
    left = [{node: bands for node, bands in cuts.items() if not node.contents.read_only} for cuts in job.passes]
    return replace(job, targets=targets, passes=tuple(filter(None, left)))


def check_shared(job: FillJob) -> None:
    """Check that the workers of a cluster can store the tensors.

    Raise ValidationError if not.
    """
    filled = {target.node for target in job.targets}
    for node in job.chain:
        kept = node.contents.outlives_process or node in filled
        if kept and not node.contents.shared:
            raise ValidationError(
                f"the workers of a cluster cannot store tensor {node.spec.tensor_id!r}, because only one process "
                "can write to its store; use a ZarrTileStore at a path or URL shared by all workers"
            )
