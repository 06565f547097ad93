"""Looking after what is stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infinite_tensor.boxes import Index
from infinite_tensor.errors import DamagedDataWarning, StoreError
from infinite_tensor.tilestore import Garbage
from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore
from infinite_tensor.tilestore.testing.hooks import SuiteHooks
from infinite_tensor.tilestore.testing.samples import TILE, Ramp, declare, pixels, same_bits, tensor_on


class UpkeepTests(SuiteHooks):
    """Finding damage, repairing it, and collecting garbage."""

    def test_what_was_written_verifies(self, location: Any) -> None:
        """Complete and partial tiles, of a tensor that this store object knows and of one that it does not."""
        with self._verifying(location) as store:
            tensor_on(store, Ramp())[0:10, 0:10]
            assert store.verify("t") == []
        with self._open(location) as store:
            assert store.verify("t") == []
            assert store.verify("t", repair=True) == []
            with pytest.raises(StoreError, match="no tensor 'x'"):
                store.verify("x")

    def test_a_damaged_tile_is_missing_and_listed_and_a_repair_drops_it(self, location: Any) -> None:
        """The others stay; once it is written again, nothing is damaged."""
        if type(self).damage_tile is SuiteHooks.damage_tile:
            pytest.skip("nothing tells how to damage a tile")
        tiles: dict[Index, torch.Tensor] = {(0, j): pixels(torch.float32, TILE, TILE, seed=j) for j in range(-2, 2)}
        with self._verifying(location) as store:
            declare(store)
            store._write_tiles("t", tiles)
        self.damage_tile(location, "t", (0, -1))
        with self._open(location) as store:
            declare(store)
            with pytest.warns(DamagedDataWarning):
                assert store._read_tiles("t", [(0, -1)]) == [None]
            for repair in (False, True):
                (damage,) = store.verify("t", repair=repair)
                assert (damage.kind, damage.tile) == ("tile", (0, -1))
        with self._open(location) as store:
            declare(store)
            assert store.verify("t") == []
            for tile, found in zip(tiles, store._read_tiles("t", list(tiles)), strict=True):
                assert same_bits(found, None if tile == (0, -1) else tiles[tile])
            store._write_tiles("t", {(0, -1): tiles[0, -1]})
        with self._open(location) as store:
            declare(store)
            assert store.verify("t") == []
            assert same_bits(store._read_tiles("t", [(0, -1)])[0], tiles[0, -1])

    def test_garbage_goes_and_what_is_in_use_stays(self, location: Any) -> None:
        """The log of a tile that is complete is garbage."""
        ones = torch.ones(TILE, TILE)
        with self._open(location) as store:
            if type(store)._collect_garbage is PersistentTileStore._collect_garbage:
                pytest.skip("this backend collects no garbage")
            f = Ramp()
            expected = tensor_on(store, f)[0:10, 0:10]
            calls = len(f.calls)
            declare(store, "other")
            for length in (1, 2):
                store._write_partials("other", {(0, 0): PartialTile(ones, length), (0, 1): PartialTile(ones, length)})
            store._write_tiles("other", {(0, 0): ones})
        with self._open(location) as store:
            collected = store.gc()
            assert collected.objects in (1, 2)
            assert collected.bytes > 0
            assert store.gc() == Garbage()
        with self._open(location) as store:
            assert same_bits(tensor_on(store, f)[0:10, 0:10], expected)
            declare(store, "other")
            assert store._read_partials("other", [(0, 0)]) == [None]
            assert store._read_partials("other", [(0, 1)]) != [None]
            assert same_bits(store._read_tiles("other", [(0, 0)])[0], ones)
        assert len(f.calls) == calls

    def _verifying(self, location: Any) -> PersistentTileStore:
        store = self._open(location)
        if type(store)._verify_tensor is PersistentTileStore._verify_tensor:
            store.close()
            pytest.skip("this backend does not verify")
        return store
