"""Computing what is missing: sources first, in batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from infinite_tensor.arrays import Array, as_array
from infinite_tensor.boxes import IntArray
from infinite_tensor.engine.claims import CLAIMS, Claim
from infinite_tensor.engine.node import Input, Node
from infinite_tensor.engine.outbox import Outbox
from infinite_tensor.engine.pace import Pace
from infinite_tensor.engine.plan import Accesses, build
from infinite_tensor.engine.workers import on_threads
from infinite_tensor.errors import (
    DeviceMismatchError,
    DtypeMismatchError,
    ShapeMismatchError,
    ValidationError,
)
from infinite_tensor.tilestore.access import Access


def run(
    wanted: Mapping[Node, IntArray], accesses: Accesses, after: Callable[[int], None] = lambda _depth: None
) -> None:
    """Return when windows of some tensors, which their accesses reported missing, are there.

    They are computed, with all that they need and that is missing too, sources first; what another read is
    computing already is waited for. ``f`` runs under `torch.no_grad`. ``after(depth)`` is called when all windows of
    tensors at that depth of the chain are there.
    """
    # A tensor that is born in inference mode could not be blended into later.
    with torch.inference_mode(mode=False), torch.no_grad():
        _run(wanted, accesses, after)


def _run(wanted: Mapping[Node, IntArray], accesses: Accesses, after: Callable[[int], None]) -> None:
    with CLAIMS.share(build(wanted, accesses), accesses.reader) as stages:
        for stage in stages:
            for claim in stage.claims:
                _run_level(claim)
            lost = [(claim.level.node, claim.level.windows[sorted(claim.lost)]) for claim in stage.claims]
            for node, others in (*stage.others, *lost):
                _await(node, others, accesses)
            after(stage.depth)


def _await(node: Node, windows: IntArray, accesses: Accesses) -> None:
    """Return when windows that other reads set out to compute are there; computes what they leave to this one."""
    access = accesses.of(node)
    while len(windows := windows[access.absent(windows)]):
        mine = CLAIMS.turn(node, windows, accesses.reader)
        if mine:
            _run({node: np.array(sorted(mine), dtype=np.int64)}, accesses, lambda _depth: None)


def _run_level(claim: Claim) -> None:
    """Compute what a read has claimed of one tensor."""
    level = claim.level
    workers = claim.reader.workers or level.node.store.workers
    if workers == 1 or claim.calls == 1:
        _work(claim)
    else:
        # Modes of torch are a thread's own.
        work = torch.no_grad()(partial(_work, claim))
        on_threads(min(workers, claim.calls), work, partial(CLAIMS.stop, claim))


def _work(claim: Claim) -> None:
    """Compute windows of a claim until none is left; several threads may be at it."""
    calls, pace = _Calls(claim), Pace()
    with Outbox(claim) as outbox:
        while batches := CLAIMS.begin(claim, pace.calls):
            pace.begin()
            done = 0
            for batch in batches:
                calls.run(batch, outbox.put)
                done += 1
                if pace.is_over():
                    break
            pace.end(done)
            if done < len(batches):
                CLAIMS.leave(claim, batches[done:])
            outbox.send_in_time()


class _Calls:
    """Calls of the ``f`` of a tensor for windows of a claim."""

    def __init__(self, claim: Claim) -> None:
        self._node = node = claim.level.node
        assert node.f is not None
        self._f = node.f
        self._indices = claim.indices
        self._sources = [
            (upstream, access, starts.tolist())
            for upstream, (access, starts) in zip(node.inputs, claim.level.sources, strict=True)
        ]
        self._batched = node.batching.given is not None
        self._size, self._dtype = node.spec.definition.output_window.size, node.spec.numpy_dtype

    def run(self, places: Sequence[int], put: Callable[[int, Array], None]) -> None:
        """One call; hands on each window that it returned, checked, with its place.

        They are to be copied at once: ``f`` may use its buffer again.

        Raises
        ------
        ValidationError, ShapeMismatchError, DtypeMismatchError, DeviceMismatchError
            If ``f`` does not return what was declared. What ``f`` raises comes through. Either way the
            message ends with the tensor and the windows that were being computed.
        """
        try:
            if self._batched:
                arrays = [self._array_of(output) for output in self._outputs(places)]
            else:
                (place,) = places
                array = self._array_of(self._f(self._indices[place], *self._regions(place)))
        except Exception as error:
            listed = ", ".join([str(self._indices[place]) for place in places[:8]]) + ", ..." * (len(places) > 8)
            error.add_note(f"while computing window {listed} of tensor {self._node.spec.tensor_id!r}")
            raise
        if self._batched:
            for place, array in zip(places, arrays, strict=True):
                put(place, array)
        else:
            put(place, array)

    def _outputs(self, places: Sequence[int]) -> Sequence[object]:
        regions = [list(column) for column in zip(*map(self._regions, places), strict=True)]
        return _as_list(self._f([self._indices[place] for place in places], *regions), len(places))

    def _regions(self, place: int) -> list[torch.Tensor]:
        return [_region(upstream, access, starts[place]) for upstream, access, starts in self._sources]

    def _array_of(self, output: object) -> Array:
        if self._dtype is not None and type(output) is torch.Tensor:
            try:
                array = output.numpy()
            except (RuntimeError, TypeError):
                # It needs a gradient, say, or is on another device.
                return as_array(_checked(self._node, output))
            if array.dtype == self._dtype and array.shape == self._size:
                return array
        return as_array(_checked(self._node, output))


def _region(upstream: Input, access: Access, start: Sequence[int]) -> torch.Tensor:
    spec = upstream.node.spec
    region = torch.empty(upstream.window.size, dtype=spec.dtype, device=spec.device)
    access.read(start, region)
    return region


def _as_list(returned: object, count: int) -> Sequence[object]:
    if isinstance(returned, torch.Tensor) and returned.ndim > 0:
        returned = returned.unbind(0)
    if not isinstance(returned, list | tuple):
        raise ValidationError(
            f"f with a batch_size must return a list of tensors or one stacked tensor, got {type(returned).__name__}"
        )
    if len(returned) != count:
        raise ShapeMismatchError(f"f was given {count} windows and returned {len(returned)} tensors")
    return returned


def _checked(node: Node, output: object) -> torch.Tensor:
    spec = node.spec
    if not isinstance(output, torch.Tensor):
        raise ValidationError(f"f must return a torch.Tensor, got {type(output).__name__}: {output!r:.80}")
    if output.layout is not torch.strided:
        raise ValidationError(f"f must return a dense tensor, got one of layout {output.layout}")
    size = spec.definition.output_window.size
    if output.shape != size:
        raise ShapeMismatchError(f"f returned shape {tuple(output.shape)}, the output window has size {size}")
    if output.dtype != spec.dtype:
        raise DtypeMismatchError(f"f returned {output.dtype}, the tensor is declared {spec.dtype}")
    if output.device != spec.device:
        raise DeviceMismatchError(f"f returned a tensor on {output.device}, the tensor is declared on {spec.device}")
    return output.detach().resolve_conj().resolve_neg()
