"""Calls ``f``: reads the args, checks the returned windows, and stores the windows."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from infinite_tensor.engine.chain import Input
from infinite_tensor.engine.claims import CLAIMS, Work, Worker
from infinite_tensor.errors import DeviceMismatchError, DtypeMismatchError, ShapeMismatchError, ValidationError
from infinite_tensor.geometry.padding import positions
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.support.allocation import Array, as_array, as_tensor, keep_at_hand, new_block, new_tensor
from infinite_tensor.support.given import quoted
from infinite_tensor.support.interrupts import changing, entered, running_f
from infinite_tensor.support.log import LOG
from infinite_tensor.support.nested import Key, leaves, show
from infinite_tensor.tilestore.contents import Access, Contents
from infinite_tensor.values.code import innermost
from infinite_tensor.values.spec import TensorSpec

_SMALLER = "give args_windows a smaller size"
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
        self._checks = [_Check(tensor.spec.gathered) for tensor in computation.tensors]
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
            error.add_note(f"while computing window {listed} of {self._computation.names}{_source_of(self._f)}")
            if isinstance(error, torch.OutOfMemoryError):
                error.add_note("give a smaller batch_size, or smaller windows; windows that are stored are kept")
            raise
        if self._batched:
            for position, each in zip(positions, windows, strict=True):
                put(position, *each)
        else:
            put(position, window, *others)

    def _checked(self, output: object) -> list[Array]:
        entries = _entries(output, self._keys)
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
            entries = _entries(output, self._keys)
            arrays = [
                check.arrays_of(entry, len(positions)) for check, entry in zip(self._checks, entries, strict=True)
            ]
            return list(zip(*arrays, strict=True))
        return [self._checked(each) for each in _as_list(output, len(positions))]

    def _regions(self, position: int) -> list[torch.Tensor]:
        return [region_of(upstream, access, starts[position]) for upstream, access, starts in self._sources]


class _Check:
    """Checks the windows returned by ``f`` for one tensor."""

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._size, self._dtype = spec.definition.output_window.size, spec.numpy_dtype
        self.key = spec.definition.output
        self._named = "" if self.key is None else f" for {show(self.key)}"

    def array_of(self, output: object) -> Array:
        """Check one window, and return an array sharing its memory."""
        if self._dtype is not None and type(output) is torch.Tensor:
            try:
                array = output.numpy()
            except (RuntimeError, TypeError):
                # For example, the output requires a gradient or is on another device.
                return self._slow(output)
            if array.dtype == self._dtype and array.shape == self._size:
                return array
        return self._slow(output)

    def arrays_of(self, returned: object, count: int) -> Sequence[Array]:
        """Check the windows of a batch, and return one array per window.

        `returned` is a list or a stacked tensor for `count` windows.
        """
        if self._dtype is not None and type(returned) is torch.Tensor and returned.shape == (count, *self._size):
            with contextlib.suppress(RuntimeError, TypeError):
                stacked = returned.numpy()
                if stacked.dtype == self._dtype:
                    return list(stacked)
        return [self.array_of(each) for each in self._windows_of(returned, count)]

    def _windows_of(self, returned: object, count: int) -> Sequence[object]:
        if isinstance(returned, torch.Tensor) and not returned.is_nested:
            self._check_dense(returned)
            stacked = (count, *self._size)
            if returned.shape != stacked:
                raise ShapeMismatchError(
                    f"for {_windows(count)}, f returned{self._named} shape {tuple(returned.shape)}; return {stacked}"
                )
        return _as_list(returned, count)

    def _slow(self, output: object) -> Array:
        tensor = self._checked(output)
        try:
            return as_array(tensor)
        except (RuntimeError, TypeError) as error:
            raise ValidationError(
                f"f must return a tensor{self._named} with values, got {type(output).__name__}: {error}"
            ) from error

    def _checked(self, output: object) -> torch.Tensor:
        spec, size, named = self._spec, self._size, self._named
        if not isinstance(output, torch.Tensor):
            advice = "end it with return result" if output is None else "return torch.as_tensor(result)"
            raise ValidationError(
                f"f must return a torch.Tensor{named}, got {type(output).__name__}: {quoted(output)}; {advice}"
            )
        self._check_dense(output)
        if output.shape != size:
            raise ShapeMismatchError(
                f"f returned{named} shape {tuple(output.shape)}, but the output window has size {size}; return {size}"
            )
        if output.dtype != spec.dtype:
            raise DtypeMismatchError(
                f"f returned{named} {output.dtype}, but the tensor has dtype {spec.dtype}; return "
                f"result.to({spec.dtype}), or declare dtype={output.dtype}"
            )
        if output.device != spec.device:
            here, there = str(spec.device), str(output.device)
            advice = f"return result.to({here!r}), or declare device={there!r}"
            raise DeviceMismatchError(
                f"f returned{named} a tensor on {there}, but the tensor is declared on {here}; "
                + ("return a tensor with values" if output.is_meta else advice)
            )
        return output.detach().resolve_conj().resolve_neg()

    def _check_dense(self, output: torch.Tensor) -> None:
        if output.is_nested:
            raise ValidationError(f"f must return a dense tensor{self._named}, got a nested tensor")
        if output.layout is not torch.strided:
            raise ValidationError(
                f"f must return a dense tensor{self._named}, got layout {output.layout}; return result.to_dense()"
            )


def _entries(output: object, keys: Sequence[Key]) -> list[Any]:
    listed = ", ".join(map(show, keys))
    if not isinstance(output, Mapping):
        raise ValidationError(f"f must return a dict with the keys {listed}, got {type(output).__name__}")
    found = dict(leaves(output))
    missing, extra = [key for key in keys if key not in found], [key for key in found if key not in keys]
    if missing or extra:
        differing = [f"{show(key)} is missing" for key in missing] + [f"{show(key)} is not an output" for key in extra]
        raise ValidationError(
            f"f must return a dict with the keys {listed}; in the returned dict, {', '.join(differing)}"
        )
    return [found[key] for key in keys]


def _as_list(returned: object, count: int) -> Sequence[object]:
    if isinstance(returned, torch.Tensor) and returned.ndim > 0:
        returned = returned.unbind(0)
    if not isinstance(returned, list | tuple):
        raise ValidationError(
            f"f with a batch_size must return a list of tensors or one stacked tensor, got {type(returned).__name__}"
        )
    if len(returned) != count:
        raise ShapeMismatchError(
            f"for {_windows(count)}, f returned {len(returned)} results; return one tensor for each window"
        )
    return returned


def _source_of(f: Callable[..., Any]) -> str:
    """Describe the user's function for messages: name, file and line."""
    f = innermost(f)
    kind, code = type(f), getattr(f, "__code__", None)
    if code is not None:
        return f", by {f.__name__} defined in {code.co_filename}:{code.co_firstlineno}"
    # For example, a network or a function of torch.
    return (
        "" if str(kind.__module__).startswith("infinite_tensor.") else f", by {getattr(f, '__name__', kind.__name__)}"
    )


