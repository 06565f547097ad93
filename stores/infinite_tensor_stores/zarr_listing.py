"""Listing what a zarr Store holds, in pages, while other processes add and delete."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore

from infinite_tensor.geometry.points import Index, inside
from infinite_tensor.tilestore.report import TensorInfo
from infinite_tensor_stores.remote import RemoteStore
from infinite_tensor_stores.zarr_layout import Place
from infinite_tensor_stores.zarr_logs import part_of
from infinite_tensor_stores.zarr_loop import sync
from infinite_tensor_stores.zarr_objects import concurrently

T = TypeVar("T")

_PAGE = 1000
_FEW_TILES = 64
"""So many are asked for one by one, rather than looked for among all that there are."""


def pages(store: Store, prefix: str, length: int = _PAGE) -> Iterator[list[str]]:
    """The keys of all objects below a folder (all there are, for ``""``), up to `length` at a time."""
    if isinstance(store, LocalStore):
        keys = _walked(store.root, prefix)
    else:
        keys = _listed(store.list_prefix(f"{prefix}/" if prefix else ""))
    while page := list(islice(keys, length)):
        yield page


def children(store: Store, prefix: str) -> list[str]:
    """Names of the objects and folders right below a folder."""

    async def names() -> list[str]:
        return [name.rstrip("/") async for name in store.list_dir(prefix)]

    return sync(names)


def sized_pages(store: Store, prefix: str, concurrency: int) -> Iterator[dict[str, int]]:
    """The keys of all objects below a folder with their sizes in bytes, 0 for one that has gone meanwhile."""
    if isinstance(store, RemoteStore):
        # A listing tells the sizes, which otherwise take a request each.
        listed = _listed(store.list_sizes(f"{prefix}/"))
        while page := dict(islice(listed, _PAGE)):
            yield page
    else:
        for keys in pages(store, prefix):
            yield dict(zip(keys, sizes_of(store, keys, concurrency), strict=True))


def sizes_of(store: Store, keys: list[str], concurrency: int) -> list[int]:
    """Size of each object in bytes, 0 where it has gone meanwhile."""

    async def size(key: str) -> int:
        try:
            return await store.getsize(key)
        except FileNotFoundError:
            return 0

    return concurrently(size, keys, concurrency)


def tiles_in(
    store: Store, place: Place, low: Sequence[int], high: Sequence[int], concurrency: int
) -> tuple[set[Index], set[Index]]:
    """The complete tiles of a box ``[low, high)``, and those that have a log."""
    if math.prod(b - a for a, b in zip(low, high, strict=True)) <= _FEW_TILES:
        tiles = list(itertools.product(*map(range, low, high)))
        keys = [*map(place.chunk, tiles), *(part_of(place.log(tile)) for tile in tiles)]
        present = concurrently(store.exists, keys, concurrency)
        found = list(itertools.compress(tiles * 2, present))
        count = sum(present[: len(tiles)])
        return set(found[:count]), set(found[count:])
    chunks = (place.tile_of_chunk(key) for keys in pages(store, f"{place.array}/c") for key in keys)
    complete = {tile for tile in chunks if tile is not None and inside(tile, low, high)}
    return complete, logged_in(store, place, low, high)


def logged_in(store: Store, place: Place, low: Sequence[int], high: Sequence[int]) -> set[Index]:
    """The tiles of a box ``[low, high)`` that have a log."""
    return {tile for tile in _logged(store, place) if inside(tile, low, high)}


def logs_of(store: Store, place: Place, tiles: Collection[Index]) -> list[str]:
    """The logs that hold anything, even if it is behind a gap, of some tiles."""
    return [place.log(tile) for tile in dict.fromkeys(_logged(store, place)) if tile in tiles]


def _logged(store: Store, place: Place) -> Iterator[Index]:
    """The tile of each part of a log that there is."""
    parts = (place.tile_of_part(key) for keys in pages(store, place.logs) for key in keys)
    return (part[0] for part in parts if part is not None)


def described(store: Store, place: Place, concurrency: int) -> TensorInfo:
    """What is stored of the tensor at `place`."""
    complete, stored = 0, 0
    for sizes in sized_pages(store, f"{place.array}/c", concurrency):
        chunks = [size for key, size in sizes.items() if place.tile_of_chunk(key) is not None]
        complete += len(chunks)
        stored += sum(chunks)
    logs: set[Index] = set()
    for sizes in sized_pages(store, place.logs, concurrency):
        parts = {key: part[0] for key in sizes if (part := place.tile_of_part(key)) is not None}
        logs.update(parts.values())
        stored += sum(sizes[key] for key in parts)
    # A log that another process has left behind does not make a complete tile partial.
    partial = concurrently(store.exists, map(place.chunk, logs), concurrency).count(False)
    definition = dict(place.definition)
    return TensorInfo(definition["tensor_id"], definition, complete, partial, stored, place.array)


def temporary_files_in(store: Store) -> bool:
    """Whether processes that were killed may have left files behind that stand for no object."""
    while isinstance(store, WrapperStore):
        store = store._store
    return isinstance(store, LocalStore)


def _walked(root: Path, prefix: str) -> Iterator[str]:
    # Unlike zarr's own listing, os.walk minds no folder that another process deletes meanwhile.
    for folder, _, names in os.walk(root / prefix):
        within = Path(folder).relative_to(root).as_posix()
        yield from (name if within == "." else f"{within}/{name}" for name in names)


def _listed(entries: AsyncIterator[T]) -> Iterator[T]:
    async def some() -> list[T]:
        found = []
        async for entry in entries:
            found.append(entry)
            if len(found) == _PAGE:
                break
        return found

    while page := sync(some):
        yield from page
