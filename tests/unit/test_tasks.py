"""Cutting what a fill needs of a tensor into tasks."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import InfiniteTensor, Output, TensorWindow, ZarrTileStore
from infinite_tensor.engine.chain import chain_of, node_of
from infinite_tensor.filling.cluster import compute, parts_of, spread
from infinite_tensor.filling.mask import Target
from infinite_tensor.filling.plan import Demand, demands
from infinite_tensor.geometry.points import as_tuples


def demand_of(t: InfiniteTensor, rows: int, columns: int) -> Demand:
    return demands([Target(node_of(t), (0, 0), (rows, columns))])[0][0]


@pytest.fixture
def tensor(tmp_path: Path) -> InfiniteTensor:
    """Windows of 16x16, four to a tile."""
    store = ZarrTileStore(tmp_path, tile_size=32)
    return InfiniteTensor(
        (None, None), lambda _ctx: torch.ones(16, 16), TensorWindow((16, 16)), tile_store=store, tensor_id="t"
    )


@given(st.integers(0, 1000))
def test_spread_numbers_are_all_numbers(count: int) -> None:
    assert sorted(spread(count)) == list(range(count))


@pytest.mark.parametrize("stored", [False, True])
def test_every_window_is_in_exactly_one_task(stored: bool, tensor: InfiniteTensor) -> None:
    if stored:
        tensor[0:32, 0:64]
    demand = demand_of(tensor, 640, 320)
    assert isinstance(demand.windows, np.ndarray) is stored
    windows = [index for part in parts_of(demand, 2) for index in as_tuples(part)]
    assert len(windows) == len(set(windows)) == demand.missing == 40 * 20 - 8 * stored


def test_windows_that_two_readers_need_are_in_one_task() -> None:
    window = TensorWindow((4,))
    base = InfiniteTensor((None,), lambda _ctx: torch.ones(4), window, tensor_id="base")
    t = InfiniteTensor(
        (None,),
        lambda _ctx, a, b: a + b,
        window,
        args=[base, base],
        args_windows=[window, TensorWindow((4,), offset=64)],
    )
    _, demand = demands([Target(node_of(t), (0,), (256,))])[0]
    assert len(demand.windows) == 2
    windows = [index for part in parts_of(demand, 2) for index in as_tuples(part)]
    assert len(windows) == len(set(windows)) == demand.missing == 80


@pytest.mark.parametrize("stored", [False, True])
def test_tasks_that_are_under_way_together_are_all_over_the_keys(stored: bool, tensor: InfiniteTensor) -> None:
    if stored:
        tensor[0:32, 0:64]
    rows = [int(part[0, 0]) * 16 / 4096 for part in parts_of(demand_of(tensor, 4096, 4096), 1)]
    for begin in range(0, len(rows) - 16, 16):
        quarters = {int(4 * row) for row in rows[begin : begin + 16]}
        assert quarters == {0, 1, 2, 3}


def test_a_task_goes_on_where_one_has_ended_that_is_long_done(tensor: InfiniteTensor) -> None:
    parts = [as_tuples(part) for part in parts_of(demand_of(tensor, 4096, 4096), 1)]
    in_order = sorted(range(len(parts)), key=lambda number: parts[number][0])
    apart = np.abs(np.diff(in_order))
    assert apart.min() > 16


@pytest.mark.parametrize("threads", [1, 1000])
@pytest.mark.parametrize("side", [32, 512, 1024, 4096])
def test_there_are_tasks_for_workers_that_come_later_and_not_too_many(
    side: int, threads: int, tensor: InfiniteTensor
) -> None:
    tiles = (side // 32) ** 2
    tasks = sum(1 for _ in parts_of(demand_of(tensor, side, side), threads))
    assert min(tiles, 256) <= tasks <= 2 * max(256, 4 * threads)


def test_a_task_is_64_mib_at_most(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=512)
    t = InfiniteTensor(
        (None, None), lambda _ctx: torch.ones(512, 512), TensorWindow((512, 512)), tile_store=store, tensor_id="t"
    )
    assert {len(part) for part in parts_of(demand_of(t, 2**17, 2**17), 1)} == {64}


def outputs(_ctx: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {"x": torch.ones(4), "y": torch.zeros(4)}


def test_a_task_that_is_repeated_stores_what_a_lost_worker_had_not_of_another_output(tmp_path: Path) -> None:
    window = TensorWindow((4,))
    declared = {name: Output((None,), torch.float32, window) for name in ("x", "y")}
    with ZarrTileStore(tmp_path / "s", tile_size=4) as store:
        world = InfiniteTensor.from_multi(outputs, declared, tile_store=store, tensor_id="j")
        lost, other = (pickle.dumps(([world["x"], world["y"]], {}), protocol) for protocol in (4, 5))
        windows = np.arange(8)[:, None]
        place = [node.spec.tensor_id for node in chain_of([node_of(world["x"]), node_of(world["y"])])].index("j/x")
        compute(lost, place, windows, None)
        chunk = min((tmp_path / "s").glob("t-j=2Fy/tiles-*/c/*"))
        chunk.unlink()
        again = compute(other, place, windows, None)
        assert sum(again.windows) >= 1
        assert chunk.exists()
        assert world["x"].is_filled(slice(0, 32))
        assert world["y"].is_filled(slice(0, 32))
