"""Groups that are saved in a store and found again by their id."""

from __future__ import annotations

import json
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
        functions = {key: t.f for key, t in tensors}
        # A function is enough for a tensor whose args can be read.
        noise.fill(sl[32:56, -8:16], progress=False)
        for options in ({"members": members}, {"f": functions}):
            place = store.open_group("world", **options)[40:48, 0:8]
            for key, pixels in world.expected(sl[40:48, 0:8]).items():
                assert torch.equal(place[key], pixels)
        for f in ({"b": noise.f}, noise.f):
            with pytest.raises(ValidationError, match="f "):
                store.open_group("world", f)  # type: ignore[arg-type]


def test_saving_an_equal_group_changes_nothing_and_another_one_is_refused(opened: Open) -> None:
    with opened() as store:
        world = World(store)
        world.group.save(store, "world")
        world.group.save(store, "world")
        other = TensorGroup({"height": world.height, "noise": world.noise}, scale={"height": 2})
        with pytest.raises(ValidationError, match="world") as caught:
            other.save(store, "world")
        message = str(caught.value)
        for word in ("scale 2 x 2", "('biome', 'id'): stored", "'noise': stored nothing", "clear_group('world')"):
            assert word in message
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
        with pytest.raises(ValidationError, match=r"members\['1'\]"):
            here.open_group("all", members={"1": third.open("x")})
        with pytest.raises(ValidationError, match="stores"):
            here.open_group("all", stores=["there.zarr"])


def test_a_tensor_without_an_id_cannot_be_saved(opened: Open) -> None:
    with opened() as store:
        group = TensorGroup({"n": {"x": plain((None,), tile_store=store)}})
        with pytest.raises(ValidationError, match="tensor_id"):
            group.save(store, "g")
        with pytest.raises(ValidationError, match="store"):
            group.save("world.zarr", "g")  # type: ignore[arg-type]
        assert store.group_ids() == []


def test_a_missing_tensor_or_group_is_an_error_that_says_what_there_is(opened: Open) -> None:
    with opened() as store:
        World(store).group.save(store, "world")
        with pytest.raises(StoreError, match=r"\['world'\]"):
            store.open_group("q")
        with pytest.raises(StoreError, match=r"store.open\('height'\)"):
            store.open_group("height")
        store.clear_tensor("id")
        with pytest.raises(StoreError, match="tensor 'id'"):
            store.open_group("world")


def test_a_read_only_store_opens_groups_and_saves_none(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        tensor = plain((None,), tile_store=store, tensor_id="x")
        TensorGroup({"x": tensor}).save(store, "g")
    with ZarrTileStore(tmp_path / "s.zarr", mode="r") as store:
        group = store.open_group("g")
        with pytest.raises(ValidationError, match="read-only"):
            group.save(store, "h")
        with pytest.raises(ValidationError, match="read-only"):
            store.clear_group("g")


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a member that is none": lambda group: group["members"].append(3),
    "no members": lambda group: group.update(members=[]),
    "a scale that takes for ever": lambda group: group["members"][0].update(scale=["1e999999999", "1"]),
    "a dimension that is none": lambda group: group["members"][0].update(dims=[0, 7]),
    "one name twice": lambda group: group["members"].append(group["members"][0]),
    "a name in a tensor": lambda group: group["members"].append({**group["members"][0], "key": ["height", "x"]}),
    "no format": lambda group: group.pop("format"),
    "a later format": lambda group: group.update(format=2),
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
    with pytest.raises(StoreError, match=r"group 'world'.*(clear_group\('world'\)|later version)"):
        store.open_group("world")
    store.clear_group("world")
    group.save(store, "world")
    assert store.open_group("world").keys() == ["height", "biome"]


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
