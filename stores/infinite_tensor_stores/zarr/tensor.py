"""One tensor in a zarr Store.

Other processes may write to the tensor at the same time. A complete tile is a chunk. A partial tile is a log: a folder
of parts, numbered from 0 and never changed. If a tensor has a single writer, this writer need not look for tiles that
it has never written.
"""

from __future__ import annotations

import itertools
import json
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from infinite_tensor.geometry.points import Index, inside
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.tilestore.backend import TensorHandle
from infinite_tensor.tilestore.inventory import Damage
from infinite_tensor.tilestore.messages import cleared_elsewhere, remade_elsewhere
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.values.dtypes import from_stored, stored_dtype, to_stored
from infinite_tensor_stores.files import LARGEST_DOCUMENT, Unreadable, content, left_alone, parsed
from infinite_tensor_stores.homes import Home, batches
from infinite_tensor_stores.zarr.codec import ChunkCodec, normal_form
from infinite_tensor_stores.zarr.layout import DOCUMENT, ArrayPlace, array_bytes, array_document, attributes_in, part_of

_BITS = 12
"""A block of a `TileSet` has about 2**12 tiles."""

_FEW_TILES = 64
"""The maximum number of tiles to look up separately. For more tiles, all stored tiles are listed."""

_PAGE_BYTES = 2**26
_PAGE_TILES = 256


class TileSet:
    """A set of tiles that takes little memory.

    The bits of one int stand for adjacent tiles.
    """

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
    shift = _BITS // len(tile)
    block, bit = [], 0
    for i in tile:
        block.append(i >> shift)
        bit = bit << shift | i & (1 << shift) - 1
    return tuple(block), bit


class Writers:
    """Avoids requests for tiles never stored.

    The store object that created a tensor remembers which tiles it has stored. As long as it is the only writer, no
    other tile exists, and looking for one would be a wasted request. Every other writer, even in the same process,
    stores an announcement (an empty object) before its first write. Once the creator has found an announcement, it
    looks up every tile.

    Parameters
    ----------
    mark : str
        Key of the announcement.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._written: TileSet | None = None
        self._announced = False
        renew_in_children(self)

    def found(self) -> None:
        """Record that this store object has just created the tensor."""
        self._written, self._announced = TileSet(), True

    def doubt(self, tiles: Iterable[Index]) -> list[str]:
        """Return the key of the announcement in a list, for the caller to read.

        The caller gives the object found there to `candidates`. The list is empty if the announcement does not matter,
        because all `tiles` must be looked up anyway.
        """
        written = self._written
        return [] if written is None or all(map(written.__contains__, tiles)) else [self._mark]

    def candidates(self, tiles: Iterable[Index], found: Sequence[bytes | None]) -> list[Index]:
        """Return the tiles that may be in the store.

        All other tiles are certainly missing. `found` is what the caller has read at the keys from `doubt`:
        ``[None]`` if there is no announcement.
        """
        if found.count(None) < len(found):
            self._written = None
        written = self._written
        return [tile for tile in tiles if written is None or tile in written]

    def will_write(self, home: Home, tiles: Iterable[Index]) -> None:
        """Record `tiles` as stored, before any of them is written.

        The first call also stores the announcement, except in the creator.
        """
        if not self._announced:
            home.put({self._mark: b""})
            self._announced = True
        # Another thread may find the announcement of another writer meanwhile, and set this to None.
        written = self._written
        if written is not None:
            written.update(tiles)

    def _renew_after_fork(self) -> None:
        # Look up every tile from now on, and announce this process before its next write: its parent may write too.
        self._written, self._announced = None, False


class Logs:
    """Reads, extends and deletes logs.

    The length of each log is remembered, so that its parts need not be listed. In arguments, a log is the key prefix
    returned by `ArrayPlace.log`.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lengths: dict[str, int] = {}

    def read(self, first: Mapping[str, bytes | None], most: int) -> dict[str, list[bytes]]:
        """Read all parts of logs.

        `first` maps each log to its part 0, or to None if there is no such object. Part 1, 2 and so on are read until
        a part is missing. A part of more than `most` bytes is not read, but returned as `Unreadable`.
        """
        logs: dict[str, list[bytes]] = {log: [] for log in first}
        grown = {log: part for log, part in first.items() if part is not None}
        while grown:
            for log, part in grown.items():
                logs[log].append(part)
            found = self._home.get([part_of(log, len(logs[log])) for log in grown], most)
            grown = {log: part for log, part in zip(grown, found, strict=True) if part is not None}
        # Forget deleted logs: a part with a later number would come after a gap, and never be found.
        self.forget(log for log, parts in logs.items() if not parts)
        self._lengths.update((log, len(parts)) for log, parts in logs.items() if parts)
        return logs

    def write(self, parts: Mapping[str, bytes | None]) -> None:
        """Add a part to each log.

        If `parts` maps a log to None, the log is deleted.
        """
        # A failure does no harm, because these logs are no longer read.
        with left_alone():
            self._delete([log for log, data in parts.items() if data is None])
        left = {log: data for log, data in parts.items() if data is not None}
        numbers = {log: self._lengths.get(log, 0) for log in left}
        known = [log for log, number in numbers.items() if number]
        last = self._home.exist([part_of(log, numbers[log] - 1) for log in known])
        # If another process has deleted the log, start at 0: a part after a gap would never be found.
        numbers.update((log, 0) for log, is_there in zip(known, last, strict=True) if not is_there)
        while left:
            created = self._home.create({part_of(log, numbers[log]): data for log, data in left.items()})
            numbers.update((log, numbers[log] + 1) for log in left)
            done = set(itertools.compress(left, created))
            self._lengths.update((log, numbers[log]) for log in done)
            # Another process has added parts, so take the next free number.
            left = {log: data for log, data in left.items() if log not in done}

    def forget(self, logs: Iterable[str]) -> None:
        """Forget the lengths of logs.

        Called for logs that are being deleted, or have been deleted.
        """
        for log in logs:
            self._lengths.pop(log, None)

    def _delete(self, logs: Sequence[str]) -> None:
        lengths = {log: self._lengths.get(log, 0) for log in logs}
        # Delete the last part first: a kill in between leaves a log without gaps.
        for number in reversed(range(max(lengths.values(), default=0))):
            self._home.delete([part_of(log, number) for log in logs if number < lengths[log]])
        if self._home.root is not None:
            self._home.delete_folders(logs)
        self.forget(logs)


