"""The conformance suite, on every backend of ours and on one that a third party could have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from zarr.storage import MemoryStore

from infinite_tensor import HDF5TileStore, ZarrTileStore
from infinite_tensor.tilestore.testing import PersistentStoreTests
from tests.dict_store import DictTileStore


class _ZarrTests(PersistentStoreTests):
    def open_store(self, location: Any, **options: Any) -> ZarrTileStore:
        return ZarrTileStore(location, **options)


class TestZarrInADirectory(_ZarrTests):
    pass


class TestZarrBehindAUrl(_ZarrTests):
    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return f"memory://{tmp_path}/store"


class TestZarrInAZarrStore(_ZarrTests):
    @pytest.fixture
    def location(self) -> MemoryStore:
        return MemoryStore()


class TestHDF5(PersistentStoreTests):
    def open_store(self, location: Any, **options: Any) -> HDF5TileStore:
        return HDF5TileStore(location, **options)


class TestDict(PersistentStoreTests):
    @pytest.fixture
    def location(self) -> dict[Any, Any]:
        return {}

    def open_store(self, location: Any, **options: Any) -> DictTileStore:
        return DictTileStore(location, **options)
