"""Planning, filling and invalidating regions of a group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    TensorGroup,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from tests.behaviour.groups.world import World, plain
from tests.support.counting import Counted


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(ZarrTileStore(tmp_path / "world.zarr", tile_size=16))


def test_a_fill_computes_what_its_plan_counts_and_afterwards_nothing_is_computed(world: World) -> None:
    group = world.group
    plan = group.plan(sl[0:32, 0:32])
    assert sorted(tensor.tensor_id for tensor in plan.tensors) == ["height", "id", "noise", "weight"]
    assert not group.is_filled(sl[0:32, 0:32])
    assert not group.coverage(sl[0:32, 0:32])["biome"]["id"].any()
    assert not world.calls
    report = group.fill(sl[0:32, 0:32], progress=False)
    assert report.windows == plan.windows == world.calls.total()
    assert set(world.calls.values()) == {1}
    assert group.is_filled(sl[0:32, 0:32])
    coverage = group.coverage(sl[0:32, 0:32])
    assert coverage["biome"]["weight"].shape == (1, 2, 2)
    assert all(tiles.all() for tiles in (coverage["height"], coverage["biome"]["id"], coverage["biome"]["weight"]))
    place = group[0:32, 0:32]
    assert world.calls.total() == plan.windows
    assert torch.equal(place["biome", "weight"], world.expected(sl[0:32, 0:32])["biome", "weight"])


def _ground(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(256.0).reshape(16, 16) + ctx[0] - ctx[1]


def _sharing(store: TileStore, ground: Counted) -> TensorGroup:
    """Three tensors over one, of which nothing is kept: one with a halo, one with channels first, one coarse."""
    keeps_nothing, plain = MemoryTileStore(cache_size_bytes=1), TensorWindow((16, 16))
    below = InfiniteTensor((None, None), ground, plain, tile_store=keeps_nothing, tensor_id="below")

    def above(name: str, f: Callable[..., torch.Tensor], window: TensorWindow, arg: TensorWindow) -> InfiniteTensor:
        shape = (3, None, None)[3 - window.ndim :]
        return InfiniteTensor(shape, f, window, [below], [arg], tile_store=store, tensor_id=name)

    halo, channels = TensorWindow((20, 20), stride=16, offset=-2), TensorWindow((16, 16), dimension_map=(1, 2))
    return TensorGroup(
        {
            "smooth": above("smooth", lambda _ctx, region: region[2:-2, 2:-2] + region[4:, 4:], plain, halo),
            "colour": above("colour", lambda _ctx, r: torch.stack([r, -r, r]), TensorWindow((3, 16, 16)), channels),
            "coarse": above("coarse", lambda _ctx, region: region[::2, ::2], TensorWindow((8, 8)), plain),
        },
        scale={"coarse": 0.5},
    )


@pytest.mark.parametrize(("max_memory", "most"), [(None, 1.0), (67 * 2**20, 1.25)], ids=["one band", "several bands"])
def test_what_tensors_share_is_computed_once_for_all_however_little_its_store_keeps(
    max_memory: int | None, most: float, tmp_path: Path
) -> None:
    ground = Counted(_ground)
    region = sl[-30:500, 0:1024]
    with ZarrTileStore(tmp_path / "store", tile_size=64, cache_size_bytes=2**20) as store:
        group = _sharing(store, ground)
        report = group.fill(region, max_memory=max_memory, progress=False)
        assert len(ground.calls) <= most * len(ground.counts)
        assert report.windows == len(ground.calls) + sum(tensor.windows for tensor in report.tensors[1:])
        assert group.is_filled(region)
        found, expected = group[region], _sharing(MemoryTileStore(), Counted(_ground))[region]
        for key in group:
            assert torch.equal(found[key], expected[key])


def test_each_tensor_is_filled_at_its_own_resolution() -> None:
    coarse = plain((None, None), tile_store=MemoryTileStore())
    group = TensorGroup({"fine": plain((None, None)), "coarse": coarse}, scale={"coarse": 0.25})
    group.fill(sl[0:32, 16:32], progress=False)
    assert coarse.is_filled(sl[0:8, 4:8])
    assert not coarse.is_filled(sl[8:12, 0:4])
    assert group.is_filled(sl[0:32, 16:32])
    group.fill(sl[30:33, 16:32], progress=False)
    assert coarse.is_filled(sl[7:9, 4:8])


def test_invalidate_drops_a_region_of_all_tensors(world: World) -> None:
    group = world.group
    group.fill(sl[0:32, 0:32], progress=False)
    dropped = group.invalidate(sl[0:4, 0:4])
    assert {tensor.tensor_id for tensor in dropped.tensors} == {"height", "id", "weight"}
    assert dropped.tiles > 0
    assert not group.coverage(sl[0:32, 0:32])["height"].flatten()[0]
    assert group.is_filled(sl[20:32, 20:32])
    group.invalidate()
    assert not group.coverage(sl[16:32, 16:32])["biome"]["id"].any()


def test_where_one_tensor_cannot_be_dropped_none_is(tmp_path: Path) -> None:
    def line_in(store: TileStore) -> InfiniteTensor:
        return InfiniteTensor((8,), lambda _ctx: torch.zeros(4), TensorWindow((4,)), tile_store=store, tensor_id="line")

    with ZarrTileStore(tmp_path) as store:
        line_in(store)[0:8]
    line, rows = line_in(MemoryTileStore()), line_in(ZarrTileStore(tmp_path, mode="r"))
    group = TensorGroup({"line": line, "rows": rows}, dims=(0,))
    line[0:8]
    with pytest.raises(ValidationError, match="read-only"):
        group.invalidate()
    assert line.is_filled(sl[0:8])
    group.exclude("rows").invalidate()
    assert not line.is_filled(sl[0:8])