class ZarrTensor(TensorHandle):
    """One incarnation of a tensor in a zarr Store.

    A tensor that is cleared and created again gets a new object.

    Parameters
    ----------
    home : Home
        The objects of the store.
    place : ArrayPlace
        The keys of the tensor.
    owner : object
        The backend; messages show its str.
    """

    def __init__(self, home: Home, place: ArrayPlace, owner: object) -> None:
        super().__init__(place.stored.tensor_id, place.layout, owner)
        self.place = place
        self.codec = ChunkCodec(
            {
                "codecs": place.stored.fields.get("codecs"),
                "data_type": stored_dtype(place.layout.dtype),
                "chunk_grid": {"configuration": {"chunk_shape": place.layout.tile_shape}},
            }
        )
        self._most = max(place.stored.largest_part, LARGEST_DOCUMENT)
        self.writers = Writers(place.shared)
        self.logs = Logs(home)
        self._home = home

    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """Read complete tiles.

        One request is sent for each tile that may be stored.
        """
        candidates = self._candidates(tiles)
        found = self.codec.read(self._home, list(map(self.place.chunk, candidates)))
        blocks = dict(zip(candidates, found, strict=True))
        dtype, intact = self.layout.dtype, [self.intact(tile, blocks.get(tile)) for tile in tiles]
        return [None if block is None else from_stored(block, dtype) for block in intact]

    @property
    def encoding(self) -> object:  # type: ignore[override]
        """Description of the chunk encoding.

        Tensors with equal descriptions can exchange encoded chunks.
        """
        codecs = json.dumps(self.place.stored.fields["codecs"], sort_keys=True)
        return "zarr", self.layout.dtype, self.layout.tile_shape, codecs

    def read_encoded(self, tiles: Sequence[Index]) -> list[bytes | None]:
        """Read chunks without decoding, but check the checksums."""
        candidates = self._candidates(tiles)
        found = self._home.get(map(self.place.chunk, candidates), self.codec.most_bytes)
        present = {tile: data for tile, data in zip(candidates, found, strict=True) if data is not None}
        intact = dict(zip(present, self.codec.intact(list(present.values())), strict=True))
        return [self.intact(tile, intact.get(tile)) for tile in tiles]

    def write_encoded(self, tiles: Mapping[Index, bytes]) -> None:
        """Store the encoded chunks of complete tiles."""
        self._check_place(*self._home.get([self.place.group]))
        self.writers.will_write(self._home, tiles)
        self._home.put({self.place.chunk(tile): data for tile, data in tiles.items()})

    def write_tiles(self, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles."""
        self._check_place(*self._home.get([self.place.group]))
        self.writers.will_write(self._home, tiles)
        self.codec.write(self._home, {self.place.chunk(tile): to_stored(block) for tile, block in tiles.items()})

    def read_partials(self, tiles: Sequence[Index]) -> list[PartialTile | None]:
        """Read the merged logs of partial tiles.

        Return None for a tile without a log.
        """
        place, doubt = self.place, self.writers.doubt(tiles)
        # If no announcement needs to be read, read the first parts together with the definition.
        keys = doubt or [part_of(place.log(tile)) for tile in tiles]
        most = self._most
        document, *found = self._home.get([place.group, *keys], most)
        self._check_place(document)
        logs = [place.log(tile) for tile in self.writers.candidates(tiles, found if doubt else [])]
        first = self._home.get(map(part_of, logs), most) if doubt else found
        parts = self.logs.read(dict(zip(logs, first, strict=True)), most)
        return [PartialTile.from_log(_log(parts.get(log, ())), log, self.owner) for log in map(place.log, tiles)]

    def write_partials(self, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add a part to the log of each tile.

        If `partials` maps a tile to None, the log of this tile is deleted.
        """
        self._check_place(*self._home.get([self.place.group]))
        self.writers.will_write(self._home, [tile for tile, part in partials.items() if part is not None])
        parts = {self.place.log(tile): part for tile, part in partials.items()}
        self.logs.write({log: None if part is None else part.to_bytes(log) for log, part in parts.items()})

    def delete_tiles(self, tiles: Sequence[Index]) -> None:
        """Delete the logs of tiles, then the chunks."""
        self._check_place(*self._home.get([self.place.group]))
        self._home.put({self.place.drops: secrets.token_hex(8).encode()})
        # Forget the logs first. A part 1 added after the loss of part 0 would never be found.
        self.logs.forget(map(self.place.log, tiles))
        wanted = set(tiles)
        begun = dict.fromkeys(tile for tile in self._logged() if tile in wanted)
        self._home.delete_folders(map(self.place.log, begun))
        self._home.delete(map(self.place.chunk, tiles))

    def generation(self) -> str:
        """Return a text that changes whenever any process deletes tiles."""
        (found,) = self._home.get([self.place.drops])
        return (found or b"").decode(errors="replace")

    def find(self, tiles: Sequence[Index]) -> list[bool]:
        """Return for each tile whether there is a chunk."""
        candidates = self._candidates(tiles)
        there = dict(zip(candidates, self._home.exist(map(self.place.chunk, candidates)), strict=True))
        return [there.get(tile, False) for tile in tiles]

    def find_in(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find chunks and logs in a box of tiles.

        Return the set of tiles with a chunk, and the set of tiles with a log.
        """
        place = self.place
        if math.prod(b - a for a, b in zip(low, high, strict=True)) <= _FEW_TILES:
            tiles = list(itertools.product(*map(range, low, high)))
            present = self._home.exist([*map(place.chunk, tiles), *(part_of(place.log(tile)) for tile in tiles)])
            found = list(itertools.compress(tiles * 2, present))
            count = sum(present[: len(tiles)])
            return set(found[:count]), set(found[count:])
        chunks = map(place.tile_of_chunk, self._home.keys(f"{place.array}/c"))
        complete = {tile for tile in chunks if tile is not None and inside(tile, low, high)}
        return complete, {tile for tile in self._logged() if inside(tile, low, high)}

    def _candidates(self, tiles: Sequence[Index]) -> list[Index]:
        doubt = self.writers.doubt(tiles)
        return self.writers.candidates(tiles, self._home.get(doubt) if doubt else [])

    def _logged(self) -> Iterator[Index]:
        """Iterate over the tiles of all log parts.

        A tile with several parts comes several times.
        """
        place = self.place
        parts = map(place.tile_of_part, self._home.keys(place.logs))
        return (part[0] for part in parts if part is not None)

    def _check_place(self, document: bytes | None) -> None:
        if self.released:
            # This store itself has cleared the tensor, or was closed.
            return
        if document is None:
            raise cleared_elsewhere(self.owner, self.tensor_id)
        try:
            found = attributes_in(document)
        except ValueError:
            # `verify` reports the damaged definition.
            return
        if found is not None and found.get("incarnation") != self.place.stored.incarnation:
            raise remade_elsewhere(self.owner, self.tensor_id)

    # Damage. Tiles and logs are read and decoded in pages. Only two things in memory grow with the amount of stored
    # data: the numbers of log parts, and, with fsspec, the names in a folder.

    def damages(self, *, repair: bool) -> Iterator[Damage]:
        """Check the array, the tiles and the logs, and iterate over the damages.

        If `repair` is True, each damage is also repaired.
        """
        yield from self._damages_of_array(repair=repair)
        length = max(1, min(_PAGE_TILES, _PAGE_BYTES // self.layout.tile_bytes))
        for keys in batches(self._home.places(f"{self.place.array}/c"), length):
            yield from self._damages_of_tiles(keys, repair=repair)
        numbers: dict[Index, set[int]] = {}
        for keys in batches(self._home.places(self.place.logs), length):
            yield from self._damages_of_parts(keys, numbers, repair=repair)
        yield from self._gaps(numbers, repair=repair)

    def _damages_of_array(self, *, repair: bool) -> Iterator[Damage]:
        key = f"{self.place.array}/{DOCUMENT}"
        try:
            (document,) = self._home.get([key])
            if document is None:
                raise ValueError("missing")
            if (attributes_in(document, "array") or {}).get("origin") != list(self.place.origin):
                raise ValueError("the origin differs from the definition")
            found, wanted = normal_form(parsed(document)), normal_form(array_document(self.place.stored))
            differing = [
                field for field, value in wanted.items() if field != "attributes" and found.get(field) != value
            ]
            if differing:
                raise ValueError(f"differs from the definition in {', '.join(differing)}")
        except ValueError as error:
            yield Damage("array", None, key, str(error))
            if repair:
                self._mend({key: array_bytes(self.place.stored)})

    def _damages_of_tiles(self, keys: Sequence[str], *, repair: bool) -> Iterator[Damage]:
        chunks = [(key, tile) for key in keys if (tile := self.place.tile_of_chunk(key)) is not None]
        blocks = self.codec.read(self._home, [key for key, _ in chunks])
        damaged = []
        for (key, tile), block in zip(chunks, blocks, strict=True):
            if isinstance(block, Exception):
                damaged.append(key)
                yield Damage("tile", tile, key, str(block))
        if repair:
            self._home.delete(self._home.freed(damaged))

    def _damages_of_parts(
        self, keys: Sequence[str], numbers: dict[Index, set[int]], *, repair: bool
    ) -> Iterator[Damage]:
        parts = [(key, *part) for key in keys if (part := self.place.tile_of_part(key)) is not None]
        mended = {}
        stored = self._home.get([key for key, *_ in parts], self.place.stored.largest_part)
        for (key, tile, number), data in zip(parts, stored, strict=True):
            if data is None:
                continue
            numbers.setdefault(tile, set()).add(number)
            try:
                PartialTile.from_bytes(content(data), self.place.log(tile))
            except ValueError as error:
                yield Damage("partial", tile, key, str(error))
                mended[key] = self._nothing(tile)
        if repair:
            self._mend(mended)

    def _gaps(self, numbers: dict[Index, set[int]], *, repair: bool) -> Iterator[Damage]:
        missing = {tile: sorted(set(range(max(found))) - found) for tile, found in numbers.items()}
        gaps = [tile for tile, absent in missing.items() if absent]
        # Skip complete tiles: a process may be deleting the log, and nobody needs it.
        complete = self._home.exist(map(self.place.chunk, gaps))
        for tile in itertools.compress(gaps, (not done for done in complete)):
            for number in missing[tile]:
                key = part_of(self.place.log(tile), number)
                yield Damage("partial", tile, key, "missing, so later parts are not read")
                if repair and self._home.freed([key]):
                    self._home.create({key: self._nothing(tile)})

    def _mend(self, objects: Mapping[str, bytes]) -> None:
        self._home.put({key: objects[key] for key in self._home.freed(objects)})

    def _nothing(self, tile: Index) -> bytes:
        """Return an empty part in place of a damaged part.

        If the part were missing, later parts would not be read.
        """
        return PartialTile().to_bytes(self.place.log(tile))


def _log(parts: Iterable[bytes]) -> Iterator[bytes | Exception]:
    return (ValueError(data.reason) if isinstance(data, Unreadable) else data for data in parts)
