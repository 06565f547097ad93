"""One read, and what it holds of the tensors that it touches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from infinite_tensor.engine.drops import DROPS
from infinite_tensor.engine.node import Node
from infinite_tensor.tilestore.access import Access
from infinite_tensor.tilestore.contract import TileStore
from infinite_tensor.visits import enter


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
    stores : dict of int to TileStore
        The stores that it has come to, by their ids.
    notice : callable
        ``notice(node, count)`` is told of windows that it has computed and stored, by the thread that did.
    """

    number: int
    begun: int
    own_events: int = 0
    workers: int | None = None
    stores: dict[int, TileStore] = field(default_factory=dict)
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
            enter(node.store)
            self.reader.stores[id(node.store)] = node.store
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
