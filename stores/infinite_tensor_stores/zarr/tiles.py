"""Which tiles of a tensor a zarr Store holds: chunks, logs of partial tiles, and who else may be writing some.

A log is a folder of parts that are numbered from 0 and never changed. The only writer of a tensor need not look for
tiles that it has never written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from zarr.abc.store import Store
from zarr.storage import LocalStore

from infinite_tensor.geometry.points import Index, inside
from infinite_tensor.tilestore.report import TensorInfo
from infinite_tensor_stores.zarr.layout import Place
from infinite_tensor_stores.zarr.objects import (
    concurrently,
    create,
    delete_folder,
    get_many,
    pages,
    put_many,
    sized_pages,
)

_BITS = 12
"""A block holds about 2**12 tiles."""

_FEW_TILES = 64
"""So many are asked for one by one, rather than looked for among all that there are."""


class TileSet:
    """A set of tiles that takes about a bit for each where they lie side by side."""

    def __init__(self) -> None:
        self._blocks: dict[Index, int] = {}

    def __contains__(self, tile: Index) -> bool:
        block, bit = _place_of(tile)
        return bool(self._blocks.get(block, 0) >> bit & 1)

    def update(self, tiles: Iterable[Index]) -> None:
        """Add tiles."""
        for block, bit in map(_place_of, tiles):
            self._blocks[block] = self._blocks.get(block, 0) | 1 << bit


def _place_of(tile: Index) -> tuple[Index, int]:
    """The block that a tile lies in, and its number there."""
    shift = _BITS // len(tile)
    bit = 0
    for i in tile:
        bit = bit << shift | i & (1 << shift) - 1
    return tuple([i >> shift for i in tile]), bit


class Writers:
    """What one store object knows of the others that write a tensor.

    Whoever has created a tensor has written all that is stored of it, until somebody else announces itself, which
    everybody else does before writing for the first time. So one look for the announcement stands for a look for
    each tile.

    Parameters
    ----------
    mark : str
        Key of the announcement.
    founder : bool
        Whether this store object has created the tensor.
    """

    def __init__(self, mark: str, *, founder: bool) -> None:
        self._mark = mark
        self._written: TileSet | None = TileSet() if founder else None
        self._announced = founder

    def doubt(self, tiles: Iterable[Index]) -> list[str]:
        """Keys to look for before `candidates` can tell of some tiles: the announcement, or none."""
        written = self._written
        return [] if written is None or all(tile in written for tile in tiles) else [self._mark]

    def candidates(self, tiles: Iterable[Index], found: Sequence[bytes | None]) -> list[Index]:
        """Those of some tiles of which something may be stored, by what was found under the keys of `doubt`."""
        if any(data is not None for data in found):
            self._written = None
        written = self._written
        return [tile for tile in tiles if written is None or tile in written]

    def will_write(self, store: Store, tiles: Iterable[Index]) -> None:
        """To be called before anything of some tiles is written."""
        if not self._announced:
            put_many(store, {self._mark: b""})
            self._announced = True
        # A thread that reads may find somebody else's announcement meanwhile.
        written = self._written
        if written is not None:
            written.update(tiles)

    def leave(self) -> None:
        """Be one of several from now on: a forked child goes on with what its parent has, beside it."""
        self._written, self._announced = None, False


def part_of(log: str, number: int = 0) -> str:
    """The key of one part."""
    return f"{log}/{number}"


class Logs:
    """Reads, lengthens and deletes logs without a listing: knows how long those are that it has met.

    A log is named by its prefix in the store.

    Parameters
    ----------
    concurrency : int
        Requests of one call at a time.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._lengths: dict[str, int] = {}

    def read(self, store: Store, first: Mapping[str, bytes | None], most: int) -> dict[str, list[bytes]]:
        """All parts, of `most` bytes, of logs whose first parts are at hand, up to the first part that is missing."""
        logs: dict[str, list[bytes]] = {log: [] for log in first}
        grown = {log: part for log, part in first.items() if part is not None}
        while grown:
            for log, part in grown.items():
                logs[log].append(part)
            keys = [part_of(log, len(logs[log])) for log in grown]
            found = get_many(store, keys, self._concurrency, most=most)
            grown = {log: part for log, part in zip(grown, found, strict=True) if part is not None}
        self._lengths.update((log, len(parts)) for log, parts in logs.items() if parts)
        return logs

    def write(self, store: Store, parts: Mapping[str, bytes | None]) -> None:
        """Add a part to each log, or delete it where that is None."""

        async def write(item: tuple[str, bytes | None]) -> None:
            log, data = item
            if data is None:
                await self._delete(store, log)
                return
            number = self._lengths.get(log, 0)
            # Another process may have added parts: take the next number that is free.
            while not await create(store, part_of(log, number), data):
                number += 1
            self._lengths[log] = number + 1

        concurrently(write, parts.items(), self._concurrency)

    def delete(self, store: Store, logs: Sequence[str]) -> None:
        """Delete logs with all parts that there are, also those that others have added."""
        concurrently(lambda log: delete_folder(store, log), logs, self._concurrency)

    def forget(self, logs: Iterable[str]) -> None:
        """Know nothing more of logs that somebody deletes."""
        for log in logs:
            self._lengths.pop(log, None)

    async def _delete(self, store: Store, log: str) -> None:
        # The last part first: a kill in between leaves a log without gaps.
        for number in reversed(range(self._lengths.get(log, 0))):
            await store.delete(part_of(log, number))
        if isinstance(store, LocalStore):
            await delete_folder(store, log)
        self._lengths.pop(log, None)


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
