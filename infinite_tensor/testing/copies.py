"""Copies from the backend into another store and back, other ids, and a store as a collection of ids."""

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
    reader_of,
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

    def test_the_definition_is_the_same_there(self, location: Any, beside: ZarrTileStore) -> None:
        """With the size of its tiles, the names of its dimensions, its version and the fingerprint of its function."""
        with self._open(location, tile_size=7) as store:
            given = tensor_on(store, Ramp(), dims=("y", "x"), version={"seed": 3}).to_json()
            store.copy("t", beside, region=_REGION, progress=False)
            stored, found = store.tensor_definition("t"), beside.tensor_definition("t")
        # A backend may add fields, which are its own.
        fields = {*given, "format", "tensor_id", "tile_size"} - {"device"}
        assert {field: found[field] for field in fields} == {field: stored[field] for field in fields}
        assert stored["tile_size"] == [7, 7]

    def test_a_copy_into_the_backend_can_be_opened_again(self, location: Any, beside: ZarrTileStore) -> None:
        """By another store object, from its id alone."""
        expected = tensor_on(beside, Ramp(), "t")[0:12, 0:12]
        with self._open(location) as store:
            beside.copy("t", store, progress=False)
        with self._open(location) as store:
            assert same_bits(store.open("t")[0:12, 0:12], expected)

    @pytest.mark.parametrize("forth", [True, False], ids=["from it", "to it"])
    def test_copying_again_moves_only_what_is_missing(self, location: Any, beside: ZarrTileStore, forth: bool) -> None:
        """Nothing at first; then what has come since, and tiles that have become complete leave no parts behind."""
        f = Ramp()
        with self._open(location) as store:
            source, target = (store, beside) if forth else (beside, store)
            tensor = tensor_on(source, f)
            tensor[0:12, 0:12]
            (first,) = source.copy("t", target, region=_REGION, progress=False).tensors
            (again,) = source.copy("t", target, region=_REGION, progress=False).tensors
            assert (again.tiles, again.partial, again.bytes) == (0, 0, 0)
            assert again.there == first.tiles + first.partial > first.tiles > 0
            tensor[0:20, 0:12]
            (more,) = source.copy("t", target, region=_REGION, progress=False).tensors
            assert more.tiles > 0
            copy = tensor_on(target, f)
            calls = len(f.calls)
            assert same_bits(copy[0:20, 0:12], tensor[0:20, 0:12])
            assert len(f.calls) == calls
            if offers(target, "_collect_garbage"):
                assert target.gc().objects == 0

    def test_what_others_know_of_a_tile_is_added_to_what_is_known_there(
        self, location: Any, beside: ZarrTileStore
    ) -> None:
        """A copy that was continued keeps what it has computed."""
        f = Ramp()
        with self._open(location) as store:
            tensor_on(beside, f)[0:3, 0:3]
            tensor_on(store, f)[8:11, 8:11]
            store.flush()
            beside.copy("t", store, progress=False)
            calls = len(f.calls)
            copy = tensor_on(store, f)
            copy[0:3, 0:3]
            copy[8:11, 8:11]
        assert len(f.calls) == calls

    def test_a_tensor_of_another_definition_is_left_alone(self, location: Any, beside: ZarrTileStore) -> None:
        """The error lists what differs, and nothing is copied."""
        with self._open(location) as store:
            tensor_on(store, Ramp(), version=1)[0:10, 0:10]
            expected = tensor_on(beside, Ramp(), version=2, blend_init=3)[0:10, 0:10]
            differing = r"(?s)already holds a tensor 't'.*blend_init: stored .*\n  version: stored .*, given "
            for source, target in ((store, beside), (beside, store)):
                with pytest.raises(ValidationError, match=differing):
                    source.copy("t", target, region=_REGION, progress=False)
            assert same_bits(beside.open("t")[0:10, 0:10], expected)

    def test_upstream_tensors_are_copied_with_it(self, location: Any, beside: ZarrTileStore) -> None:
        """Before it; the chain opens there, and its functions run no more."""
        f, g = Ramp(), Ramp()
        with self._open(location) as store:
            expected = reader_of(beside, g, tensor_on(beside, f))[0:12, 0:12]
            report = beside.copy("top", store, upstream=True, progress=False)
            assert [each.tensor_id for each in report.tensors] == ["t", "top"]
        calls = len(f.calls), len(g.calls)
        with self._open(location) as store:
            assert [arg.tensor_id for arg in store.open("top").args] == ["t"]
            assert same_bits(reader_of(store, g, tensor_on(store, f))[0:12, 0:12], expected)
        assert (len(f.calls), len(g.calls)) == calls

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


class CollectionTests(BackendTests):
    """A store as a collection of ids."""

    def test_a_store_tells_which_tensors_it_holds(self, location: Any) -> None:
        """Those of an earlier store object, too; its repr lists them where the backend does."""
        with self._open(location, "b", "a"):
            pass
        with self._open(location) as store:
            assert "a" in store
            assert "c" not in store
            assert store
            if offers(store, "_list_tensors"):
                assert (len(store), [*store]) == (2, ["a", "b"])
                assert repr(store) == f"{store}: 2 tensors 'a', 'b'"

    def test_the_name_of_a_store_in_messages_is_short(self, location: Any) -> None:
        """Whatever it holds; its repr is bounded."""
        with self._open(location, *(f"t{number}" for number in range(20))) as store:
            assert "t7" not in str(store)
            assert len(repr(store)) < len(str(store)) + 300
        assert repr(store) == f"{store}: closed"
