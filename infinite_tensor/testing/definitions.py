"""What is known of tensors and groups: their definitions, their ids, and what they refuse."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor.errors import ValidationError
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
    declare,
    same_bits,
    tensor_on,
)
from infinite_tensor.tilestore import Garbage
from infinite_tensor.tilestore.persistent import PartialTile
from infinite_tensor.tilestore.persistent.backend import offers


class DefinitionTests(BackendTests):
    """How tensors are told apart, found again and listed."""

    def test_a_definition_is_read_back_as_it_was_written(self, location: Any) -> None:
        """A backend may add fields, but leaves those it was given."""
        version = {"seed": 3, "scale": 0.1, "name": "ü", "none": None, "list": [1, [True]], "limit": float("inf")}
        with self._open(location) as store:
            tensor = tensor_on(store, Ramp(), version=version, blend_init=float("nan"))
            given = tensor.to_json()
            del given["device"]
        with self._open(location) as store:
            stored = store._read_definition("t")
        assert stored is not None
        assert {key: stored[key] for key in given} == given
        assert (stored["tensor_id"], stored["tile_size"]) == ("t", [TILE, TILE])

    def test_an_unknown_tensor_has_no_definition(self, location: Any) -> None:
        """It is None, not an error."""
        with self._open(location) as store:
            assert store._read_definition("t") is None

    def test_the_first_definition_stays(self, location: Any) -> None:
        """Who creates a tensor second leaves what is there."""
        with self._open(location, "t") as store:
            first = store._read_definition("t")
            assert first is not None
            store._write_definition("t", {**first, "version": "second"})
        with self._open(location) as store:
            assert store._read_definition("t") == first

    def test_a_deleted_tensor_leaves_nothing(self, location: Any) -> None:
        """Also for one of the same id that comes after it; other tensors stay."""
        ones = torch.ones(TILE, TILE)
        with self._open(location) as store:
            for name in ("t", "other"):
                declare(store, name)
                store._write_tiles(name, {(0, 0): ones})
                store._write_partials(name, {(0, 1): PartialTile(ones, 1)})
            store._delete_tensor("t")
            store._delete_tensor("never there")
        with self._open(location) as store:
            assert store._read_definition("t") is None
            declare(store, "t")
            declare(store, "other")
            assert store._read_tiles("t", [(0, 0)]) == [None]
            assert store._read_partials("t", [(0, 1)]) == [None]
            assert same_bits(store._read_tiles("other", [(0, 0)])[0], ones)
            assert store._read_partials("other", [(0, 1)]) != [None]

    @pytest.mark.parametrize("tensor_id", HOSTILE_IDS.values(), ids=HOSTILE_IDS)
    def test_a_hostile_id_is_stored_safely_or_refused(self, location: Any, tensor_id: str, tmp_path: Path) -> None:
        """Nothing is written beside the store, and other tensors are unharmed."""
        with self._open(location) as store:
            expected = tensor_on(store, Ramp(), "x")[0:9, 0:9]
            try:
                tensor_on(store, OtherRamp(), tensor_id)[0:9, 0:9]
            except ValidationError:
                return
        f, g = Ramp(), OtherRamp()
        with self._open(location) as store:
            assert same_bits(tensor_on(store, f, "x")[0:9, 0:9], expected)
            assert same_bits(tensor_on(store, g, tensor_id)[0:9, 0:9], -expected)
            store.clear_tensor(tensor_id)
            assert same_bits(tensor_on(store, f, "x")[0:9, 0:9], expected)
        assert not f.calls + g.calls
        if isinstance(location, Path):
            assert [path for path in tmp_path.iterdir() if path != location] == []

    def test_ids_that_differ_only_in_case_are_two(self, location: Any) -> None:
        """Also where file names do not tell them apart."""
        ids = ("map", "Map", "MAP", "=4Dap", "m=41p")
        with self._open(location) as store:
            for number, name in enumerate(ids):
                declare(store, name)
                store._write_tiles(name, {(0, 0): torch.full((TILE, TILE), float(number))})
        with self._open(location) as store:
            for number, name in enumerate(ids):
                declare(store, name)
                assert same_bits(store._read_tiles(name, [(0, 0)])[0], torch.full((TILE, TILE), float(number)))

    def test_tensors_are_listed(self, location: Any) -> None:
        """Those of other store objects too."""
        with self._open_with("_list_tensors", location, "ü/b", "a"):
            pass
        with self._open(location) as store:
            assert store.tensor_ids() == ["a", "ü/b"]

    def test_tensors_are_described(self, location: Any) -> None:
        """Those of other store objects too."""
        with self._open_with("_describe_tensor", location) as store:
            tensor_on(store, Ramp(), "ü/b")[0:10, 0:10]
            declare(store, "a")
        with self._open(location) as store:
            empty, filled = store.tensor_info("a"), store.tensor_info("ü/b")
        assert (empty.tiles_complete, empty.tiles_partial, empty.bytes_stored) == (0, 0, 0)
        # Windows -1 to 3 reach from pixel -3 to 13, over tiles -1 to 2, of which 0 and 1 need no other window.
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
        """An int, one int per unbounded dimension, or one per dimension; tiles reach past a finite end."""
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
    """Definitions of groups, for backends that keep them."""

    def test_a_group_is_read_back_as_it_was_written(self, location: Any) -> None:
        """A backend may add fields, but leaves those it was given."""
        with self._open_with("_read_group", location) as store:
            assert store._read_group("g") is None
            store._write_group("g", _GROUP)
        with self._open(location) as store:
            stored = store._read_group("g")
            assert stored is not None
            assert {key: stored[key] for key in _GROUP} == _GROUP
            assert store.group_ids() == ["g"]

    def test_a_group_that_is_there_is_not_replaced(self, location: Any) -> None:
        """The first one wins."""
        with self._open_with("_read_group", location) as store:
            store._write_group("g", _GROUP)
            store._write_group("g", {**_GROUP, "members": []})
            stored = store._read_group("g")
            assert stored is not None
            assert stored["members"] == _GROUP["members"]

    def test_a_group_and_a_tensor_may_have_one_id(self, location: Any) -> None:
        """Neither lists, verifies or clears the other, and no group is garbage."""
        with self._open_with("_read_group", location) as store:
            tensor = tensor_on(store, Ramp())
            tensor[0:10, 0:10]
            TensorGroup({"x": tensor}).save(store, "t")
            TensorGroup({"x": tensor}).save(store, "only a group")
        with self._open(location) as store:
            assert (store.tensor_ids(), store.group_ids()) == (["t"], ["only a group", "t"])
            if offers(store, "_collect_garbage"):
                assert store.gc() == Garbage()
            if offers(store, "_verify_tensor"):
                assert store.verify("t", repair=True) == []
            store.clear_tensor("t")
            assert (store.tensor_ids(), store.group_ids()) == ([], ["only a group", "t"])
            tensor_on(store, Ramp())
            store.clear_group("t")
            store.clear_group("t")
            assert (store.tensor_ids(), store.group_ids()) == (["t"], ["only a group"])

    @pytest.mark.parametrize("name", HOSTILE_IDS.values(), ids=HOSTILE_IDS)
    def test_a_group_of_a_hostile_id_is_kept_in_the_store(self, location: Any, name: str, tmp_path: Path) -> None:
        """Nothing is written beside the store, and other groups are unharmed."""
        with self._open_with("_read_group", location) as store:
            beside = set(tmp_path.parent.iterdir())
            store.contents.store_group(name, {**_GROUP, "group_id": name})
            store.contents.store_group(f"{name}2", {**_GROUP, "group_id": f"{name}2"})
        with self._open(location) as store:
            assert store.group_ids() == sorted([name, f"{name}2"])
            assert store.tensor_ids() == []
            store.clear_group(name)
            assert store.group_ids() == [f"{name}2"]
        assert set(tmp_path.parent.iterdir()) == beside
        assert set(tmp_path.iterdir()) <= {tmp_path / "store"}
