"""Calls ``f``: reads the args, checks the returned windows, and stores the windows."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from infinite_tensor.engine.args import region_of
from infinite_tensor.engine.claims import CLAIMS, Work, Worker
from infinite_tensor.engine.returned import Check, as_list, entries_of, named
from infinite_tensor.support.allocation import Array, as_array, keep_at_hand, new_block
from infinite_tensor.support.interrupts import entered, running_f
from infinite_tensor.support.log import LOG
from infinite_tensor.tilestore.contents import Contents

_BLOCK_BYTES = 2**21
_LATEST_SECONDS = 0.05


class Calls:
    """Calls ``f`` for the windows needed by a read."""

    def __init__(self, work: Work) -> None:
        self._computation = computation = work.workload.computation
        assert computation.f is not None
        self._f = computation.f
        self._running_f = running_f()
        keep_at_hand()
        self._indices = work.indices
        self._sources = [
            (upstream, access, starts.tolist())
            for upstream, (access, starts) in zip(computation.inputs, work.workload.sources, strict=True)
        ]
        self._batched = computation.batching.given is not None
        self._checks = [Check(tensor.spec.gathered) for tensor in computation.tensors]
        self._check = self._checks[0].array_of
        self._keys = [check.key for check in self._checks if check.key is not None]

    def run(self, positions: Sequence[int], put: Callable[..., None]) -> None:
        """Call ``f`` once, and check the results.

        ``f`` computes the windows at `positions`. Then ``put(position, *windows)`` is called for each position, with
        one window per tensor. `put` must copy the windows at once, because ``f`` may reuse its buffer.

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
                put(position, *each)
        else:
            put(position, window, *others)

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


class Deposits:
    """Collects the windows computed by a thread, and stores many at once.

    The windows of a tensor lie side by side in blocks, so that stores can process neighbouring windows together.

    Another thread may store the collected windows while waiting for one of them. Without this, two threads could wait
    for each other forever. If storing fails, the error is raised later, in the thread that computed the windows.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._workload = workload = work.workload
        self._stores = [store for store in entered() if isinstance(store, Contents)]
        self._flush_requests = -1
        self._specs = [result.node.spec.gathered for result in workload.results]
        self._largest = max([math.prod(spec.grid.window.size) * spec.dtype.itemsize for spec in self._specs])
        # For a block of a single window, copying would take as long as blending.
        keeps = any(result.access.keeps_outputs for result in workload.results)
        self._straight = not keeps and 2 * self._largest > _BLOCK_BYTES
        self._first: Array = ()
        self._others: list[Array] = []
        self._begin = self._end = self._length = 0
        self._positions: list[int] = []
        self._sent = self._logged = time.monotonic()
        # Reentrant, because `notice` may call a user's function, and the function may read.
        self._lock = threading.RLock()
        self._error: Exception | None = None

    def put(self, position: int, window: Array, *others: Array) -> None:
        """Collect the result of ``f`` for one window index: a window of each output tensor.

        `position` is the position of the index in the workload. Afterwards, ``f`` may reuse the memory of the windows.
        """
        if self._straight:
            self._deposit([position], [each[None] for each in (window, *others)])
            return
        end = self._end
        if end == self._length:
            with self._lock:
                self.send()
                self._allocate()
            end = 0
        # Fast for a single tensor, because this runs for each window.
        self._first[end] = window
        if others:
            for block, other in zip(self._others, others, strict=True):
                block[end] = other
        self._positions.append(position)
        # From here on, other threads may send the window.
        self._end = end + 1

    def _allocate(self) -> None:
        self._length = max(1, min(len(self._workload.windows), _BLOCK_BYTES // max(1, self._largest)))
        self._first, *self._others = [
            as_array(new_block((self._length, *spec.grid.window.size), spec.dtype, spec.device, "give smaller windows"))
            for spec in self._specs
        ]
        self._begin = self._end = 0
        self._positions = []

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

    def _send_anyhow(self) -> None:
        try:
            self.send()
        except Exception as error:  # noqa: BLE001  (raised later by the thread that computed the windows)
            self._error = error

    def _deposit(self, positions: Sequence[int], blocks: Sequence[Array]) -> None:
        try:
            for result, block in zip(self._workload.results, blocks, strict=True):
                result.deposit(positions, block)
        finally:
            # Storing may have failed, but the thread has finished computing.
            CLAIMS.end(self._worker, positions)
        # Last, because a user's function or a handler may raise.
        if self._work.reader.notice is not None:
            self._work.reader.notice(self._workload.results[0].node, len(positions))
        if LOG.isEnabledFor(logging.DEBUG):
            self._log(positions)

    def _log(self, positions: Sequence[int]) -> None:
        now = time.monotonic()
        first, last = self._work.indices[positions[0]], self._work.indices[positions[-1]]
        told = first, last, self._workload.computation.names, len(positions), now - self._logged
        LOG.debug("computed windows %s to %s of %s: %d in %.3f s", *told)
        self._logged = now

    def __enter__(self) -> Worker:
        self._worker = CLAIMS.start(self._work, self._send_anyhow)
        return self._worker

    def __exit__(self, *_exc: object) -> None:
        try:
            self.send()
        finally:
            CLAIMS.stop(self._worker)
