"""The life of a tensor: filled, closed, opened again, cleared, verified and repaired."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infinite_tensor.errors import DamagedDataWarning, StoreError, TileAccessError
from infinite_tensor.geometry.points import Index
from infinite_tensor.testing.fixtures import (
    TILE,
    BackendTests,
    OtherRamp,
    Ramp,
    declare,
    pixels,
    reader_of,
    same_bits,
    tensor_on,
)
from infinite_tensor.tilestore import Garbage, MemoryTileStore
from infinite_tensor.tilestore.persistent import PartialTile


class LifeTests(BackendTests):
    """What reads see, through any number of store objects."""

    def test_a_tensor_that_is_made_again_calls_f_zero_times(self, location: Any) -> None:
        """Its values are those of a store in memory, bit for bit."""
        expected = tensor_on(MemoryTileStore(), Ramp())[-20:25, -9:30]
        with self._open(location) as store:
            assert same_bits(tensor_on(store, Ramp())[-20:25, -9:30], expected)
        f = Ramp()
        with self._open(location) as store:
            assert same_bits(tensor_on(store, f)[-20:25, -9:30], expected)
        assert f.calls == []

    def test_a_tensor_opens_from_its_id(self, location: Any) -> None:
        """Without ``f`` it serves what is stored, and names what is not."""
        with self._open(location) as store:
            expected = tensor_on(store, Ramp())[0:12, 0:12]
        with self._open(location) as store:
            tensor = store.open("t")
            assert same_bits(tensor[0:12, 0:12], expected)
            with pytest.raises(TileAccessError, match="'t'"):
                tensor[0:12, 0:40]

    def test_partial_tiles_survive_a_close(self, location: Any) -> None:
        """Only windows that no session has computed run; the bits are those of one session."""
        expected = tensor_on(MemoryTileStore(), Ramp())[-6:18, -6:18]
        f = Ramp()
        for corner in ((5, 5), (-6, 12), (12, -6), (-6, -6), (2, 2)):
            with self._open(location) as store:
                tensor = tensor_on(store, f)
                y, x = corner
                tensor[y : y + 6, x : x + 6]
        with self._open(location) as store:
            assert same_bits(tensor_on(store, f)[-6:18, -6:18], expected)
        assert len(f.calls) == len(set(f.calls))

    def test_a_cleared_tensor_starts_anew(self, location: Any) -> None:
        """The object that is there already, and one of another definition; other tensors keep what they have."""
        f, g = Ramp(), Ramp()
        with self._open(location) as store:
            tensor, other = tensor_on(store, f), tensor_on(store, g, "other")
            expected = tensor[0:7, 0:7]
            other[0:7, 0:7]
            store.clear_tensor("t")
            assert same_bits(tensor[0:7, 0:7], expected)
            assert len(f.calls) == 2 * len(set(f.calls))
            store.clear_tensor("t")
        with self._open(location) as store:
            assert same_bits(tensor_on(store, OtherRamp(), version=2)[0:7, 0:7], -expected)
            calls = len(g.calls)
            tensor_on(store, g, "other")[0:7, 0:7]
        assert len(g.calls) == calls

    def test_what_is_invalidated_is_computed_anew_also_by_the_next_store_object(self, location: Any) -> None:
        """With what was computed from it; what is elsewhere stays."""
        with self._open_with("_delete_tiles", location) as store:
            tensor = tensor_on(store, Ramp())
            reader_of(store, Ramp(), tensor)[0:20, 0:20]
        f, g = Ramp(), Ramp()
        with self._open(location) as store:
            tensor = tensor_on(store, f)
            reader_of(store, g, tensor)
            told = tensor.invalidate((0, 0))
        assert [one.tensor_id for one in told.tensors] == ["t", "top"]
        assert all(one.tiles for one in told.tensors)
        with self._open(location) as store:
            tensor = tensor_on(store, f)
            top = reader_of(store, g, tensor)
            assert same_bits(top[0:20, 0:20], reader_of(MemoryTileStore(), Ramp(), tensor)[0:20, 0:20])
        assert (0, 0) in f.calls
        assert (0, 0) in g.calls
        assert not {index for index in f.calls + g.calls if max(index) > 3}

    def test_a_closed_store_says_so_and_with_opens_it_again(self, location: Any) -> None:
        """Closing twice is no error, and tensors made before work again."""
        f = Ramp()
        store = self._open(location)
        tensor = tensor_on(store, f)
        expected = tensor[0:7, 0:7]
        store.close()
        store.close()
        for use in (lambda: tensor[0:7, 0:7], store.flush, lambda: declare(store), lambda: store.clear_tensor("t")):
            with pytest.raises(StoreError, match="closed"):
                use()
        calls = len(f.calls)
        with store:
            assert same_bits(tensor[0:7, 0:7], expected)
        assert len(f.calls) == calls
        with pytest.raises(StoreError, match="closed"):
            store.flush()

    def test_two_stores_at_once_lose_nothing_and_agree(self, location: Any) -> None:
        """Each adds to the partial tiles of the other."""
        self._needs_two_stores()
        expected = tensor_on(MemoryTileStore(), Ramp())[0:15, 0:15]
        first, second, f = Ramp(), Ramp(), Ramp()
        with self._open(location, cache_size_tiles=1) as a, self._open(location, cache_size_tiles=1) as b:
            tensors = tensor_on(a, first), tensor_on(b, second)
            for turn, (y, x) in enumerate([(0, 0), (0, 9), (9, 0), (9, 9), (5, 5), (3, 3)]):
                tensors[turn % 2][y : y + 2, x : x + 2]
            a.flush()
            b.flush()
        with self._open(location) as store:
            assert same_bits(tensor_on(store, f)[0:15, 0:15], expected)
        assert not set(f.calls) & {*first.calls, *second.calls}


class UpkeepTests(BackendTests):
    """Finding damage, repairing it, and collecting garbage."""

    def test_what_was_written_verifies(self, location: Any) -> None:
        """Complete and partial tiles, of a tensor that this store object knows and of one that it does not."""
        with self._open_with("_verify_tensor", location) as store:
            tensor_on(store, Ramp())[0:10, 0:10]
            assert store.verify("t") == []
        with self._open(location) as store:
            assert store.verify("t") == []
            assert store.verify("t", repair=True) == []
            with pytest.raises(StoreError, match="no tensor 'x'"):
                store.verify("x")

    def test_a_damaged_tile_is_missing_and_listed_and_a_repair_drops_it(self, location: Any) -> None:
        """The others stay; once it is written again, nothing is damaged."""
        if type(self).damage_tile is BackendTests.damage_tile:
            pytest.skip("nothing tells how to damage a tile")
        tiles: dict[Index, torch.Tensor] = {(0, j): pixels(torch.float32, TILE, TILE, seed=j) for j in range(-2, 2)}
        with self._open_with("_verify_tensor", location, "t") as store:
            store._write_tiles("t", tiles)
        self.damage_tile(location, "t", (0, -1))
        with self._open(location, "t") as store:
            with pytest.warns(DamagedDataWarning):
                assert store._read_tiles("t", [(0, -1)]) == [None]
            for repair in (False, True):
                (damage,) = store.verify("t", repair=repair)
                assert (damage.kind, damage.tile) == ("tile", (0, -1))
        with self._open(location, "t") as store:
            assert store.verify("t") == []
            for tile, found in zip(tiles, store._read_tiles("t", list(tiles)), strict=True):
                assert same_bits(found, None if tile == (0, -1) else tiles[tile])
            store._write_tiles("t", {(0, -1): tiles[0, -1]})
        with self._open(location, "t") as store:
            assert store.verify("t") == []
            assert same_bits(store._read_tiles("t", [(0, -1)])[0], tiles[0, -1])

    def test_garbage_goes_and_what_is_in_use_stays(self, location: Any) -> None:
        """The log of a tile that is complete is garbage."""
        ones = torch.ones(TILE, TILE)
        with self._open_with("_collect_garbage", location) as store:
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
