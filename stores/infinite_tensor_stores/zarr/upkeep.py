"""Looking after a Zarr store: what is damaged of a tensor, and what no definition refers to.

Tiles and logs are fetched and decoded in pages. All that grows with what is stored is the numbers of the parts of
its logs, and, behind fsspec, the names in a folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from zarr.abc.store import Store

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.report import Damage, Garbage
from infinite_tensor_stores.documents import TENSOR, parsed
from infinite_tensor_stores.files import content
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.zarr.codec import ChunkCodec, normal_form
from infinite_tensor_stores.zarr.layout import (
    DOCUMENT,
    Place,
    array_bytes,
    array_document,
    attributes_in,
    definition_in,
    incarnation_of,
    is_temporary,
)
from infinite_tensor_stores.zarr.objects import (
    children,
    concurrently,
    create,
    delete_folder,
    get_many,
    pages,
    put_many,
    sized_pages,
    sizes_of,
    temporary_files_in,
)
from infinite_tensor_stores.zarr.root import check_ours, ours_at_root
from infinite_tensor_stores.zarr.tiles import part_of

_PAGE_BYTES = 2**26
_PAGE_TILES = 256


class Sweep:
    """Deletes garbage and counts it. What is not ours is left alone.

    Parameters
    ----------
    store : zarr Store
        Where it is.
    concurrency : int
        Requests at a time.

    Attributes
    ----------
    logs : list of str
        Prefixes of the logs that were deleted.
    """

    def __init__(self, store: Store, concurrency: int) -> None:
        self.logs: list[str] = []
        self._store = store
        self._concurrency = concurrency
        self._objects = 0
        self._bytes = 0

    def run(self) -> Garbage:
        """Go over the whole store."""
        ours = ours_at_root(self._store, self._concurrency)
        for name, inside in ours.items():
            if name.startswith(TENSOR):
                self._sweep_incarnations(name, inside)
                self._sweep_logs(name)
        if temporary_files_in(self._store):
            self._sweep_temporary_files([name for name in children(self._store, "") if is_temporary(name, DOCUMENT)])
            for name in ours:
                for keys in pages(self._store, name):
                    self._sweep_temporary_files([key for key in keys if is_temporary(key)])
        return Garbage(self._objects, self._bytes)

    def _sweep_temporary_files(self, keys: list[str]) -> None:
        self._count(sizes_of(self._store, keys, self._concurrency))
        concurrently(self._store.delete, keys, self._concurrency)

    def _sweep_incarnations(self, name: str, inside: Sequence[str]) -> None:
        for folder in inside:
            incarnation, prefix = incarnation_of(folder), f"{name}/{folder}"
            if incarnation is None or self._in_use(name, incarnation):
                continue
            counted = self._objects, self._bytes
            for sizes in sized_pages(self._store, prefix, self._concurrency):
                self._count(sizes.values())
            # Counting may have taken long.
            if self._in_use(name, incarnation):
                self._objects, self._bytes = counted
            else:
                sync(delete_folder, self._store, prefix)

    def _sweep_logs(self, name: str) -> None:
        """Delete the logs of complete tiles."""
        try:
            definition = self._definition(name)
        except (ValueError, StoreError):
            return
        if definition is None:
            return
        place = Place.of(definition)
        for sizes in sized_pages(self._store, place.logs, self._concurrency):
            parts = [(key, part[0]) for key in sizes if (part := place.tile_of_part(key)) is not None]
            tiles = list(dict.fromkeys(tile for _, tile in parts))
            exist = concurrently(self._store.exists, map(place.chunk, tiles), self._concurrency)
            complete = {tile for tile, there in zip(tiles, exist, strict=True) if there}
            self._count([sizes[key] for key, tile in parts if tile in complete])
            finished = list(map(place.log, complete))
            concurrently(lambda log: delete_folder(self._store, log), finished, self._concurrency)
            self.logs += finished

    def _in_use(self, name: str, incarnation: str) -> bool:
        """Whether the definition of a group names this incarnation, or cannot be read to the end."""
        try:
            definition = self._definition(name)
        except (ValueError, StoreError):
            return True
        return definition is not None and definition["incarnation"] == incarnation

    def _definition(self, name: str) -> dict[str, object] | None:
        (document,) = get_many(self._store, [f"{name}/{DOCUMENT}"])
        return None if document is None else definition_in(document, name)

    def _count(self, sizes: Collection[int]) -> None:
        self._objects += len(sizes)
        self._bytes += sum(sizes)


def place_in(store: Store, name: str, document: bytes, owner: object) -> Place | Damage:
    """Where the tensor lies that `document` defines, or what is damaged of the definition."""
    try:
        return Place.of(definition_in(document, name))
    except ValueError as error:
        check_ours(store, name, document, "a tensor", owner)
        return Damage("definition", None, f"{name}/{DOCUMENT}", str(error))


def damages(store: Store, place: Place, codec: ChunkCodec, concurrency: int, *, repair: bool) -> Iterator[Damage]:
    """What is damaged of the array, the complete tiles and the partial tiles at `place`; mended as it is found."""
    yield from _in_array(store, place, repair=repair)
    yield from _in_tiles(store, place, codec, concurrency, repair=repair)
    yield from _in_logs(store, place, concurrency, repair=repair)


def _in_array(store: Store, place: Place, *, repair: bool) -> Iterator[Damage]:
    key = f"{place.array}/{DOCUMENT}"
    try:
        (document,) = get_many(store, [key])
        if document is None:
            raise ValueError("it is missing")
        # Earlier versions put the whole definition there.
        if (attributes_in(document, "array") or {}).get("origin") != list(place.origin):
            raise ValueError("its origin is not that of the definition")
        found, expected = normal_form(parsed(document)), normal_form(array_document(place.definition))
        differing = [field for field, value in expected.items() if field != "attributes" and found.get(field) != value]
        if differing:
            raise ValueError(f"what the definition says differs in {', '.join(differing)}")
    except ValueError as error:
        yield Damage("array", None, key, str(error))
        if repair:
            put_many(store, {key: array_bytes(place.definition)})


def _in_tiles(store: Store, place: Place, codec: ChunkCodec, concurrency: int, *, repair: bool) -> Iterator[Damage]:
    for keys in pages(store, f"{place.array}/c", _page_length(place)):
        chunks = [(key, tile) for key in keys if (tile := place.tile_of_chunk(key)) is not None]
        stored = get_many(store, [key for key, _ in chunks], concurrency, most=codec.most_bytes)
        present = [(key, tile, data) for (key, tile), data in zip(chunks, stored, strict=True) if data is not None]
        blocks = codec.decode([data for *_, data in present])
        damaged = []
        for (key, tile, _), block in zip(present, blocks, strict=True):
            if isinstance(block, Exception):
                damaged.append(key)
                yield Damage("tile", tile, key, str(block))
        if repair:
            concurrently(store.delete, damaged, concurrency)


def _in_logs(store: Store, place: Place, concurrency: int, *, repair: bool) -> Iterator[Damage]:
    numbers: dict[Index, set[int]] = {}
    for keys in pages(store, place.logs, _page_length(place)):
        parts = [(key, *part) for key in keys if (part := place.tile_of_part(key)) is not None]
        mended = {}
        stored = get_many(store, [key for key, *_ in parts], concurrency, most=place.largest_part)
        for (key, tile, number), data in zip(parts, stored, strict=True):
            if data is None:
                continue
            numbers.setdefault(tile, set()).add(number)
            try:
                PartialTile.from_bytes(content(data), place.log(tile))
            except ValueError as error:
                yield Damage("partial", tile, key, str(error))
                mended[key] = _nothing(place, tile)
        if repair:
            put_many(store, mended, concurrency)
    yield from _gaps(store, place, numbers, concurrency, repair=repair)


def _gaps(
    store: Store, place: Place, numbers: dict[Index, set[int]], concurrency: int, *, repair: bool
) -> Iterator[Damage]:
    """Parts that are missing, so that later ones of the log are not read."""
    missing = {tile: sorted(set(range(max(found))) - found) for tile, found in numbers.items()}
    gaps = [tile for tile, absent in missing.items() if absent]
    # A process that has completed a tile is deleting its log, or will not miss it.
    complete = concurrently(store.exists, [place.chunk(tile) for tile in gaps], concurrency)
    for tile in (tile for tile, done in zip(gaps, complete, strict=True) if not done):
        for number in missing[tile]:
            key = part_of(place.log(tile), number)
            yield Damage("partial", tile, key, "it is missing, so that later parts are not read")
            if repair:
                sync(create, store, key, _nothing(place, tile))


def _nothing(place: Place, tile: Index) -> bytes:
    """A part that says nothing, in the place of a damaged one: a log is read up to the first part that is missing."""
    return PartialTile().to_bytes(place.log(tile))


def _page_length(place: Place) -> int:
    return max(1, min(_PAGE_TILES, _PAGE_BYTES // place.layout.tile_bytes))
