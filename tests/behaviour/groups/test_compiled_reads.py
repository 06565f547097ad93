"""Groups that are read within code that torch compiles or exports."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorGroup, TensorWindow, sl
from tests.behaviour.groups.world import World, plain
from tests.behaviour.test_workers import meeting
from tests.support import compiling
from tests.support.compiling import compiled
from tests.support.stores import sample

fresh = compiling.fresh


def assert_same(got: Any, expected: Any) -> None:
    assert (got.batch_size, got.device) == (expected.batch_size, expected.device)
    assert list(got.keys(True, True)) == list(expected.keys(True, True))
    assert all(torch.equal(got[key], expected[key]) for key in expected.keys(True, True))
    assert all(got[key].dtype == expected[key].dtype for key in expected.keys(True, True))


REGIONS = [sl[2:9:3, 8:0:-2], sl[3, 0:4], sl[0:9, -5:5], sl[-1, -1], sl[4:4, 0:3]]


@pytest.mark.parametrize("region", sample(REGIONS, *REGIONS[:2]))
def test_compiled_code_reads_what_is_read_without(region: Any) -> None:
    world = World()
    assert_same(compiled(lambda: world.group[region])(), world.group[region])


def test_compiled_code_computes_with_what_it_reads() -> None:
    world, x = World(), torch.ones(4, 4, requires_grad=True)

    def use(x: torch.Tensor) -> torch.Tensor:
        place = world.group[0:4, 0:4]
        total: torch.Tensor = (x * place["height"]).sum() + place["biome"]["weight"].float().sum()
        return total

    got = compiled(use)(x)
    assert torch.equal(got, use(x))
    got.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, world.height[0:4, 0:4])


@pytest.mark.parametrize(
    ("method", "key"),
    [("__getitem__", "biome"), ("select", "height"), ("exclude", ("biome", "id")), ("get", "biome")],
)
def test_compiled_code_chooses_tensors_and_reads_them(method: str, key: Any) -> None:
    group = World().group
    expected = getattr(group, method)(key)[0:4, 2:9]
    assert_same(compiled(lambda: getattr(group, method)(key)[0:4, 2:9])(), expected)
    assert torch.equal(compiled(lambda: group["biome", "id"][0:4, 0])(), group["biome", "id"][0:4, 0])


@pytest.mark.slow
def test_compiled_code_reads_tensors_of_several_resolutions() -> None:
    group = TensorGroup({"world": World().group, "climate": plain((None, None))}, scale={"climate": Fraction(1, 4)})
    assert_same(compiled(lambda: group[0:8, -4:8])(), group[0:8, -4:8])
    assert_same(compiled(lambda: group[5, 0:8])(), group[5, 0:8])
    assert_same(compiled(lambda: group[group.align(sl[1:7, 3:5])])(), group[0:8, 0:8])
    assert_same(compiled(lambda: group[1:7, 3:5])(), group[1:7, 3:5])


def test_what_several_tensors_and_regions_need_is_computed_once() -> None:
    # Nothing stays in memory, so that one plan only can do it.
    world, expected = World(MemoryTileStore(cache_size_bytes=1)), World().group
    near, far = compiled(lambda: world.group[[sl[0:8, 0:8], sl[4:12, 4]]])()
    assert_same(near, expected[0:8, 0:8])
    assert_same(far, expected[4:12, 4])
    assert set(world.calls.values()) == {1}


@pytest.mark.slow
def test_another_region_and_another_dtype_are_compiled_again() -> None:
    dtype = torch.float32
    t = InfiniteTensor((None,), lambda ctx: torch.full((4,), float(ctx[0]), dtype=dtype), TensorWindow((4,)))
    group = TensorGroup({"t": t})
    read = compiled(lambda start: group[start : start + 4]["t"])
    for start in (0, 3, 5, 8, -2):
        assert torch.equal(read(start), t[start : start + 4])
    dtype = torch.float64
    t.to(dtype)
    assert torch.equal(read(8), t[8:12])
    assert read(8).dtype == torch.float64


def test_a_read_runs_f_on_as_many_threads_as_it_says() -> None:
    def group() -> TensorGroup:
        return TensorGroup({"t": InfiniteTensor((None,), meeting(2), TensorWindow((4,)))})

    first, second = group(), group()
    assert compiled(lambda: first.read(sl[0:8], workers=2)["t"])().tolist() == [0] * 4 + [1] * 4
    one, other = compiled(lambda: second.read([sl[0:8], sl[8:16]], workers=2))()
    assert torch.cat([one["t"], other["t"]]).tolist() == [x // 4 for x in range(16)]


@pytest.mark.parametrize("strict", [True, False])
def test_a_read_of_a_group_is_exported_as_one_operator(strict: bool) -> None:
    module, group, x = nn.Module(), World().group, torch.ones(2, 3)
    module.forward = lambda x: x + group[-1:1, 0:3]["height"] + group[-1:1, 0:3]["biome", "id"]
    program = torch.export.export(module, (x,), strict=strict)
    assert "infinite_tensor.read_together" in str(program.graph)
    run: Any = program.module()
    assert torch.equal(run(x), module.forward(x))
