"""Reads selections of tensors into result tensors."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import Node, chain_of, resolved
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.formulas import (
    FEW_PIXELS,
    count_in,
    formulas_of,
    most_wasteful,
    nbytes_per_pixel,
    never_lacks,
    spread,
)
from infinite_tensor.engine.lifetimes import NumberedRegions, Regions
from infinite_tensor.engine.locality import settle
from infinite_tensor.engine.loop import Loop, run, run_steps
from infinite_tensor.engine.plan import build
from infinite_tensor.engine.reads import Views
from infinite_tensor.engine.returned import named
from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.geometry.regions import Selection, SelectionBlocks, boxes_inside, parts_inside
from infinite_tensor.support.allocation import IN_PARTS, new_result
from infinite_tensor.support.interrupts import looking, store_call
from infinite_tensor.tilestore.access import Tiles
from infinite_tensor.tilestore.messages import warn_of_waste
from infinite_tensor.values.spec import TensorSpec

T = TypeVar("T")
FloatArray: TypeAlias = npt.NDArray[np.float64]

_BLOCK_BYTES = 16 * 2**20
"""Larger reads are split into blocks of this size, to release upstream windows early."""
_LIKE_A_WINDOW = 2**16
_LEAST_PIXELS = 2**12
_MOST_WAITING = 1024
"""The maximum number of regions of a stream to hold back for a full batch."""


class _Piece:
    """A selection of one tensor to read, with its result tensor.

    Attributes
    ----------
    node : Node
        The tensor.
    blocks : SelectionBlocks
        The blocks into which the selection is cut.
    out : Tensor
        The tensor to which the wanted pixels are written.
    nbytes : int
        Approximate memory for reading all blocks at once, in bytes.
    """

    def __init__(self, node: Node, blocks: SelectionBlocks, out: torch.Tensor) -> None:
        self.node, self.blocks, self.out = node, blocks, out
        units = node.computation.formula
        self._pixel_bytes = node.spec.dtype.itemsize if units is None else nbytes_per_pixel(node, units)
        if units is not None and units.pixels > 1:
            # One channel of a formula is computed with all others.
            sizes = zip(units.grid.window.size, out.shape, strict=True)
            self._pixel_bytes *= math.prod([max(1.0, side / n) for side, n in sizes if n])
        self.nbytes = int(blocks.pixels * self._pixel_bytes)
        if True in blocks.far:
            # Distant pixels share no tile of this tensor or of upstream tensors.
            self.nbytes = max(self.nbytes, len(blocks) * max([_largest_unit(each) for each in chain_of([node])]))

    def cut(self, most: int) -> _Piece:
        """Return the piece with blocks of at most `most` bytes, if possible."""
        return _Piece(self.node, self.blocks.cut(max(1, int(most // self._pixel_bytes))), self.out)

    def weights(self) -> FloatArray:
        """Return the approximate memory for reading each block, in bytes."""
        starts, stops = self.blocks.bounds()
        pixels: FloatArray = np.prod(stops - starts, axis=1, dtype=np.float64)
        return pixels * (self.nbytes / float(pixels.sum()))


def _largest_unit(node: Node) -> int:
    window = math.prod(node.spec.grid.window.size) * node.spec.dtype.itemsize
    return max(window, node.contents.layout(node.spec).tile_bytes)


def read_together(
    requests: Sequence[tuple[Node, Sequence[Selection]]],
    workers: int | None = None,
    within: Views | None = None,
) -> list[list[torch.Tensor]]:
    """Read selections of several tensors with one plan.

    Return the selected pixels of each request. A window needed by several selections is computed only once, even if the
    caches of the stores drop the window. A read `within` another one adds what it computes to the work of that one.
    """
    if torch.is_inference_mode_enabled():
        # Tensors created in inference mode could not be used outside of it.
        with torch.inference_mode(mode=False):
            return read_together(requests, workers, within)
    while True:
        read, absent = [], []
        for node, wanted in requests:
            contents, spec = node.contents, node.tensor.spec
            if contents.flush_requested:
                with store_call(contents):
                    contents.flush_if_requested()
            results = [(each, new_result(each.size, spec.dtype, spec.device, IN_PARTS)) for each in wanted]
            read.append(results)
            parts = [part for each, out in results if out.numel() for part in _parts(spec, each, out)]
            serve = partial(contents.serve, spec)
            with looking(contents):
                missing = [(each, out) for each, out in parts if not all(_filled(node, each, out, serve))]
            if missing and not _written(node, missing, workers):
                absent.append((node, spec, missing))
        if absent:
            with store_call(*[node.contents for node, _, _ in absent], CLAIMS):
                if not _compute(absent, workers, within):
                    continue
        return [[selection.pick(out) for selection, out in results] for results in read]


def _parts(spec: TensorSpec, selection: Selection, out: torch.Tensor) -> list[tuple[Selection, torch.Tensor]]:
    """Cut a selection and its result at the seams of periodic dimensions."""
    if not spec.grid.periods:
        return [(selection, out)]
    return [(part, out[place]) for part, place in parts_inside(selection, spec.shape)]


def _read_anew(node: Node, start: Sequence[int], stop: Sequence[int], within: Views) -> torch.Tensor:
    selection = Selection(tuple(start), tuple(stop), (1,) * len(stop), ())
    return read_together([(node, [selection])], within.workers, within)[0][0]


def open_views(
    workers: int | None = None,
    notice: Callable[[Node, int], None] | None = None,
    tiles: Mapping[Node, Tiles] | None = None,
) -> Views:
    """Begin a read; see `Views`."""
    return Views(_read_anew, workers, notice, tiles)


class Cost(NamedTuple):
    """What a read computes, of the tensor and of all tensors upstream.

    Attributes
    ----------
    windows : int
        The number of windows. Of formulas, each `_LIKE_A_WINDOW` pixels count as one.
    pixels : int
        The number of pixels. A small window counts as `_LEAST_PIXELS`, for the call of its ``f``.
    """

    windows: int
    pixels: int

    @classmethod
    def of(cls, windows: int, size: Sequence[int]) -> Cost:
        """Return the cost of windows of one size."""
        return cls(windows, windows * max(_LEAST_PIXELS, math.prod(size)))


def cost_of(node: Node, selection: Selection) -> Cost:
    """Return what a read would compute. Nothing is computed.

    Raises
    ------
    TileAccessError
        If some of these windows belong to a tensor without ``f``.
    """
    parts = boxes_inside(selection, node.spec.shape)
    boxes = [SelectionBlocks.of(part, node.spec.grid.window).bounds() for part in parts]
    wanted = {node: NumberedRegions.alone(*(np.concatenate(sides) for sides in zip(*boxes, strict=True)))}
    needed = _needed(wanted, everything=True)
    pixels = [count_in(boxes) for each, boxes in needed.items() if each.computation.formula is not None]
    with store_call(node.contents, CLAIMS), open_views() as views:
        costs = [Cost(-(-count // _LIKE_A_WINDOW), count) for count in pixels]
        plan = build(_missing(wanted, views, everything=True), views)
        costs += [Cost.of(len(task.windows), task.products[0].node.spec.grid.window.size) for task in plan]
        return Cost(sum(cost.windows for cost in costs), sum(cost.pixels for cost in costs))


def _needed(wanted: Mapping[Node, NumberedRegions], *, everything: bool) -> Mapping[Node, NumberedRegions]:
    """Return what is needed of the tensors and, under formulas, of their args."""
    tops = [node for node in wanted if node.computation.formula is not None]
    return spread(formulas_of(tops, everything=everything)[0], wanted, everything=everything) if tops else wanted


def _missing(wanted: Mapping[Node, NumberedRegions], views: Views, *, everything: bool = False) -> dict[Node, IntArray]:
    """Return the windows to compute before regions can be read.

    `everything` includes those that formulas may ask for themselves.
    """
    lacking = {node: boxes for node, boxes in wanted.items() if not never_lacks(node)}
    return {
        node: views.of(node).add(boxes.starts, boxes.stops)
        for node, boxes in _needed(lacking, everything=everything).items()
        if node.computation.formula is None and len(boxes.starts)
    }


_Request: TypeAlias = tuple[Node, TensorSpec, list[tuple[Selection, torch.Tensor]]]
"""A tensor, the spec used to allocate the results, and the selections to read, each with its result."""


def _filled(
    node: Node, selection: Selection, out: torch.Tensor, read: Callable[[Index, torch.Tensor], T]
) -> Iterable[T]:
    """Fill `out` by one or several calls of ``read(start, box)``.

    `read` must write the pixels from `start` on into the tensor `box`. Return an iterable of the values returned by
    `read`. Iterate to the end, because the calls may happen only during the iteration.
    """
    if not selection.is_thinned:
        return [read(selection.start, out)]
    blocks = SelectionBlocks.of(selection, node.spec.grid.window).cut(_BLOCK_BYTES // node.spec.dtype.itemsize)
    return (blocks.fill(block, out, read) for block in blocks)


def _written(node: Node, parts: Sequence[tuple[Selection, torch.Tensor]], workers: int | None) -> bool:
    """Let ``f`` write regions directly to the result tensors, if possible.

    Return whether this was done.
    """
    writer, contents = node.computation.writer, node.contents
    if writer is None or contents.outlives_process or (workers or node.computation.workers) > 1:
        return False
    contents.check_open()
    for selection, out in parts:
        deque(_filled(node, selection, out, writer.write), maxlen=0)
    return True


def _compute(requests: Sequence[_Request], workers: int | None, within: Views | None) -> bool:
    """Compute and read the requests, perhaps `within` another read.

    Return False if a tensor was moved to another dtype or device meanwhile. Then everything must be read again.
    """
    nodes = resolved([node for node, _, _ in requests])
    with open_views(workers, None if within is None else within.notice) as views:
        for node, (given, spec, own) in zip(nodes, requests, strict=True):
            if node.computation.formula is not None:
                settle(node, (list(own[0][0].start), list(own[0][0].stop)), views)
            views.of(node)
            if given.tensor.spec is not spec:
                return False
        pieces = [
            [_Piece(node, SelectionBlocks.of(selection, node.spec.grid.window), out) for selection, out in own]
            for node, (_, _, own) in zip(nodes, requests, strict=True)
        ]
        every = list(itertools.chain(*pieces))
        try:
            if sum([piece.nbytes for piece in every]) <= _BLOCK_BYTES:
                _read_at_once(every, views)
            else:
                _read_in_steps(pieces, views)
        except Exception:
            if not views.moved:
                raise
        if within is None:
            _warn_of_waste(every, views.work)
        else:
            within.work.update(views.work)
        return not views.moved


def _warn_of_waste(pieces: Sequence[_Piece], work: Mapping[Node, int]) -> None:
    """Warn once for each tensor read."""
    for node, regions in _regions(pieces).items() if sum(work.values()) > FEW_PIXELS else ():
        pixels = sum([piece.out.numel() for piece in pieces if piece.node == node])
        if not node.computation.warned and (most := most_wasteful({node: regions}, pixels, work)):
            node.computation.warned = True
            windows = named(most.computation), most.spec.grid.window.size
            warn_of_waste(named(node.computation), pixels, work[most], *windows)


def _read_at_once(pieces: Sequence[_Piece], views: Views) -> None:
    run(_missing(_regions(pieces), views), views)
    for piece in pieces:
        deque(_filled(piece.node, piece.blocks.selection, piece.out, views.of(piece.node).read), maxlen=0)


def _regions(pieces: Sequence[_Piece]) -> dict[Node, NumberedRegions]:
    """Return the blocks of each tensor."""
    bounds: dict[Node, list[Regions]] = {}
    for piece in pieces:
        bounds.setdefault(piece.node, []).append(piece.blocks.bounds())
    return {node: NumberedRegions.alone(*map(np.concatenate, zip(*own, strict=True))) for node, own in bounds.items()}


def _read_in_steps(requests: Sequence[Sequence[_Piece]], views: Views) -> None:
    """Read large selections block by block, and release windows early.

    All tensors are read at the same pace, so that shared windows stay in memory only briefly.
    """
    sizes = [sum([piece.nbytes for piece in own]) for own in requests]
    pieces: list[_Piece] = []
    begins: list[FloatArray] = []
    for own, size in zip(requests, sizes, strict=True):
        before = 0.0
        for whole in own:
            piece = whole.cut(_BLOCK_BYTES * size // sum(sizes))
            pieces.append(piece)
            share, count = piece.nbytes / size, len(piece.blocks)
            begins.append(before + share * np.arange(count) / count)
            before += share
    order = np.argsort(np.concatenate(begins), kind="stable")
    piece_of = np.repeat(np.arange(len(pieces)), [len(piece.blocks) for piece in pieces])[order]
    waiting = [iter(piece.blocks) for piece in pieces]

    def read_block(number: int) -> None:
        at = int(piece_of[number])
        piece = pieces[at]
        piece.blocks.fill(next(waiting[at]), piece.out, views.of(piece.node).read)

    regions: dict[Node, NumberedRegions] = {}
    for node, boxes in _regions(pieces).items():
        of_node = [at for at, piece in enumerate(pieces) if piece.node == node]
        among = np.argsort(np.concatenate([begins[at] for at in of_node]), kind="stable")
        numbers = np.flatnonzero(np.isin(piece_of, of_node))
        regions[node] = NumberedRegions(numbers, boxes.starts[among], boxes.stops[among])
    weights = np.concatenate([piece.weights() for piece in pieces])[order]
    run_steps(regions, _steps(weights.tolist()), views, read_block)


def _steps(weights: Sequence[float]) -> list[range]:
    """Group blocks into steps of about `_BLOCK_BYTES`.

    Return the block numbers of each step. `weights` has the size of each block in bytes.
    """
    steps, first, size = [], 0, 0.0
    for number, weight in enumerate(weights):
        size += weight
        if size >= _BLOCK_BYTES or number == len(weights) - 1:
            steps.append(range(first, number + 1))
            first, size = number + 1, 0.0
    return steps


@torch.inference_mode(mode=False)
def stream(node: Node, selections: Iterable[Selection], workers: int | None = None) -> Iterator[list[torch.Tensor]]:
    """Read selections in order, with windows computed in full batches.

    Yield the complete results after each batch.
    """
    nbytes = 0
    if node.computation.formula is not None:
        # Nothing is kept between two reads of a formula.
        batch: list[Selection] = []
        for each in selections:
            batch.append(each)
            nbytes += math.prod(each.size) * node.spec.dtype.itemsize
            if len(batch) == _MOST_WAITING or nbytes >= _BLOCK_BYTES:
                yield read_together([(node, batch)], workers)[0]
                batch, nbytes = [], 0
        if batch:
            yield read_together([(node, batch)], workers)[0]
        return
    contents, views = node.contents, open_views(workers)
    loop: Loop | None = None
    waiting: deque[tuple[Selection, int]] = deque()
    try:
        # None comes last. The stores are entered anew for each selection, because the user's code runs between two.
        for selection in itertools.chain(selections, [None]):
            with store_call(contents, CLAIMS):
                contents.flush_if_requested()
                if selection is not None:
                    loop = loop or Loop([node], views)
                    parts = [part for part, _ in parts_inside(selection, node.spec.shape)]
                    blocks = [SelectionBlocks.of(part, node.spec.grid.window) for part in parts]
                    bounds = [each.bounds() for each in blocks]
                    loop.add([(np.concatenate([a for a, _ in bounds]), np.concatenate([b for _, b in bounds]))])
                    waiting.append((selection, sum(each.pixels for each in blocks) * node.spec.dtype.itemsize))
                    nbytes += waiting[-1][1]
                if not waiting or loop is None:
                    continue
                # A window waiting for a full batch must not delay many later, already stored regions.
                crowded = len(waiting) >= _MOST_WAITING or nbytes >= _BLOCK_BYTES
                results = _computed(node, loop, waiting, views, to_the_end=crowded or selection is None)
            if results:
                nbytes = sum([size for _, size in waiting])
                yield results
    finally:
        # The garbage collector may come here at any moment. If the store refuses, memory is freed with the stream.
        with contextlib.suppress(StoreError), store_call(contents):
            views.close()


def _computed(
    node: Node, loop: Loop, waiting: deque[tuple[Selection, int]], views: Views, *, to_the_end: bool
) -> list[torch.Tensor]:
    """Compute windows, and return the results of the selections that are complete."""
    try:
        ready = loop.compute(to_the_end=to_the_end)
    finally:
        # Between batches, no upstream windows are kept.
        views.close(1)
    results = []
    access, spec = views.of(node), node.spec
    for _ in ready:
        selection, _ = waiting.popleft()
        out = new_result(selection.size, spec.dtype, spec.device, IN_PARTS)
        for part, target in _parts(spec, selection, out) if out.numel() else ():
            deque(_filled(node, part, target, access.read), maxlen=0)
        results.append(selection.pick(out))
    if results:
        starts = [part.start for selection, _ in waiting for part, _ in parts_inside(selection, spec.shape)]
        access.keep([min(column) for column in zip(*starts, strict=True)] if starts else None)
    return results
