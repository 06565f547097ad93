"""What a persistent store holds of a region: in storage, and in memory on its way there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.inventory import Inventory, Known
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.partial import TileInProgress
from infinite_tensor.tilestore.persistent.cache import TileCache
from infinite_tensor.tilestore.persistent.storage import Storage

_TILES_AT_ONCE = 64


def inventory_of(
    storage: Storage, tiles: TileCache, record: Record, start: Sequence[int], stop: Sequence[int]
) -> Inventory:
    """What there is of the tiles that hold the pixels ``[start, stop)``."""
    low, high = record.layout.box(start, stop)
    # In this order: a tile that is on its way may arrive after a look into storage, and be in memory no longer.
    held = tiles.held(record, low, high)
    complete, partial = storage.find(record.spec.tensor_id, low, high)
    for tile, entry in held.items():
        if not isinstance(entry, TileInProgress):
            complete.add(tile)
    known: dict[Index, Known] = {
        tile: entry for tile, entry in held.items() if isinstance(entry, TileInProgress) and not entry.empty
    }
    unread = sorted(partial - complete - known.keys())
    for begin in range(0, len(unread), _TILES_AT_ONCE):
        known |= tiles.known_partials(record, unread[begin : begin + _TILES_AT_ONCE])
    return Inventory(record.layout, frozenset(complete), {t: w for t, w in known.items() if t not in complete})


def all_complete(storage: Storage, record: Record, start: Sequence[int], stop: Sequence[int]) -> bool:
    """Whether all tiles that hold the pixels ``[start, stop)`` are in storage."""
    tiles, most = itertools.product(*map(range, *record.layout.box(start, stop))), 1
    # Where one is missing it is mostly the first.
    while some := list(itertools.islice(tiles, most)):
        most = _TILES_AT_ONCE
        if not storage.has_tiles(record.spec.tensor_id, some):
            return False
    return True
