"""Copies from the backend into another store and back."""

from __future__ import annotations

from collections.abc import Iterator
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
    declare,
    each_dtype,
    pixels,
    same_bits,
    tensor_on,
)
from infinite_tensor.tilestore import MemoryTileStore
from infinite_tensor.tilestore.persistent import PartialTile
from infinite_tensor.tilestore.persistent.backend import offers
from infinite_tensor_stores import ZarrTileStore

_REGION = sl[-30:30, -30:30]
"""Holds all that the tests here store: a backend that cannot list tiles is told where to look."""


class CopyTests(BackendTests):
    """Every tile, complete or not, in either direction."""

    @pytest.fixture(name="beside")
    def _beside(self) -> Iterator[ZarrTileStore]:
        """Another store, of this library."""
        with ZarrTileStore(MemoryStore(), tile_size=TILE) as store:
            yield store

    @each_dtype
    def test_copies_have_every_bit(self, location: Any, beside: ZarrTileStore, dtype: torch.dtype) -> None:
        """Of complete tiles, of the first windows of a tile, and of pieces of later ones; there and back again."""
        tile, prefix, piece = (pixels(dtype, *shape, seed=n) for n, shape in enumerate([(TILE, TILE)] * 2 + [(2, 3)]))
        part = PartialTile(prefix, 1, {(1, 0): piece})
        self._write(location, {(0, 0): tile, (-2, 3): prefix}, {(1, 1): part}, dtype=dtype)
        with self._open(location, "t", dtype=dtype) as store:
            report = store.copy("t", beside, region=_REGION, progress=False)
            assert [(each.tiles, each.partial) for each in report.tensors] == [(2, 1)]
            store.clear_tensor("t")
            beside.copy("t", store, progress=False)
        tiles = self._tiles(location, [(0, 0), (-2, 3), (0, 1)], dtype=dtype)
        assert all(map(same_bits, tiles, [tile, prefix, None]))
        (found,) = self._partials(location, [(1, 1)], dtype=dtype)
        assert found is not None
        assert found.prefix_length == 1
        assert same_bits(found.prefix, prefix)
        assert same_bits(found.pieces[1, 0], piece)

    @pytest.mark.parametrize("forth", [True, False], ids=["from it", "to it"])
    def test_a_copy_continues_and_computes_nothing_that_was_stored(
        self, location: Any, beside: ZarrTileStore, forth: bool
    ) -> None:
        """Tiles that are not complete included; what is computed next has the bits of a tensor that was never moved."""
        expected = tensor_on(MemoryTileStore(), Ramp())[-6:24, -6:24]
        f = Ramp()
        with self._open(location) as store:
            source, target = (store, beside) if forth else (beside, store)
            tensor_on(source, f)[0:12, 0:12]
            source.copy("t", target, region=_REGION, progress=False)
            calls = len(f.calls)
            copy = tensor_on(target, f)
            assert same_bits(copy[0:12, 0:12], expected[6:18, 6:18])
            assert len(f.calls) == calls
            assert same_bits(copy[-6:24, -6:24], expected)
        assert len(f.calls) == len(set(f.calls))

    def test_a_damaged_tile_is_left_out_of_a_copy(self, location: Any, beside: ZarrTileStore) -> None:
        """It is told of, and missing there."""
        if type(self).damage_tile is BackendTests.damage_tile:
            pytest.skip("nothing tells how to damage a tile")
        tiles: dict[Index, torch.Tensor] = {(0, j): pixels(torch.float32, TILE, TILE, seed=j) for j in range(3)}
        self._write(location, tiles)
        self.damage_tile(location, "t", (0, 1))
        with self._open(location, "t") as store, pytest.warns(DamagedDataWarning):
            (copied,) = store.copy("t", beside, region=_REGION, progress=False).tensors
        assert (copied.tiles, copied.damaged) == (2, 1)
        declare(beside)
        found = beside._read_tiles("t", list(tiles))
        assert [tile is None for tile in found] == [False, True, False]

    def test_a_backend_that_cannot_list_tiles_asks_for_a_region(self, location: Any, beside: ZarrTileStore) -> None:
        """Others copy all that there is, wherever it lies."""
        far: Index = (2**50 // TILE, -(2**50) // TILE)
        with self._open(location, "t") as store:
            store._write_tiles("t", {far: torch.ones(TILE, TILE), (0, 0): torch.ones(TILE, TILE)})
            if offers(store, "_find_tiles"):
                assert store.copy("t", beside, progress=False).tiles == 2
            else:
                with pytest.raises(ValidationError, match="region="):
                    store.copy("t", beside, progress=False)

    def test_encoded_tiles_are_those_that_were_stored(self, location: Any) -> None:
        """Written as they were read, they are the same tiles; a backend that hands none over says so."""
        tile = pixels(torch.float32, TILE, TILE)
        with self._open(location, "t", "u") as store:
            store._write_tiles("t", {(0, 0): tile})
            if store._encoding("t") is None:
                pytest.skip("this backend hands over no encoded tiles")
            assert store._encoding("t") == store._encoding("u")
            encoded, absent = store._read_encoded("t", [(0, 0), (0, 1)])
            assert absent is None
            assert encoded is not None
            store._write_encoded("u", {(4, 5): encoded})
            assert store._read_encoded("u", [(4, 5)]) == [encoded]
        with self._open(location, "u") as store:
            assert same_bits(store._read_tiles("u", [(4, 5)])[0], tile)
