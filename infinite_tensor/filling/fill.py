"""Computing and storing a region ahead of reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from infinite_tensor.boxes import Index, is_empty
from infinite_tensor.engine.accesses import Accesses
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.horizons import Regions
from infinite_tensor.engine.march import March, march
from infinite_tensor.engine.node import Node, chain_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.demand import Box, demands, estimated
from infinite_tensor.filling.forecast import FillPlan, forecast
from infinite_tensor.filling.needs import Product, Spans
from infinite_tensor.filling.progress import Tally, Watcher
from infinite_tensor.filling.report import FillReport, TensorReport
from infinite_tensor.filling.shares import share_of
from infinite_tensor.filling.strips import Cut, cut, held_bytes
from infinite_tensor.filling.table import bytes_of
from infinite_tensor.indexing import Selection
from infinite_tensor.tilestore.contract import TileStore

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
    parts : tuple of (Node, Cut)
        The regions, which begin and end with tiles, each with its order. A tensor comes after those that it reads.
    peak_memory : int
        The most memory that it is expected to hold, in bytes.
    """

    parts: tuple[tuple[Node, Cut], ...]
    peak_memory: int

    @property
    def boxes(self) -> list[Box]:
        """The regions."""
        return [(node, cut.start, cut.stop) for node, cut in self.parts]

    @property
    def chain(self) -> list[Node]:
        """The tensors that are filled and all upstream, each after those that it reads."""
        return chain_of([node for node, _ in self.parts])

    @property
    def stores(self) -> list[TileStore]:
        """Where these are stored."""
        return _stores_of(self.chain)

    def plan(self) -> FillPlan:
        """What it costs, beside what is stored."""
        needs, exact = demands(self.boxes)
        return forecast(self.boxes, needs, self.peak_memory, exact=exact)

    def flush(self) -> None:
        """Return when everything that has been computed is stored."""
        for store in self.stores:
            store.flush()


def prepare(
    targets: Sequence[tuple[Node, Selection]], max_memory: int | None, shard: tuple[int, int] | None = None
) -> Job:
    """What it takes to fill regions of some tensors, or a share of them.

    Raises
    ------
    ValidationError
        If it cannot be done within `max_memory`.
    """
    order = chain_of([node for node, _ in targets])
    parts, most = [], 0
    for node, selection in sorted(targets, key=lambda target: order.index(target[0])):
        layout = node.store.layout(node.spec)
        start, stop = _to_fill(node, selection)
        if shard is not None:
            start, stop = share_of(layout, start, stop, *shard)
        if not is_empty(start, stop):
            found, peak_memory = _cut(node, start, stop, max_memory)
            parts.append((node, found))
            most = max(most, peak_memory)
    return Job(tuple(parts), most)


def _cut(node: Node, start: Index, stop: Index, max_memory: int | None) -> tuple[Cut, int]:
    """In which order to fill a region, and how much memory that takes at most."""
    limits = [store.cache_limit for store in _stores_of(chain_of([node]))]
    caches = sum(_LENT if limit is None else limit for limit in limits)
    held = _DEFAULT_HELD if max_memory is None else max_memory - caches - _OVERHEAD
    found = cut(node, start, stop, node.store.layout(node.spec), held)
    needed = held_bytes(node, found)
    if max_memory is not None and needed > held:
        raise ValidationError(
            f"max_memory is {bytes_of(max_memory)}, but the caches of the stores may take {bytes_of(caches)}, a step "
            f"{bytes_of(needed)}, and what waits to be written {bytes_of(_OVERHEAD)}: allow that much, or give smaller "
            "tiles or a smaller cache_size_bytes"
        )
    return found, needed + caches + _OVERHEAD


def _stores_of(nodes: Sequence[Node]) -> list[TileStore]:
    """The stores of some tensors, each once."""
    return list({id(node.store): node.store for node in nodes}.values())


