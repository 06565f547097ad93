"""Groups that are saved in a store and found again by their id."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    MemoryTileStore,
    StoreError,
    TensorGroup,
    TileAccessError,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from tests.behaviour.groups.world import World, plain
from tests.support.interpreters import run
from tests.support.stores import sample

Open: TypeAlias = Callable[[], AbstractContextManager[TileStore]]


@pytest.fixture(params=sample(["memory", "zarr", "hdf5"]))
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Opens the store, always the same one: what is in memory outlives its end."""
    memory = MemoryTileStore()
    return {
        "memory": lambda: nullcontext(memory),
        "zarr": lambda: ZarrTileStore(tmp_path / "world.zarr", tile_size=16),
        "hdf5": lambda: HDF5TileStore(tmp_path / "world.h5", tile_size=16),
    }[request.param]


def test_a_group_is_found_again_with_its_names_dimensions_and_scales(opened: Open) -> None:
    with opened() as store:
        world = World(store)
        members = {"near": world.group, "far": {"height": world.height}}
        group = TensorGroup(members, dims={"far": (1, 0)}, scale={"far": 0.5})
        expected = group[0:8, 4:12]
        group.save(store, "worlds/first")
    with opened() as store:
        assert store.group_ids() == ["worlds/first"]
        again = store.open_group("worlds/first")
        assert again.keys(True) == group.keys(True)
        assert repr(again) == repr(group)
        place = again[0:8, 4:12]
        assert place.batch_size == expected.batch_size
        for key in expected.keys(True, True):
            assert torch.equal(place[key], expected[key])
        with pytest.raises(TileAccessError):
            again[100:108, 0:8]


def test_functions_given_by_key_compute_what_is_missing(opened: Open) -> None:
    with opened() as store:
        world = World(store)
        world.group.save(store, "world")
    with opened() as store:
        noise = store.open("noise", world.noise.f)
        tensors: Any = world.group.items(True, True)
        members = {key: store.open(t.tensor_id, t.f, [noise]) for key, t in tensors}
        place = store.open_group("world", members=members)[40:48, 0:8]
        for key, pixels in world.expected(sl[40:48, 0:8]).items():
            assert torch.equal(place[key], pixels)


def test_a_function_by_key_is_enough_where_nothing_else_is_needed(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=8) as store:
        tensor = plain((None,), tile_store=store, tensor_id="x")
        TensorGroup({"a": {"x": tensor}}).save(store, "g")
        f = tensor.f
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        assert f is not None
        assert store.open_group("g", {"a": f})[0:4]["a", "x"].tolist() == [0, 1, 2, 3]
        with pytest.raises(ValidationError, match="f is given for 'b', but the keys of the group are"):
            store.open_group("g", {"b": f})
        with pytest.raises(ValidationError, match="f must be a mapping from keys"):
            store.open_group("g", f)  # type: ignore[arg-type]


def test_saving_an_equal_group_changes_nothing_and_another_one_is_refused(opened: Open) -> None:
    with opened() as store:
        world = World(store)
        world.group.save(store, "world")
        world.group.save(store, "world")
        other = TensorGroup({"height": world.height, "noise": world.noise}, scale={"height": 2})
        with pytest.raises(ValidationError, match="already contains a group 'world' of other tensors") as caught:
            other.save(store, "world")
        message = str(caught.value)
        assert re.search(r"'height': stored tensor 'height'.*dims \[0, 1\], scale 2 x 2", message)
        assert "('biome', 'id'): stored tensor 'id'" in message
        assert "'noise': stored nothing" in message
        assert "store.clear_group('world')" in message
        assert store.open_group("world").keys() == ["height", "biome"]
        store.clear_group("world")
        other.save(store, "world")
        assert store.open_group("world").keys() == ["height", "noise"]


def test_tensors_may_be_in_other_stores_which_opening_is_told_of(tmp_path: Path) -> None:
    places = [tmp_path / "here.zarr", tmp_path / "there.zarr", tmp_path / "third.h5"]
    with ZarrTileStore(places[0]) as here, ZarrTileStore(places[1]) as there, HDF5TileStore(places[2]) as third:
        tensors = [
            plain((None,), float(number), tile_store=store, tensor_id="x", version=number)
            for number, store in enumerate((here, there, third))
        ]
        group = TensorGroup({str(number): tensor for number, tensor in enumerate(tensors)})
        expected = group[0:4]
        group.save(here, "all")
    with ZarrTileStore(places[0]) as here, ZarrTileStore(places[1]) as there, HDF5TileStore(places[2]) as third:
        again: Any = here.open_group("all", stores=[there, third])
        assert again["2"].tile_store is third
        assert (again[0:4] == expected).all()
        with pytest.raises(StoreError, match="'2' of group 'all', tensor 'x', cannot be opened") as caught:
            here.open_group("all", stores=[there])
        assert str(caught.value).count("contains a tensor 'x' with another definition") == 2
        given = here.open_group("all", members={"1": there.open("x"), "2": third.open("x")})
        assert (given[0:4] == expected).all()
        with pytest.raises(
            ValidationError,
            match=r"members\['1'\] must have the stored definition of tensor 'x' in group 'all', got tensor",
        ):
            here.open_group("all", members={"1": third.open("x")})
        with pytest.raises(ValidationError, match="stores must be a list of TileStores"):
            here.open_group("all", stores=["there.zarr"])


