"""What a persistent store holds of a region: in storage, and in memory on its way there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from infinite_tensor.boxes import Index
from infinite_tensor.tilestore.failures import stored_errors
from infinite_tensor.tilestore.inventory import Inventory, Known
from infinite_tensor.tilestore.layout import Record, TileLayout
from infinite_tensor.tilestore.loading import known_partials
from infinite_tensor.tilestore.partial import TileInProgress

if TYPE_CHECKING:
    from infinite_tensor.tilestore.persistent import PersistentTileStore

_TILES_AT_ONCE = 64


def inventory_of(storage: PersistentTileStore, record: Record, start: Sequence[int], stop: Sequence[int]) -> Inventory:
    """What there is of the tiles that hold the pixels ``[start, stop)``."""
    low, high = record.layout.box(start, stop)
    # In this order: a tile that is on its way may arrive after a look into storage, and be in memory no longer.
    held = storage._tiles.held(record, low, high)
    with stored_errors(storage, "list", record.spec.tensor_id):
        complete, partial = storage._find_tiles(record.spec.tensor_id, low, high)
    for tile, entry in held.items():
        if not isinstance(entry, TileInProgress):
            complete.add(tile)
    known: dict[Index, Known] = {
        tile: entry for tile, entry in held.items() if isinstance(entry, TileInProgress) and not entry.empty
    }
    unread = sorted(partial - complete - known.keys())
    for begin in range(0, len(unread), _TILES_AT_ONCE):
        known |= known_partials(storage, record, unread[begin : begin + _TILES_AT_ONCE])
    return Inventory(record.layout, frozenset(complete), {t: w for t, w in known.items() if t not in complete})


def all_complete(
    storage: PersistentTileStore, layout: TileLayout, tensor_id: str, start: Sequence[int], stop: Sequence[int]
) -> bool:
    """Whether all tiles that hold the pixels ``[start, stop)`` are in storage."""
    tiles, most = itertools.product(*map(range, *layout.box(start, stop))), 1
    with stored_errors(storage, "look for", tensor_id):
        # Where one is missing it is mostly the first.
        while some := list(itertools.islice(tiles, most)):
            most = _TILES_AT_ONCE
            if not all(storage._has_tiles(tensor_id, some)):
                return False
    return True
