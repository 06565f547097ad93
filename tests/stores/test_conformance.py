"""The conformance suite: all of it in a Zarr store on disk, one case of each test on the other backends.

These are the others of ours, and those that a third party could have written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from infinite_tensor import HDF5TileStore, ZarrTileStore
from infinite_tensor.testing import PersistentStoreTests
from infinite_tensor.tilestore import testing as earlier
from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore
from tests.stores.hdf5.files import flip_tile
from tests.support.dict_store import DictTileStore
from tests.support.sqlite_store import SQLiteTileStore

Index = tuple[int, ...]


class _Sampled(PersistentStoreTests):
    """One case of each test by default: see conftest.py."""

    sampled = True


class _ZarrTests(_Sampled):
    def open_store(self, location: Any, **options: Any) -> ZarrTileStore:
        return ZarrTileStore(location, **options)

    def damage_tile(self, location: Any, tensor_id: str, tile: Index) -> None:
        root = zarr.open_group(location, mode="r+", zarr_format=3)
        definition: Any = root[f"t-{tensor_id}"].attrs["infinite_tensor"]
        at = zip(tile, definition["origin"], definition["tile_size"], strict=True)
        chunk = "/".join(str(i + origin // size) for i, origin, size in at)
        key, prototype = f"t-{tensor_id}/tiles-{definition['incarnation']}/c/{chunk}", default_buffer_prototype()
        found = sync(root.store.get(key, prototype))
        assert found is not None
        data = bytearray(found.to_bytes())
        data[len(data) // 2] ^= 0x10
        sync(root.store.set(key, prototype.buffer.from_bytes(bytes(data))))


class TestZarrInADirectory(_ZarrTests):
    sampled = False


class TestZarrBehindAUrl(_ZarrTests):
    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return f"memory://{tmp_path}/store"


class TestZarrInAZarrStore(_ZarrTests):
    @pytest.fixture
    def location(self) -> MemoryStore:
        return MemoryStore()


class TestHDF5(_Sampled):
    def open_store(self, location: Any, **options: Any) -> HDF5TileStore:
        return HDF5TileStore(location, **options)

    def damage_tile(self, location: Any, tensor_id: str, tile: Index) -> None:
        with h5py.File(location, "r+") as file:
            flip_tile(file[f"infinite_tensor/t-{tensor_id}/{','.join(map(str, tile))}"])


class TestSQLite(_Sampled):
    """The backend that the documentation shows."""

    def open_store(self, location: Any, **options: Any) -> SQLiteTileStore:
        return SQLiteTileStore(location, **options)


class TestDict(_Sampled):
    @pytest.fixture
    def location(self) -> dict[Any, Any]:
        return {}

    def open_store(self, location: Any, **options: Any) -> DictTileStore:
        return DictTileStore(location, **options)

    def damage_tile(self, location: Any, tensor_id: str, tile: Index) -> None:
        (part,) = location[tensor_id, "tile", tile]
        location[tensor_id, "tile", tile] = (part[:-1] + bytes([part[-1] ^ 0x10]),)


class _OnlyTiles(PersistentTileStore):
    """Four of the methods."""

    def _read_tiles(self, _tensor_id: str, indices: Sequence[Index]) -> list[torch.Tensor | None]:
        return [None] * len(indices)

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        pass

    def _read_partials(self, _tensor_id: str, indices: Sequence[Index]) -> list[PartialTile | None]:
        return [None] * len(indices)

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        pass


def test_a_backend_that_keeps_no_documents_is_told_what_it_needs() -> None:
    with pytest.raises(TypeError, match=r"_OnlyTiles cannot store .*_read_documents.*_list_documents$"):
        _OnlyTiles()


class _LosesTiles(DictTileStore):
    def _read_tiles(self, _tensor_id: str, indices: Sequence[Index]) -> list[torch.Tensor | None]:
        return [None] * len(indices)


class _Losing(PersistentStoreTests):
    def open_store(self, location: Any, **options: Any) -> DictTileStore:
        return _LosesTiles(location, **options)


def test_a_failing_test_of_the_suite_says_what_it_found() -> None:
    with pytest.raises(AssertionError, match=r"same_bits\(None, tensor\("):
        _Losing().test_a_tile_of_nothing_but_fill_values_is_there({})


class _StraysAway(DictTileStore):
    """Keeps a file of each tensor in a folder, under its id as it is."""

    folder: Path

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        super()._write_tiles(tensor_id, tiles)
        (self.folder / tensor_id).touch()

    def clear_tensor(self, tensor_id: str, **options: Any) -> None:
        super().clear_tensor(tensor_id, **options)
        (self.folder / tensor_id).unlink()


class _Straying(PersistentStoreTests):
    def open_store(self, location: Any, **options: Any) -> DictTileStore:
        return _StraysAway(location, **options)


def test_the_suite_refuses_a_backend_that_writes_outside_its_folder(tmp_path: Path) -> None:
    _StraysAway.folder = tmp_path / "store"
    _StraysAway.folder.mkdir()
    with pytest.raises(AssertionError, match="/x'"):
        _Straying().test_a_hostile_id_is_stored_safely_or_refused({}, "../x", tmp_path)


def test_the_suite_is_found_under_its_earlier_name() -> None:
    assert earlier.PersistentStoreTests is PersistentStoreTests
