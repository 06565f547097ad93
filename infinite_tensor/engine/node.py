"""A tensor as the engine sees it, and how its windows are split into calls of ``f``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from infinite_tensor.errors import ValidationError
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore.contract import TileStore
from infinite_tensor.window import TensorWindow, as_index


@dataclass(frozen=True)
class Batching:
    """How many windows a call of ``f`` takes: ``sizes`` are the allowed numbers, ascending."""

    given: int | tuple[int, ...] | None
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, given: object) -> Batching:
        """From the ``batch_size`` that a user gave.

        Raises
        ------
        ValidationError
            If it is neither None, a positive int, nor a tuple of positive ints that contains 1.
        """
        if given is None:
            return cls(None, (1,))
        if isinstance(given, tuple | list):
            sizes = [as_index(size) for size in given]
            allowed = {size for size in sizes if size is not None and size > 0}
            if len(allowed) != len(set(given)) or 1 not in allowed:
                raise ValidationError(f"batch_size as a tuple must hold positive ints and contain 1, got {given!r}")
            return cls(tuple(sorted(allowed)), tuple(sorted(allowed)))
        size = as_index(given)
        if size is None or size < 1:
            raise ValidationError(f"batch_size must be a positive int, a tuple of them or None, got {given!r}")
        return cls(size, (size,))

    @property
    def largest(self) -> int:
        """Most windows that one call takes."""
        return self.sizes[-1]

    def full(self, count: int) -> int:
        """How many of `count` windows fill the largest calls."""
        return count - count % self.largest

    def calls(self, count: int) -> int:
        """The fewest calls that take `count` windows."""
        rest = min(count, self.largest * self.largest)
        # What is left out fills the largest calls.
        return len(self.split(rest + (count - rest) % self.largest)) + (count - rest) // self.largest

    def split(self, count: int) -> list[int]:
        """Sizes of the fewest calls that take `count` windows, large ones first."""
        if not isinstance(self.given, tuple):
            rest = count % self.largest
            return [self.largest] * (count // self.largest) + ([rest] if rest else [])
        # Any `largest` smaller calls hold some that fill whole large ones, so only a bounded rest is open.
        open_rest = min(count, self.largest * self.largest)
        full = (count - open_rest) // self.largest
        return [self.largest] * full + _fewest(self.sizes, count - full * self.largest)


@lru_cache(maxsize=256)
def _best_last(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    """For each number up to `count`, one size that a split into fewest calls contains."""
    calls = [0] * (count + 1)
    last = [0] * (count + 1)
    for number in range(1, count + 1):
        last[number] = min((s for s in sizes if s <= number), key=lambda s: (calls[number - s], -s))
        calls[number] = calls[number - last[number]] + 1
    return tuple(last)


def _fewest(sizes: tuple[int, ...], count: int) -> list[int]:
    last = _best_last(sizes, count)
    split = []
    while count:
        split.append(last[count])
        count -= last[count]
    return sorted(split, reverse=True)


@dataclass(eq=False)
class Node:
    """One tensor of a chain. ``spec`` changes when the tensor is moved; everything else stays.

    Attributes
    ----------
    spec : TensorSpec
        What is computed and stored.
    store : TileStore
        Where it is stored.
    f : callable or None
        Computes windows; None for a tensor that was opened for reading what is stored.
    batching : Batching
        How many windows a call of `f` takes.
    inputs : tuple of Input
        The upstream tensors, each with the window through which it is read.
    depth : int
        Length of the longest chain upstream of it; 0 where it reads no other tensor.
    """

    spec: TensorSpec
    store: TileStore
    f: Callable[..., Any] | None
    batching: Batching
    inputs: tuple[Input, ...]

    def __post_init__(self) -> None:
        self.depth: int = max((upstream.node.depth + 1 for upstream in self.inputs), default=0)
        _alive[id(self)] = self

    def __eq__(self, other: object) -> bool:
        """Whether both are the same stored tensor: built twice, it is computed once."""
        return self is other or (
            isinstance(other, Node)
            and self.store is other.store
            and self.spec.tensor_id == other.spec.tensor_id
            and self.spec.definition.digest == other.spec.definition.digest
        )

    def __hash__(self) -> int:
        return hash((id(self.store), self.spec.tensor_id))


_alive: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()


def nodes_alive() -> list[Node]:
    """All tensors of this process that somebody may still read."""
    return [node for node in (reference() for reference in _alive.valuerefs()) if node is not None]


@dataclass(frozen=True)
class Input:
    """An upstream tensor and the window, in coordinates of the consumer's ctx, through which it is read."""

    node: Node
    window: TensorWindow


def consumers_first(roots: Iterable[Node]) -> list[Node]:
    """`roots` and everything upstream of them, each tensor before those it reads. Without recursion."""
    finished: dict[Node, None] = {}
    entered: set[Node] = set()
    for root in roots:
        if root not in entered:
            entered.add(root)
            _finish(root, entered, finished)
    return list(reversed(finished))


def _finish(root: Node, entered: set[Node], finished: dict[Node, None]) -> None:
    """Walk upstream from `root`; each tensor is finished after those that it reads."""
    stack: list[tuple[Node, Iterator[Input]]] = [(root, iter(root.inputs))]
    while stack:
        node, inputs = stack[-1]
        for upstream in inputs:
            if upstream.node not in entered:
                entered.add(upstream.node)
                stack.append((upstream.node, iter(upstream.node.inputs)))
                break
        else:
            finished[node] = None
            stack.pop()
