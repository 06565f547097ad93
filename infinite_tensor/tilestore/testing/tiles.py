"""Complete tiles, as the storage methods move them."""

from __future__ import annotations

from typing import Any

import torch

from infinite_tensor.boxes import Index
from infinite_tensor.tilestore.persistent import PartialTile
from infinite_tensor.tilestore.testing.hooks import SuiteHooks
from infinite_tensor.tilestore.testing.samples import TILE, declare, each_dtype, pixels, same_bits

_FAR = 2**51 // TILE
"""Tiles from -_FAR to _FAR - 1 hold all pixels."""


class TileTests(SuiteHooks):
    """Every bit of every tile, where it belongs."""

    @each_dtype
    def test_tiles_keep_every_bit(self, location: Any, dtype: torch.dtype) -> None:
        """NaN payloads and -0.0 included."""
        tile = pixels(dtype, TILE, TILE)
        with self._open(location) as store:
            declare(store, dtype=dtype)
            store._write_tiles("t", {(0, 0): tile})
        with self._open(location) as store:
            declare(store, dtype=dtype)
            (found,) = store._read_tiles("t", [(0, 0)])
        assert same_bits(found, tile)

    def test_tiles_come_in_the_order_asked_for(self, location: Any) -> None:
        """Many in one call, with None where there is none."""
        tiles: dict[Index, torch.Tensor] = {(i, -i): pixels(torch.float32, TILE, TILE, seed=i) for i in range(150)}
        with self._open(location) as store:
            declare(store)
            store._write_tiles("t", tiles)
        asked = [(i, -i if i % 3 else 1) for i in reversed(range(150))]
        with self._open(location) as store:
            declare(store)
            found = store._read_tiles("t", asked)
            assert store._read_tiles("t", []) == []
        assert all(same_bits(tile, tiles.get(index)) for tile, index in zip(found, asked, strict=True))

    def test_a_tile_of_nothing_but_fill_values_is_there(self, location: Any) -> None:
        """An absent tile and an empty-looking one differ."""
        with self._open(location) as store:
            declare(store)
            store._write_tiles("t", {(0, 0): torch.zeros(TILE, TILE)})
        with self._open(location) as store:
            declare(store)
            there, absent = store._read_tiles("t", [(0, 0), (0, 1)])
        assert same_bits(there, torch.zeros(TILE, TILE))
        assert absent is None

    def test_a_tile_that_is_written_again_replaces_the_old_one(self, location: Any) -> None:
        """As happens to a damaged tile once it is computed anew."""
        tile = pixels(torch.float32, TILE, TILE)
        with self._open(location) as store:
            declare(store)
            store._write_tiles("t", {(0, 0): torch.zeros(TILE, TILE), (0, 1): tile})
            store._write_tiles("t", {(0, 0): tile})
        with self._open(location) as store:
            declare(store)
            assert all(same_bits(found, tile) for found in store._read_tiles("t", [(0, 0), (0, 1)]))

    def test_tiles_and_partial_tiles_reach_to_the_limits_of_the_coordinates(self, location: Any) -> None:
        """Pixels from -2**51 to 2**51 - 1, and neighbours are not mixed up."""
        far: list[Index] = [(_FAR - 1, -_FAR), (-_FAR, _FAR - 1), (_FAR - 2, -_FAR), (-1, 0), (0, -1)]
        partial: list[Index] = [(_FAR - 1, _FAR - 1), (-_FAR, -_FAR), (-_FAR, _FAR - 2), (3, 4), (4, 3)]
        tiles = {index: pixels(torch.float32, TILE, TILE, seed=n) for n, index in enumerate(far)}
        with self._open(location) as store:
            declare(store)
            store._write_tiles("t", tiles)
            parts = zip(partial, tiles.values(), strict=True)
            store._write_partials("t", {index: PartialTile(tile, 1) for index, tile in parts})
        with self._open(location) as store:
            declare(store)
            assert all(map(same_bits, store._read_tiles("t", far), tiles.values()))
            prefixes = [None if part is None else part.prefix for part in store._read_partials("t", partial)]
        assert all(map(same_bits, prefixes, tiles.values()))

    def test_equal_indices_of_two_tensors_do_not_meet(self, location: Any) -> None:
        """Each tensor has tiles of its own."""
        ones = torch.ones(TILE, TILE)
        with self._open(location) as store:
            declare(store, "a")
            declare(store, "b")
            store._write_tiles("a", {(0, 0): ones})
            store._write_partials("b", {(0, 0): PartialTile(ones, 1)})
        with self._open(location) as store:
            declare(store, "a")
            declare(store, "b")
            assert store._read_tiles("b", [(0, 0)]) == [None]
            assert store._read_partials("a", [(0, 0)]) == [None]
            assert same_bits(store._read_tiles("a", [(0, 0)])[0], ones)

    def test_deleted_tiles_are_gone_and_can_come_back(self, location: Any) -> None:
        """Complete and partial ones, by a store object that has not looked at them; others stay."""
        ones = torch.ones(TILE, TILE)
        with self._open(location) as store:
            self._skip_unless_it_deletes_tiles(store)
            declare(store)
            store._write_tiles("t", {(0, 0): ones, (-1, 7): ones, (1, 1): ones})
            for length in (1, 2, 3):
                store._write_partials("t", {(0, 5): PartialTile(ones, length), (1, 5): PartialTile(ones, length)})
        with self._open(location) as store:
            declare(store)
            store._delete_tiles("t", [(0, 0), (-1, 7), (0, 5), (9, 9)])
            store._delete_tiles("t", [])
        with self._open(location) as store:
            declare(store)
            tiles = store._read_tiles("t", [(0, 0), (-1, 7), (1, 1)])
            partials = store._read_partials("t", [(0, 5), (1, 5)])
            store._write_tiles("t", {(0, 0): 2 * ones})
            store._write_partials("t", {(0, 5): PartialTile(ones, 1)})
        assert tiles[:2] == [None, None]
        assert same_bits(tiles[2], ones)
        assert [None if part is None else part.prefix_length for part in partials] == [None, 3]
        with self._open(location) as store:
            declare(store)
            assert same_bits(store._read_tiles("t", [(0, 0)])[0], 2 * ones)
            (begun,) = store._read_partials("t", [(0, 5)])
        assert begun is not None
        assert begun.prefix_length == 1
