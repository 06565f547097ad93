"""From selections to result tensors."""

from __future__ import annotations

import contextlib
import math
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from infinite_tensor.engine.chain import Node, resolved
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.engine.loop import Loop, run_steps
from infinite_tensor.engine.reads import Views
from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.geometry.window import TensorWindow, followed
from infinite_tensor.support.allocation import IN_PARTS, new_result
from infinite_tensor.support.interrupts import running_f, store_call
from infinite_tensor.values.spec import TensorSpec

_BLOCK_BYTES = 16 * 2**20
"""A larger read is carried out block by block, so that upstream windows are released early."""
_MOST_WAITING = 1024
"""Regions of a stream that wait for a batch to fill."""


@dataclass(frozen=True)
class _Block:
    """A part of one result, small enough to be worked on at once."""

    node: Node
    start: Index
    stop: Index
    out: torch.Tensor


def read_together(
    requests: Sequence[tuple[Node, Sequence[Selection]]], workers: int | None = None
) -> list[list[torch.Tensor]]:
    """Compute what is missing of selections of several tensors in one plan, and return what they select, per request.

    A window that several of them need runs once, whatever the caches of the stores keep.
    """
    if torch.is_inference_mode_enabled():
        # Tensors that are born in it could not be used outside of it.
        with torch.inference_mode(mode=False):
            return read_together(requests, workers)
    call = store_call()
    with call.running:
        call.begin(*[node.contents for node, _ in requests], reads=True)
        while True:
            read, absent = _looked_up(requests, workers)
            if not absent or _compute(absent, workers):
                return [[selection.pick(box) for selection, box in parts] for parts in read]


_Parts: TypeAlias = list[tuple[Selection, torch.Tensor]]
"""Selections of one tensor, each with the block that it is to be read into."""
_Request: TypeAlias = tuple[Node, TensorSpec, _Parts]
"""What is to be read of a tensor, and what it was when the blocks were allocated."""


def _looked_up(
    requests: Sequence[tuple[Node, Sequence[Selection]]], workers: int | None
) -> tuple[list[_Parts], list[_Request]]:
    """The results, with what stores have in memory or takes no windows; and those parts that are still to be read."""
    read: list[_Parts] = []
    absent: list[_Request] = []
    for node, wanted in requests:
        spec, contents = node.spec, node.contents
        if contents.flush_requested:
            contents.flush_if_requested()
        parts = [(each, new_result(each.shape, spec.dtype, spec.device, IN_PARTS)) for each in wanted]
        read.append(parts)
        missing = [(each, box) for each, box in parts if box.numel() and not contents.serve(spec, each.start, box)]
        if missing and not _written(node, missing, workers):
            absent.append((node, spec, missing))
    return read, absent


def _written(node: Node, parts: _Parts, workers: int | None) -> bool:
    """Have an ``f`` that can write regions write some; whether it has."""
    writer, contents = node.computation.writer, node.contents
    if writer is None or contents.outlives_process or (workers or node.computation.workers) > 1:
        return False
    contents.check_open()
    with running_f():
        for selection, box in parts:
            writer.write(selection.start, box)
    return True


def _compute(requests: Sequence[_Request], workers: int | None) -> bool:
    """Read what is not in memory. False where a tensor has been moved meanwhile, so that all must be read again."""
    nodes = resolved([node for node, _, _ in requests])
    with Views(CLAIMS.reader(workers)) as views:
        for node, (given, spec, _) in zip(nodes, requests, strict=True):
            views.of(node)
            if given.tensor.spec is not spec:
                return False
        parts = [(node, parts) for node, (_, _, parts) in zip(nodes, requests, strict=True)]
        try:
            if sum([box.nbytes for _, own in parts for _, box in own]) <= _BLOCK_BYTES:
                _read_at_once(parts, views)
            else:
                _read_in_steps(parts, views)
        except Exception:
            if not views.moved:
                raise
        return not views.moved


def _read_at_once(requests: Sequence[tuple[Node, _Parts]], views: Views) -> None:
    """Read what is one step: nothing is released on the way, so no order matters."""
    regions: dict[Node, tuple[list[Index], list[Index]]] = {}
    for node, parts in requests:
        starts, stops = regions.setdefault(node, ([], []))
        starts += [selection.start for selection, _ in parts]
        stops += [selection.stop for selection, _ in parts]
    loop = Loop(regions, views)
    loop.add(
        [(np.array(starts, dtype=np.int64), np.array(stops, dtype=np.int64)) for starts, stops in regions.values()]
    )
    loop.compute(to_the_end=True)
    for node, parts in requests:
        access = views.of(node)
        for selection, box in parts:
            access.read(selection.start, box)


def _read_in_steps(requests: Sequence[tuple[Node, _Parts]], views: Views) -> None:
    """Read what is large in blocks, of all tensors at the same pace."""
    blocks = _side_by_side(requests)

    def read_block(number: int) -> None:
        block = blocks[number]
        views.of(block.node).read(block.start, block.out)

    run_steps(_regions(blocks), _steps(blocks), views, read_block)


