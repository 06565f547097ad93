"""One read, and what it holds of the tensors that it touches; and dropping windows while reads are in progress.

A read notices that windows have been dropped since it began: what it computes from their pixels is its own from then
on, and stored nowhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from infinite_tensor.engine.chain import Node
from infinite_tensor.engine.straight import StraightAccess
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import enter, store_call
from infinite_tensor.tilestore.contents import Access, Contents, Tiles
from infinite_tensor.values.spec import TensorSpec


@dataclass
class Reader:
    """One read, as seen beside others.

    Attributes
    ----------
    deposits_before : int
        How often something had been stored in this process when it began.
    workers : int or None
        On how many threads it runs ``f``; None leaves that to each tensor's store.
    notice : callable or None
        ``notice(node, count)`` is told of windows that it has computed and stored, by the thread that did.
    own_deposits : int
        How often it has stored something itself.
    """

    deposits_before: int
    workers: int | None
    notice: Callable[[Node, int], None] | None
    own_deposits: int = 0


T = TypeVar("T")


class Dropping:
    """Counts how often windows have been dropped in this process.

    Attributes
    ----------
    count : int
        How often that was begun.
    """

    def __init__(self) -> None:
        self.count = 0
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.RLock()

    def carry_out(self, stores: Sequence[Contents], drop: Callable[[], T]) -> T:
        """Call ``drop()``, which drops windows of these stores: one thread does at a time, and no read begins there."""
        with store_call(*stores), self._lock:
            return self._paused(stores, drop)

    def _paused(self, stores: Sequence[Contents], drop: Callable[[], T]) -> T:
        if stores:
            # Not by an ExitStack: another exception in the middle of that would leave the store paused.
            with stores[0].paused():
                return self._paused(stores[1:], drop)
        self.count += 1
        return drop()


DROPPING = Dropping()


class Views:
    """One read's views of its tensors, an access for each; they are closed together.

    Parameters
    ----------
    reader : Reader
        The read.
    taken : mapping of Node to Tiles
        The tiles that windows of some tensors are stored in; elsewhere it is all.
    """

    def __init__(self, reader: Reader, taken: Mapping[Node, Tiles] | None = None) -> None:
        self.reader = reader
        self._taken = taken or {}
        self._of: dict[Node, Access] = {}
        self._opened: list[tuple[Node, TensorSpec, Access]] = []
        self._drops = DROPPING.count

    def of(self, node: Node) -> Access:
        """The access to `node`, opened when it is first asked for."""
        access = self._of.get(node)
        if access is None:
            enter(node.contents)
            # In one step: a tensor may be moved to another dtype or device at any moment.
            with node.contents.lock:
                spec = node.spec
                access = node.contents.access(spec)
            if node in self._taken:
                access.confine(self._taken[node])
            if node.computation.copied:
                assert node.computation.writer is not None
                access = StraightAccess(node.computation.writer, access)
            self._opened.append((node, spec, access))
            if DROPPING.count != self._drops and any(other.outdated for other in self._of.values()):
                # What this tensor is computed from may have been dropped since it was read.
                access.detach()
            self._of[node] = access
        return access

    @property
    def moved(self) -> bool:
        """Whether a tensor has been moved to another dtype or device since it was accessed."""
        return any(node.tensor.spec is not spec for node, spec, _ in self._opened)

    def items(self) -> list[tuple[Node, Access]]:
        """The tensors accessed so far."""
        return list(self._of.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self, first: int = 0) -> None:
        """Close them, the last one first; all but the `first` ones, with which a read goes on."""
        self._of = {node: access for node, _, access in self._opened[:first]}
        self._drops = DROPPING.count
        while len(self._opened) > first:
            self._opened.pop()[2].close()
