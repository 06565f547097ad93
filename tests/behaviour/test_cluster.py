"""Filling a region on a Dask cluster of processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import Client

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    OutOfMemoryError,
    Output,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    sl,
)
from infinite_tensor.filling import Progress
from tests.support.building import built, store_of
from tests.support.clusters import chain, cluster, computed, meeting, more_workers, one_worker_killed, with_ends
from tests.support.files_of_a_store import Files
from tests.support.together import fill_together, plan_together

REGION = sl[-70:90, 0:150]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster() as running:
        yield running


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    pixels: torch.Tensor = chain(MemoryTileStore(), tmp_path_factory.mktemp("reference"))[REGION]
    return pixels


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ZarrTileStore]:
    with ZarrTileStore(tmp_path / "store", tile_size=64) as opened:
        yield opened


@pytest.fixture
def t(store: ZarrTileStore, tmp_path: Path) -> InfiniteTensor:
    return chain(store, tmp_path)


SHARDS = 8
"""Four to each thread."""


def test_a_plan_tells_which_windows_lie_across_the_borders_of_shards(
    client: Client, truth: torch.Tensor, tmp_path: Path, t: InfiniteTensor
) -> None:
    least, plan = t.plan(REGION), t.plan(REGION, shards=SHARDS)
    report = t.fill(REGION, client=client, progress=False)
    calls = computed(tmp_path)
    assert [len(counter) for counter in calls] == [tensor.windows for tensor in least.tensors]
    assert [counter.total() for counter in calls] == [tensor.windows for tensor in plan.tensors]
    assert [tensor.windows for tensor in report.tensors] == [tensor.windows for tensor in plan.tensors]
    assert t.coverage(REGION).all()
    assert report.tensors[-1].tiles == t.coverage(REGION).numel()
    assert torch.equal(t[REGION], truth)
    assert computed(tmp_path) == calls
    t.tile_store.close()
    files = Files(tmp_path / "store")
    assert not files.tensors["level-2"].logs
    assert not files.leavings


def test_a_chain_with_a_coarse_arg_computes_little_twice(client: Client, tmp_path: Path) -> None:
    """Windows that overlap read pixels eight times as large, with a halo."""
    noise = built(lambda ctx: torch.full((16, 16), float(ctx[0])), (16, 16))
    window = TensorWindow((16, 16), stride=12)
    with ZarrTileStore(tmp_path, tile_size=96) as store:
        coarse = built(lambda _ctx, x: x[2:-2, 2:-2], window, (noise, window.padded(2)), store=store, name="coarse")
        around = TensorWindow((6, 6), stride=2, offset=-2)
        fine = built(lambda _ctx, x: x.mean().expand(16, 16), window, (coarse, around), store=store, name="fine")
        region = sl[0:768, 0:768]
        least, plan = fine.plan(region).tensors[1:], fine.plan(region, shards=SHARDS).tensors[1:]
        report = fine.fill(region, client=client, progress=False).tensors[1:]
        assert [each.windows for each in report] == [each.windows for each in plan]
        assert sum(each.windows for each in report) <= 1.15 * sum(each.windows for each in least)


def test_it_goes_on_from_what_is_stored(client: Client, truth: torch.Tensor, tmp_path: Path, t: InfiniteTensor) -> None:
    t[0:70, 0:70]
    before, plan = computed(tmp_path), t.plan(REGION, shards=SHARDS)
    t.fill(REGION, client=client, progress=False)
    assert [max(counter.values()) for counter in before] == [1] * 3
    assert [counter.total() for counter in computed(tmp_path)] == [
        tensor.windows + known.total() for tensor, known in zip(plan.tensors, before, strict=True)
    ]
    assert torch.equal(t[REGION], truth)
    assert t.fill(REGION, client=client, progress=False).windows == 0


def test_windows_at_an_end_and_their_means_are_those_of_one_process(client: Client, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "store", tile_size=32) as store:
        t = with_ends(store, tmp_path)
        plan = t.plan(sl[:, :], shards=SHARDS)
        report = t.fill(sl[:, :], client=client, progress=False)
        calls = computed(tmp_path, 2)
        assert [counter.total() for counter in calls] == [tensor.windows for tensor in plan.tensors]
        assert report.windows == plan.windows
        pixels = t[:, :]
        assert computed(tmp_path, 2) == calls
    (tmp_path / "alone").mkdir()
    assert torch.equal(pixels, with_ends(MemoryTileStore(), tmp_path / "alone")[:, :])


def test_an_f_with_several_outputs_is_run_for_all_of_them(client: Client, tmp_path: Path) -> None:
    outputs = {
        "rgb": Output((2, None, None), torch.float32, TensorWindow((2, 16, 16), dimension_map=(None, 0, 1))),
        "mask": Output((None, None), torch.bool, TensorWindow((16, 16), stride=12)),
    }

    def paint(ctx: tuple[int, ...]) -> dict[str, torch.Tensor]:
        with (tmp_path / "computed-0").open("a") as log:
            log.write(f"{ctx}\n")
        picture = torch.arange(512.0).reshape(2, 16, 16) + 100 * ctx[0] + ctx[1]
        return {"rgb": picture, "mask": picture[0] % 2 == 0}

    with ZarrTileStore(tmp_path / "store", tile_size=64) as store:
        world: Any = InfiniteTensor.from_multi(paint, outputs, tile_store=store, tensor_id="world")
        parts = (world["rgb"], sl[:, 0:100, 0:100]), (world["mask"], sl[0:100, 30:130])
        plan = plan_together(*parts)
        report = fill_together(*parts, client=client, progress=False)
        (calls,) = computed(tmp_path, 1)
        assert {t.tensor_id: t.windows for t in report.tensors} == {"world/rgb": calls.total(), "world/mask": 0}
        assert plan.windows == len(calls)
        # Those of the mask that lie across the border of two shards.
        assert calls.total() <= 1.3 * len(calls)
        assert world["rgb"].is_filled(sl[:, 0:100, 0:100])
        assert world["mask"].is_filled(sl[0:100, 30:130])
        assert computed(tmp_path, 1) == [calls]


def test_a_worker_that_is_killed_costs_no_pixel(truth: torch.Tensor, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "store", tile_size=64) as store, cluster() as own:
        t = chain(store, tmp_path)
        with one_worker_killed(own, tmp_path, after=20):
            t.fill(REGION, client=own, progress=False)
        assert t.is_filled(REGION)
        assert torch.equal(t[REGION], truth)
        assert [store.verify(name) for name in store.tensor_ids()] == [[]] * 3


def test_workers_that_come_later_are_given_work(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "store", tile_size=16) as store, cluster(1) as own:
        t = built(meeting(tmp_path, 3), (16, 16), store=store, name="t")
        with more_workers(own, tmp_path, 3):
            assert t.fill(sl[0:64, 0:64], client=own, progress=False).windows == 16


def test_a_tensor_upstream_in_memory_is_computed_by_each_worker_that_needs_it(client: Client, tmp_path: Path) -> None:
    window = TensorWindow((16, 16))
    base = built(lambda ctx: torch.full((16, 16), float(ctx[0])), window, name="base")
    with ZarrTileStore(tmp_path / "store", tile_size=64) as store:
        t = built(lambda _ctx, x: x + 1, window, base, store=store, name="t")
        report = t.fill(sl[0:128, 0:128], client=client, progress=False)
        assert [(tensor.tensor_id, tensor.windows) for tensor in report.tensors] == [("base", 64), ("t", 64)]
        assert t[20, 3] == 2.0


@pytest.mark.parametrize("kind", ["memory", "hdf5", "zarr behind a memory:// URL"])
def test_a_store_that_workers_cannot_reach_is_refused(kind: str, client: Client, tmp_path: Path) -> None:
    t = built(lambda _ctx: torch.ones(4), 4, store=store_of(kind.replace("memory:// ", ""), tmp_path), name="t")
    with pytest.raises(ValidationError, match="ZarrTileStore"):
        t.fill(sl[0:4], client=client, progress=False)


def test_an_error_of_f_comes_through_with_its_window(client: Client, tmp_path: Path) -> None:
    def fails(ctx: tuple[int, ...]) -> torch.Tensor:
        if ctx == (3,):
            raise ZeroDivisionError("no window here")
        return torch.ones(4)

    with ZarrTileStore(tmp_path / "store", tile_size=4) as store:
        t = built(fails, 4, store=store, name="t")
        with pytest.raises(ZeroDivisionError, match="no window") as caught:
            t.fill(sl[0:64], client=client, progress=False)
        assert any("(3,)" in note for note in caught.value.__notes__)


def test_a_ctrl_c_says_how_to_continue(client: Client, truth: torch.Tensor, t: InfiniteTensor) -> None:
    def pressed(_progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="fill"):
        t.fill(REGION, client=client, progress=pressed)
    t.fill(REGION, client=client, progress=False)
    assert torch.equal(t[REGION], truth)


def test_progress_counts_what_the_workers_do(client: Client, t: InfiniteTensor) -> None:
    told: list[Progress] = []
    total = t.plan(REGION, shards=SHARDS).windows
    report = t.fill(REGION, client=client, progress=told.append)
    assert (told[-1].done, told[-1].report) == (total, report)


def too_large() -> torch.Tensor:
    t = built(lambda _ctx: torch.ones(8, 8), (8, 8))
    pixels: torch.Tensor = t[0 : 2**30, 0 : 2**30]
    return pixels


def test_a_worker_that_lacks_memory_says_so(client: Client) -> None:
    with pytest.raises(OutOfMemoryError, match="iter_regions"):
        client.submit(too_large).result()
