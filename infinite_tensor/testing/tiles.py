"""Tests of complete and partial tiles, and of copies between stores.

A partial tile lacks windows. Its `prefix` is the blend of its first windows, and its `pieces` are later windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from zarr.storage import MemoryStore

from infinite_tensor.errors import DamagedDataWarning, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import sl
from infinite_tensor.testing.fixtures import (
    TILE,
    BackendTests,
    Ramp,
    backend_of,
    declare,
    each_dtype,
    handle_of,
    pixels,
    same_bits,
    tensor_on,
)
from infinite_tensor.tilestore import MemoryTileStore
from infinite_tensor.tilestore.persistent import PartialTile
from infinite_tensor_stores import ZarrTileStore

_FAR = 2**51 // TILE
"""The tiles from -_FAR to _FAR - 1 contain all possible pixels along a dimension."""


class TileTests(BackendTests):
    """Tests of complete tiles: exact pixels under the right index."""

    @each_dtype
    def test_tiles_keep_every_bit(self, location: Any, dtype: torch.dtype) -> None:
        """Tiles keep every bit, including NaN payloads and -0.0."""
        tile = pixels(dtype, TILE, TILE)
        self._write(location, {(0, 0): tile}, dtype=dtype)
        (found,) = self._tiles(location, [(0, 0)], dtype=dtype)
        assert same_bits(found, tile)

    def test_tiles_come_in_the_order_asked_for(self, location: Any) -> None:
        """Tiles are returned in the order of the request.

        A single call may read many tiles. Missing tiles are None.
        """
        tiles: dict[Index, torch.Tensor] = {(i, -i): pixels(torch.float32, TILE, TILE, seed=i) for i in range(150)}
        self._write(location, tiles)
        asked = [(i, -i if i % 3 else 1) for i in reversed(range(150))]
        with self._open(location, "t") as store:
            found = handle_of(store, "t").read_tiles(asked)
            assert handle_of(store, "t").read_tiles([]) == []
        assert all(same_bits(tile, tiles.get(index)) for tile, index in zip(found, asked, strict=True))

    def test_a_tile_of_nothing_but_fill_values_is_there(self, location: Any) -> None:
        """A tile with only fill values is not a missing tile."""
        self._write(location, {(0, 0): torch.zeros(TILE, TILE)})
        there, absent = self._tiles(location, [(0, 0), (0, 1)])
        assert same_bits(there, torch.zeros(TILE, TILE))
        assert absent is None

    def test_a_tile_that_is_written_again_replaces_the_old_one(self, location: Any) -> None:
        """A tile replaces an earlier tile with the same index.

        Damaged tiles are repaired in this way.
        """
        tile = pixels(torch.float32, TILE, TILE)
        with self._open(location, "t") as store:
            handle_of(store, "t").write_tiles({(0, 0): torch.zeros(TILE, TILE), (0, 1): tile})
            handle_of(store, "t").write_tiles({(0, 0): tile})
        assert all(same_bits(found, tile) for found in self._tiles(location, [(0, 0), (0, 1)]))

    def test_tiles_and_partial_tiles_reach_to_the_limits_of_the_coordinates(self, location: Any) -> None:
        """Tiles with pixels from -2**51 to 2**51 - 1 can be stored.

        Neighbouring tiles are not confused.
        """
        far: list[Index] = [(_FAR - 1, -_FAR), (-_FAR, _FAR - 1), (_FAR - 2, -_FAR), (-1, 0), (0, -1)]
        partial: list[Index] = [(_FAR - 1, _FAR - 1), (-_FAR, -_FAR), (-_FAR, _FAR - 2), (3, 4), (4, 3)]
        tiles = {index: pixels(torch.float32, TILE, TILE, seed=n) for n, index in enumerate(far)}
        parts = zip(partial, tiles.values(), strict=True)
        self._write(location, tiles, {index: PartialTile(tile, 1) for index, tile in parts})
        assert all(map(same_bits, self._tiles(location, far), tiles.values()))
        prefixes = [None if part is None else part.prefix for part in self._partials(location, partial)]
        assert all(map(same_bits, prefixes, tiles.values()))

    def test_equal_indices_of_two_tensors_do_not_meet(self, location: Any) -> None:
        """Tiles with the same index in two tensors are independent."""
        ones = torch.ones(TILE, TILE)
        with self._open(location, "a", "b") as store:
            handle_of(store, "a").write_tiles({(0, 0): ones})
            handle_of(store, "b").write_partials({(0, 0): PartialTile(ones, 1)})
        with self._open(location, "a", "b") as store:
            assert handle_of(store, "b").read_tiles([(0, 0)]) == [None]
            assert handle_of(store, "a").read_partials([(0, 0)]) == [None]
            assert same_bits(handle_of(store, "a").read_tiles([(0, 0)])[0], ones)

    def test_deleted_tiles_are_gone_and_can_come_back(self, location: Any) -> None:
        """Deleted tiles are missing, and can be stored again.

        A store object can also delete complete and partial tiles that it has never read. Other tiles stay.
        """
        ones = torch.ones(TILE, TILE)
        with self._open_with("_delete_tiles", location, "t") as store:
            handle_of(store, "t").write_tiles({(0, 0): ones, (-1, 7): ones, (1, 1): ones})
            for length in (1, 2, 3):
                handle_of(store, "t").write_partials(
                    {(0, 5): PartialTile(ones, length), (1, 5): PartialTile(ones, length)}
                )
        with self._open(location, "t") as store:
            handle_of(store, "t").delete_tiles([(0, 0), (-1, 7), (0, 5), (9, 9)])
            handle_of(store, "t").delete_tiles([])
        with self._open(location, "t") as store:
            tiles = handle_of(store, "t").read_tiles([(0, 0), (-1, 7), (1, 1)])
            partials = handle_of(store, "t").read_partials([(0, 5), (1, 5)])
            handle_of(store, "t").write_tiles({(0, 0): 2 * ones})
            handle_of(store, "t").write_partials({(0, 5): PartialTile(ones, 1)})
        assert tiles[:2] == [None, None]
        assert same_bits(tiles[2], ones)
        assert [None if part is None else part.prefix_length for part in partials] == [None, 3]
        (found,), (begun,) = self._tiles(location, [(0, 0)]), self._partials(location, [(0, 5)])
        assert same_bits(found, 2 * ones)
        assert begun is not None
        assert begun.prefix_length == 1

    def test_each_deletion_of_tiles_is_told_to_all(self, location: Any) -> None:
        """A deletion changes the `_generation` of the tensor in all store objects.

        The `_generation` of other tensors stays the same.
        """
        ones = torch.ones(TILE, TILE)
        with self._open_with("_generation", location, "t", "other") as store, self._open(location, "t") as second:
            handle_of(store, "t").write_tiles({(0, 0): ones, (0, 1): ones})
            found = [
                (
                    handle_of(store, "t").generation(),
                    handle_of(second, "t").generation(),
                    handle_of(store, "other").generation(),
                )
            ]
            for tile in (0, 0), (0, 1):
                handle_of(store, "t").delete_tiles([tile])
                found.append(
                    (
                        handle_of(store, "t").generation(),
                        handle_of(second, "t").generation(),
                        handle_of(store, "other").generation(),
                    )
                )
        mine, seen, others = map(list, zip(*found, strict=True))
        assert mine == seen
        assert len(set(mine)) == 3
        assert len(set(others)) == 1


class PartialTileTests(BackendTests):
    """Tests of partial tiles: added parts stay until the tile is deleted."""

    @each_dtype
    def test_partial_tiles_keep_every_bit(self, location: Any, dtype: torch.dtype) -> None:
        """The prefix and each piece of a partial tile keep every bit."""
        prefix, piece, other = (pixels(dtype, *shape) for shape in ((TILE, TILE), (2, 3), (1, 4)))
        self._write(location, {}, {(0, 0): PartialTile(prefix, 2, {(0, -7): piece, (1, 2**50): other})}, dtype=dtype)
        found, absent = self._partials(location, [(0, 0), (0, 1)], dtype=dtype)
        assert absent is None
        assert found is not None
        assert found.prefix_length == 2
        assert same_bits(found.prefix, prefix)
        assert found.pieces.keys() == {(0, -7), (1, 2**50)}
        assert same_bits(found.pieces[0, -7], piece)
        assert same_bits(found.pieces[1, 2**50], other)

    def test_parts_of_a_partial_tile_add_up(self, location: Any) -> None:
        """A partial tile keeps the longest prefix and all pieces.

        The parts may come from several store objects.
        """
        a, b, c = (pixels(torch.float32, 2, 2, seed=n) for n in range(3))
        short, long = (pixels(torch.float32, TILE, TILE, seed=n) for n in range(2))
        with self._open(location, "t") as store:
            handle_of(store, "t").write_partials({(0, 0): PartialTile(pieces={(0, 5): a})})
            handle_of(store, "t").write_partials({(0, 0): PartialTile(long, 3, {(0, 6): b})})
        # The second store object has read nothing yet, so it must find out by itself what is already stored.
        self._write(location, {}, {(0, 0): PartialTile(short, 1, {(0, 7): c}), (9, 9): PartialTile(short, 1)})
        (found,) = self._partials(location, [(0, 0)])
        assert found is not None
        assert found.prefix_length == 3
        assert same_bits(found.prefix, long)
        assert found.pieces.keys() == {(0, 5), (0, 6), (0, 7)}
        assert all(same_bits(found.pieces[0, 5 + n], piece) for n, piece in enumerate((a, b, c)))

    def test_a_partial_tile_is_no_complete_one(self, location: Any) -> None:
        """A partial tile is not read as a complete tile, and vice versa."""
        ones = torch.ones(TILE, TILE)
        self._write(location, {(0, 1): ones}, {(0, 0): PartialTile(ones, 1)})
        assert self._tiles(location, [(0, 0)]) == [None]
        assert self._partials(location, [(0, 1)]) == [None]

    def test_a_deleted_partial_tile_is_gone_and_can_begin_anew(self, location: Any) -> None:
        """A deleted partial tile has no prefix and no pieces.

        Other tiles stay. Deleting a missing partial tile is not an error.
        """
        ones = torch.ones(TILE, TILE)
        with self._open(location, "t") as store:
            for length in (1, 2, 3):
                handle_of(store, "t").write_partials(
                    {(0, 0): PartialTile(ones, length), (1, 10): PartialTile(ones, length)}
                )
            handle_of(store, "t").write_partials({(0, 0): None, (1, 1): None})
        with self._open(location, "t") as store:
            gone, kept = handle_of(store, "t").read_partials([(0, 0), (1, 10)])
            handle_of(store, "t").write_partials({(0, 0): PartialTile(pieces={(4, 4): ones})})
        assert gone is None
        assert kept is not None
        assert kept.prefix_length == 3
        (begun,) = self._partials(location, [(0, 0)])
        assert begun is not None
        assert begun.prefix is None
        assert begun.pieces.keys() == {(4, 4)}

    def test_a_deleted_partial_tile_takes_the_parts_of_others_with_it(self, location: Any) -> None:
        """Deleting a partial tile also deletes parts added by another store object.

        The deleting store object does not know of these parts.
        """
        self._needs_two_stores()
        ones = torch.ones(TILE, TILE)
        with self._open_with("_delete_tiles", location, "t") as store, self._open(location, "t") as other:
            handle_of(store, "t").write_partials({(0, 0): PartialTile(ones, 1)})
            handle_of(other, "t").read_partials([(0, 0)])
            for length in (2, 3):
                handle_of(other, "t").write_partials({(0, 0): PartialTile(ones, length)})
            handle_of(store, "t").delete_tiles([(0, 0)])
            assert handle_of(store, "t").read_partials([(0, 0)]) == [None]
            handle_of(store, "t").write_partials({(0, 0): PartialTile(2 * ones, 1)})
        (found,) = self._partials(location, [(0, 0)])
        assert found is not None
        assert found.prefix_length == 1
        assert same_bits(found.prefix, 2 * ones)

    def test_parts_that_two_add_at_once_are_all_kept(self, location: Any) -> None:
        """Parts added by two writers at once are all kept.

        A backend would lose parts if it read the stored parts, added its own and wrote all back.
        """
        self._needs_two_stores()
        piece, together, count = torch.ones(1, 1), Barrier(2), 30

        def add(row: int) -> None:
            with self._open(location, "t") as store:
                together.wait(60)
                for column in range(count):
                    handle_of(store, "t").write_partials({(0, 0): PartialTile(pieces={(row, column): piece})})

        with self._open(location, "t") as store:
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(add, range(2)))
            (found,) = handle_of(store, "t").read_partials([(0, 0)])
        assert found is not None
        assert found.pieces.keys() == {(row, column) for row in range(2) for column in range(count)}


_REGION = sl[-30:30, -30:30]
"""A region with all tiles of the tests. A backend unable to list tiles needs a region for a copy."""


class CopyTests(BackendTests):
    """Tests of copies from and to the backend."""

    @pytest.fixture(name="beside")
    def _beside(self) -> Iterator[ZarrTileStore]:
        with ZarrTileStore(MemoryStore(), tile_size=TILE) as store:
            yield store

    @each_dtype
    def test_copies_have_every_bit(self, location: Any, beside: ZarrTileStore, dtype: torch.dtype) -> None:
        """Copies keep every bit of complete tiles, in both directions."""
        tile, other = (pixels(dtype, TILE, TILE, seed=n) for n in range(2))
        part = PartialTile(other, 1)
        self._write(location, {(0, 0): tile, (-2, 3): other}, {(1, 1): part}, dtype=dtype)
        with self._open(location, "t", dtype=dtype) as store:
            assert store.copy("t", beside, region=_REGION, progress=False).tiles == 2
            store.clear_tensor("t")
            beside.copy("t", store, progress=False)
        tiles = self._tiles(location, [(0, 0), (-2, 3), (1, 1)], dtype=dtype)
        assert all(map(same_bits, tiles, [tile, other, None]))
        assert self._partials(location, [(1, 1)], dtype=dtype) == [None]

    @pytest.mark.parametrize("forth", [True, False], ids=["from it", "to it"])
    def test_a_copy_computes_nothing_of_complete_tiles(self, location: Any, beside: ZarrTileStore, forth: bool) -> None:
        """A copied tensor computes only windows of incomplete tiles.

        The pixels match the pixels of a tensor in a memory store.
        """
        expected = tensor_on(MemoryTileStore(), Ramp())[-6:24, -6:24]
        f = Ramp()
        with self._open(location) as store:
            source, target = (store, beside) if forth else (beside, store)
            tensor_on(source, f)[0:10, 0:10]
            source.copy("t", target, region=_REGION, progress=False)
            calls = len(f.calls)
            copy = tensor_on(target, f)
            assert same_bits(copy[0:10, 0:10], expected[6:16, 6:16])
            assert len(f.calls) == calls
            assert same_bits(copy[-6:24, -6:24], expected)

    def test_a_damaged_tile_is_left_out_of_a_copy(self, location: Any, beside: ZarrTileStore) -> None:
        """A damaged tile is counted in the report, but not copied."""
        if type(self).damage_tile is BackendTests.damage_tile:
            pytest.skip("the suite's class does not define damage_tile")
        tiles: dict[Index, torch.Tensor] = {(0, j): pixels(torch.float32, TILE, TILE, seed=j) for j in range(3)}
        self._write(location, tiles)
        self.damage_tile(location, "t", (0, 1))
        with self._open(location, "t") as store, pytest.warns(DamagedDataWarning):
            (copied,) = store.copy("t", beside, region=_REGION, progress=False).tensors
        assert (copied.tiles, copied.damaged) == (2, 1)
        declare(beside)
        found = handle_of(beside, "t").read_tiles(list(tiles))
        assert [tile is None for tile in found] == [False, True, False]

    def test_a_backend_that_cannot_list_tiles_asks_for_a_region(self, location: Any, beside: ZarrTileStore) -> None:
        """Without a region, a copy contains all tiles, however far apart.

        A backend that cannot list tiles raises ValidationError and asks for a region.
        """
        far: Index = (2**50 // TILE, -(2**50) // TILE)
        with self._open(location, "t") as store:
            handle_of(store, "t").write_tiles({far: torch.ones(TILE, TILE), (0, 0): torch.ones(TILE, TILE)})
            if "_find_tiles" not in backend_of(store).lacks:
                assert store.copy("t", beside, progress=False).tiles == 2
            else:
                with pytest.raises(ValidationError, match="region="):
                    store.copy("t", beside, progress=False)

    def test_encoded_tiles_are_those_that_were_stored(self, location: Any) -> None:
        """An encoded tile of a tensor can be written to another tensor.

        The test is skipped if the backend encodes no tiles.
        """
        tile = pixels(torch.float32, TILE, TILE)
        with self._open(location, "t", "u") as store:
            handle_of(store, "t").write_tiles({(0, 0): tile})
            if handle_of(store, "t").encoding is None:
                pytest.skip("this backend has no encoded tiles")
            assert handle_of(store, "t").encoding == handle_of(store, "u").encoding
            encoded, absent = handle_of(store, "t").read_encoded([(0, 0), (0, 1)])
            assert absent is None
            assert encoded is not None
            handle_of(store, "u").write_encoded({(4, 5): encoded})
            assert handle_of(store, "u").read_encoded([(4, 5)]) == [encoded]
        with self._open(location, "u") as store:
            assert same_bits(handle_of(store, "u").read_tiles([(4, 5)])[0], tile)
