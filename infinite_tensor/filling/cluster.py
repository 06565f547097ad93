"""Filling a region on a Dask cluster.

Tensors are filled one after the other, those that others read first: each window is part of one task, so none is
computed twice. Where windows of two tasks meet in a tile, its parts lie beside each other in storage until the one who
reads the tile next puts them together. A task that is lost with its worker is run again, and computes what had not
been stored.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from infinite_tensor.engine.chain import Node, chain_of, node_of
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.loop import run
from infinite_tensor.engine.reads import Views
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.fill import Job
from infinite_tensor.filling.mask import TakenTiles, taken_tiles
from infinite_tensor.filling.plan import NOTHING_LEFT_OUT, Demand, LeftOut, demands
from infinite_tensor.filling.progress import FillReport, Tally, TensorReport, Watcher
from infinite_tensor.geometry.points import Index, IntArray, as_tuples, points_of_boxes
from infinite_tensor.geometry.window import WindowGrid, followed, starts_of
from infinite_tensor.geometry.window_sets import IndexProduct, as_array
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.tilestore.contents import Access
from infinite_tensor.tilestore.layout import TileLayout

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from distributed import Client, Future

_RETRIES = 3
_ASK_SECONDS = 1.0
_WAITING = 64
"""So many tasks, and one for each thread, wait in the scheduler for workers that are free, or are still to come."""
_TILES_AT_ONCE = 64


def fill_on_cluster(
    tensors: Sequence[object], job: Job, client: Client, workers: int | None, progress: bool | str | Watcher
) -> FillReport:
    """Fill as `infinite_tensor.filling.fill.fill` does, on the workers of `client`."""
    _check_shared(job)
    # What is known here of tiles in progress will be out of date.
    _forget(job.chain)
    needs, _ = demands(job.targets, named=any(target.wanted is not None for target in job.targets))
    # Of a tensor in memory, the task that needs a window computes it.
    stored = [demand for demand in reversed(needs) if demand.node.store.shared]
    total, in_tasks = (sum(demand.missing for demand in of) for of in (needs, stored))
    taken = taken_tiles(job.targets)
    with Tally(total, progress, in_tasks) as tally:
        with _Tasks(client, tensors, taken, workers, tally) as tasks:
            for demand in stored:
                tasks.carry_out(compute, demand.node, parts_of(demand, tasks.threads), len)
            for target in job.targets:
                parted = target.node.contents.unfinished(target.node.spec, target.start, target.stop)
                wanted = [tile for tile in parted if target.wanted is None or tile in target.wanted]
                tasks.carry_out(complete, target.node, _batches(wanted), lambda _tiles: 0)
        report = FillReport(tuple(tasks.reports(job.left_out())), tally.seconds)
        tally.finish(report)
    return report


class _Tasks:
    """Carries out tasks for tensors of one chain, which the workers are sent once."""

    def __init__(
        self,
        client: Client,
        tensors: Sequence[Any],
        taken: Mapping[Node, TakenTiles],
        workers: int | None,
        tally: Tally,
    ) -> None:
        self._client = client
        self._chain = chain_of(map(node_of, tensors))
        self._workers = workers
        self._tally = tally
        self._written: dict[str, list[tuple[int, int]]] = {}
        # Of this fill alone: what is equal may just be released by one that was interrupted.
        positions = {self._chain.index(node): tiles for node, tiles in taken.items()}
        self._payload = client.scatter(_pickled((list(tensors), positions)), broadcast=True, hash=False)
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._threads = (-math.inf, 0)

    @property
    def threads(self) -> int:
        """Of all workers that are there by now."""
        asked, threads = self._threads
        # To ask after each task would be a load on the scheduler.
        if time.monotonic() - asked > _ASK_SECONDS:
            threads = max(1, sum(self._client.nthreads().values()))
            self._threads = time.monotonic(), threads
        return threads

    def carry_out(
        self,
        work: Callable[..., Done],
        node: Node,
        parts: Iterator[Any],
        windows_of: Callable[[Any], int],
    ) -> None:
        """Run ``work`` for each part, a bounded number at a time, and return when all are done.

        ``windows_of(part)`` tells how many windows a part is expected to compute.
        """
        from distributed import as_completed  # noqa: PLC0415  (an extra)

        running = as_completed(loop=self._client.loop, raise_errors=False)
        expected: dict[object, int] = {}

        def submit() -> None:
            for part in itertools.islice(parts, max(0, 2 * self.threads + _WAITING - running.count())):
                future = self._submit(work, node, part)
                expected[future.key] = windows_of(part)
                running.add(future)

        try:
            submit()
            for future in running:
                self._note(future.result())
                self._tally.pass_parts(expected.pop(future.key))
                submit()
        except BaseException:
            self._client.cancel(list(running.futures), force=True)
            raise

    def _submit(self, work: Callable[..., Done], node: Node, part: Any) -> Future[Done]:
        # The dashboard goes by what stands before the last hyphen.
        key = f"{work.__name__} {node.spec.tensor_id}".replace("-", "_") + f"-{self._name}{next(self._numbers)}"
        position = self._chain.index(node)
        return self._client.submit(
            work, self._payload, position, part, self._workers, key=key, pure=False, retries=_RETRIES
        )

    def _note(self, done: Done) -> None:
        for node, count in zip(self._chain, done.windows, strict=True):
            self._tally.count(node, count)
        known = self._written.get(done.process, done.written)
        self._written[done.process] = [max(pair) for pair in zip(known, done.written, strict=True)]

    def reports(self, left_out: Mapping[Node, LeftOut]) -> Iterator[TensorReport]:
        """What has been done, per tensor, and what was left out."""
        for position, node in enumerate(self._chain):
            tiles, nbytes = (sum(written[position][at] for written in self._written.values()) for at in (0, 1))
            without = left_out.get(node, NOTHING_LEFT_OUT)
            yield TensorReport(node.spec.tensor_id, self._tally.windows[node], tiles, nbytes, *without)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.cancel([self._payload])
        _forget(self._chain)


def _pickled(given: object) -> bytes:
    import cloudpickle  # noqa: PLC0415  (comes with distributed)

    pickled: bytes = cloudpickle.dumps(given)
    return pickled


def _check_shared(job: Job) -> None:
    filled = {target.node for target in job.targets}
    for node in job.chain:
        kept = node.contents.outlives_process or node in filled
        if kept and not node.store.shared:
            raise ValidationError(
                f"the workers of a cluster cannot store tensor {node.spec.tensor_id!r} in {node.store!s}; use a "
                "ZarrTileStore at a path or URL that all of them reach"
            )


def _forget(chain: Sequence[Node]) -> None:
    """Have tiles looked up again that others store."""
    for node in chain:
        node.contents.refresh(node.spec.tensor_id)


def _batches(tiles: Sequence[Index]) -> Iterator[list[Index]]:
    for number in spread(-(-len(tiles) // _TILES_AT_ONCE)):
        yield list(tiles[number * _TILES_AT_ONCE : (number + 1) * _TILES_AT_ONCE])


_TASK_BYTES = 2**26
_TASKS = 256
_TASKS_PER_THREAD = 4
"""As many tasks for each tensor, where it has as many tiles: workers that come later find some to do."""
_RANGE_BITS = 6
"""From two to the power of so many ranges of keys tasks are taken by turns."""


@dataclass(frozen=True)
class Done:
    """What a task has done, per tensor of the chain, sources first.

    Attributes
    ----------
    process : str
        Names the process that it ran in.
    windows : list of int
        Windows that it has computed.
    written : list of (int, int)
        Tiles and bytes that the process has stored so far.
    """

    process: str
    windows: list[int]
    written: list[tuple[int, int]]


def compute(payload: bytes, position: int, windows: IntArray, workers: int | None) -> Done:
    """Compute and store those windows of one tensor that are missing: indices of shape (N, ndim).

    What the same ``f`` computes beside it is stored as well, even if a worker was lost that had stored only the one.
    """
    chain, taken = _unpickled(payload)
    computation = chain[position].computation
    own = computation.own(windows)
    regions = {}
    for node in computation.nodes:
        indices = node.indices(own)
        if len(computation.tensors) > 1:
            indices = indices[node.spec.grid.exist(indices)]
        starts, stops = node.spec.grid.bounds(indices)
        if node in taken:
            starts, stops = _inside(taken[node], node.contents.layout(node.spec), starts, stops)
        hull = (starts.min(axis=0).tolist(), stops.max(axis=0).tolist()) if len(starts) else None
        if hull is not None and not node.contents.is_complete(node.spec, *hull):
            regions[node] = _Wanted(starts, stops, set(as_tuples(indices)))
    return _carry_out(chain, taken, regions, workers) if regions else _done(chain, Counter())


def _inside(tiles: TakenTiles, layout: TileLayout, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
    """What of some regions lies in some tiles, tile by tile."""
    touched, owner = points_of_boxes(*layout.grid.boxes(starts, stops))
    kept = np.array([tile in tiles for tile in as_tuples(touched)], dtype=bool)
    begin, size = touched[kept] * np.array(layout.tile_shape, dtype=np.int64), np.array(layout.tile_shape)
    return np.maximum(starts[owner[kept]], begin), np.minimum(stops[owner[kept]], begin + size)


def complete(payload: bytes, position: int, tiles: Sequence[Index], workers: int | None) -> Done:
    """Put together tiles of one tensor whose parts several tasks have stored."""
    chain, taken = _unpickled(payload)
    layout = chain[position].contents.layout(chain[position].spec)
    starts = np.array([layout.start(tile) for tile in tiles], dtype=np.int64)
    stops = np.array([layout.stop(tile) for tile in tiles], dtype=np.int64)
    return _carry_out(chain, taken, {chain[position]: _Wanted(starts, stops, None)}, workers)


def parts_of(demand: Demand, threads: int) -> Iterator[IntArray]:
    """The windows to compute, in blocks of whole tiles as far as may be, those that follow each other far apart.

    Storage splits a range of keys that many requests are sent to. If blocks went along the keys, all workers would be
    in one range at a time, and leave it soon after it was split.
    """
    grid, extents = demand.node.spec.grid, _extents(demand, threads)
    if isinstance(demand.windows, np.ndarray):
        blocks = starts_of(grid.window, demand.windows) // extents
        order = np.lexsort(blocks.T[::-1])
        breaks = np.flatnonzero((np.diff(blocks[order], axis=0) != 0).any(axis=1)) + 1
        parts = np.split(order, breaks) if len(order) else []
        yield from (demand.windows[np.sort(parts[number])] for number in spread(len(parts)))
        return
    for number, product in enumerate(demand.windows):
        for windows in _blocks(grid, product, extents):
            known = [earlier.holds(windows) for earlier in demand.windows[:number]]
            fresh = windows[~np.any(known, axis=0)] if known else windows
            if len(fresh):
                yield fresh


def spread(count: int) -> Iterator[int]:
    """The numbers below `count`, taken by turns from ranges of them; one turn and the next are far apart."""
    bounds = list(itertools.pairwise(count * number >> _RANGE_BITS for number in range(2**_RANGE_BITS + 1)))
    turns = [bounds[int(f"{number:0{_RANGE_BITS}b}"[::-1], 2)] for number in range(len(bounds))]
    for step in range(max(high - low for low, high in bounds)):
        yield from (low + step for low, high in turns if low + step < high)


def _blocks(grid: WindowGrid, product: IndexProduct, extents: IntArray) -> Iterator[IntArray]:
    """The windows of a product by blocks of pixels, along one dimension for each coordinate."""
    runs = []
    for k, coordinates in enumerate(map(as_array, product.coordinates)):
        dims = [d for d, follows in enumerate(followed(grid.window)) if follows == k]
        if not dims:
            runs.append([coordinates])
            continue
        d = dims[0]
        blocks = (coordinates * grid.window.stride[d] + grid.window.offset[d]) // extents[d]
        runs.append(np.split(coordinates, np.flatnonzero(np.diff(blocks)) + 1))
    counts = tuple(map(len, runs))
    for number in spread(math.prod(counts)):
        block = [run[at] for run, at in zip(runs, np.unravel_index(number, counts), strict=True)]
        yield np.stack([axis.ravel() for axis in np.meshgrid(*block, indexing="ij")], axis=1)


def _extents(demand: Demand, threads: int) -> IntArray:
    """Pixels of a block per dimension, a multiple of a tile."""
    window, itemsize = demand.node.spec.grid.window, demand.node.spec.dtype.itemsize
    tasks = max(_TASKS, _TASKS_PER_THREAD * threads)
    share = demand.missing * math.prod(window.stride) * itemsize // tasks
    extents, shape = list(demand.layout.tile_shape), demand.layout.shape
    growing = [d for d, extent in enumerate(shape) if extent is None or extent > extents[d]]
    while growing and 2 * math.prod(extents) * itemsize <= min(share, _TASK_BYTES):
        extents[min(growing, key=extents.__getitem__)] *= 2
    return np.array(extents, dtype=np.int64)


class _Wanted(NamedTuple):
    """Regions of a tensor in pixels, and which windows of them are to be computed: None means all."""

    starts: IntArray
    stops: IntArray
    windows: set[Index] | None


def _carry_out(
    chain: Sequence[Node], taken: Mapping[Node, TakenTiles], regions: Mapping[Node, _Wanted], workers: int | None
) -> Done:
    """Compute what is missing of regions, and store it."""
    tally = Tally(0, progress=False)
    call = store_call()
    try:
        with call.running, Views(CLAIMS.reader(workers, tally.count), taken) as views:
            call.begin(*[node.contents for node in regions], reads=True)
            missing = {node: _missing(views.of(node), wanted) for node, wanted in regions.items()}
            if any(map(len, missing.values())):
                run(missing, views)
    finally:
        for each in chain:
            each.contents.refresh(each.spec.tensor_id)
            if not each.contents.outlives_process:
                each.store.clear_cache(each.spec.tensor_id)
    return _done(chain, tally.windows)


def _missing(access: Access, wanted: _Wanted) -> IntArray:
    missing = access.add(wanted.starts, wanted.stops)
    if wanted.windows is None:
        return missing
    chosen: IntArray = missing[np.array([index in wanted.windows for index in as_tuples(missing)], dtype=bool)]
    return chosen


def _done(chain: Sequence[Node], windows: Counter[Node]) -> Done:
    written = [each.contents.written(each.spec.tensor_id) for each in chain]
    return Done(_PROCESS, [windows[each] for each in chain], written)


_PROCESS = f"{os.getpid()}-{secrets.token_hex(8)}"
_unpickling = threading.Lock()


def _unpickled(payload: bytes) -> tuple[list[Node], dict[Node, TakenTiles]]:
    """A chain, which the tasks of a process share, so that each store is opened once; and what masks leave of it."""
    with _unpickling:
        return _chain(payload)


@lru_cache(maxsize=4)
def _chain(payload: bytes) -> tuple[list[Node], dict[Node, TakenTiles]]:
    tensors, taken = pickle.loads(payload)  # noqa: S301  (the client's)
    chain = chain_of(map(node_of, tensors))
    return chain, {chain[position]: tiles for position, tiles in taken.items()}
