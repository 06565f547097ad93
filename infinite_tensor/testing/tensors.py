"""Tests of tensors and groups: definitions, reads and maintenance."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor.errors import DamagedDataWarning, StoreError, TileAccessError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.groups import TensorGroup
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.testing.fixtures import (
    HOSTILE_IDS,
    TILE,
    BackendTests,
    OtherRamp,
    Ramp,
    backend_of,
    declare,
    definition_of,
    handle_of,
    pixels,
    reader_of,
    same_bits,
    tensor_on,
)
from infinite_tensor.tilestore import Garbage, MemoryTileStore
from infinite_tensor.tilestore.documents import name_of, sealed
from infinite_tensor.tilestore.persistent import PartialTile
from infinite_tensor.tilestore.store import contents_of


class DefinitionTests(BackendTests):
    """Tests of tensor definitions: identity, reopening and listing."""

    def test_a_definition_is_read_back_as_it_was_written(self, location: Any) -> None:
        """A backend keeps all given fields of a definition unchanged.

        A backend may add fields.
        """
        version = {"seed": 3, "scale": 0.1, "name": "ü", "none": None, "list": [1, [True]], "limit": float("inf")}
        with self._open(location) as store:
            tensor = tensor_on(store, Ramp(), version=version, blend_init=float("nan"))
            given = tensor.to_json()
            del given["device"]
        with self._open(location) as store:
            stored = definition_of(store, "t")
        assert stored is not None
        assert {key: stored[key] for key in given} == given
        assert (stored["tensor_id"], stored["tile_size"]) == ("t", [TILE, TILE])

    def test_an_unknown_tensor_has_no_definition(self, location: Any) -> None:
        """The definition of an unknown tensor is None, without an error."""
        with self._open(location) as store:
            assert definition_of(store, "t") is None

    def test_the_first_definition_stays(self, location: Any) -> None:
        """Creating a tensor a second time changes nothing."""
        with self._open(location, "t") as store:
            first = definition_of(store, "t")
            assert first is not None
            backend_of(store).create_document(name_of("t"), sealed({**first, "version": "second"}))
        with self._open(location) as store:
            assert definition_of(store, "t") == first

    def test_a_definition_is_replaced_only_while_it_is_the_stored_one(self, location: Any) -> None:
        """A definition with more metadata replaces the one it was made from, and no other."""
        with self._open_with("_replace_document", location, "t") as store:
            first = definition_of(store, "t")
            assert first is not None
            more = {**first, "dims": ["y", "x"]}
            backend_of(store).replace_document(name_of("t"), first, sealed(more))
        with self._open(location) as store:
            backend_of(store).replace_document(name_of("t"), first, sealed({**first, "dims": ["row", "column"]}))
            assert definition_of(store, "t") == sealed(more)
            store.clear_tensor("t")
            backend_of(store).replace_document(name_of("t"), sealed(more), first)
            assert definition_of(store, "t") is None
            declare(store, "t")
            backend_of(store).replace_document(name_of("t"), sealed(more), first)
            again = definition_of(store, "t")
        assert again is not None
        assert again["incarnation"] != first["incarnation"]

    def test_a_tensor_that_is_made_again_has_another_incarnation(self, location: Any) -> None:
        """The definition names the incarnation of the tensor, under which a backend stores tiles."""
        incarnations = []
        for _ in range(2):
            with self._open(location, "t") as store:
                definition = definition_of(store, "t")
                assert definition is not None
                incarnations.append(definition["incarnation"])
                store.clear_tensor("t")
        assert len(set(incarnations)) == 2

    def test_a_deleted_tensor_leaves_nothing(self, location: Any) -> None:
        """A deleted tensor leaves no data for a later tensor with the same id.

        Data of other tensors stays.
        """
        ones = torch.ones(TILE, TILE)
        with self._open(location) as store:
            for name in ("t", "other"):
                declare(store, name)
                handle_of(store, name).write_tiles({(0, 0): ones})
                handle_of(store, name).write_partials({(0, 1): PartialTile(ones, 1)})
            backend_of(store).delete_document(name_of("t"))
            backend_of(store).delete_document(name_of("never there"))
        with self._open(location) as store:
            assert definition_of(store, "t") is None
            declare(store, "t")
            declare(store, "other")
            assert handle_of(store, "t").read_tiles([(0, 0)]) == [None]
            assert handle_of(store, "t").read_partials([(0, 1)]) == [None]
            assert same_bits(handle_of(store, "other").read_tiles([(0, 0)])[0], ones)
            assert handle_of(store, "other").read_partials([(0, 1)]) != [None]

    @pytest.mark.parametrize("tensor_id", HOSTILE_IDS.values(), ids=HOSTILE_IDS)
    def test_a_hostile_id_is_stored_safely_or_refused(self, location: Any, tensor_id: str, tmp_path: Path) -> None:
        """A hostile id, such as a path, writes nothing outside the store.

        Other tensors are unchanged. A backend may refuse the id.
        """
        before = _strays(location, tmp_path)
        with self._open(location) as store:
            expected = tensor_on(store, Ramp(), "x")[0:9, 0:9]
            try:
                tensor_on(store, OtherRamp(), tensor_id)[0:9, 0:9]
            except ValidationError:
                return
        assert _strays(location, tmp_path) == before
        f, g = Ramp(), OtherRamp()
        with self._open(location) as store:
            assert same_bits(tensor_on(store, f, "x")[0:9, 0:9], expected)
            assert same_bits(tensor_on(store, g, tensor_id)[0:9, 0:9], -expected)
            store.clear_tensor(tensor_id)
            assert same_bits(tensor_on(store, f, "x")[0:9, 0:9], expected)
        assert not f.calls + g.calls

    def test_ids_that_differ_only_in_case_are_two(self, location: Any) -> None:
        """``map`` and ``Map`` are ids of different tensors.

        This is also true on case-insensitive file systems.
        """
        ids = ("map", "Map", "MAP", "=4Dap", "m=41p")
        with self._open(location) as store:
            for number, name in enumerate(ids):
                declare(store, name)
                handle_of(store, name).write_tiles({(0, 0): torch.full((TILE, TILE), float(number))})
        with self._open(location) as store:
            for number, name in enumerate(ids):
                declare(store, name)
                assert same_bits(
                    handle_of(store, name).read_tiles([(0, 0)])[0], torch.full((TILE, TILE), float(number))
                )

    def test_tensors_are_listed(self, location: Any) -> None:
        """The list includes tensors created by another store object."""
        with self._open(location, "ü/b", "a"):
            pass
        with self._open(location) as store:
            assert store.tensor_ids() == ["a", "ü/b"]

    def test_tensors_are_described(self, location: Any) -> None:
        """Tensors created by another store object can be described."""
        with self._open_with("_describe_tensor", location) as store:
            tensor_on(store, Ramp(), "ü/b")[0:10, 0:10]
            declare(store, "a")
        with self._open(location) as store:
            empty, filled = store.tensor_info("a"), store.tensor_info("ü/b")
        assert (empty.tiles_complete, empty.tiles_partial, empty.bytes_stored) == (0, 0, 0)
        # Windows -1 to 3 cover pixels -3 to 13 in tiles -1 to 2. Tiles 0 and 1 need no other window.
        assert (filled.tiles_complete, filled.tiles_partial) == (4, 12)
        assert filled.bytes_stored > 0
        assert filled.definition["tensor_id"] == "ü/b"

    @pytest.mark.parametrize(
        ("shape", "tile_size", "tile"),
        [
            ((3, None, None), (2, 6), [3, 2, 6]),
            ((9, 10, 11), (20, 3, 11), [9, 3, 11]),
        ],
        ids=str,
    )
    def test_forms_of_tile_size(
        self, location: Any, shape: tuple[int | None, ...], tile_size: Any, tile: list[int]
    ) -> None:
        """A tile size may be given for all dimensions, or only for the unbounded ones.

        A size of 20 pixels in a dimension with only 9 becomes 9.
        """
        window = TensorWindow((3, 4, 5), stride=(3, 3, 3))
        ramp = torch.arange(60.0).reshape(3, 4, 5)

        def f(ctx: Index) -> torch.Tensor:
            return ramp + sum(ctx) / 3

        expected = InfiniteTensor(shape, f, window)[:, 0:9, 0:10]
        for opens in (False, True):
            with self._open(location, tile_size=tile_size) as store:
                make = partial(InfiniteTensor, shape, f, window, tile_store=store, tensor_id="t")
                tensor = store.open("t") if opens else make()
                assert same_bits(tensor[:, 0:9, 0:10], expected)
                assert store.tensor_definition("t")["tile_size"] == tile


_GROUP = {"format": 1, "group_id": "g", "members": [{"key": ["ü", "x"], "scale": ["1/8"], "none": None}]}


class GroupTests(BackendTests):
    """Tests of group definitions, for backends with groups."""

    def test_a_group_is_read_back_as_it_was_written(self, location: Any) -> None:
        """A backend keeps all given fields of a definition unchanged.

        A backend may add fields.
        """
        with self._open(location) as store:
            assert contents_of(store).storage.documents.group("g") is None
            contents_of(store).storage.documents.create_group("g", _GROUP)
        with self._open(location) as store:
            stored = contents_of(store).storage.documents.group("g")
            assert stored is not None
            assert {key: stored[key] for key in _GROUP} == _GROUP
            assert store.group_ids() == ["g"]

    def test_a_group_that_is_there_is_not_replaced(self, location: Any) -> None:
        """The first definition stays."""
        with self._open(location) as store:
            contents_of(store).storage.documents.create_group("g", _GROUP)
            contents_of(store).storage.documents.create_group("g", {**_GROUP, "members": []})
            stored = contents_of(store).storage.documents.group("g")
            assert stored is not None
            assert stored["members"] == _GROUP["members"]

    def test_a_group_and_a_tensor_may_have_one_id(self, location: Any) -> None:
        """A group and a tensor with the same id are independent.

        Listing, verifying or clearing the tensor or the group does not affect the other. `gc` deletes no group.
        """
        with self._open(location) as store:
            tensor = tensor_on(store, Ramp())
            tensor[0:10, 0:10]
            TensorGroup({"x": tensor}).save(store, "t")
            TensorGroup({"x": tensor}).save(store, "only a group")
        with self._open(location) as store:
            assert (store.tensor_ids(), store.group_ids()) == (["t"], ["only a group", "t"])
            if "_collect_garbage" not in backend_of(store).lacks:
                assert store.gc() == Garbage()
            if "_verify_tensor" not in backend_of(store).lacks:
                assert store.verify("t", repair=True) == []
            store.clear_tensor("t")
            assert (store.tensor_ids(), store.group_ids()) == ([], ["only a group", "t"])
            tensor_on(store, Ramp())
            store.clear_group("t")
            store.clear_group("t")
            assert (store.tensor_ids(), store.group_ids()) == (["t"], ["only a group"])

    @pytest.mark.parametrize("name", HOSTILE_IDS.values(), ids=HOSTILE_IDS)
    def test_a_group_of_a_hostile_id_is_kept_in_the_store(self, location: Any, name: str, tmp_path: Path) -> None:
        """A hostile id, such as a path, writes nothing outside the store.

        Other groups are unchanged.
        """
        before = _strays(location, tmp_path)
        with self._open(location) as store:
            contents_of(store).store_group(name, {**_GROUP, "group_id": name})
            contents_of(store).store_group(f"{name}2", {**_GROUP, "group_id": f"{name}2"})
        assert _strays(location, tmp_path) == before
        with self._open(location) as store:
            assert store.group_ids() == sorted([name, f"{name}2"])
            assert store.tensor_ids() == []
            store.clear_group(name)
            assert store.group_ids() == [f"{name}2"]


def _strays(location: Any, folder: Path) -> list[Path]:
    """List what is beside a store, in all places to which a hostile id may lead."""
    around = folder, folder.parent, Path(folder.anchor)
    return sorted(path for each in around for path in each.iterdir() if path != location)


class LifeTests(BackendTests):
    """Tests of reads through several store objects, in turn or at once."""

    def test_a_tensor_that_is_made_again_calls_f_zero_times(self, location: Any) -> None:
        """Stored pixels match the pixels of a memory store, bit for bit."""
        expected = tensor_on(MemoryTileStore(), Ramp())[-20:25, -9:30]
        with self._open(location) as store:
            assert same_bits(tensor_on(store, Ramp())[-20:25, -9:30], expected)
        f = Ramp()
        with self._open(location) as store:
            assert same_bits(tensor_on(store, f)[-20:25, -9:30], expected)
        assert f.calls == []

    def test_a_tensor_opens_from_its_id(self, location: Any) -> None:
        """A tensor opened without ``f`` returns stored pixels.

        Reading pixels not stored raises TileAccessError with the id of the tensor.
        """
        with self._open(location) as store:
            expected = tensor_on(store, Ramp())[0:12, 0:12]
        with self._open(location) as store:
            tensor = store.open("t")
            assert same_bits(tensor[0:12, 0:12], expected)
            with pytest.raises(TileAccessError, match="'t'"):
                tensor[0:12, 0:40]

    def test_partial_tiles_survive_a_close(self, location: Any) -> None:
        """A reopened store computes only windows not stored yet.

        All pixels match the pixels of a single read.
        """
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
        """A cleared tensor is computed again, and can get another definition.

        Other tensors are unchanged.
        """
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
        """Invalidated tiles are computed again, in dependent tensors too.

        Tiles elsewhere stay.
        """
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
        """A closed store raises StoreError until ``with`` opens the store again.

        Tensor objects work again then. Closing twice is not an error.
        """
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
        """Two store objects on one location add windows to the same partial tiles.

        All windows are kept.
        """
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
    """Tests of verification, repair and garbage collection."""

    def test_what_was_written_verifies(self, location: Any) -> None:
        """`verify` finds no damage in intact tiles.

        This is true for complete and partial tiles, also after the store is opened again.
        """
        with self._open_with("_verify_tensor", location) as store:
            tensor_on(store, Ramp())[0:10, 0:10]
            assert store.verify("t") == []
        with self._open(location) as store:
            assert store.verify("t") == []
            assert store.verify("t", repair=True) == []
            with pytest.raises(StoreError, match="no tensor 'x'"):
                store.verify("x")

    def test_a_damaged_tile_is_missing_and_listed_and_a_repair_drops_it(self, location: Any) -> None:
        """A repair deletes only the damaged tile.

        After the tile is written again, nothing is damaged.
        """
        if type(self).damage_tile is BackendTests.damage_tile:
            pytest.skip("the suite's class does not define damage_tile")
        tiles: dict[Index, torch.Tensor] = {(0, j): pixels(torch.float32, TILE, TILE, seed=j) for j in range(-2, 2)}
        with self._open_with("_verify_tensor", location, "t") as store:
            handle_of(store, "t").write_tiles(tiles)
        self.damage_tile(location, "t", (0, -1))
        with self._open(location, "t") as store:
            with pytest.warns(DamagedDataWarning):
                assert handle_of(store, "t").read_tiles([(0, -1)]) == [None]
            for repair in (False, True):
                (damage,) = store.verify("t", repair=repair)
                assert (damage.kind, damage.tile) == ("tile", (0, -1))
        with self._open(location, "t") as store:
            assert store.verify("t") == []
            for tile, found in zip(tiles, handle_of(store, "t").read_tiles(list(tiles)), strict=True):
                assert same_bits(found, None if tile == (0, -1) else tiles[tile])
            handle_of(store, "t").write_tiles({(0, -1): tiles[0, -1]})
        with self._open(location, "t") as store:
            assert store.verify("t") == []
            assert same_bits(handle_of(store, "t").read_tiles([(0, -1)])[0], tiles[0, -1])

    def test_garbage_goes_and_what_is_in_use_stays(self, location: Any) -> None:
        """`gc` deletes partial tiles replaced by complete tiles.

        All other tiles stay, complete or partial.
        """
        ones = torch.ones(TILE, TILE)
        with self._open_with("_collect_garbage", location) as store:
            f = Ramp()
            expected = tensor_on(store, f)[0:10, 0:10]
            calls = len(f.calls)
            declare(store, "other")
            for length in (1, 2):
                handle_of(store, "other").write_partials(
                    {(0, 0): PartialTile(ones, length), (0, 1): PartialTile(ones, length)}
                )
            handle_of(store, "other").write_tiles({(0, 0): ones})
        with self._open(location) as store:
            collected = store.gc()
            assert collected.objects in (1, 2)
            assert collected.bytes > 0
            assert store.gc() == Garbage()
        with self._open(location) as store:
            assert same_bits(tensor_on(store, f)[0:10, 0:10], expected)
            declare(store, "other")
            assert handle_of(store, "other").read_partials([(0, 0)]) == [None]
            assert handle_of(store, "other").read_partials([(0, 1)]) != [None]
            assert same_bits(handle_of(store, "other").read_tiles([(0, 0)])[0], ones)
        assert len(f.calls) == calls
