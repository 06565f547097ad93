"""Which windows a read must compute, over the whole chain of tensors, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from infinite_tensor.boxes import COORDINATE_LIMIT, IntArray, as_tuples, joined
from infinite_tensor.engine.accesses import Accesses
from infinite_tensor.engine.level import Level, Mask, Result, regions_of
from infinite_tensor.engine.node import Computation, Input, Node, consumers_first
from infinite_tensor.errors import RegionError, TileAccessError, ValidationError
from infinite_tensor.validate import outside_arg

_REACH = 2 * COORDINATE_LIMIT
"""Halos may reach beyond the last pixel that can be read; what lies there is computed and not stored."""


@dataclass(frozen=True)
class Plan:
    """Everything that must run to have some windows of some tensors, each level before those it reads from."""

    levels: tuple[Level, ...]


def build(wanted: Mapping[Node, IntArray], accesses: Accesses) -> Plan:
    """Plan the computation of windows of some tensors, which their accesses in `accesses` reported missing.

    Raises
    ------
    TileAccessError
        If windows are missing of a tensor that has no ``f``.
    RegionError
        If an arg window reaches outside a finite dimension of its arg.
    """
    levels: list[Level] = []
    for computation, nodes in consumers_first(wanted).items():
        needs = {node: _missing(node, wanted, levels, accesses) for node in nodes}
        windows = reduce(joined, [computation.own(missing) for missing in needs.values()])
        if len(windows):
            _check_computable(computation, needs)
            asked = {node: wanted[node] for node in nodes if node in wanted}
            every = nodes if len(nodes) == len(computation.members) else computation.nodes
            results = [_result(node, windows, needs, asked, accesses) for node in every]
            sources = tuple(
                (accesses.of(upstream.node), _arg_starts(computation, at, upstream, windows))
                for at, upstream in enumerate(computation.inputs)
            )
            levels.append(Level(computation, windows, tuple(results), sources))
    return Plan(tuple(levels))


def _missing(node: Node, wanted: Mapping[Node, IntArray], levels: Sequence[Level], accesses: Accesses) -> IntArray:
    """The windows of a tensor that are wanted for themselves, then those that levels read and that are not stored."""
    asked = wanted.get(node)
    if asked is None:
        asked = np.empty((0, node.spec.grid.ndim), dtype=np.int64)
    regions = regions_of(levels, node)
    return asked if regions is None else joined(asked, accesses.of(node).add(*regions))


def _result(
    node: Node,
    windows: IntArray,
    missing: Mapping[Node, IntArray],
    asked: Mapping[Node, IntArray],
    accesses: Accesses,
) -> Result:
    own = node.indices(windows)
    alone = len(node.computation.members) == 1
    return Result(
        node,
        accesses.of(node),
        own,
        None if alone else node.spec.grid.exist(own),
        _among(own, missing.get(node)),
        _among(own, asked.get(node)),
    )


def _among(windows: IntArray, some: IntArray | None) -> Mask:
    """Which of the windows are among some of them."""
    if some is None or not len(some):
        return np.zeros(len(windows), dtype=bool)
    if len(some) == len(windows):
        return np.ones(len(windows), dtype=bool)
    known = set(as_tuples(some))
    return np.array([index in known for index in as_tuples(windows)], dtype=bool)


def _check_computable(computation: Computation, missing: Mapping[Node, IntArray]) -> None:
    for node in computation.nodes:
        if computation.f is None:
            raise _unavailable(node, missing[node])
        _check_inputs(node)


def _check_inputs(node: Node) -> None:
    """What is stored for good was computed from the args that its definition names, not from what they became."""
    for at, (upstream, arg) in enumerate(zip(node.inputs, node.spec.definition.args, strict=True)):
        if node.store.outlives_process and upstream.node.spec.definition.digest != arg.digest:
            raise ValidationError(
                f"args[{at}] of tensor {node.spec.tensor_id!r} has been moved to {upstream.node.spec.dtype} since; "
                f"{node.store!r} holds what was computed before: move it back, or build a new tensor on it"
            )


def _arg_starts(computation: Computation, at: int, upstream: Input, windows: IntArray) -> IntArray:
    """The first pixel that each window reads of an arg, whose finite dimensions hold all of its region."""
    window, shape = upstream.window, upstream.node.spec.shape
    for d, (k, extent) in enumerate(zip(window.followed, shape, strict=True)):
        first, last = (0, 0) if k is None else (int(windows[:, k].min()), int(windows[:, k].max()))
        low = first * window.stride[d] + window.offset[d]
        high = last * window.stride[d] + window.offset[d] + window.size[d]
        if extent is not None and (low < 0 or high > extent):
            raise outside_arg(computation.names, at, upstream.node.spec.tensor_id, d, low, high, extent)
        if max(-low, high) > _REACH:
            raise RegionError(
                f"args_windows[{at}] of tensor {computation.names} reaches pixels {low} .. {high - 1} in dimension "
                f"{d} of {upstream.node.spec.tensor_id!r}, far beyond the limit of 2**51: coordinates go from "
                f"-{COORDINATE_LIMIT} to {COORDINATE_LIMIT - 1}, and args_windows may reach from -2**52 to 2**52"
            )
    return window.starts(windows)


def _unavailable(node: Node, windows: IntArray) -> TileAccessError:
    spec = node.spec
    starts, stops = spec.grid.window.bounds(windows)
    low, high = starts.min(axis=0), stops.max(axis=0)
    region = ", ".join(f"{a}:{b}" for a, b in zip(low.tolist(), high.tolist(), strict=True))
    return TileAccessError(
        f"tensor {spec.tensor_id!r} was opened without f, and {len(windows)} windows within [{region}] are not "
        f"stored; open it with store.open({spec.tensor_id!r}, f=...) to compute them"
    )
