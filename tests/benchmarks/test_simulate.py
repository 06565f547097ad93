from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from zarr.storage import MemoryStore

from infinite_tensor import ZarrTileStore
from tests.benchmarks.simulate import CHAINS, PUTS, Fleet, Work, by_way, by_workers, chain, limits, predict

CHAIN = Work(0.01, tile=256, window=128, stride=128, halo=16, depth=3, side=4096)
ALONE = Fleet(1)


@pytest.mark.parametrize("depth", [1, 3])
def test_windows_and_tiles_are_those_of_a_fill(depth: int) -> None:
    work = replace(CHAIN, side=1024, depth=depth)
    with ZarrTileStore(MemoryStore(), tile_size=work.tile) as store:
        tensors = chain(work, store)
        report = tensors[-1].fill((slice(0, work.side), slice(0, work.side)), progress=False)
        infos = [store.tensor_info(tensor.tensor_id) for tensor in tensors]
    found = predict(work, ALONE)
    assert found.windows == report.windows
    assert found.puts == sum(info.tiles_complete + info.tiles_partial for info in infos)
    assert found.amplification == report.windows / report.tensors[-1].windows


def test_where_only_f_takes_time_a_fill_takes_as_long_as_its_calls() -> None:
    work = Work(10.0, tile=256, window=128, stride=128, side=4096)
    assert predict(work, ALONE).seconds == pytest.approx(32**2 * 10, rel=0.01)


def test_more_workers_are_quicker_until_a_prefix_takes_no_more_requests() -> None:
    one, four, many = (predict(replace(CHAIN, call_seconds=1.0), Fleet(count)) for count in (1, 4, 1000))
    assert one.seconds / four.seconds == pytest.approx(4, rel=0.1)
    work = CHAINS["one tensor, 1 ms"]
    one_prefix, eight = (predict(work, Fleet(1000, prefixes=prefixes)) for prefixes in (1, 8))
    assert one_prefix.seconds == pytest.approx(one_prefix.puts / PUTS)
    assert one_prefix.stages["puts per prefix"] == 8 * eight.stages["puts per prefix"]
    assert many.windows >= one.windows


def test_larger_tiles_are_fewer_requests() -> None:
    small, large = (predict(replace(CHAIN, tile=tile), ALONE) for tile in (256, 512))
    assert large.puts < small.puts / 3


def test_shards_and_what_is_in_memory_are_computed_twice_at_borders() -> None:
    work = replace(CHAIN, tile=128, side=8192)
    cluster, in_memory = (predict(replace(work, stored=stored), Fleet(16)) for stored in (True, False))
    shards = predict(work, Fleet(16, "shards"))
    assert predict(work, ALONE).windows <= cluster.windows < shards.windows < in_memory.windows
    assert in_memory.puts < cluster.puts / 2


def test_an_f_on_a_gpu_leaves_the_cores_to_the_library() -> None:
    busy, free = (predict(replace(CHAIN, on_cpu=on_cpu), ALONE) for on_cpu in (True, False))
    assert free.stages["cores"] < busy.stages["cores"] / 2


@pytest.mark.slow
def test_the_page_shows_what_is_predicted() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    for table in (by_workers(), by_way(), limits()):
        assert table in page
