"""Partial tiles, as the storage methods move them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch

from infinite_tensor.tilestore.persistent import PartialTile
from infinite_tensor.tilestore.testing.hooks import SuiteHooks
from infinite_tensor.tilestore.testing.samples import TILE, declare, each_dtype, pixels, same_bits


class PartialTileTests(SuiteHooks):
    """What is added to a partial tile stays until it is deleted."""

    @each_dtype
    def test_partial_tiles_keep_every_bit(self, location: Any, dtype: torch.dtype) -> None:
        """Of the prefix and of each piece."""
        prefix, piece, other = (pixels(dtype, *shape) for shape in ((TILE, TILE), (2, 3), (1, 4)))
        with self._open(location) as store:
            declare(store, dtype=dtype)
            store._write_partials("t", {(0, 0): PartialTile(prefix, 2, {(0, -7): piece, (1, 2**50): other})})
        with self._open(location) as store:
            declare(store, dtype=dtype)
            found, absent = store._read_partials("t", [(0, 0), (0, 1)])
        assert absent is None
        assert found is not None
        assert found.prefix_length == 2
        assert same_bits(found.prefix, prefix)
        assert found.pieces.keys() == {(0, -7), (1, 2**50)}
        assert same_bits(found.pieces[0, -7], piece)
        assert same_bits(found.pieces[1, 2**50], other)

    def test_parts_of_a_partial_tile_add_up(self, location: Any) -> None:
        """Whichever store object wrote them: the longest prefix wins, pieces unite."""
        a, b, c = (pixels(torch.float32, 2, 2, seed=n) for n in range(3))
        short, long = (pixels(torch.float32, TILE, TILE, seed=n) for n in range(2))
        with self._open(location) as store:
            declare(store)
            store._write_partials("t", {(0, 0): PartialTile(pieces={(0, 5): a})})
            store._write_partials("t", {(0, 0): PartialTile(long, 3, {(0, 6): b})})
        with self._open(location) as store:
            # Nothing has been read through this object: it must find the end of the log by itself.
            declare(store)
            store._write_partials("t", {(0, 0): PartialTile(short, 1, {(0, 7): c}), (9, 9): PartialTile(short, 1)})
        with self._open(location) as store:
            declare(store)
            (found,) = store._read_partials("t", [(0, 0)])
        assert found is not None
        assert found.prefix_length == 3
        assert same_bits(found.prefix, long)
        assert found.pieces.keys() == {(0, 5), (0, 6), (0, 7)}
        assert all(same_bits(found.pieces[0, 5 + n], piece) for n, piece in enumerate((a, b, c)))

    def test_a_partial_tile_is_no_complete_one(self, location: Any) -> None:
        """Nor the other way round."""
        ones = torch.ones(TILE, TILE)
        with self._open(location) as store:
            declare(store)
            store._write_partials("t", {(0, 0): PartialTile(ones, 1)})
            store._write_tiles("t", {(0, 1): ones})
        with self._open(location) as store:
            declare(store)
            assert store._read_tiles("t", [(0, 0)]) == [None]
            assert store._read_partials("t", [(0, 1)]) == [None]

    def test_a_deleted_partial_tile_is_gone_and_can_begin_anew(self, location: Any) -> None:
        """All its parts; those of other tiles stay; one that is not there is no error."""
        ones = torch.ones(TILE, TILE)
        with self._open(location) as store:
            declare(store)
            for length in (1, 2, 3):
                store._write_partials("t", {(0, 0): PartialTile(ones, length), (1, 10): PartialTile(ones, length)})
            store._write_partials("t", {(0, 0): None, (1, 1): None})
        with self._open(location) as store:
            declare(store)
            gone, kept = store._read_partials("t", [(0, 0), (1, 10)])
            store._write_partials("t", {(0, 0): PartialTile(pieces={(4, 4): ones})})
        assert gone is None
        assert kept is not None
        assert kept.prefix_length == 3
        with self._open(location) as store:
            declare(store)
            (begun,) = store._read_partials("t", [(0, 0)])
        assert begun is not None
        assert begun.prefix is None
        assert begun.pieces.keys() == {(4, 4)}

    def test_a_deleted_partial_tile_takes_the_parts_of_others_with_it(self, location: Any) -> None:
        """Also those that were added after this store object looked."""
        if not self.concurrent:
            pytest.skip("one store object at a time")
        ones = torch.ones(TILE, TILE)
        with self._open(location) as store, self._open(location) as other:
            self._skip_unless_it_deletes_tiles(store)
            declare(store)
            declare(other)
            store._write_partials("t", {(0, 0): PartialTile(ones, 1)})
            other._read_partials("t", [(0, 0)])
            for length in (2, 3):
                other._write_partials("t", {(0, 0): PartialTile(ones, length)})
            store._delete_tiles("t", [(0, 0)])
            assert store._read_partials("t", [(0, 0)]) == [None]
            store._write_partials("t", {(0, 0): PartialTile(2 * ones, 1)})
        with self._open(location) as store:
            declare(store)
            (found,) = store._read_partials("t", [(0, 0)])
        assert found is not None
        assert found.prefix_length == 1
        assert same_bits(found.prefix, 2 * ones)

    def test_parts_that_two_add_at_once_are_all_kept(self, location: Any) -> None:
        """A backend that reads, adds and writes back loses those that the other has added meanwhile."""
        if not self.concurrent:
            pytest.skip("one store object at a time")
        piece, together, count = torch.ones(1, 1), Barrier(2), 30

        def add(row: int) -> None:
            with self._open(location) as store:
                declare(store)
                together.wait(60)
                for column in range(count):
                    store._write_partials("t", {(0, 0): PartialTile(pieces={(row, column): piece})})

        with self._open(location) as store:
            declare(store)
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(add, range(2)))
            (found,) = store._read_partials("t", [(0, 0)])
        assert found is not None
        assert found.pieces.keys() == {(row, column) for row in range(2) for column in range(count)}
