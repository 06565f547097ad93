"""Opens tensors for a read, and drops stored windows.

If ``invalidate`` drops windows during a read, the read may still return pixels computed from these windows, but does
not store such pixels.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeAlias, TypeVar

import torch

from infinite_tensor.engine.chain import Node
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.straight import FormulaAccess, StraightAccess
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import enter, store_call
from infinite_tensor.tilestore.access import Access, Tiles
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.values.spec import TensorSpec

T = TypeVar("T")
ReadAnew: TypeAlias = "Callable[[Node, Sequence[int], Sequence[int], Views], torch.Tensor]"


class Dropping:
    """Drops windows, and counts the drops in this process.

    Attributes
    ----------
    count : int
        The number of drops so far. A drop counts as soon as it begins.
    """

    def __init__(self) -> None:
        self.count = 0
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.RLock()

    def carry_out(self, stores: Sequence[Contents], drop: Callable[[], T]) -> T:
        """Call ``drop()`` with `stores` paused.

        ``drop()`` drops windows of these stores. Until it returns, no read of the stores and no other drop begins.
        """
        with store_call(*stores), self._lock:
            return self._paused(stores, drop)

    def _paused(self, stores: Sequence[Contents], drop: Callable[[], T]) -> T:
        if stores:
            # Recursion instead of an ExitStack: an exception inside ExitStack could leave a store paused.
            with stores[0].paused():
                return self._paused(stores[1:], drop)
        self.count += 1
        return drop()


DROPPING = Dropping()


class Views:
    """The tensors opened for one read, with its options and counters.

    Each tensor is opened when needed, and stays open for the read. `close` closes all tensors.

    Parameters
    ----------
    read_anew : callable
        ``read_anew(node, start, stop, views)`` returns the pixels ``[start, stop)``, by a read of its own. What it
        computes is counted as if it were of the read of these `views`.
    workers : int or None
        The number of threads that run ``f``; None for the `workers` of each tensor's store.
    notice : callable or None
        ``notice(node, count)`` is called after windows are computed and stored, in the thread that computed them.
        `node` is the first output of their ``f``.
    tiles : mapping of Node to Tiles
        The tiles that the read may write. For a tensor without an entry, the read may write all tiles.

    Attributes
    ----------
    deposits_before : int
        The number of deposits in this process before the read began.
    own_deposits : int
        The number of deposits made by this read.
    work : Counter of Node
        The number of pixels that this read had to compute, for each tensor.
    """

    def __init__(
        self,
        read_anew: ReadAnew,
        workers: int | None = None,
        notice: Callable[[Node, int], None] | None = None,
        tiles: Mapping[Node, Tiles] | None = None,
    ) -> None:
        self.read_anew, self.workers, self.notice = read_anew, workers, notice
        self.deposits_before = CLAIMS.deposits
        self.own_deposits = 0
        self.work: Counter[Node] = Counter()
        self._tiles = tiles
        self._of: dict[Node, Access] = {}
        self._opened: list[tuple[Node, TensorSpec, Access]] = []
        self._drops = DROPPING.count

    def of(self, node: Node) -> Access:
        """Return the access to `node`, opened by the first call."""
        access = self._of.get(node)
        if access is None:
            enter(node.contents)
            # Hold the lock, because a tensor may be moved to another dtype or device at any moment.
            with node.contents.lock:
                spec = node.tensor.spec
                access = node.contents.access(spec)
            if self._tiles and node in self._tiles:
                access.confine(self._tiles[node])
            if node.computation.copied:
                assert node.computation.writer is not None
                access = StraightAccess(node.computation.writer, access)
            elif node.computation.formula is not None:
                access = FormulaAccess(node, access, self)
            self._opened.append((node, spec, access))
            if DROPPING.count != self._drops and any(other.outdated for other in self._of.values()):
                # Upstream windows may have been dropped after being read.
                access.detach()
            self._of[node] = access
        return access

    def anew(self, node: Node) -> ReadingAnew:
        """Return a source whose pixels are read when they are asked for, by a read of their own."""
        return ReadingAnew(self, node)

    @property
    def moved(self) -> bool:
        """Whether a tensor was moved to another dtype or device after the first access."""
        return bool([True for node, spec, _ in self._opened if node.tensor.spec is not spec])

    def items(self) -> list[tuple[Node, Access]]:
        """Return pairs of a tensor and its access."""
        return list(self._of.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self, first: int = 0) -> None:
        """Close the opened tensors, in reverse order.

        The earliest `first` tensors stay open; 0 closes all.
        """
        self._of = {node: access for node, _, access in self._opened[:first]} if first else {}
        self._drops = DROPPING.count
        while len(self._opened) > first:
            self._opened.pop()[2].close()


class ReadingAnew:
    """The pixels of a tensor, each part read by a read of its own."""

    def __init__(self, views: Views, node: Node) -> None:
        self._views = views
        self._node = node

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on."""
        stop = [a + n for a, n in zip(start, out.shape, strict=True)]
        out.copy_(self._views.read_anew(self._node, start, stop, self._views))
