"""Drops windows, and all windows computed from them."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, TypeAlias

from infinite_tensor.engine.chain import Node, nodes_alive
from infinite_tensor.engine.reads import DROPPING
from infinite_tensor.geometry.padding import ArgReads
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.geometry.window import TensorWindow, WindowGrid
from infinite_tensor.geometry.window_sets import (
    FARTHEST,
    BoxUnion,
    all_windows,
    pixels_of,
    same_windows,
    windows_over,
)
from infinite_tensor.support.tables import Tabular, count_of
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import sources_first
from infinite_tensor.values.definition import Padding, modes_of
from infinite_tensor.values.spec import TensorSpec


@dataclass(frozen=True)
class TensorInvalidation:
    """One tensor's part of an `Invalidation`.

    Attributes
    ----------
    tensor_id : str
        The id of the tensor.
    store : str
        The store of the tensor.
    tiles : int
        The number of tiles dropped, both complete and partial.
    start, stop : tuple of (int or None)
        The box around all invalid pixels, including pixels that were not stored; None where the box has no end.
    """

    tensor_id: str
    store: str
    tiles: int
    start: tuple[int | None, ...]
    stop: tuple[int | None, ...]

    @property
    def _pixels(self) -> str:
        ends = zip(self.start, self.stop, strict=True)
        return f"[{', '.join(':'.join('' if end is None else str(end) for end in each) for each in ends)}]"


@dataclass(frozen=True, repr=False)
class Invalidation(Tabular):
    """The result of `InfiniteTensor.invalidate`.

    Attributes
    ----------
    tensors : tuple of TensorInvalidation
        The tensor and all tensors computed from it, upstream tensors first.
    """

    tensors: tuple[TensorInvalidation, ...]

    _COLUMNS: ClassVar = {
        "tiles": ("tiles", count_of),
        "pixels": ("_pixels", str),
        "store": ("store", str),
    }

    @property
    def tiles(self) -> int:
        """The number of tiles dropped, in total."""
        return sum(tensor.tiles for tensor in self.tensors)

    @property
    def _title(self) -> str:
        return "dropped"


_NO_END = FARTHEST // 2


class _Tensor(NamedTuple):
    """A tensor in a store, with or without an object in this process.

    Attributes
    ----------
    store : Contents
        The store.
    spec : TensorSpec
        The tensor.
    units : WindowGrid or None
        The units of a formula, which stores nothing.
    """

    store: Contents
    spec: TensorSpec
    units: WindowGrid | None = None

    @property
    def grid(self) -> WindowGrid:
        """The windows in which the tensor is computed."""
        return self.units or self.spec.grid


_Wrong: TypeAlias = list[tuple[_Tensor, BoxUnion]]


Requests: TypeAlias = "Sequence[tuple[Node, Selection | None]]"
"""Tensors with wrong regions. A region is None if the whole tensor is wrong."""


def invalidate(requests: Requests, *, dependants: bool) -> Invalidation:
    """Drop windows touching the selections.

    If `dependants`, also drop all windows computed from them. Dependants are dropped first. So if the call ends early,
    no windows computed from dropped windows are left, and a second call drops the rest.
    """
    if any(node.contents.closed for node in nodes_alive()):
        # Collect garbage first, because stores of unused tensors need not be open.
        gc.collect()
    stores = {id(node.contents): node.contents for node, _ in requests}
    while True:
        found = DROPPING.carry_out(list(stores.values()), partial(_drop, stores, requests, dependants=dependants))
        if isinstance(found, Invalidation):
            return found
        stores |= found


def forget(nodes: Sequence[Node]) -> None:
    """Drop tensors of which another process has dropped pixels, and all tensors computed from them, from memory."""
    if nodes:
        wrong = _wrong_windows([(node, None) for node in nodes], dependants=True)
        stores = {id(tensor.store): tensor.store for tensor, _ in wrong}
        DROPPING.carry_out(list(stores.values()), partial(_forget, wrong))


def _forget(wrong: _Wrong) -> None:
    for tensor, _ in reversed(wrong):
        tensor.store.forget(tensor.spec)


def _drop(
    stores: Mapping[int, Contents], requests: Requests, *, dependants: bool
) -> Invalidation | dict[int, Contents]:
    """Drop windows, if the stores of all of them are in `stores`.

    Otherwise drop nothing, and return the stores. The caller then reserves them, and calls this function again.
    """
    for node, _ in requests:
        node.contents.check_open()
    wrong = _wrong_windows(requests, dependants=dependants)
    concerned = {id(tensor.store): tensor.store for tensor, _ in wrong}
    if not concerned.keys() <= stores.keys():
        return concerned
    for tensor, _ in wrong:
        tensor.store.check_droppable(tensor.spec.tensor_id)
    reports = []
    for (store, spec, units), windows in reversed(wrong):
        tiles = store.drop(spec, windows) if units is None else 0
        start, stop = pixels_of(units or spec.grid, windows).hull if windows else ((0,) * len(spec.shape),) * 2
        first, end = tuple(None if a < -_NO_END else a for a in start), tuple(None if b > _NO_END else b for b in stop)
        reports.append(TensorInvalidation(spec.tensor_id, str(store), tiles, first, end))
    return Invalidation(tuple(reversed(reports)))


def _wrong_windows(requests: Requests, *, dependants: bool) -> _Wrong:
    """Return the windows to drop, for each tensor.

    If `dependants`, windows of downstream tensors are included, and tensors are ordered sources first.
    """
    family = _Family()
    wrong: dict[_Key, BoxUnion] = {}
    for node, selection in requests:
        root = family.enter(node.contents, node.spec)
        grid = family.tensors[root].grid
        region = None if selection is None else BoxUnion.of([selection.start], [selection.stop])
        begun = all_windows(grid) if region is None else windows_over(grid, region)
        _join(wrong, root, begun)
        # Each call of f has computed windows for all outputs.
        for key in family.beside(root) if dependants else ():
            _join(wrong, key, same_windows(begun, node.computation.coordinates, family.tensors[key].spec.grid))
    if not dependants:
        return [(family.tensors[key], windows) for key, windows in wrong.items()]
    order = sources_first(list(wrong), lambda key: [reader for reader, _ in family.readers(key)])
    for key in order:
        if key not in wrong:
            continue
        pixels = pixels_of(family.tensors[key].grid, wrong[key])
        for reader, reads in family.readers(key):
            read = reads.readers(pixels, family.tensors[reader].grid)
            if read:
                _join(wrong, reader, read)
    return [(family.tensors[key], wrong[key]) for key in order if key in wrong]


def _join(wrong: dict[_Key, BoxUnion], key: _Key, windows: BoxUnion) -> None:
    wrong[key] = wrong[key].joined(windows) if key in wrong else windows


_Padding: TypeAlias = "tuple[Padding, ...] | None"
_Key: TypeAlias = tuple[int, str, str]
"""A store object, a tensor id and the digest of the definition."""


class _Family:
    """Graph of tensors and their readers.

    The graph contains all tensors alive in this process. Stored tensors are added store by store, when needed.
    """

    def __init__(self) -> None:
        self.tensors: dict[_Key, _Tensor] = {}
        self._readers: defaultdict[_Key, dict[tuple[_Key, TensorWindow, _Padding], None]] = defaultdict(dict)
        self._searched: set[int] = set()
        for node in nodes_alive():
            reader = self._enter(node)
            for upstream in node.computation.inputs:
                key = self._enter(upstream.node)
                self._readers[key][reader, upstream.window, upstream.padding] = None

    def _enter(self, node: Node) -> _Key:
        formula = node.computation.formula
        return self.enter(node.contents, node.spec, None if formula is None else formula.grid)

    def enter(self, store: Contents, spec: TensorSpec, units: WindowGrid | None = None) -> _Key:
        """Add a tensor, and return its key."""
        key = id(store), spec.tensor_id, spec.definition.digest
        self.tensors.setdefault(key, _Tensor(store, spec, units))
        return key

    def beside(self, key: _Key) -> list[_Key]:
        """Return the other outputs of the same ``f``."""
        self._search(self.tensors[key].store)
        spec = self.tensors[key].spec
        return [
            other
            for other, each in self.tensors.items()
            if other != key and other[0] == key[0] and each.spec.is_beside(spec)
        ]

    def readers(self, key: _Key) -> list[tuple[_Key, ArgReads]]:
        """Return the readers of a tensor, each with its `ArgReads`."""
        self._search(self.tensors[key].store)
        shape = self.tensors[key].spec.shape
        return [(reader, ArgReads(window, shape, modes_of(padding))) for reader, window, padding in self._readers[key]]

    def _search(self, store: Contents) -> None:
        if id(store) not in self._searched:
            self._searched.add(id(store))
            for spec in store.specs_downstream():
                reader = self.enter(store, spec)
                for arg in spec.definition.args:
                    if arg.tensor_id is not None:
                        self._readers[id(store), arg.tensor_id, arg.digest][reader, arg.window, arg.padding] = None
