"""What the backend that the documentation shows is promised to keep, also while others write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow
from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore
from tests.support.dict_store import DictTileStore
from tests.support.interpreters import Team
from tests.support.sqlite_store import SQLiteTileStore

PARTS = 300


def declare(store: PersistentTileStore) -> InfiniteTensor:
    window = TensorWindow((8, 8), stride=4)
    return InfiniteTensor((None, None), lambda _ctx: torch.ones(8, 8), window, tile_store=store, tensor_id="t")


def part(row: int, column: int) -> PartialTile:
    return PartialTile(pieces={(row, column): torch.ones(1, 1)})


def add_parts(folder: Path, row: int) -> None:
    with SQLiteTileStore(folder / "s.db", tile_size=16) as store:
        declare(store)
        for column in range(PARTS):
            store._write_partials("t", {(0, 0): part(row, column)})


def fill(folder: Path, start: int, stop: int) -> float:
    with SQLiteTileStore(folder / "s.db", tile_size=16, cache_size_tiles=1) as store:
        return float(declare(store)[start:stop, 0:32].sum())


def test_two_processes_add_parts_at_once_and_none_is_lost(tmp_path: Path) -> None:
    with SQLiteTileStore(tmp_path / "s.db", tile_size=16) as store, Team(2) as team:
        declare(store)
        team.together((add_parts, tmp_path, 0), (add_parts, tmp_path, 1))
        (found,) = store._read_partials("t", [(0, 0)])
    assert found is not None
    assert len(found.pieces) == 2 * PARTS


def test_two_processes_fill_it_at_once(tmp_path: Path) -> None:
    with Team(2) as team:
        assert team.together((fill, tmp_path, 0, 40), (fill, tmp_path, 24, 64)) == [40 * 32 * 4.0] * 2
    with SQLiteTileStore(tmp_path / "s.db") as store:
        assert store.open("t")[0:64, 0:32].unique().tolist() == [4.0]


@pytest.mark.parametrize("kind", [SQLiteTileStore, DictTileStore])
def test_a_part_that_another_store_adds_in_the_middle_of_a_write_is_kept(kind: Any, tmp_path: Path) -> None:
    place: Any = {} if kind is DictTileStore else tmp_path / "s.db"

    class AddedMeanwhile(PartialTile):
        def to_bytes(self, name: str) -> bytes:
            with kind(place, tile_size=16) as other:
                declare(other)
                other._write_partials("t", {(0, 0): part(0, 1)})
            return super().to_bytes(name)

    with kind(place, tile_size=16) as store:
        declare(store)
        store._write_partials("t", {(0, 0): AddedMeanwhile(pieces=part(0, 0).pieces)})
        (found,) = store._read_partials("t", [(0, 0)])
    assert found is not None
    assert found.pieces.keys() == {(0, 0), (0, 1)}
