"""What a worker of a cluster is given to do."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from infinite_tensor.engine.chain import Node, chain_of, node_of
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.reads import Views
from infinite_tensor.engine.run import run
from infinite_tensor.filling.demand import Demand
from infinite_tensor.filling.progress import Tally
from infinite_tensor.geometry.points import Index, IntArray, as_tuples
from infinite_tensor.geometry.window import WindowGrid
from infinite_tensor.geometry.window_sets import IndexProduct, as_array
from infinite_tensor.support.visits import visit
from infinite_tensor.tilestore.access import Access

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


def compute(payload: bytes, place: int, windows: IntArray, workers: int | None) -> Done:
    """Compute and store those windows of one tensor that are missing: indices of shape (N, ndim).

    What the same ``f`` computes beside it is stored as well, even if a worker was lost that had stored only the one.
    """
    chain = _unpickled(payload)
    computation = chain[place].computation
    own = computation.own(windows)
    regions = {}
    for node in computation.nodes:
        indices = node.indices(own)
        if len(computation.members) > 1:
            indices = indices[node.spec.grid.exist(indices)]
        if len(indices):
            starts, stops = node.spec.grid.window.bounds(indices)
            if not node.contents.is_complete(node.spec, starts.min(axis=0).tolist(), stops.max(axis=0).tolist()):
                regions[node] = _Wanted(starts, stops, set(as_tuples(indices)))
    return _carry_out(chain, regions, workers) if regions else _done(chain, Counter())


def complete(payload: bytes, place: int, tiles: Sequence[Index], workers: int | None) -> Done:
    """Put together tiles of one tensor whose parts several tasks have stored."""
    chain = _unpickled(payload)
    layout = chain[place].contents.layout(chain[place].spec)
    starts = np.array([layout.start(tile) for tile in tiles], dtype=np.int64)
    stops = np.array([layout.stop(tile) for tile in tiles], dtype=np.int64)
    return _carry_out(chain, {chain[place]: _Wanted(starts, stops, None)}, workers)


def parts_of(demand: Demand, threads: int) -> Iterator[IntArray]:
    """The windows to compute, in blocks of whole tiles as far as may be, those that follow each other far apart.

    Storage splits a range of keys that many requests are sent to. If blocks went along the keys, all workers would be
    in one range at a time, and leave it soon after it was split.
    """
    grid, extents = demand.node.spec.grid, _extents(demand, threads)
    if isinstance(demand.windows, np.ndarray):
        blocks = grid.window.starts(demand.windows) // extents
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
        dims = [d for d, followed in enumerate(grid.window.followed) if followed == k]
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


def _carry_out(chain: Sequence[Node], regions: Mapping[Node, _Wanted], workers: int | None) -> Done:
    """Compute what is missing of regions, and store it."""
    tally = Tally(0, progress=False)
    reader = CLAIMS.reader(workers)
    reader.notice = tally.count
    call = visit()
    try:
        with call.running, Views(reader) as views:
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


def _unpickled(payload: bytes) -> list[Node]:
    """A chain, which the tasks of a process share, so that each store is opened once."""
    with _unpickling:
        return _chain(payload)


@lru_cache(maxsize=4)
def _chain(payload: bytes) -> list[Node]:
    return chain_of(map(node_of, pickle.loads(payload)))  # noqa: S301  (the client's)
