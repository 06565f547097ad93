"""What the suite is told of a backend: how a store is opened, where, and how a tile is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from infinite_tensor.boxes import Index
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor.tilestore.testing.samples import TILE


class SuiteHooks:
    """What an author of a backend overrides; all parts of the suite build on it."""

    concurrent: ClassVar[bool] = True

    def open_store(self, location: Any, **options: Any) -> PersistentTileStore:
        """Open the store that lives at `location`, or create it.

        Parameters
        ----------
        location : object
            What the fixture `location` gave; the same for all stores that a test opens.
        **options
            `tile_size`, `cache_size_bytes` and `cache_size_tiles`, for `PersistentTileStore`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how its store is opened")

    @pytest.fixture
    def location(self, tmp_path: Path) -> Any:
        """A place that no other test uses and where nothing is yet; a path below `tmp_path` unless overridden."""
        return tmp_path / "store"

    def damage_tile(self, location: Any, tensor_id: str, tile: Index) -> None:
        """Change what is stored of a complete tile, behind the back of the store.

        Override it to have `verify` tested. No store is open on `location` meanwhile.

        Parameters
        ----------
        location : object
            Where the store is.
        tensor_id : str
            A tensor in it.
        tile : tuple of int
            One of its complete tiles.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how a tile is damaged")

    def _open(self, location: Any, **options: Any) -> PersistentTileStore:
        return self.open_store(location, **{"tile_size": TILE, **options})

    @staticmethod
    def _skip_unless_it_deletes_tiles(store: PersistentTileStore) -> None:
        if type(store)._delete_tiles is PersistentTileStore._delete_tiles:
            pytest.skip("this backend deletes no tiles")
