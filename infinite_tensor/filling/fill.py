"""Computing and storing a region ahead of reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from infinite_tensor.boxes import Index, is_empty
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.march import March, march
from infinite_tensor.engine.node import Node, consumers_first
from infinite_tensor.engine.plan import Accesses
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.demand import demands, estimated
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
    """A region to fill, and how.

    Attributes
    ----------
    node : Node
        The tensor.
    cut : Cut
        The region, which begins and ends with tiles, and its order.
    peak_memory : int
        The most memory that it is expected to hold, in bytes.
    """

    node: Node
    cut: Cut
    peak_memory: int

    def plan(self) -> FillPlan:
        """What it costs, beside what is stored."""
        needs, exact = demands(self.node, self.cut.start, self.cut.stop)
        return forecast(self.cut.start, self.cut.stop, needs, self.peak_memory, exact=exact)


def prepare(
    node: Node, selection: Selection, max_memory: int | None, shard: tuple[int, int] | None = None
) -> Job | None:
    """What it takes to fill a region, or a share of it; None where that is empty.

    Raises
    ------
    ValidationError
        If it cannot be done within `max_memory`.
    """
    layout = node.store.layout(node.spec)
    start, stop = _to_fill(node, selection)
    if shard is not None:
        start, stop = share_of(layout, start, stop, *shard)
    if is_empty(start, stop):
        return None
    caches = sum(_LENT if store.cache_limit is None else store.cache_limit for store in _stores(node))
    held = _DEFAULT_HELD if max_memory is None else max_memory - caches - _OVERHEAD
    found = cut(node, start, stop, layout, held)
    needed = held_bytes(node, found)
    if max_memory is not None and needed > held:
        raise ValidationError(
            f"max_memory is {bytes_of(max_memory)}, but the caches of the stores may take {bytes_of(caches)}, a step "
            f"{bytes_of(needed)}, and what waits to be written {bytes_of(_OVERHEAD)}: allow that much, or give smaller "
            "tiles or a smaller cache_size_bytes"
        )
    return Job(node, found, needed + caches + _OVERHEAD)


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
    """Compute and store what is missing.

    A Ctrl-C, or an error of ``f``, ends it after what is done has been stored.
    """
    nodes = list(reversed(consumers_first(job.node)))
    _check_writable(job.node)
    before = {node: node.store.written(node.spec.tensor_id) for node in nodes}
    # What is stored shows as it is met: to look for it beforehand would take a listing.
    total = estimated(job.node, job.cut.start, job.cut.stop).windows
    with Tally(total, progress, job.cut.steps) as tally:
        try:
            with _bounded(job):
                for strip in job.cut.strips():
                    rest = _unfinished(job.node, strip)
                    tally.pass_steps(len(strip.steps) - len(rest.steps))
                    reader = CLAIMS.reader(workers)
                    reader.notice = tally.count
                    with Accesses(reader) as accesses:
                        march(job.node, rest, accesses, lambda _: tally.pass_steps(1))
        finally:
            flush(job.node)
    reports = []
    for node in nodes:
        (tiles_before, bytes_before), (tiles, nbytes) = before[node], node.store.written(node.spec.tensor_id)
        reports.append(
            TensorReport(node.spec.tensor_id, tally.windows[node], tiles - tiles_before, nbytes - bytes_before)
        )
    return FillReport(tuple(reports), tally.seconds)


def _unfinished(node: Node, strip: March) -> March:
    """The steps of a strip from where it is not complete on, without those that are."""
    # Where nothing is stored, to ask for each tile would only cost time.
    if not node.store.is_complete(node.spec, strip.starts[0].tolist(), strip.stops[0].tolist()):
        return strip
    rest = zip(strip.starts[1:].tolist(), strip.stops[1:].tolist(), strict=True)
    kept = [number for number, step in enumerate(rest, 1) if not node.store.is_complete(node.spec, *step)]
    return March(strip.starts[kept], strip.stops[kept], [range(at, at + 1) for at in range(len(kept))])


def flush(root: Node) -> None:
    """Return when everything that a chain has computed is stored."""
    for store in _stores(root):
        store.flush()


def _check_writable(root: Node) -> None:
    if root.store.read_only:
        raise ValidationError(f"{root.store!r} is read-only: open it with mode='a' or 'r+' to fill a tensor")


def _stores(root: Node) -> list[TileStore]:
    return list({id(node.store): node.store for node in reversed(consumers_first(root))}.values())


@contextmanager
def _bounded(job: Job) -> Iterator[None]:
    """Give stores that have no limit one for the time of a fill, but for one in memory that is filled."""
    with ExitStack() as limits:
        for store in _stores(job.node):
            if store is not job.node.store or store.outlives_process:
                limits.enter_context(store.limited(_LENT))
        yield
