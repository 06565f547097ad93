"""What the tests of hostile stores begin with."""

from __future__ import annotations

import pytest

from tests.durability.hostile.honest import TILE, Storage, fill
from tests.support.dict_store import DictTileStore


@pytest.fixture
def storage() -> Storage:
    """An honest chain in the storage of a third party's backend, which keeps no digest of definitions."""
    entries: Storage = {}
    fill(DictTileStore(entries, tile_size=TILE))
    return entries