def _windows(count: int) -> str:
    return f"{count} window{'s' * (count > 1)}"


def region_of(upstream: Input, access: Access, start: Sequence[int]) -> torch.Tensor:
    """Read the region of an arg beginning at pixel `start`."""
    if upstream.reads.padded and upstream.reads.leaves(start):
        return _padded(upstream, access, start)
    spec = upstream.node.spec
    region = new_tensor(upstream.window.size, spec.dtype, spec.device, _SMALLER)
    access.read(start, region)
    return region


def _padded(upstream: Input, access: Access, start: Sequence[int]) -> torch.Tensor:
    spec, reads, size = upstream.node.spec, upstream.reads, upstream.window.size
    parts = [reads.parts(d, first) for d, first in enumerate(start)]
    if not all(parts):
        # In some dimension, the region contains nothing but constant padding.
        return as_tensor(_with_constants(upstream, as_array(_new(size, upstream)), start))
    inside = as_array(_new([sum(b - a for a, b in part) for part in parts], upstream))
    for box in itertools.product(*map(_placed, parts)):
        access.read([low for low, _ in box], as_tensor(inside)[tuple(to for _, to in box)])
    for d, (extent, mode) in reads.padded.items():
        if len(parts[d]) == 1:
            index = positions(mode, extent, start[d], size[d])
            inside = _taken(inside, d, np.maximum(index - parts[d][0][0], 0))
    assert inside.shape == size
    assert as_tensor(inside).dtype == spec.dtype
    return as_tensor(_with_constants(upstream, inside, start))


def _new(size: Sequence[int], upstream: Input) -> torch.Tensor:
    return new_tensor(tuple(size), upstream.node.spec.dtype, upstream.node.spec.device, _SMALLER)


def _placed(parts: Sequence[tuple[int, int]]) -> list[tuple[int, slice]]:
    """Return the slices for storing intervals one after another.

    The intervals ``[(5, 8), (0, 2)]`` give ``[(5, slice(0, 3)), (0, slice(3, 5))]``: the three pixels from 5 on are
    stored first, then the two pixels from 0 on.
    """
    ends = list(itertools.accumulate(b - a for a, b in parts))
    return [(a, slice(end - (b - a), end)) for (a, b), end in zip(parts, ends, strict=True)]


def _taken(block: Array, d: int, index: IntArray) -> Array:
    if len(index) == block.shape[d] and bool((index == np.arange(len(index))).all()):
        return block
    if isinstance(block, np.ndarray):
        return np.take(block, index, axis=d)
    return block.index_select(d, torch.from_numpy(index).to(block.device))


def _with_constants(upstream: Input, region: Array, start: Sequence[int]) -> Array:
    assert upstream.padding is not None
    for d, (extent, mode) in upstream.reads.padded.items():
        if mode == "constant":
            before, after = max(0, -start[d]), max(0, extent - start[d])
            for outside in (slice(0, before), slice(after, None)):
                region[(slice(None),) * d + (outside,)] = upstream.padding[d].value
    return region


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
            with changing():
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
                    with changing():
                        store.flush_if_requested()

    def send(self) -> None:
        """Store the collected windows."""
        with changing(), self._lock:
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
