"""Which windows a read must compute, over the whole chain of tensors, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from infinite_tensor.boxes import IntArray, as_tuples, joined
from infinite_tensor.engine.drops import DROPS
from infinite_tensor.engine.node import Input, Node, consumers_first
from infinite_tensor.errors import RegionError, TileAccessError, ValidationError
from infinite_tensor.indexing import COORDINATE_LIMIT
from infinite_tensor.tilestore.access import Access
from infinite_tensor.validate import outside_arg

_REACH = 2 * COORDINATE_LIMIT
"""Halos may reach a little beyond the last pixel that can be read."""


@dataclass(frozen=True)
class Level:
    """One tensor's part of a plan.

    Attributes
    ----------
    node : Node
        The tensor.
    access : Access
        Its store's view of this read.
    windows : int64 array of shape (N, ndim)
        The windows to compute, in the order in which they run.
    sources : tuple of (Access, int64 array of shape (N, ndim of the arg))
        Per arg, where it is read from, and the first pixel of each window's region.
    asked : int
        How many of the windows, the first ones, are wanted for themselves, and not only because others read them.
    """

    node: Node
    access: Access
    windows: IntArray
    sources: tuple[tuple[Access, IntArray], ...]
    asked: int

    def part(self, mask: npt.NDArray[np.bool_]) -> Level:
        """Some of the windows."""
        sources = tuple((access, starts[mask]) for access, starts in self.sources)
        asked = int(np.count_nonzero(mask[: self.asked]))
        return Level(self.node, self.access, self.windows[mask], sources, asked)

    def needed(self, consumers: Sequence[Level]) -> npt.NDArray[np.bool_]:
        """Which of the windows are wanted for themselves, or read by some levels."""
        needed = np.ones(len(self.windows), dtype=bool)
        if self.asked < len(self.windows):
            regions = _regions(consumers, self.node)
            read = set() if regions is None else set(self.node.spec.grid.indices(*regions))
            needed[self.asked :] = [index in read for index in as_tuples(self.windows[self.asked :])]
        return needed


@dataclass(frozen=True)
class Plan:
    """Everything that must run to have some windows of some tensors, each level before those it reads from."""

    levels: tuple[Level, ...]


@dataclass
class Reader:
    """One read, as seen beside others.

    Attributes
    ----------
    number : int
        Reads that began later have larger ones.
    begun : int
        How often something had been stored in this process when it began.
    own_events : int
        How often it has stored something itself.
    workers : int or None
        On how many threads it runs ``f``; None leaves that to each tensor's store.
    notice : callable
        ``notice(node, count)`` is told of windows that it has computed and stored, by the thread that did.
    """

    number: int
    begun: int
    own_events: int = 0
    workers: int | None = None
    notice: Callable[[Node, int], None] = lambda _node, _count: None


class Accesses:
    """The accesses of one read, one per tensor; they are closed together."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._stack = ExitStack()
        self._of: dict[Node, Access] = {}
        self._drops = DROPS.count

    def of(self, node: Node) -> Access:
        """The access to `node`, opened when it is first asked for."""
        if node not in self._of:
            access = self._stack.enter_context(node.store.access(node.spec))
            if DROPS.count != self._drops and any(other.outdated for other in self._of.values()):
                # What this tensor is computed from may have been dropped since it was read.
                access.detach()
            self._of[node] = access
        return self._of[node]

    def items(self) -> list[tuple[Node, Access]]:
        """The tensors accessed so far."""
        return list(self._of.items())

    def lend(self, node: Node, access: Access) -> None:
        """Use an access that outlives this read."""
        self._of[node] = access

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._of.clear()
        self._stack.__exit__(kind, error, trace)


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
    for node in consumers_first(wanted):
        asked = wanted.get(node, _no_windows(node))
        regions = _regions(levels, node)
        windows = asked if regions is None else joined(asked, accesses.of(node).add(*regions))
        if not len(windows):
            continue
        if node.f is None:
            raise _unavailable(node, windows)
        _check_inputs(node)
        sources = tuple(
            (accesses.of(upstream.node), _arg_starts(node, at, upstream, windows))
            for at, upstream in enumerate(node.inputs)
        )
        levels.append(Level(node, accesses.of(node), windows, sources, len(asked)))
    return Plan(tuple(levels))


def _no_windows(node: Node) -> IntArray:
    return np.empty((0, node.spec.grid.ndim), dtype=np.int64)


def _regions(consumers: Sequence[Level], node: Node) -> tuple[IntArray, IntArray] | None:
    """Start and stop of the regions that some levels read of a tensor, or None."""
    starts, stops = [], []
    for level in consumers:
        for upstream, (_, begin) in zip(level.node.inputs, level.sources, strict=True):
            if upstream.node == node:
                starts.append(begin)
                stops.append(begin + np.array(upstream.window.size, dtype=np.int64))
    return (np.concatenate(starts), np.concatenate(stops)) if starts else None


def _check_inputs(node: Node) -> None:
    """What is stored for good was computed from the args that its definition names, not from what they became."""
    for at, (upstream, arg) in enumerate(zip(node.inputs, node.spec.definition.args, strict=True)):
        if node.store.outlives_process and upstream.node.spec.definition.digest != arg.digest:
            raise ValidationError(
                f"args[{at}] of tensor {node.spec.tensor_id!r} has been moved to {upstream.node.spec.dtype} since; "
                f"{node.store!r} holds what was computed before: move it back, or build a new tensor on it"
            )


def _arg_starts(node: Node, at: int, upstream: Input, windows: IntArray) -> IntArray:
    """The first pixel that each window reads of an arg, whose finite dimensions hold all of its region."""
    window, shape = upstream.window, upstream.node.spec.shape
    for d, (k, extent) in enumerate(zip(window.followed, shape, strict=True)):
        first, last = (0, 0) if k is None else (int(windows[:, k].min()), int(windows[:, k].max()))
        low = first * window.stride[d] + window.offset[d]
        high = last * window.stride[d] + window.offset[d] + window.size[d]
        if extent is not None and (low < 0 or high > extent):
            raise outside_arg(node.spec.tensor_id, at, upstream.node.spec.tensor_id, d, low, high, extent)
        if max(-low, high) > _REACH:
            raise RegionError(
                f"args_windows[{at}] of tensor {node.spec.tensor_id!r} reaches pixels {low} .. {high - 1} in dimension "
                f"{d} of {upstream.node.spec.tensor_id!r}, beyond the limit of 2**51 in either direction"
            )
    return window.starts(windows)


def _unavailable(node: Node, windows: IntArray) -> TileAccessError:
    spec = node.spec
    starts, stops = spec.grid.window.bounds(windows)
    low, high = starts.min(axis=0), stops.max(axis=0)
    region = ", ".join(f"{a}:{b}" for a, b in zip(low.tolist(), high.tolist(), strict=True))
    return TileAccessError(
        f"tensor {spec.tensor_id!r} was opened without f, and {len(windows)} windows within [{region}] are not "
        "stored; open it with f=... to compute them"
    )
