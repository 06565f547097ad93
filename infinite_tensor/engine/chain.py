"""Chains of computations and their tensors."""

from __future__ import annotations

import math
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from infinite_tensor.geometry.batching import Batching
from infinite_tensor.geometry.padding import ArgReads
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.geometry.window import TensorWindow, WindowGrid, checked_edge, coordinates_of, followed
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.functions import Formula, FunctionCaller, RegionWriter
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.messages import warn_of_conflicts, warn_of_opaque, warn_of_other_code
from infinite_tensor.tilestore.store import TileStore, contents_of
from infinite_tensor.values.coarse import Coarsening
from infinite_tensor.values.code import innermost
from infinite_tensor.values.definition import Padding, modes_of, same
from infinite_tensor.values.functions import LOOKING, Functions
from infinite_tensor.values.meaning import derived
from infinite_tensor.values.spec import TensorSpec


@dataclass(eq=False)
class TensorInStore:
    """A tensor in a store.

    Only `spec` can change: when the tensor is moved to another dtype or device.

    Attributes
    ----------
    spec : TensorSpec
        The id, definition and device of the tensor.
    store : TileStore
        The store of the tensor.
    named : bool
        Whether the user chose the id. Only then can the tensor be reopened.
    contents : Contents
        The implementation behind `store`.
    """

    spec: TensorSpec
    store: TileStore
    named: bool

    def __post_init__(self) -> None:
        self.contents: Contents = contents_of(self.store)
        self.hashed: int = hash((id(self.store), self.spec.tensor_id))

    def __eq__(self, other: object) -> bool:
        """Whether both have the same store, id and definition."""
        return self is other or (
            isinstance(other, TensorInStore)
            and self.store is other.store
            and self.spec.tensor_id == other.spec.tensor_id
            and same(self.spec.definition, other.spec.definition)
        )

    def __hash__(self) -> int:
        return self.hashed

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields, but not the process-local hash."""
        return type(self), (self.spec, self.store, self.named)


@dataclass(eq=False)
class Computation:
    """One ``f`` and its output tensors.

    Each call of ``f`` returns windows of all output tensors.

    Attributes
    ----------
    tensors : tuple of TensorInStore
        The output tensors.
    f : callable or None
        Computes windows; None for a tensor opened without ``f``, to read stored pixels only.
    batching : Batching
        How many windows a call of `f` takes.
    args : tuple of Input
        The upstream tensors, each with the window through which it is read.
    units : Units or None
        The smallest windows, if they could be of any size: those of formulas, and of maps in memory.
    formula : Units or None
        These units, if regions are computed where they are read, and windows only as parts of regions.
    inputs : tuple of Input
        The args, each with the window through which it is read now.
    planned : tuple of Input
        Those of them that are read for every region.
    asks : bool
        Whether a formula asks for what it needs instead; see `Formula`.
    coordinates : int
        The length of the window index for `f`. A tensor with more dimensions appends zeros to this index.
    depth : int
        The length of the longest chain upstream; 0 without args.
    computable : bool
        Whether this and all upstream computations have an `f`.
    writer : RegionWriter or None
        `f`, if it can write regions of its tensor without windows.
    copied : bool
        Whether pixels are only copied from memory, so that no window is ever computed.
    settled : bool
        Whether it is known which formulas from this one up are local; see `infinite_tensor.engine.locality`.
    warned : bool
        Whether a warning has said that reads compute far more than is read.
    function, code
        The user's function that `f` finally calls, and the code of that function when the tensor was built.
    """

    tensors: tuple[TensorInStore, ...]
    f: Callable[..., Any] | None
    batching: Batching
    args: tuple[Input, ...]
    coordinates: int

    def __post_init__(self) -> None:
        self.depth: int = max((upstream.node.computation.depth + 1 for upstream in self.args), default=0)
        self.computable: bool = self.f is not None and all(each.node.computation.computable for each in self.args)
        tensor = self.tensors[0]
        formula = self.f if isinstance(self.f, Formula) and not tensor.contents.outlives_process else None
        is_formula = formula is not None and formula.is_formula
        window = tensor.spec.grid.window
        # Windows of other tensors are those of the user, or of tiles; overlapping ones are blended.
        is_free = is_formula or (isinstance(formula, FunctionCaller) and window.stride == window.size)
        self.units = _units(tensor.spec.grid, self.args) if is_free else None
        self.formula = self.units if is_formula else None
        self.inputs = self.args if self.formula is None else self.formula.inputs
        self.asks = formula is not None and is_formula and formula.asks
        self.planned = () if self.asks else self.inputs
        self.settled, self.warned = self.asks, False
        self.writer: RegionWriter | None = _writer_of(self.f, tensor.spec)
        self.copied: bool = self.writer is not None and self.writer.copies and not tensor.contents.outlives_process
        self.function: Any = None if self.f is None else innermost(self.f)
        is_code = isinstance(self.function, types.FunctionType | types.MethodType)
        self.code = getattr(self.function, "__code__", None) if is_code else None
        _alive[id(self)] = self

    def __eq__(self, other: object) -> bool:
        """Whether both compute the same stored tensors."""
        return self is other or (isinstance(other, Computation) and self.tensors == other.tensors)

    def __hash__(self) -> int:
        return self.tensors[0].hashed

    @classmethod
    def registered(
        cls, tensors: Sequence[TensorInStore], f: Callable[..., Any] | None, batching: Batching, args: Iterable[Node]
    ) -> Computation:
        """Register tensors with their stores, and create the computation.

        If `f` is None, `args` may be empty.
        """
        nodes = [*args]
        for tensor in tensors:
            stored = tensor.contents.outlives_process
            tensor.spec = _with_meaning(tensor.spec, f, nodes)
            if tensor.named and not stored:
                tensor.spec.definition.functions.look()
            tensor.spec = tensor.contents.register(tensor.spec)
            if tensor.named and stored and f is not None:
                warn_of_opaque(tensor.spec)
        first = tensors[0].spec
        read = [(arg.window, arg.padding) for arg in first.definition.args]
        inputs = tuple(Input(node, *how) for node, how in zip(nodes, read, strict=False))
        ndim = first.grid.ndim
        coordinates = ndim if first.definition.output is None else max(1, coordinates_of(first.grid.window))
        return cls(tuple(tensors), f, batching, inputs, coordinates)

    def warn_of_other_code(self) -> None:
        """Warn once if the code of the user's function has changed.

        Code changes after a module reload, for example. The warning is a FunctionChangedWarning.
        """
        if self.code is not None and self.function.__code__ is not self.code:
            self.code = self.function.__code__
            warn_of_other_code(self.tensors[0].spec)

    def use_windows(self) -> None:
        """Compute windows from now on, and no more regions where they are read."""
        self.formula, self.inputs, self.planned = None, self.args, self.args

    @property
    def is_direct(self) -> bool:
        """Whether pixels are copied or computed where they are read, so that no window is ever stored."""
        return self.copied or self.formula is not None

    @property
    def nodes(self) -> list[Node]:
        """One node per tensor."""
        return [Node(self, tensor) for tensor in self.tensors]

    @property
    def names(self) -> str:
        """The ids of the tensors for messages, without random ids."""
        if not all(tensor.named for tensor in self.tensors):
            return "a tensor without a tensor_id"
        return "tensor " + ", ".join(repr(tensor.spec.tensor_id) for tensor in self.tensors)

    @property
    def functions(self) -> Functions:
        """The functions of the first tensor."""
        return self.tensors[0].spec.definition.functions

    @property
    def workers(self) -> int:
        """The default number of threads for calls of `f`."""
        return self.tensors[0].contents.workers


@dataclass(eq=False)
class Units:
    """The smallest windows of a formula, with a whole number of pixels in each arg.

    Attributes
    ----------
    grid : WindowGrid
        The units.
    inputs : tuple of Input
        The args, each with the window through which a unit reads it.
    pixels : int
        The number of pixels of a unit.
    nbytes_per_pixel : float
        The memory for computing one of many pixels; 0 if not known yet.
    """

    grid: WindowGrid
    inputs: tuple[Input, ...]

    def __post_init__(self) -> None:
        self.pixels = math.prod(self.grid.window.size)
        self.nbytes_per_pixel = 0.0


def _units(grid: WindowGrid, args: Sequence[Input]) -> Units:
    """Divide the windows of a tensor into units."""
    size, sides = grid.window.size, [1] * grid.ndim
    follow = [(k, stride) for arg in args for k, stride in zip(followed(arg.window), arg.window.stride, strict=True)]
    for k, n in enumerate(size):
        along = [n // math.gcd(n, stride) for at, stride in follow if at == k]
        sides[k] = math.lcm(*along) if along else n
    inputs = []
    for arg in args:
        window = arg.window
        strides = [
            stride if k is None else stride * sides[k] // size[k]
            for k, stride in zip(followed(window), window.stride, strict=True)
        ]
        sizes = [n - old + new for n, old, new in zip(window.size, window.stride, strides, strict=True)]
        unit = TensorWindow(sizes, strides, window.offset, window.dimension_map)
        inputs.append(replace(arg, window=unit))
    return Units(WindowGrid(TensorWindow(sides), grid.shape, checked_edge("clip", grid.shape)), tuple(inputs))


def _with_meaning(spec: TensorSpec, f: Callable[..., Any] | None, args: Sequence[Node]) -> TensorSpec:
    definition = spec.definition
    if definition.meaning is not None:
        return spec
    if isinstance(f, RegionWriter):
        found = f.meaning
    else:
        sources = [arg.spec.definition for arg in args]
        method = f.method if isinstance(f, Coarsening) else None
        found, conflicts = derived(definition, sources, keeps_codes=method is not None, picks_first=method == "nearest")
        if conflicts:
            warn_of_conflicts(spec, conflicts)
    nothing = found is None or not (found.facts or found.lost)
    return spec if nothing else replace(spec, definition=replace(definition, meaning=found))


def _writer_of(f: Callable[..., Any] | None, spec: TensorSpec) -> RegionWriter | None:
    """Return `f` if able to write regions directly, otherwise None.

    Each pixel must belong to exactly one window.
    """
    if not isinstance(f, RegionWriter):
        return None
    definition, size = spec.definition, spec.grid.window.size
    as_they_are = (definition.blend, definition.blend_init, definition.reduction) == (None, None, None)
    side_by_side = definition.output_window == TensorWindow(size) and not spec.grid.uncovered
    return f if as_they_are and side_by_side and f.writes(size, spec.dtype, spec.device) else None


class Node:
    """One tensor of a chain, with its computation.

    Attributes
    ----------
    computation : Computation
        The computation of the tensor.
    tensor : TensorInStore
        The tensor in its store.
    store, contents
        The store of `tensor`, and the implementation behind the store.
    token : str
        The key by which compiled code finds the node.
    """

    __slots__ = ("__weakref__", "computation", "contents", "store", "tensor", "token")

    def __init__(self, computation: Computation, tensor: TensorInStore) -> None:
        self.computation = computation
        self.tensor = tensor
        self.store = tensor.store
        self.contents = tensor.contents
        self.token = ""

    @property
    def spec(self) -> TensorSpec:
        """The spec of the tensor."""
        return self.tensor.spec

    @property
    def grid(self) -> WindowGrid:
        """The windows to compute; of a formula, the units."""
        formula = self.computation.formula
        return self.spec.grid if formula is None else formula.grid

    def indices(self, windows: IntArray) -> IntArray:
        """Append zeros to window indices, up to the dimensions of the tensor.

        In a tensor with three dimensions, the index ``(2, 3)`` for ``f`` becomes ``(2, 3, 0)``.
        """
        more = self.spec.grid.ndim - windows.shape[1]
        return np.pad(windows, ((0, 0), (0, more))) if more else windows

    def __eq__(self, other: object) -> bool:
        """Whether both are the same stored tensor."""
        return self is other or (isinstance(other, Node) and self.tensor == other.tensor)

    def __hash__(self) -> int:
        return self.tensor.hashed


class NodeHolder(Protocol):
    """An object with a node, such as an `InfiniteTensor`."""

    _node: Node


def node_of(tensor: NodeHolder) -> Node:
    """Return the node of an `InfiniteTensor`."""
    return tensor._node  # noqa: SLF001  (the only place that reads it)


_alive: weakref.WeakValueDictionary[int, Computation] = weakref.WeakValueDictionary()


def nodes_alive() -> list[Node]:
    """Return the nodes of all tensors alive in this process."""
    alive = (reference() for reference in _alive.valuerefs())
    return [node for computation in alive if computation is not None for node in computation.nodes]


@dataclass(frozen=True)
class Input:
    """An upstream tensor with its arg window and padding.

    Attributes
    ----------
    node : Node
        The tensor.
    window : TensorWindow
        The arg window. For the window index `ctx`, ``f`` gets the region ``window.get_bounds(ctx)``.
    padding : tuple of Padding or None
        The padding beyond the ends of each dimension; None if there is none.
    """

    node: Node
    window: TensorWindow
    padding: tuple[Padding, ...] | None = None

    @cached_property
    def reads(self) -> ArgReads:
        """Maps windows to the pixels read from the tensor."""
        return ArgReads(self.window, self.node.spec.shape, modes_of(self.padding))


def resolved(nodes: Sequence[Node]) -> list[Node]:
    """Replace nodes without ``f`` in the chains of `nodes`.

    A tensor may occur in a chain as two nodes: one opened without ``f``, and one built with ``f``. The returned nodes
    and their chains use the node with ``f`` only.
    """
    if not [node for node in nodes if not node.computation.computable]:
        return list(nodes)
    chosen = _first_with_f(nodes)
    new: dict[Node, Node] = {}
    for computation, _ in _upstream_first(nodes, chosen):
        args = tuple([replace(upstream, node=new[upstream.node]) for upstream in computation.args])
        known = all(a.node.computation is b.node.computation for a, b in zip(args, computation.args, strict=True))
        new |= {node: node for node in (computation if known else replace(computation, args=args)).nodes}
    return [new[node] for node in nodes]


def _first_with_f(nodes: Iterable[Node]) -> dict[Node, Node]:
    chosen: dict[Node, Node] = {}
    seen: set[int] = set()
    stack = [*nodes][::-1]
    while stack:
        computation = stack.pop().computation
        if id(computation) in seen:
            continue
        seen.add(id(computation))
        for node in computation.nodes:
            if node not in chosen or (computation.f is not None and chosen[node].computation.f is None):
                chosen[node] = node
        stack += [upstream.node for upstream in reversed(computation.inputs)]
    return chosen


def consumers_first(roots: Iterable[Node]) -> list[tuple[Computation, list[Node]]]:
    """Return each computation in the chains of `roots`, with its output tensors.

    A computation comes before the computations of its args. Each tensor is listed only once. If built with ``f``, and
    also opened without ``f``, it is listed under the computation with ``f``.
    """
    return _upstream_first(resolved([*roots]), {})[::-1]


def _upstream_first(roots: Iterable[Node], chosen: Mapping[Node, Node]) -> list[tuple[Computation, list[Node]]]:
    """Return the computations as in `consumers_first`, but args first.

    If a tensor occurs as several nodes, the node in `chosen` is used. Recursion would fail on long chains.
    """
    finished: list[tuple[Computation, list[Node]]] = []
    entered: set[Node] = set()
    # For each computation in progress: the tensors, and an iterator over the remaining inputs.
    stack: list[tuple[list[Node], Iterator[Node]]] = [([], iter(roots))]
    while stack:
        nodes, rest = stack[-1]
        for each in rest:
            if each not in entered:
                node = chosen.get(each, each) if chosen else each
                computation, found = node.computation, [node]
                if len(computation.tensors) > 1:
                    found = [beside for beside in computation.nodes if beside not in entered]
                entered.update(found)
                if computation.inputs:
                    stack.append((found, iter([upstream.node for upstream in computation.inputs])))
                    break
                finished.append((computation, found))
        else:
            stack.pop()
            if nodes:
                finished.append((nodes[0].computation, nodes))
    return finished


def chain_of(roots: Iterable[Node]) -> list[Node]:
    """Return all tensors in the chains of `roots`, sources first.

    All outputs of each ``f`` are included. Each tensor comes after its args.
    """
    return [node for _, nodes in _upstream_first(resolved([*roots]), {}) for node in nodes]


@contextmanager
def watching(computations: Iterable[Computation]) -> Iterator[None]:
    """Look for values that the functions of `computations` change in this context."""
    with ExitStack() as stack:
        for computation in computations:
            if computation.functions.is_compared():
                stack.enter_context(computation.functions.watched())
        yield


@contextmanager
def watching_first_calls(computation: Computation) -> Iterator[None]:
    """Look for values that the functions of `computation` change in this context, if they were not called before."""
    with ExitStack() as stack:
        # No other thread calls the functions before they have been looked at.
        with LOOKING:
            if not computation.functions.is_called:
                stack.enter_context(watching([computation]))
                computation.functions.is_called = True
        yield


@contextmanager
def keeping_little(root: Node, room: int) -> Iterator[None]:
    """Limit the caches of all stores in the chain of `root`.

    In this context, each cache may grow by `room` bytes.
    """
    lent = threading.Lock()
    with lent:
        for contents in {node.contents for node in chain_of([root])}:
            contents.lend(lent, room)
        yield
