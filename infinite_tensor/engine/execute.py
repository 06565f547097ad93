"""Computing what is missing: sources first, in batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from infinite_tensor.blend import Array, as_array, copied
from infinite_tensor.boxes import Index, IntArray
from infinite_tensor.engine.claims import CLAIMS, Claim
from infinite_tensor.engine.node import Input, Node
from infinite_tensor.engine.plan import Accesses, build
from infinite_tensor.errors import (
    DeviceMismatchError,
    DtypeMismatchError,
    ShapeMismatchError,
    ValidationError,
)
from infinite_tensor.tilestore.contract import Access

_DEPOSIT_BYTES = 2**20
_DEPOSIT_SECONDS = 0.05


def run(root: Node, windows: IntArray, accesses: Accesses) -> None:
    """Return when `windows` of `root`, which its access reported missing, are there.

    They are computed, with all that they need and that is missing too, sources first; what another read is
    computing already is waited for. ``f`` runs under `torch.no_grad`.
    """
    # A tensor that is born in inference mode could not be blended into later.
    with torch.inference_mode(mode=False), torch.no_grad():
        _run(root, windows, accesses)


def _run(root: Node, windows: IntArray, accesses: Accesses) -> None:
    with CLAIMS.share(build(root, windows, accesses), accesses.reader) as stages:
        for stage in stages:
            for claim in stage.claims:
                _run_level(claim)
            lost = [(claim.level.node, claim.level.windows[sorted(claim.lost)]) for claim in stage.claims]
            for node, others in (*stage.others, *lost):
                _await(node, others, accesses)


def _await(node: Node, windows: IntArray, accesses: Accesses) -> None:
    """Return when windows that other reads set out to compute are there; computes what they leave to this one."""
    access = accesses.of(node)
    while len(windows := windows[access.absent(windows)]):
        mine = CLAIMS.turn(node, windows, accesses.reader)
        if mine:
            _run(node, np.array(sorted(mine), dtype=np.int64), accesses)


def _run_level(claim: Claim) -> None:
    level, outbox = claim.level, _Outbox(claim)
    starts = [starts.tolist() for _, starts in level.sources]
    try:
        while batch := CLAIMS.begin(claim):
            indices = [claim.indices[place] for place in batch]
            arguments = [
                [_region(upstream, access, column[place]) for place in batch]
                for upstream, (access, _), column in zip(level.node.inputs, level.sources, starts, strict=True)
            ]
            outbox.put(indices, call(level.node, indices, arguments))
    finally:
        outbox.send()


def _region(upstream: Input, access: Access, start: Sequence[int]) -> torch.Tensor:
    spec = upstream.node.spec
    region = torch.empty(upstream.window.size, dtype=spec.dtype, device=spec.device)
    access.read(start, region)
    return region


class _Outbox:
    """Gathers finished windows, so that a store is handed many at a time, though never late."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        claim.send = self.send
        self._indices: list[Index] = []
        self._arrays: list[Array] = []
        self._bytes = 0
        self._sent = time.monotonic()

    def put(self, indices: Sequence[Index], outputs: Sequence[torch.Tensor]) -> None:
        # Copied at once: f may hand out the same buffer again at its next call.
        arrays = [copied(as_array(output)) for output in outputs]
        self._indices += indices
        self._arrays += arrays
        self._bytes += sum(array.nbytes for array in arrays)
        if self._bytes >= _DEPOSIT_BYTES or time.monotonic() - self._sent > _DEPOSIT_SECONDS:
            self.send()

    def send(self) -> None:
        """Store what has been gathered."""
        indices, arrays = self._indices, self._arrays
        self._indices, self._arrays, self._bytes = [], [], 0
        if indices:
            self._claim.level.access.deposit(indices, arrays)
            CLAIMS.end(self._claim, indices)
        self._sent = time.monotonic()


def call(node: Node, indices: list[Index], arguments: list[list[torch.Tensor]]) -> Sequence[torch.Tensor]:
    """One call of ``f``, with what it returns checked and detached.

    Raises
    ------
    ValidationError, ShapeMismatchError, DtypeMismatchError, DeviceMismatchError
        If ``f`` does not return what was declared. What ``f`` raises comes through. Either way the
        message ends with the tensor and the windows that were being computed.
    """
    assert node.f is not None
    batched = node.batching.given is not None
    try:
        if batched:
            outputs = _as_list(node.f(list(indices), *arguments), len(indices))
        else:
            outputs = [node.f(indices[0], *(regions[0] for regions in arguments))]
        return [_checked(node, output) for output in outputs]
    except Exception as error:
        listed = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        error.add_note(f"while computing window {listed} of tensor {node.spec.tensor_id!r}")
        raise


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
