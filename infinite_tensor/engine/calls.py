"""Calls ``f``: reads the args, checks the returned windows, and stores the windows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import Any

import torch

from infinite_tensor.engine.args import region_of
from infinite_tensor.engine.claims import CLAIMS, Task
from infinite_tensor.engine.returned import Check, as_list, entries_of, named
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.allocation import Array, as_array, keep_at_hand, new_block
from infinite_tensor.support.interrupts import entered, running_f
from infinite_tensor.support.log import LOG
from infinite_tensor.tilestore.contents import Contents

_BLOCK_BYTES = 2**21
_LATEST_SECONDS = 0.05
_SMALLER = "give smaller windows"


class Caller:
    """One thread that calls ``f`` for the windows of a task, and stores what ``f`` returns.

    Many windows are stored at once. Those of a tensor lie side by side in blocks, so that stores can process
    neighbouring windows together.

    Another thread may store the collected windows while waiting for one of them. Without this, two threads could wait
    for each other forever. If storing fails, the error is raised later, in the thread that computed the windows.

    Attributes
    ----------
    task : Task
        The windows.
    thread : int
        The id of the thread.
    current : list of int
        Positions of the windows in the current call of ``f``.
    begun : dict of tuple of int to None
        The windows begun but not stored yet.
    token : contextvars.Token
        Ends the entry of the caller among those around the current code.
    """

    token: Token[Any]

    def __init__(self, task: Task) -> None:
        self.task = task
        self.thread = threading.get_ident()
        self.current: list[int] = []
        self.begun: dict[Index, None] = {}
        keep_at_hand()
        self._computation = computation = task.computation
        assert computation.f is not None
        self._f = computation.f
        self._running_f = running_f()
        self._indices = task.indices
        self._sources = [
            (upstream, access, starts.tolist())
            for upstream, (access, starts) in zip(computation.inputs, task.sources, strict=True)
        ]
        self._batched = computation.batching.given is not None
        self._checks = [Check(tensor.spec.gathered) for tensor in computation.tensors]
        self._check = self._checks[0].array_of
        self._keys = [check.key for check in self._checks if check.key is not None] if self._checks[0].key else []
        self._stores = [store for store in entered() if isinstance(store, Contents)]
        self._flush_requests = -1
        self._largest = max([check.window_bytes for check in self._checks])
        # For a block of a single window, copying would take as long as blending.
        keeps = [True for product in task.products if product.access.keeps_outputs]
        self._straight = not keeps and 2 * self._largest > _BLOCK_BYTES
        self._first: Array = ()
        self._others: list[Array] = []
        self._begin = self._end = self._length = 0
        self._positions: list[int] = []
        self._sent = self._logged = time.monotonic()
        # Reentrant, because `notice` may call a user's function, and the function may read.
        self._lock = threading.RLock()
        self._error: Exception | None = None

    def run(self, positions: Sequence[int]) -> None:
        """Call ``f`` once for the windows at `positions`, check the results, and collect them.

        Raises
        ------
        ValidationError, ShapeMismatchError, DtypeMismatchError, DeviceMismatchError
            If ``f`` does not return what was declared. Errors that ``f`` raises are passed on. A note on every error
            names the tensor and the windows that were being computed.
        """
        others: Sequence[Array] = ()
        try:
            if self._batched:
                windows = self._checked_batch(positions)
            else:
                (position,) = positions
                regions = self._regions(position) if self._sources else ()
                with self._running_f:
                    output = self._f(self._indices[position], *regions)
                if self._keys:
                    window, *others = self._checked(output)
                else:
                    window = self._check(output)
        except Exception as error:
            indices = [str(self._indices[position]) for position in positions[:8]]
            listed = ", ".join(indices if len(positions) <= 8 else [*indices, "..."])
            error.add_note(f"while computing window {listed} of {named(self._computation)}")
            if isinstance(error, torch.OutOfMemoryError):
                error.add_note("give a smaller batch_size, or smaller windows; windows that are stored are kept")
            raise
        if self._batched:
            for position, each in zip(positions, windows, strict=True):
                self._put(position, *each)
        else:
            self._put(position, window, *others)

    def _checked(self, output: object) -> list[Array]:
        entries = entries_of(output, self._keys)
        return [check.array_of(entry) for check, entry in zip(self._checks, entries, strict=True)]

    def _checked_batch(self, positions: Sequence[int]) -> list[Sequence[Array]]:
        """Call ``f`` for a batch of windows, and check the results.

        Return one array per tensor, for each window.
        """
        columns = zip(*map(self._regions, positions), strict=True) if self._sources else ()
        regions = [list(column) for column in columns]
        with self._running_f:
            output = self._f([self._indices[position] for position in positions], *regions)
        if not self._keys:
            return [(each,) for each in self._checks[0].arrays_of(output, len(positions))]
        if isinstance(output, Mapping):
            entries = entries_of(output, self._keys)
            arrays = [
                check.arrays_of(entry, len(positions)) for check, entry in zip(self._checks, entries, strict=True)
            ]
            return list(zip(*arrays, strict=True))
        return [self._checked(each) for each in as_list(output, len(positions))]

    def _regions(self, position: int) -> list[torch.Tensor]:
        return [region_of(each, access, starts[position], each.window.size) for each, access, starts in self._sources]

    def _put(self, position: int, window: Array, *others: Array) -> None:
        """Collect the result of ``f`` for one window index: a window of each output tensor.

        `position` is the position of the index in the task. Afterwards, ``f`` may reuse the memory of the windows.
        """
        if self._straight:
            self._deposit([position], [each[None] for each in (window, *others)])
            return
        end = self._end
        if end == self._length:
            with self._lock:
                if end:
                    self.send()
                self._length = max(1, min(len(self._indices), _BLOCK_BYTES // max(1, self._largest)))
                self._first, *self._others = [
                    as_array(new_block((self._length, *check.size), check.dtype, check.device, _SMALLER))
                    for check in self._checks
                ]
                self._begin = self._end = end = 0
                self._positions = []
        # Fast for a single tensor, because this runs for each window.
        self._first[end] = window
        if others:
            for block, other in zip(self._others, others, strict=True):
                block[end] = other
        self._positions.append(position)
        # From here on, other threads may send the window.
        self._end = end + 1

    def tend(self) -> None:
        """Store the collected windows every `_LATEST_SECONDS`.

        If a flush was requested for a store, store the windows and flush this store at once. Call this method after
        each call of ``f``.
        """
        if time.monotonic() - self._sent > _LATEST_SECONDS:
            self.send()
        if Contents.flush_requests != self._flush_requests:
            self._flush_requests = Contents.flush_requests
            for store in self._stores:
                if store.flush_requested:
                    self.send()
                    store.flush_if_requested()

    def send(self) -> None:
        """Store the collected windows."""
        with self._lock:
            begin, end = self._begin, self._end
            self._begin = end
            if begin < end:
                self._deposit(self._positions[begin:end], [block[begin:end] for block in (self._first, *self._others)])
            self._sent = time.monotonic()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def send_anyhow(self) -> None:
        """Store the collected windows. Any thread may call this method, and gets no error."""
        try:
            self.send()
        except Exception as error:  # noqa: BLE001  (raised later by the thread that computed the windows)
            self._error = error

    def _deposit(self, positions: Sequence[int], blocks: Sequence[Array]) -> None:
        try:
            for product, block in zip(self.task.products, blocks, strict=True):
                product.deposit(positions, block)
        finally:
            # Storing may have failed, but the thread has finished computing.
            CLAIMS.end(self, positions)
        # Last, because a user's function or a handler may raise.
        if self.task.views.notice is not None:
            self.task.views.notice(self.task.products[0].node, len(positions))
        if LOG.isEnabledFor(logging.DEBUG):
            first, last, before = self._indices[positions[0]], self._indices[positions[-1]], self._logged
            self._logged = time.monotonic()
            seconds, names = self._logged - before, self._computation.names
            LOG.debug("computed windows %s to %s of %s: %d in %.3f s", first, last, names, len(positions), seconds)

    def __enter__(self) -> None:
        CLAIMS.start(self)

    def __exit__(self, *_exc: object) -> None:
        try:
            self.send()
        finally:
            CLAIMS.stop(self)
