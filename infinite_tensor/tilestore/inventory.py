"""Reports about a store: stored tiles, damage, and dependencies between tensors."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from operator import add
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from infinite_tensor.geometry.points import Index, IntArray, as_tuples, points_of_boxes, unique_points
from infinite_tensor.geometry.window import WindowGrid
from infinite_tensor.support.tables import bytes_of, code, count_of, escaped, facts, panel
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.values.spec import TensorSpec

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class TensorInfo:
    """Description of a stored tensor.

    Attributes
    ----------
    tensor_id : str
        The id of the tensor.
    definition : dict
        The stored definition, which determines values and layout.
    tiles_complete, tiles_partial : int
        The number of tiles with all windows, and the number of stored tiles with missing windows.
    bytes_stored : int
        Size of everything stored, in bytes.
    location : str
        The location of the tiles, such as the path of the Zarr array within the store.
    why_no_ome : str or None
        The reason why programs for OME-Zarr cannot open the tensor; None if they can. To open the tensor, give such a
        program the group that contains `location`.
    """

    tensor_id: str
    definition: dict[str, Any]
    tiles_complete: int
    tiles_partial: int
    bytes_stored: int
    location: str
    why_no_ome: str | None = "nothing of it is stored in Zarr"

    def __str__(self) -> str:
        shape, dims = self.definition.get("shape"), self.definition.get("dims")
        rows = {
            "shape": None if shape is None else tuple(shape),
            "dims": None if dims is None else tuple(dims),
            "dtype": self.definition.get("dtype"),
            "tile size": None if "tile_size" not in self.definition else tuple(self.definition["tile_size"]),
            "complete tiles": count_of(self.tiles_complete),
            "partial tiles": count_of(self.tiles_partial),
            "stored": bytes_of(self.bytes_stored),
            "location": self.location,
            "OME-Zarr": "yes" if self.why_no_ome is None else f"no: {self.why_no_ome}",
        }
        lines = [f"  {name:<14}  {value}" for name, value in rows.items() if value is not None]
        return "\n".join([f"tensor {self.tensor_id!r}", *lines])

    def _repr_html_(self) -> str:
        rows = [
            ("complete tiles", escaped(count_of(self.tiles_complete))),
            ("partial tiles", escaped(count_of(self.tiles_partial))),
            ("stored", escaped(bytes_of(self.bytes_stored))),
            ("location", code(self.location)),
            ("OME-Zarr", escaped("yes" if self.why_no_ome is None else f"no: {self.why_no_ome}")),
        ]
        fields = [(name, code(json.dumps(value))) for name, value in self.definition.items() if name != "tensor_id"]
        return panel("TensorInfo", code(self.tensor_id), facts([*rows, *fields]))


@dataclass(frozen=True)
class Damage:
    """A damaged object in a store.

    Attributes
    ----------
    kind : {"definition", "array", "tile", "partial"}
        ``definition``, ``array`` (the metadata of the tensor's array), ``tile`` (a complete tile) or ``partial``
        (a part of the log of a partial tile).
    tile : tuple of int or None
        The index of the damaged tile; None for a definition or an array.
    location : str
        The location of the object within the store.
    reason : str
        What is wrong with the object.
    """

    kind: Literal["definition", "array", "tile", "partial"]
    tile: Index | None
    location: str
    reason: str


@dataclass(frozen=True)
class Garbage:
    """Amount of data deleted by `TileStore.gc`.

    Attributes
    ----------
    objects, bytes : int
        The number of deleted objects, and the size of all of them in bytes.
    partial_tiles, partial_bytes : int
        The number of deleted partial tiles, and their size in bytes; `bytes` includes this size.
    """

    objects: int = 0
    bytes: int = 0
    partial_tiles: int = 0
    partial_bytes: int = 0

    def __add__(self, other: Garbage) -> Garbage:
        return Garbage(*map(add, astuple(self), astuple(other)))


class Known(Protocol):
    """The places of the known windows of an incomplete tile, tested by ``index in known``."""

    def __contains__(self, index: Index, /) -> bool: ...


NOTHING: Known = frozenset()

TileState: TypeAlias = Literal["stored", "missing", "uncovered", "skipped"]
TILE_STATES = ("stored", "missing", "uncovered")
"""States of a tile: all windows stored, some missing, or without any window. Uncovered tiles are never stored."""


@dataclass(frozen=True)
class Inventory:
    """Stored tiles and windows in a box of tiles.

    Attributes
    ----------
    layout : TileLayout
        The tiles of the tensor.
    complete : collection of tuple of int
        The indices of the complete tiles.
    partial : mapping of tuple of int to container of tuple of int
        Maps the index of each partial tile to the places of its stored windows.
    """

    layout: TileLayout
    complete: frozenset[Index] = frozenset()
    partial: Mapping[Index, Known] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing is stored."""
        return not self.complete and not self.partial

    def known(self, tile: Index) -> Known | None:
        """Return the stored windows of a tile, or None for a complete tile."""
        return None if tile in self.complete else self.partial.get(tile, NOTHING)

    def missing(self, grid: WindowGrid, starts: IntArray, stops: IntArray) -> IntArray:
        """Return the missing windows of regions.

        The result has the indices of the windows, sorted, in shape (M, ndim). The bounds of the regions have shape
        (N, ndim).
        """
        if self.empty:
            return grid.windows(starts, stops)
        return missing_windows(grid, self.layout, starts, stops, self.known)

    def states(self, grid: WindowGrid, low: Sequence[int], high: Sequence[int]) -> npt.NDArray[np.str_]:
        """Return the state of each tile in a box ``[low, high)``.

        The result is an array in the shape of the box. Its values are from `TILE_STATES`.
        """
        tiles, _ = points_of_boxes(np.array([low], dtype=np.int64), np.array([high], dtype=np.int64))
        first, last = windows_over_tiles(grid, self.layout, tiles)
        covered = (first < last).all(axis=1)
        states = np.where(covered, "missing", "uncovered")
        for number in np.flatnonzero(covered).tolist():
            known = self.known(tuple(tiles[number].tolist()))
            if known is None or (
                known is not NOTHING
                and all(index in known for index in as_tuples(points_of_boxes(first[[number]], last[[number]])[0]))
            ):
                states[number] = "stored"
        return states.reshape([b - a for a, b in zip(low, high, strict=True)])


def windows_over_tiles(grid: WindowGrid, layout: TileLayout, tiles: IntArray) -> tuple[IntArray, IntArray]:
    """Return the box of windows touching each tile.

    `tiles` contains N tile indices, in shape (N, ndim). The result is two arrays of this shape: the first window index
    of each box, and the end of each box (exclusive).
    """
    size = np.array(layout.tile_shape, dtype=np.int64)
    ends = np.array([np.iinfo(np.int64).max if n is None else n for n in layout.shape], dtype=np.int64)
    return grid.boxes(tiles * size, np.minimum(tiles * size + size, ends))


def missing_windows(
    grid: WindowGrid, layout: TileLayout, starts: IntArray, stops: IntArray, known: Callable[[Index], Known | None]
) -> IntArray:
    """Return the missing windows of regions.

    Parameters
    ----------
    grid : WindowGrid
        The windows of the tensor.
    layout : TileLayout
        The tiles of the tensor.
    starts, stops : int64 array of shape (N, ndim)
        The regions in pixels.
    known : callable
        ``known(tile)`` returns the known windows of a tile, None for a complete tile, or `NOTHING` for an empty tile.

    Returns
    -------
    int64 array of shape (M, ndim)
        Indices of the windows, in lexicographic order.
    """
    points, owner = points_of_boxes(*layout.grid.boxes(starts, stops))
    held = [known(tile) for tile in as_tuples(points)]
    if held.count(NOTHING) == len(held):
        return grid.windows(starts, stops)
    incomplete = np.array([windows is not None for windows in held], dtype=bool)
    held = [windows for windows in held if windows is not None]
    size = np.array(layout.tile_shape, dtype=np.int64)
    tile_starts = points[incomplete] * size
    low = np.maximum(starts[owner[incomplete]], tile_starts)
    high = np.minimum(stops[owner[incomplete]], tile_starts + size)
    places, pair = points_of_boxes(*grid.boxes(low, high))
    unknown = np.ones(len(places), dtype=bool)
    begun = np.array([windows is not NOTHING for windows in held], dtype=bool)
    for number in np.flatnonzero(begun[pair]).tolist():
        unknown[number] = tuple(places[number].tolist()) not in held[pair[number]]
    return grid.windows_at(unique_points(places[unknown]))


# Dependencies between tensors, according to the definitions.


def readers_in(specs: Iterable[TensorSpec], tensor_id: str, digest: str | None) -> list[str]:
    """Return the sorted ids of the direct readers of a tensor.

    A direct reader has the tensor as an arg. `digest` is the digest of the tensor's definition: readers of an earlier
    tensor with the same id but another definition are left out. If `digest` is None, all readers are returned.
    """
    return sorted(
        spec.tensor_id
        for spec in specs
        if any(arg.tensor_id == tensor_id and digest in (None, arg.digest) for arg in spec.definition.args)
    )


def dependants_in(specs: Iterable[TensorSpec], tensor_id: str, digest: str | None) -> list[str]:
    """Return the ids of all direct and indirect readers of a tensor.

    Each reader comes before the tensors it reads.
    """
    known = list(specs)
    by_arg: defaultdict[tuple[str, str], list[TensorSpec]] = defaultdict(list)
    for spec in known:
        for arg in spec.definition.args:
            if arg.tensor_id is not None:
                by_arg[arg.tensor_id, arg.digest].append(spec)
    first = set(readers_in(known, tensor_id, digest))

    def readers(name: str) -> list[str]:
        if name == tensor_id:
            return sorted(first)
        return [spec.tensor_id for spec in by_arg[name, digests[name]]]

    digests = {spec.tensor_id: spec.definition.digest for spec in known}
    return list(reversed(sources_first([tensor_id], readers)))[:-1]


def sources_first(roots: Iterable[K], readers: Callable[[K], Iterable[K]]) -> list[K]:
    """Sort `roots` and their direct and indirect readers, sources first.

    ``readers(key)`` returns the direct readers of `key`. In the result, each key comes before its readers.
    """
    finished: list[K] = []
    entered: set[K] = set()
    # An entry per key in progress: the key, with an iterator over the readers. The first entry is for the roots.
    stack: list[tuple[list[K], Iterator[K]]] = [([], iter(roots))]
    while stack:
        keys, rest = stack[-1]
        for key in rest:
            if key not in entered:
                entered.add(key)
                stack.append(([key], iter(readers(key))))
                break
        else:
            finished += keys
            stack.pop()
    return finished[::-1]