def _side_by_side(requests: Sequence[tuple[Node, _Parts]]) -> list[_Block]:
    """What is read, in blocks: of all tensors at the same pace, so that what they share can be released early."""
    sizes = [sum([box.nbytes for _, box in parts]) for _, parts in requests]
    ranked: list[tuple[float, _Block]] = []
    for (node, parts), size in zip(requests, sizes, strict=True):
        most = max(1, _BLOCK_BYTES * size // sum(sizes))
        begin = 0.0
        for selection, box in parts:
            for block in _blocks(node, selection, box, most):
                ranked.append((begin, block))
                begin += block.out.nbytes / size
    ranked.sort(key=operator.itemgetter(0))
    return [block for _, block in ranked]


def _regions(blocks: Sequence[_Block]) -> dict[Node, NumberedRegions]:
    rows: dict[Node, list[tuple[int, Index, Index]]] = {}
    for number, block in enumerate(blocks):
        rows.setdefault(block.node, []).append((number, block.start, block.stop))
    return {
        node: NumberedRegions(*[np.array(column, dtype=np.int64) for column in zip(*own, strict=True)])
        for node, own in rows.items()
    }


def _steps(blocks: Sequence[_Block]) -> list[range]:
    """Runs of neighbouring blocks, each about as large as one block may be."""
    steps, first, size = [], 0, 0
    for number, block in enumerate(blocks):
        size += block.out.nbytes
        if size >= _BLOCK_BYTES or number == len(blocks) - 1:
            steps.append(range(first, number + 1))
            first, size = number + 1, 0
    return steps


def _blocks(node: Node, selection: Selection, box: torch.Tensor, most_bytes: int) -> Iterator[_Block]:
    """The selection cut into bands along its first long dimension, at the borders of windows."""
    window = node.spec.grid.window
    d = _first_long(window, box.shape) if box.nbytes > most_bytes else None
    if d is None:
        yield _Block(node, selection.start, selection.stop, box)
        return
    stride, offset = window.stride[d], window.offset[d]
    rows = max(1, most_bytes * box.shape[d] // box.nbytes)
    rows = max(stride, rows // stride * stride)
    start, end = selection.start[d], selection.stop[d]
    cut = start
    while cut < end:
        following = min(end, (cut - offset) // rows * rows + rows + offset)
        low, high = list(selection.start), list(selection.stop)
        low[d], high[d] = cut, following
        yield _Block(node, tuple(low), tuple(high), box.narrow(d, cut - start, following - cut))
        cut = following


def _first_long(window: TensorWindow, shape: Sequence[int]) -> int | None:
    """The first dimension along which a box reaches farther than windows are apart, if there is one."""
    for d, (k, stride, extent) in enumerate(zip(followed(window), window.stride, shape, strict=True)):
        if k is not None and extent > stride:
            return d
    return None


@torch.inference_mode(mode=False)
def stream(node: Node, selections: Iterable[Selection], workers: int | None = None) -> Iterator[list[torch.Tensor]]:
    """Read selections in order, in full batches, yielding those that are ready after each batch."""
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
    """Selections that are read one after the other. Each method is a call into the stores, and nothing in between."""

    def __init__(self, node: Node, workers: int | None) -> None:
        self._node = node
        self._views = Views(CLAIMS.reader(workers))
        self._loop: Loop | None = None
        self._waiting: deque[Selection] = deque()
        self._waiting_bytes = 0

    def add(self, selection: Selection) -> list[torch.Tensor]:
        """One more follows; what is ready now."""
        call = store_call()
        with call.running:
            call.begin(self._node.contents, reads=True)
            self._node.contents.flush_if_requested()
            if self._loop is None:
                self._loop = Loop([self._node], self._views)
            self._loop.add([(np.array([selection.start]), np.array([selection.stop]))])
            self._waiting.append(selection)
            self._waiting_bytes += self._bytes_of(selection)
            # Stored regions behind one window that does not fill a batch must not pile up.
            crowded = len(self._waiting) >= _MOST_WAITING or self._waiting_bytes >= _BLOCK_BYTES
            return self._computed(self._loop, to_the_end=crowded)

    def finish(self) -> list[torch.Tensor]:
        """None follows; what is left."""
        call = store_call()
        with call.running:
            call.begin(self._node.contents, reads=True)
            return [] if self._loop is None else self._computed(self._loop, to_the_end=True)

    def close(self) -> None:
        """Release what is held."""
        call = store_call()
        with contextlib.suppress(StoreError), call.running:
            # A stream that was dropped may be closed in the middle of anything; what it holds then goes with it.
            call.begin(self._node.contents)
            self._views.close()

    def _computed(self, loop: Loop, *, to_the_end: bool) -> list[torch.Tensor]:
        """Compute what fills batches, or all; read the selections that are ready, and release what only they needed."""
        try:
            ready = loop.compute(to_the_end=to_the_end)
        finally:
            # Of the tensors upstream nothing is held between batches.
            self._views.close(1)
        results = []
        access = self._views.of(self._node)
        for _ in ready:
            selection = self._waiting.popleft()
            box = new_result(selection.shape, self._node.spec.dtype, self._node.spec.device, IN_PARTS)
            if box.numel():
                access.read(selection.start, box)
            results.append(selection.pick(box))
        if results:
            starts = [selection.start for selection in self._waiting]
            access.keep([min(column) for column in zip(*starts, strict=True)] if starts else None)
            self._waiting_bytes = sum(map(self._bytes_of, self._waiting))
        return results

    def _bytes_of(self, selection: Selection) -> int:
        return math.prod(selection.shape) * self._node.spec.dtype.itemsize
