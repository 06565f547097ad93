"""Looking for damage in what is stored of one tensor in a Zarr store, and dropping what is damaged.

Tiles and logs are fetched and decoded in pages. All that grows with what is stored is the numbers of the parts of
its logs, and, behind fsspec, the names in a folder.
"""

from __future__ import annotations

from collections.abc import Iterator

from zarr.abc.store import Store

from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.report import Damage
from infinite_tensor_stores.documents import parsed
from infinite_tensor_stores.files import content
from infinite_tensor_stores.zarr_chunks import ChunkCodec, normal_form
from infinite_tensor_stores.zarr_layout import (
    DOCUMENT,
    Place,
    array_bytes,
    array_document,
    attributes_in,
    definition_in,
)
from infinite_tensor_stores.zarr_listing import pages
from infinite_tensor_stores.zarr_logs import part_of
from infinite_tensor_stores.zarr_loop import sync
from infinite_tensor_stores.zarr_objects import concurrently, create, get_many, put_many
from infinite_tensor_stores.zarr_ours import check_ours

_PAGE_BYTES = 2**26
_PAGE_TILES = 256


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
