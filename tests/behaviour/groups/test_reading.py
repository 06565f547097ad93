"""Regions of a group."""

from __future__ import annotations

from fractions import Fraction

import pytest
import tensordict
import torch

from infinite_tensor import MemoryTileStore, TensorGroup, ValidationError, sl
from infinite_tensor.errors import RegionError
from tests.behaviour.groups.world import World, plain


def test_a_region_is_a_tensordict_nested_as_the_group_is() -> None:
    world = World()
    place = world.group[-5:12, 3:9]
    assert type(place) is tensordict.TensorDict
    assert place.batch_size == place["biome"].batch_size == torch.Size([17, 6])
    assert set(place.keys(True, True)) == {"height", ("biome", "id"), ("biome", "weight")}
    for key, pixels in world.expected(sl[-5:12, 3:9]).items():
        assert torch.equal(place[key], pixels)
        assert place[key].dtype == pixels.dtype


def test_what_several_tensors_need_is_computed_once() -> None:
    # A store that keeps nothing, so that only the plan can know.
    world = World(MemoryTileStore(cache_size_bytes=1))
    world.group[0:40, 0:40]
    noise = [name for name, _ in world.calls if name == "noise"]
    assert len(noise) >= 25
    assert set(world.calls.values()) == {1}


def test_a_list_of_regions_is_read_in_one_plan_and_returned_in_order() -> None:
    world = World(MemoryTileStore(cache_size_bytes=1))
    first, second = world.group[[sl[0:8, 0:8], sl[3, 2:12]]]
    assert (first.batch_size, second.batch_size) == (torch.Size([8, 8]), torch.Size([10]))
    assert torch.equal(second["biome", "weight"], world.expected(sl[3, 2:12])["biome", "weight"])
    assert set(world.calls.values()) == {1}
    assert world.group[[]] == []


def test_indices_work_as_on_a_tensor() -> None:
    world = World()
    assert world.group[3, -4].batch_size == torch.Size([])
    assert world.group[3, -4]["biome", "weight"].shape == (3,)
    thinned = world.group[10:0:-3, 0:8:2]
    for key, pixels in world.expected(sl[10:0:-3, 0:8:2]).items():
        assert torch.equal(thinned[key], pixels)
    assert world.group[0:0, 0:4].batch_size == torch.Size([0, 4])


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (sl[0:4], "unbounded"),
        (sl[0:4, 0:4, 0], "2 dimensions"),
        (torch.zeros(3), "Tensor"),
        (("height", 0), "height"),
    ],
)
def test_what_is_no_region_is_a_region_error(indices: object, message: str) -> None:
    with pytest.raises(RegionError, match=message):
        World().group[indices]


def test_the_unbounded_dimensions_are_shared_wherever_they_stand() -> None:
    group = TensorGroup(
        {"last": plain((None, None, 2)), "middle": plain((5, None, 3, None)), "all": plain((None, None))}
    )
    place = group[0:6, 1:9]
    assert place.batch_size == torch.Size([6, 8])
    assert {key: tuple(place[key].shape[2:]) for key in place.keys()} == {"last": (2,), "middle": (5, 3), "all": ()}  # noqa: SIM118  (a TensorDict iterates over its rows)


def test_dims_says_which_dimensions_are_shared_in_which_order() -> None:
    rows, columns = plain((None, None)), plain((None, None), 0.5)
    place = TensorGroup({"a": rows, "b": {"t": columns}}, dims={"b": (1, 0)})[0:3, 5:9]
    assert torch.equal(place["a"], rows[0:3, 5:9])
    assert torch.equal(place["b", "t"], columns[5:9, 0:3].T)
    finite = plain((2, 6, 4))
    group = TensorGroup({"x": finite, "y": finite}, dims=(-2, -1))
    assert group.shape == (6, 4)
    assert torch.equal(group[...]["x"], finite[...].movedim(0, -1))
    assert torch.equal(group[-1]["y"], finite[:, -1].movedim(0, -1))


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ({"a": plain((None, None)), "b": plain((None,))}, {}, "dims="),
        ({"a": plain((6, 4)), "b": plain((6, 4))}, {}, "dims="),
        ({"a": plain((None, None))}, {"dims": (0,)}, "add 1"),
        ({"a": plain((None, None))}, {"dims": (0, 2)}, "dims of 'a'"),
        ({"a": plain((None, None))}, {"dims": (0, -2)}, "dims of 'a'"),
        ({"a": plain((None, None))}, {"dims": {"b": (0, 1)}}, "dims is given for 'b'"),
        ({"a": plain((6, 4)), "b": plain((6, 5))}, {"dims": (0, 1)}, "'a' has .6, 4., 'b' has .6, 5."),
        ({"a": 3}, {}, "InfiniteTensor"),
        ({"a": {"b": torch.zeros(2)}}, {}, "InfiniteTensor"),
        ({}, {}, "at least one"),
        ({"a": {}}, {}, "'a' is empty"),
        ({"": plain((None,))}, {}, "names"),
        ({("a", "b"): plain((None,))}, {}, "names"),
        ([plain((None,))], {}, "mapping"),
    ],
)
def test_what_makes_no_group_is_an_error_that_says_what_to_do(tensors: object, options: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TensorGroup(tensors, **options)  # type: ignore[arg-type]


def test_a_group_in_a_group_keeps_its_dimensions_and_multiplies_its_scale() -> None:
    coarse = plain((None, None))
    inner = TensorGroup({"flipped": coarse}, dims=(1, 0), scale=0.5)
    outer = TensorGroup({"fine": plain((None, None)), "inner": inner}, scale={"inner": 0.5})
    assert outer.scale(("inner", "flipped")) == (Fraction(1, 4), Fraction(1, 4))
    assert torch.equal(outer[0:8, 4:12]["inner", "flipped"], coarse[1:3, 0:2].T)
    assert TensorGroup(inner, scale=2).scale("flipped") == (Fraction(1), Fraction(1))
