"""Planning, filling and invalidating regions of a group."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    RegionError,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    sl,
)
from tests.groups.world import World, plain


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(ZarrTileStore(tmp_path / "world.zarr", tile_size=16))


def test_a_plan_counts_what_several_tensors_need_once(world: World) -> None:
    plan = world.group.plan(sl[0:32, 0:32])
    assert sorted(tensor.tensor_id for tensor in plan.tensors) == ["height", "id", "noise", "weight"]
    assert not world.calls
    report = world.group.fill(sl[0:32, 0:32], progress=False)
    assert report.windows == plan.windows == world.calls.total()
    assert set(world.calls.values()) == {1}


def test_after_a_fill_nothing_is_computed_any_more(world: World) -> None:
    group = world.group
    assert not group.is_filled(sl[0:32, 0:32])
    assert not group.coverage(sl[0:32, 0:32])["biome"]["id"].any()
    group.fill(sl[0:32, 0:32], progress=False)
    assert group.is_filled(sl[0:32, 0:32])
    coverage = group.coverage(sl[0:32, 0:32])
    assert coverage["biome"]["weight"].shape == (1, 2, 2)
    assert all(tiles.all() for tiles in (coverage["height"], coverage["biome"]["id"], coverage["biome"]["weight"]))
    before = world.calls.total()
    place = group[0:32, 0:32]
    assert world.calls.total() == before
    assert torch.equal(place["biome", "weight"], world.expected(sl[0:32, 0:32])["biome", "weight"])


def test_each_tensor_is_filled_at_its_own_resolution() -> None:
    coarse = plain((None, None), tile_store=MemoryTileStore())
    group = TensorGroup({"fine": plain((None, None)), "coarse": coarse}, scale={"coarse": 0.25})
    group.fill(sl[0:32, 16:32], progress=False)
    assert coarse.is_filled(sl[0:8, 4:8])
    assert not coarse.is_filled(sl[8:12, 0:4])
    assert group.is_filled(sl[0:32, 16:32])
    with pytest.raises(RegionError, match="whole pixels"):
        group.fill(sl[0:30, 16:32], progress=False)


def test_invalidate_drops_a_region_of_all_tensors(world: World) -> None:
    group = world.group
    group.fill(sl[0:32, 0:32], progress=False)
    dropped = group.invalidate(sl[0:4, 0:4])
    assert {tensor.tensor_id for tensor in dropped.tensors} == {"height", "id", "weight"}
    assert dropped.tiles > 0
    assert not any(tiles.flatten()[0] for tiles in (group.coverage(sl[0:32, 0:32])["height"],))
    assert group.is_filled(sl[20:32, 20:32])
    group.invalidate()
    assert not group.coverage(sl[16:32, 16:32])["biome"]["id"].any()


def test_a_tensor_that_another_of_the_group_reads_is_dropped_once() -> None:
    below = plain((None, None))
    above = InfiniteTensor(
        (None, None),
        lambda _ctx, region: region,
        TensorWindow((4, 4)),
        args=[below],
        args_windows=[TensorWindow((4, 4))],
    )
    group = TensorGroup({"below": below, "above": above})
    group.fill(sl[0:16, 0:16], progress=False)
    windows = [tensor.plan(sl[0:16, 0:16]).tensors[-1].stored for tensor in (below, above)]
    dropped = group.invalidate(sl[0:16, 0:16])
    assert [(tensor.tensor_id, tensor.windows) for tensor in dropped.tensors] == [
        (below.tensor_id, windows[0]),
        (above.tensor_id, windows[1]),
    ]
    assert not group.is_filled(sl[0:4, 0:4])


def test_where_one_tensor_cannot_be_dropped_none_is(tmp_path: Path) -> None:
    with TensorBlob.open(tmp_path / "rows", "w", dtype="float32", shape=()) as blob:
        blob.write(torch.arange(8.0))
    line = InfiniteTensor((8,), lambda _ctx: torch.zeros(4), TensorWindow((4,)))
    group = TensorGroup({"line": line, "rows": TensorBlob.open(tmp_path / "rows").as_tensor()}, dims=(0,))
    line[0:8]
    with pytest.raises(ValidationError, match="holds what cannot be computed again"):
        group.invalidate()
    assert line.is_filled(sl[0:8])
    group.exclude("rows").invalidate()
    assert not line.is_filled(sl[0:8])


def test_clear_cache_forgets_what_is_in_memory() -> None:
    world = World()
    world.group[0:8, 0:8]
    before = world.calls.total()
    world.group.clear_cache()
    world.group[0:8, 0:8]
    assert before < world.calls.total() < 2 * before