def is_filled(node: Node, selection: Selection) -> bool:
    """Whether no window is missing that a fill would compute."""
    start, stop = _to_fill(node, selection)
    if is_empty(start, stop):
        return True
    inventory, grid = node.store.inventory(node.spec, start, stop), node.spec.grid
    if inventory.empty:
        return Product.touching(grid, Spans.of_box(start, stop)).count == 0
    return not len(inventory.missing(grid, np.array([start]), np.array([stop])))


def _to_fill(node: Node, selection: Selection) -> tuple[Index, Index]:
    """The pixels of all tiles that hold a region; in memory, where windows are kept, those of the region."""
    start, stop = selection.start, selection.stop
    if is_empty(start, stop) or not node.store.outlives_process:
        return start, stop
    return node.store.layout(node.spec).whole(start, stop)


def fill(job: Job, workers: int | None, progress: bool | str | Watcher) -> FillReport:
    """Compute and store what is missing, of one tensor after the other.

    A Ctrl-C, or an error of ``f``, ends it after what is done has been stored.
    """
    nodes = job.chain
    before = {node: node.store.written(node.spec.tensor_id) for node in nodes}
    # What is stored shows as it is met: to look for it beforehand would take a listing.
    total = estimated(job.boxes).windows
    with Tally(total, progress, sum(cut.steps for _, cut in job.parts)) as tally:
        try:
            with _bounded(job):
                for node, cut in job.parts:
                    _fill(node, cut, tally, workers)
        finally:
            job.flush()
    reports = []
    for node in nodes:
        (tiles_before, bytes_before), (tiles, nbytes) = before[node], node.store.written(node.spec.tensor_id)
        reports.append(
            TensorReport(node.spec.tensor_id, tally.windows[node], tiles - tiles_before, nbytes - bytes_before)
        )
    return FillReport(tuple(reports), tally.seconds)


def _fill(node: Node, cut: Cut, tally: Tally, workers: int | None) -> None:
    for strip in cut.strips():
        rest = _unfinished(node, strip)
        tally.pass_steps(len(strip.numbers) - len(rest.numbers))
        reader = CLAIMS.reader(workers)
        reader.notice = tally.count
        with Accesses(reader) as accesses:
            steps = [range(at, at + 1) for at in range(len(rest.numbers))]
            march(March({node: rest}, steps), accesses, lambda _: tally.pass_steps(1))


def _unfinished(node: Node, strip: Regions) -> Regions:
    """The steps of a strip from where it is not complete on, without those that are."""
    # Where nothing is stored, to ask for each tile would only cost time.
    if not node.store.is_complete(node.spec, strip.starts[0].tolist(), strip.stops[0].tolist()):
        return strip
    rest = zip(strip.starts[1:].tolist(), strip.stops[1:].tolist(), strict=True)
    kept = [number for number, step in enumerate(rest, 1) if not node.store.is_complete(node.spec, *step)]
    return Regions.alone(strip.starts[kept], strip.stops[kept])


def writable(job: Job) -> Job:
    """What is left to fill where some stores are read-only; ValidationError where one of these lacks something."""
    parts = []
    for node, way in job.parts:
        if not node.store.read_only:
            parts.append((node, way))
        elif not node.store.is_complete(node.spec, way.start, way.stop):
            raise ValidationError(
                f"{node.store!r} is read-only, and lacks some of tensor {node.spec.tensor_id!r}: open it with mode='a' "
                "or 'r+' to fill a tensor"
            )
    return replace(job, parts=tuple(parts))


@contextmanager
def _bounded(job: Job) -> Iterator[None]:
    """Give stores that have no limit one for the time of a fill, but for those in memory that are filled."""
    filled = {id(node.store) for node, _ in job.parts}
    with ExitStack() as limits:
        for store in job.stores:
            if id(store) not in filled or store.outlives_process:
                limits.enter_context(store.limited(_LENT))
        yield
