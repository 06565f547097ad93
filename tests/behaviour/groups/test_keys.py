"""The names in a group, beside those of the TensorDict that it reads as."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import TensorGroup, ValidationError, ZarrTileStore, sl
from tests.behaviour.groups.world import World, plain


@pytest.fixture
def group() -> TensorGroup:
    nested = {"b": plain((None,)), "deep": {"c": plain((2, None))}}
    return TensorGroup({"a": plain((None,)), "n": nested, "z": plain((None,))})


@pytest.mark.parametrize("include_nested", [False, True])
@pytest.mark.parametrize("leaves_only", [False, True])
def test_keys_are_those_of_the_tensordict(group: TensorGroup, include_nested: bool, leaves_only: bool) -> None:
    keys = group.keys(include_nested, leaves_only)
    assert sorted(map(str, keys)) == sorted(map(str, group[0:3].keys(include_nested, leaves_only)))
    assert [key for key, _ in group.items(include_nested, leaves_only)] == keys
    assert len(group.values(include_nested, leaves_only)) == len(keys)


def test_keys_stand_in_the_order_in_which_they_were_given(group: TensorGroup) -> None:
    assert group.keys() == ["a", "n", "z"]
    assert group.keys(True) == ["a", ("n", "b"), ("n", "deep", "c"), ("n", "deep"), "n", "z"]
    assert group.keys(True, True) == ["a", ("n", "b"), ("n", "deep", "c"), "z"]
    assert list(group) == ["a", "n", "z"]
    assert len(group) == 3


def test_a_str_or_a_tuple_of_str_is_a_key(group: TensorGroup) -> None:
    tensor = group["n", "deep", "c"]
    assert group["n"]["deep"]["c"] is group["n"]["deep", "c"] is group[("n", "deep")]["c"] is tensor
    assert isinstance(group["n"], TensorGroup)
    assert torch.equal(group["n"][0:3]["deep", "c"], tensor[:, 0:3].T)
    assert group.get(("n", "deep", "c")) is tensor
    assert all(key in group for key in ("a", "n", ("n", "deep", "c")))
    assert repr(group).splitlines()[-2:] == [
        "    ('n', 'deep', 'c'): (2, None) torch.float32, shares [1]",
        "    'z': (None,) torch.float32, shares [0])",
    ]


@pytest.mark.parametrize("key", ["q", ("n", "q"), ("a", "b"), ("n", "deep", "c", "d")])
def test_a_missing_key_is_a_key_error_that_lists_what_there_is(group: TensorGroup, key: Any) -> None:
    with pytest.raises(KeyError, match=r"the keys are 'a', \('n', 'b'\)"):
        group[key]
    assert key not in group
    assert (group.get(key), group.get(key, 5)) == (None, 5)
    assert not any(other in group for other in (5, ()))


def test_select_and_exclude_keep_the_pixels_of_the_group() -> None:
    coarse = {"x": plain((None,)), "y": plain((None,))}
    group = TensorGroup({"fine": plain((None,)), "coarse": coarse}, scale={"coarse": 0.25})
    chosen = group.select("fine", ("coarse", "y"))
    assert chosen.keys(True, True) == ["fine", ("coarse", "y")]
    assert chosen.select("coarse")[8:16].batch_size == torch.Size([2])
    assert group.exclude("fine", ("coarse", "x"), "unknown").keys(True, True) == [("coarse", "y")]
    assert group.select("fine", "unknown", strict=False).keys() == ["fine"]
    with pytest.raises(KeyError, match="'unknown'"):
        group.select("unknown")
    with pytest.raises(ValidationError, match="at least one"):
        group.exclude("fine", "coarse")


def test_to_moves_all_tensors(group: TensorGroup) -> None:
    assert group.device == torch.device("cpu")
    assert group.to("meta") is group
    assert group.device == group["n", "b"].device == torch.device("meta")
    assert TensorGroup({"cpu": plain((None,)), "meta": group["a"]}).device is None


def test_a_failed_move_leaves_every_tensor_where_it_was() -> None:
    tensors = {"a": plain((None,)), "closed": plain((None,))}
    tensors["closed"].tile_store.close()
    group = TensorGroup(tensors)
    with pytest.raises(OSError, match="is closed"):
        group.to("meta")
    assert group.device == torch.device("cpu")


def test_a_pickled_group_reads_the_same_and_shares_what_it_shared(tmp_path: Path) -> None:
    world = World(ZarrTileStore(tmp_path / "world.zarr", tile_size=16))
    group = pickle.loads(pickle.dumps(TensorGroup({"world": world.group}, scale=2)))  # noqa: S301
    assert group.scale(("world", "height")) == (2, 2)
    place = group[0:4, 0:4]
    for key, pixels in world.expected(sl[0:8, 0:8]).items():
        assert torch.equal(place[("world", *key)], pixels)
    height, biome = group["world", "height"], group["world", "biome", "id"]
    assert height.tile_store is biome.tile_store
    assert copy.copy(group).keys() == group.keys()
