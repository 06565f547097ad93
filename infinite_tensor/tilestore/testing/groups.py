"""Groups of tensors: kept apart from tensors, and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.groups import TensorGroup
from infinite_tensor.tilestore import Garbage
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor.tilestore.testing.hooks import SuiteHooks
from infinite_tensor.tilestore.testing.samples import HOSTILE_IDS, Ramp, tensor_on

_DEFINITION = {"format": 1, "group_id": "g", "members": [{"key": ["ü", "x"], "scale": ["1/8"], "none": None}]}


class GroupTests(SuiteHooks):
    """Definitions of groups, for backends that keep them."""

    def test_a_group_is_read_back_as_it_was_written(self, location: Any) -> None:
        """A backend may add fields, but leaves those it was given."""
        with self._keeping_groups(location) as store:
            assert store._read_group("g") is None
            store._write_group("g", _DEFINITION)
        with self._open(location) as store:
            stored = store._read_group("g")
            assert stored is not None
            assert {key: stored[key] for key in _DEFINITION} == _DEFINITION
            assert store.group_ids() == ["g"]

    def test_a_group_that_is_there_is_not_replaced(self, location: Any) -> None:
        """The first one wins."""
        with self._keeping_groups(location) as store:
            store._write_group("g", _DEFINITION)
            store._write_group("g", {**_DEFINITION, "members": []})
            stored = store._read_group("g")
            assert stored is not None
            assert stored["members"] == _DEFINITION["members"]

    def test_a_group_and_a_tensor_may_have_one_id(self, location: Any) -> None:
        """Neither lists, verifies or clears the other, and no group is garbage."""
        with self._keeping_groups(location) as store:
            tensor = tensor_on(store, Ramp())
            tensor[0:10, 0:10]
            TensorGroup({"x": tensor}).save(store, "t")
            TensorGroup({"x": tensor}).save(store, "only a group")
        with self._open(location) as store:
            assert (store.tensor_ids(), store.group_ids()) == (["t"], ["only a group", "t"])
            if type(store)._collect_garbage is not PersistentTileStore._collect_garbage:
                assert store.gc() == Garbage()
            if type(store)._verify_tensor is not PersistentTileStore._verify_tensor:
                assert store.verify("t", repair=True) == []
            store.clear_tensor("t")
            assert (store.tensor_ids(), store.group_ids()) == ([], ["only a group", "t"])
            tensor_on(store, Ramp())
            store.clear_group("t")
            store.clear_group("t")
            assert (store.tensor_ids(), store.group_ids()) == (["t"], ["only a group"])

    def test_a_group_is_reopened_with_its_tensors(self, location: Any) -> None:
        """Without functions, what is stored can be read."""
        with self._keeping_groups(location) as store:
            tensor = tensor_on(store, Ramp())
            expected = tensor[0:10, 0:10]
            store.flush()
            TensorGroup({"n": {"x": tensor}}, dims=(1, 0), scale=0.5).save(store, "g")
        with self._open(location) as store:
            group = store.open_group("g")
            assert group.keys(True, True) == [("n", "x")]
            assert group.dims(("n", "x")) == (1, 0)
            assert [float(scale) for scale in group.scale(("n", "x"))] == [0.5, 0.5]
            assert bool((group["n", "x"][0:10, 0:10] == expected).all())
            with pytest.raises(StoreError, match="holds no group 'q'"):
                store.open_group("q")

    @pytest.mark.parametrize("name", HOSTILE_IDS.values(), ids=HOSTILE_IDS)
    def test_a_group_of_a_hostile_id_is_kept_in_the_store(self, location: Any, name: str, tmp_path: Path) -> None:
        """Nothing is written beside the store, and other groups are unharmed."""
        with self._keeping_groups(location) as store:
            beside = set(tmp_path.parent.iterdir())
            store.store_group(name, {**_DEFINITION, "group_id": name})
            store.store_group(f"{name}2", {**_DEFINITION, "group_id": f"{name}2"})
        with self._open(location) as store:
            assert store.group_ids() == sorted([name, f"{name}2"])
            assert store.tensor_ids() == []
            store.clear_group(name)
            assert store.group_ids() == [f"{name}2"]
        assert set(tmp_path.parent.iterdir()) == beside
        assert set(tmp_path.iterdir()) <= {tmp_path / "store"}

    def test_a_closed_store_keeps_no_groups(self, location: Any) -> None:
        """It says that it is closed."""
        store = self._keeping_groups(location)
        store.close()
        for call in (store.group_ids, lambda: store.clear_group("g"), lambda: store.open_group("g")):
            with pytest.raises(StoreError, match="is closed"):
                call()
        with pytest.raises(ValidationError, match="group_id must be a non-empty str"):
            store.open_group("")

    def _keeping_groups(self, location: Any) -> PersistentTileStore:
        store = self._open(location)
        if type(store)._read_group is PersistentTileStore._read_group:
            store.close()
            pytest.skip("this backend keeps no groups")
        return store