def test_two_store_objects_on_one_target_are_one_place(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as one, ZarrTileStore(tmp_path / "s.zarr") as other:
        TensorGroup({"x": plain((None,), tile_store=one, tensor_id="x")}).save(other, "g")
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        assert store.open_group("g").keys() == ["x"]


def test_a_tensor_without_an_id_cannot_be_saved(opened: Open) -> None:
    with opened() as store:
        group = TensorGroup({"n": {"x": plain((None,), tile_store=store)}})
        with pytest.raises(ValidationError, match=r"\('n', 'x'\) of the group must have a tensor_id to be reopened"):
            group.save(store, "g")
        with pytest.raises(ValidationError, match="store must be a TileStore"):
            group.save("world.zarr", "g")  # type: ignore[arg-type]
        assert store.group_ids() == []


def test_a_missing_tensor_or_group_is_an_error_that_says_what_there_is(opened: Open) -> None:
    with opened() as store:
        World(store).group.save(store, "world")
        with pytest.raises(StoreError, match=r"contains no group 'q'; the groups are \['world'\]"):
            store.open_group("q")
        with pytest.raises(StoreError, match=r"no group 'height'; 'height' is a tensor: call store.open\('height'\)"):
            store.open_group("height")
        store.clear_tensor("id")
        with pytest.raises(StoreError, match=r"\('biome', 'id'\) of group 'world', tensor 'id', cannot be"):
            store.open_group("world")


def test_a_tensor_that_was_recreated_is_not_the_one_of_the_group(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        TensorGroup({"x": plain((None,), tile_store=store, tensor_id="x")}).save(store, "g")
        store.clear_tensor("x")
        plain((None,), tile_store=store, tensor_id="x", version=2)
        with pytest.raises(StoreError, match="contains a tensor 'x' with another definition"):
            store.open_group("g")


def test_a_read_only_store_opens_groups_and_saves_none(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        tensor = plain((None,), tile_store=store, tensor_id="x")
        TensorGroup({"x": tensor}).save(store, "g")
    with ZarrTileStore(tmp_path / "s.zarr", mode="r") as store:
        group = store.open_group("g")
        with pytest.raises(ValidationError, match="is read-only: it cannot save group 'h'"):
            group.save(store, "h")
        with pytest.raises(ValidationError, match="is read-only: it cannot clear group 'g'"):
            store.clear_group("g")


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a member that is none": lambda group: group["members"].append(3),
    "no members": lambda group: group.update(members=[]),
    "a scale that takes for ever": lambda group: group["members"][0].update(scale=["1e999999999", "1"]),
    "a dimension that is none": lambda group: group["members"][0].update(dims=[0, 7]),
    "one name twice": lambda group: group["members"].append(group["members"][0]),
    "a name in a tensor": lambda group: group["members"].append({**group["members"][0], "key": ["height", "x"]}),
    "no format": lambda group: group.pop("format"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_definition_that_is_none_is_an_error_that_says_how_to_go_on(damage: Any) -> None:
    store = MemoryTileStore()
    group = World(store).group
    group.save(store, "world")
    definition = json.loads(json.dumps(store._contents.stored_group("world")))
    store.clear_group("world")
    damage(definition)
    store._contents.store_group("world", definition)
    with pytest.raises(StoreError, match=r"group 'world', its definition, is damaged.*clear_group\('world'\)"):
        store.open_group("world")
    store.clear_group("world")
    group.save(store, "world")
    assert store.open_group("world").keys() == ["height", "biome"]


def test_a_group_of_a_later_version_is_refused() -> None:
    store = MemoryTileStore()
    store._contents.store_group("g", {"format": 2, "group_id": "g"})
    with pytest.raises(StoreError, match="group 'g' has format 2, this version reads up to 1; open it with a later"):
        store.open_group("g")


def test_a_flipped_bit_is_found_in_zarr(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        TensorGroup({"x": plain((None,), tile_store=store, tensor_id="x")}).save(store, "g")
        document = tmp_path / "s.zarr" / "g-g" / "zarr.json"
        document.write_bytes(document.read_bytes().replace(b'"1"', b'"3"'))
        with pytest.raises(StoreError, match=r"group 'g', g-g/zarr.json, is damaged"):
            store.open_group("g")
        assert store.group_ids() == ["g"]
        assert store.tensor_ids() == ["x"]
        store.clear_group("g")
        assert store.group_ids() == []


SCRIPT = """
import sys
from infinite_tensor import open_store
with open_store(sys.argv[1], mode="r") as store:
    place = store.open_group("world")[0:8, 4:12]
    print(tuple(place.batch_size), place["biome", "weight"].float().sum().item(), place["height"].sum().item())
"""


@pytest.mark.parametrize("target", ["world.zarr", "world.h5"])
def test_another_process_opens_it(target: str, tmp_path: Path) -> None:
    kind = HDF5TileStore if target.endswith("h5") else ZarrTileStore
    with kind(tmp_path / target, tile_size=16) as store:
        world = World(store)
        world.group.fill(sl[0:8, 4:12], progress=False)
        world.group.save(store, "world")
    done = run("-c", SCRIPT, tmp_path / target)
    assert done.returncode == 0, done.stderr
    expected = world.expected(sl[0:8, 4:12])
    sums = expected["biome", "weight"].float().sum().item(), expected["height",].sum().item()
    assert done.stdout.split() == f"(8, 8) {sums[0]} {sums[1]}".split()
