"""Reads selections of tensors into result tensors."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import Node, chain_of, resolved
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.formulas import count_in, formulas_of, nbytes_per_pixel, spread
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.engine.locality import settle
from infinite_tensor.engine.loop import Loop, Regions, run_steps
from infinite_tensor.engine.plan import build
from infinite_tensor.engine.reads import Views
from infinite_tensor.engine.returned import named
from infinite_tensor.engine.waste import most_wasteful
from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection, SelectionBlocks
from infinite_tensor.support.allocation import IN_PARTS, new_result
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.interrupts import looking, store_call
from infinite_tensor.tilestore.messages import warn_of_waste
from infinite_tensor.values.spec import TensorSpec

T = TypeVar("T")
FloatArray: TypeAlias = npt.NDArray[np.float64]

_BLOCK_BYTES = 16 * 2**20
"""Larger reads are split into blocks of this size, to release upstream windows early."""
_LIKE_A_WINDOW = 2**16
_MOST_WAITING = 1024
"""The maximum number of regions of a stream to hold back for a full batch."""


@dataclass(frozen=True)
class _Part:
    """A selection of one tensor, with its result tensor.

    Attributes
    ----------
    node : Node
        The tensor.
    blocks : SelectionBlocks
        The blocks into which the selection is cut.
    out : Tensor
        The tensor to which the wanted pixels are written.
    """

    node: Node
    blocks: SelectionBlocks
    out: torch.Tensor

    @cached_property
    def nbytes(self) -> int:
        """Approximate memory for reading all blocks at once, in bytes."""
        size = int(self.blocks.pixels * self._pixel_bytes)
        if True not in self.blocks.far:
            return size
        # Distant pixels share no tile of this tensor or of upstream tensors.
        return max(size, len(self.blocks) * max([_largest_unit(node) for node in chain_of([self.node])]))

    @cached_property
    def bounds(self) -> Regions:
        return self.blocks.bounds()

    def weights(self) -> FloatArray:
        """Return the approximate memory for reading each block, in bytes."""
        starts, stops = self.bounds
        pixels: FloatArray = np.prod(stops - starts, axis=1, dtype=np.float64)
        return pixels * (self.nbytes / float(pixels.sum()))

    def cut(self, most: int) -> _Part:
        """Return the part with blocks of at most `most` bytes, if possible."""
        return replace(self, blocks=self.blocks.cut(max(1, int(most // self._pixel_bytes))))

    @cached_property
    def _pixel_bytes(self) -> float:
        found, units = nbytes_per_pixel(self.node), self.node.computation.formula
        if units is not None and units.pixels > 1:
            # One channel of a formula is computed with all others.
            sizes = zip(units.grid.window.size, self.out.shape, strict=True)
            found *= math.prod([max(1.0, side / n) for side, n in sizes if n])
        return found


def _largest_unit(node: Node) -> int:
    window = math.prod(node.spec.grid.window.size) * node.spec.dtype.itemsize
    return max(window, node.contents.layout(node.spec).tile_bytes)


def read_together(
    requests: Sequence[tuple[Node, Sequence[Selection]]],
    workers: int | None = None,
    work: Counter[Node] | None = None,
) -> list[list[torch.Tensor]]:
    """Read selections of several tensors with one plan.

    Return the selected pixels of each request. A window needed by several selections is computed only once, even if the
    caches of the stores drop the window.
    """
    if torch.is_inference_mode_enabled():
        # Tensors created in inference mode could not be used outside of it.
        with torch.inference_mode(mode=False):
            return read_together(requests, workers, work)
    while True:
        for contents in {node.contents: None for node, _ in requests if node.contents.flush_requested}:
            with store_call(contents):
                contents.flush_if_requested()
        read, found = _looked_up(requests)
        absent = [each for each in found if not _written(each, workers)]
        if absent:
            with store_call(*[node.contents for node, _, _ in absent], CLAIMS):
                if not _compute(absent, workers, work):
                    continue
        return [[selection.pick(out) for selection, out in parts] for parts in read]


def _read_anew(node: Node, start: Sequence[int], stop: Sequence[int], work: Counter[Node]) -> torch.Tensor:
    selection = Selection(tuple(start), tuple(stop), (1,) * len(stop), ())
    return read_together([(node, [selection])], work=work)[0][0]


Views.read_anew = staticmethod(_read_anew)


def windows_to_compute(node: Node, selection: Selection) -> int:
    """Count the windows to compute for a read.

    Windows of upstream tensors are included, and of formulas each `_LIKE_A_WINDOW` pixels. Nothing is computed.

    Raises
    ------
    TileAccessError
        If some of these windows belong to a tensor without ``f``.
    """
    with store_call(node.contents, CLAIMS), Views(CLAIMS.reader(None)) as views:
        wanted = {node: NumberedRegions.alone(*SelectionBlocks.of(selection, node.spec.grid.window).bounds())}
        formulas, ends = formulas_of([node])
        needed = spread(formulas, wanted)
        missing = {end: views.of(end).add(needed[end].starts, needed[end].stops) for end in ends if end in needed}
        pixels = [count_in(needed[formula]) for formula in formulas if formula in needed]
        return sum([-(-count // _LIKE_A_WINDOW) for count in pixels]) + sum(
            [len(workload.windows) for workload in build(missing, views)]
        )


_Selected: TypeAlias = list[tuple[Selection, torch.Tensor]]
"""Selections of a tensor, each with a result tensor for the wanted pixels."""
_Request: TypeAlias = tuple[Node, TensorSpec, _Selected]
"""A tensor, the spec used to allocate the results, and the selections to read."""


def _looked_up(requests: Sequence[tuple[Node, Sequence[Selection]]]) -> tuple[list[_Selected], list[_Request]]:
    """Allocate the result tensors of a read, and fill them from memory where possible.

    Return two lists: the selections of each request with their result tensors, and the requests for result tensors that
    are not filled yet.
    """
    read: list[_Selected] = []
    absent: list[_Request] = []
    for node, wanted in requests:
        spec = node.spec
        parts = [(each, new_result(each.size, spec.dtype, spec.device, IN_PARTS)) for each in wanted]
        read.append(parts)
        serve = partial(node.contents.serve, spec)
        with looking(node.contents):
            missing = [(each, out) for each, out in parts if out.numel() and not all(_filled(node, each, out, serve))]
        if missing:
            absent.append((node, spec, missing))
    return read, absent


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


def _written(request: _Request, workers: int | None) -> bool:
    """Let ``f`` write regions directly to the result tensors, if possible.

    Return whether this was done.
    """
    node, _, parts = request
    writer, contents = node.computation.writer, node.contents
    if writer is None or contents.outlives_process or (workers or node.computation.workers) > 1:
        return False
    contents.check_open()
    for selection, out in parts:
        deque(_filled(node, selection, out, writer.write), maxlen=0)
    return True


def _compute(requests: Sequence[_Request], workers: int | None, work: Counter[Node] | None) -> bool:
    """Compute and read the requests. Add to `work`, if it is given, what is computed; see `Reader`.

    Return False if a tensor was moved to another dtype or device meanwhile. Then everything must be read again.
    """
    nodes = resolved([node for node, _, _ in requests])
    with Views(CLAIMS.reader(workers)) as views:
        for node, (given, spec, own) in zip(nodes, requests, strict=True):
            settle(node, (list(own[0][0].start), list(own[0][0].stop)), views)
            views.of(node)
            if given.tensor.spec is not spec:
                return False
        parts = [
            [_Part(node, SelectionBlocks.of(selection, node.spec.grid.window), out) for selection, out in own]
            for node, (_, _, own) in zip(nodes, requests, strict=True)
        ]
        try:
            if sum([part.nbytes for own in parts for part in own]) <= _BLOCK_BYTES:
                _read_at_once([part for own in parts for part in own], views)
            else:
                _read_in_steps(parts, views)
        except Exception:
            if not views.moved:
                raise
        if work is None:
            _warn_of_waste(parts, views.reader.work)
        else:
            work.update(views.reader.work)
        return not views.moved


def _warn_of_waste(parts: Sequence[Sequence[_Part]], work: Mapping[Node, int]) -> None:
    for own in parts:
        node, pixels = own[0].node, sum([part.out.numel() for part in own])
        if not work or node.computation.warned:
            continue
        wanted = {node: NumberedRegions.alone(*_joined([part.bounds for part in own]))}
        if most := most_wasteful(wanted, pixels, work):
            node.computation.warned = True
            windows = named(most.computation), most.spec.grid.window.size
            warn_of_waste(named(node.computation), pixels, work[most], *windows)


def _read_at_once(parts: Sequence[_Part], views: Views) -> None:
    regions: dict[Node, list[Regions]] = {}
    for part in parts:
        regions.setdefault(part.node, []).append(part.bounds)
    loop = Loop(regions, views)
    loop.add([_joined(bounds) for bounds in regions.values()])
    loop.compute(to_the_end=True)
    for part in parts:
        deque(_filled(part.node, part.blocks.selection, part.out, views.of(part.node).read), maxlen=0)


def _joined(bounds: Sequence[Regions]) -> Regions:
    starts, stops = zip(*bounds, strict=True)
    return np.concatenate(starts), np.concatenate(stops)


def _read_in_steps(requests: Sequence[Sequence[_Part]], views: Views) -> None:
    """Read large selections block by block, and release windows early.

    All tensors are read at the same pace, so that shared windows stay in memory only briefly.
    """
    sizes = [sum([part.nbytes for part in own]) for own in requests]
    parts: list[_Part] = []
    begins: list[FloatArray] = []
    for own, size in zip(requests, sizes, strict=True):
        before = 0.0
        for part in own:
            parts.append(part.cut(_BLOCK_BYTES * size // sum(sizes)))
            share, count = part.nbytes / size, len(parts[-1].blocks)
            begins.append(before + share * np.arange(count) / count)
            before += share
    order = np.argsort(np.concatenate(begins), kind="stable")
    part_of = np.repeat(np.arange(len(parts)), [len(part.blocks) for part in parts])[order]
    waiting = [iter(part.blocks) for part in parts]

    def read_block(number: int) -> None:
        at = int(part_of[number])
        part = parts[at]
        part.blocks.fill(next(waiting[at]), part.out, views.of(part.node).read)

    regions: dict[Node, NumberedRegions] = {}
    for node in dict.fromkeys([part.node for part in parts]):
        of_node = [at for at, part in enumerate(parts) if part.node == node]
        starts, stops = _joined([parts[at].bounds for at in of_node])
        among = np.argsort(np.concatenate([begins[at] for at in of_node]), kind="stable")
        regions[node] = NumberedRegions(np.flatnonzero(np.isin(part_of, of_node)), starts[among], stops[among])
    weights = np.concatenate([part.weights() for part in parts])[order]
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
    if node.computation.formula is not None:
        # Nothing is kept between two reads of a formula.
        batch: list[Selection] = []
        nbytes = 0
        for selection in selections:
            batch.append(selection)
            nbytes += math.prod(selection.size) * node.spec.dtype.itemsize
            if len(batch) == _MOST_WAITING or nbytes >= _BLOCK_BYTES:
                yield read_together([(node, batch)], workers)[0]
                batch, nbytes = [], 0
        if batch:
            yield read_together([(node, batch)], workers)[0]
        return
    streamed = _Stream(node, workers)
    try:
        for selection in selections:
            if ready := streamed.add(selection):
                yield ready
        if ready := streamed.finish():
            yield ready
    finally:
        streamed.close()


class _Stream:
    """Reads selections in order, for `stream`.

    Each method enters the stores anew, because the user's code runs between two calls.
    """

    def __init__(self, node: Node, workers: int | None) -> None:
        self._node = node
        self._views = Views(CLAIMS.reader(workers))
        self._loop: Loop | None = None
        self._waiting: deque[Selection] = deque()
        self._waiting_bytes = 0

    def add(self, selection: Selection) -> list[torch.Tensor]:
        with store_call(self._node.contents, CLAIMS):
            self._node.contents.flush_if_requested()
            if self._loop is None:
                self._loop = Loop([self._node], self._views)
            self._loop.add([SelectionBlocks.of(selection, self._node.spec.grid.window).bounds()])
            self._waiting.append(selection)
            self._waiting_bytes += self._bytes_of(selection)
            # A window waiting for a full batch must not delay many later, already stored regions.
            crowded = len(self._waiting) >= _MOST_WAITING or self._waiting_bytes >= _BLOCK_BYTES
            return self._computed(self._loop, to_the_end=crowded)

    def finish(self) -> list[torch.Tensor]:
        with store_call(self._node.contents, CLAIMS):
            return [] if self._loop is None else self._computed(self._loop, to_the_end=True)

    def close(self) -> None:
        # The garbage collector may call this at any moment. If the store refuses, memory is freed with the stream.
        with contextlib.suppress(StoreError), store_call(self._node.contents):
            self._views.close()

    def _computed(self, loop: Loop, *, to_the_end: bool) -> list[torch.Tensor]:
        try:
            ready = loop.compute(to_the_end=to_the_end)
        finally:
            # Between batches, no upstream windows are kept.
            self._views.close(1)
        results = []
        access = self._views.of(self._node)
        for _ in ready:
            selection = self._waiting.popleft()
            out = new_result(selection.size, self._node.spec.dtype, self._node.spec.device, IN_PARTS)
            if out.numel():
                deque(_filled(self._node, selection, out, access.read), maxlen=0)
            results.append(selection.pick(out))
        if results:
            starts = [selection.start for selection in self._waiting]
            access.keep([min(column) for column in zip(*starts, strict=True)] if starts else None)
            self._waiting_bytes = sum(map(self._bytes_of, self._waiting))
        return results

    def _bytes_of(self, selection: Selection) -> int:
        return SelectionBlocks.of(selection, self._node.spec.grid.window).pixels * self._node.spec.dtype.itemsize
