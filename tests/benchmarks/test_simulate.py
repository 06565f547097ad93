from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from zarr.storage import MemoryStore

from infinite_tensor import ZarrTileStore
from tests.benchmarks import simulate
from tests.benchmarks.simulate import (
    Case,
    Costs,
    Far,
    Fleet,
    Result,
    Storage,
    Work,
    chain,
    check,
    least_costs,
    noise,
    predict,
    s3_costs,
)
from tests.support.s3_server import find_program

FREE = Costs(0, 0, 0, 0, 0, 0, 0, 0)
NEAR = Storage()
ALONE = Fleet()
CHAIN = Work(4096, tile=256, window=128, stride=128, halo=16, depth=3, call_seconds=0.01)


def cluster(processes: int, **options: float) -> Fleet:
    return Fleet("cluster", processes, **options)  # type: ignore[arg-type]


def test_where_only_f_takes_time_a_fill_takes_as_long_as_its_calls() -> None:
    work = Work(4096, tile=256, window=128, stride=128, call_seconds=0.01)
    assert predict(work, FREE, NEAR, ALONE).seconds == pytest.approx(32**2 * 0.01)


def test_windows_are_those_that_a_fill_computes() -> None:
    work = Work(512, tile=128, window=32, stride=32, halo=4, depth=3)
    with ZarrTileStore(MemoryStore(), tile_size=work.tile) as store:
        report = chain(work, store, noise(32))[-1].fill((slice(0, 512), slice(0, 512)), progress=False)
    found = predict(work, FREE, NEAR, ALONE)
    assert found.windows == report.windows
    assert found.amplification == report.windows / report.tensors[-1].windows


@pytest.mark.parametrize("work", [replace(CHAIN, side=1024, depth=depth) for depth in (1, 3)], ids=["alone", "chain"])
def test_requests_are_about_those_that_a_fill_sends(work: Work) -> None:
    far = Far(MemoryStore(), 0.0)
    with ZarrTileStore(far, tile_size=work.tile) as store:
        output = chain(work, store, noise(work.window))[-1]
        far.requests.clear()
        output.fill((slice(0, work.side), slice(0, work.side)), progress=False)
    found = predict(work, FREE, NEAR, ALONE)
    assert found.puts == far.requests["put"]
    # How many tiles are stored at once, after a look at the definition, is up to the threads.
    assert found.gets == pytest.approx(far.requests["get"], rel=0.25, abs=3 + far.requests["put"] / 5)


def test_more_workers_are_quicker_until_storage_takes_no_more_requests() -> None:
    storage = Storage(puts=100)
    seconds = [predict(CHAIN, FREE, storage, cluster(count)).seconds for count in (1, 4, 1000)]
    assert seconds[0] / seconds[1] == pytest.approx(4, rel=0.1)
    found = predict(CHAIN, FREE, storage, cluster(1000))
    assert found.bound == "puts per prefix"
    assert found.seconds == pytest.approx(found.puts / 100)


@pytest.mark.parametrize("kind", ["puts", "gets"])
def test_more_prefixes_take_more_requests(kind: str) -> None:
    storages = [replace(NEAR, prefixes=prefixes, **{kind: 100.0}) for prefixes in (1, 8)]  # type: ignore[arg-type]
    one, eight = (predict(CHAIN, FREE, storage, cluster(1000)) for storage in storages)
    assert one.stages[f"{kind} per prefix"] == pytest.approx(8 * eight.stages[f"{kind} per prefix"])


def test_a_prefix_that_nobody_is_at_takes_no_requests() -> None:
    storage = Storage(puts=1.0, prefixes=8)
    assert predict(CHAIN, FREE, storage, cluster(2)).stages["puts per prefix"] == pytest.approx(
        4 * predict(CHAIN, FREE, storage, cluster(1000)).stages["puts per prefix"], rel=0.1
    )


def test_tiles_are_stored_while_others_are_computed() -> None:
    work = Work(16384, tile=256, window=256, stride=256, ratio=1.0, call_seconds=0.01)
    sent = 16384**2 * 4
    found = predict(work, FREE, Storage(bandwidth=sent / 30), ALONE)
    assert found.stages["f"] == pytest.approx(64**2 * 0.01)
    assert found.stages["writing"] == pytest.approx(30)
    assert 64**2 * 0.01 < found.seconds < 1.05 * 64**2 * 0.01


def test_larger_tiles_are_fewer_requests() -> None:
    small, large = (predict(replace(CHAIN, tile=tile), FREE, NEAR, ALONE) for tile in (256, 512))
    assert large.puts < small.puts / 3
    assert large.windows == pytest.approx(small.windows, rel=0.05)


def test_a_cluster_computes_nothing_twice_that_is_stored() -> None:
    alone, many = (predict(CHAIN, FREE, NEAR, fleet) for fleet in (ALONE, cluster(64)))
    assert many.windows == alone.windows


@pytest.mark.parametrize("how", ["shards", "cluster"])
def test_what_is_upstream_in_memory_is_computed_again_by_others(how: str) -> None:
    fleet = Fleet(how, 16)  # type: ignore[arg-type]
    kept, in_memory = (predict(replace(CHAIN, stored=stored), FREE, NEAR, fleet) for stored in (True, False))
    if how == "cluster":
        assert in_memory.windows > kept.windows
    else:
        assert in_memory.windows == kept.windows > predict(CHAIN, FREE, NEAR, ALONE).windows
    assert in_memory.puts < kept.puts / 2


def test_shards_fill_each_tile_of_the_output_once() -> None:
    work = Work(4096, tile=256, window=256, stride=256)
    assert predict(work, FREE, NEAR, Fleet("shards", 5)).puts == 16**2


def test_the_largest_share_takes_longest() -> None:
    work = Work(3 * 256, tile=256, window=256, stride=256, call_seconds=0.01)
    assert predict(work, FREE, NEAR, Fleet("shards", 2)).seconds == pytest.approx(2 * 3 * 0.01)


def test_shards_compute_twice_what_a_square_has_around_it() -> None:
    work = Work(64 * 256, tile=256, window=256, stride=256, halo=16, depth=2)
    assert predict(work, FREE, NEAR, Fleet("shards", 64)).windows == 64 * (8 * 8 + 10 * 10)


def test_strips_compute_again_what_is_in_memory() -> None:
    work = replace(CHAIN, side=10**6, tile=512)
    stored, in_memory = (predict(replace(work, stored=stored), FREE, NEAR, ALONE).windows for stored in (True, False))
    assert stored < in_memory < 1.05 * stored


def test_more_shards_than_tiles_are_no_quicker() -> None:
    work = Work(1024, tile=256, window=256, stride=256, call_seconds=0.01)
    sixteen, more = (predict(work, FREE, NEAR, Fleet("shards", count)) for count in (16, 40))
    assert more.seconds == sixteen.seconds


def test_windows_across_the_borders_of_shards_are_computed_twice() -> None:
    flush = Work(4096, tile=256, window=128, stride=128)
    whole, overlapping = (predict(work, FREE, NEAR, cluster(16)) for work in (flush, replace(flush, window=160)))
    assert whole.puts == overlapping.puts == 16**2
    assert whole.amplification == 1 < overlapping.amplification


def test_latency_is_waited_for_once_for_many_requests() -> None:
    work = Work(4096, tile=256, window=256, stride=256)
    one, sixteen = (
        predict(work, FREE, Storage(latency=0.03, concurrency=concurrency), ALONE).seconds for concurrency in (1, 16)
    )
    assert one > 16**2 * 0.03
    assert sixteen < one / 8


def test_an_f_on_a_gpu_leaves_the_cores_to_the_library() -> None:
    work = replace(CHAIN, depth=1)
    busy, free = (predict(replace(work, on_cpu=on_cpu), Costs(), NEAR, ALONE) for on_cpu in (True, False))
    assert free.stages["cores"] < 0.1 * busy.stages["cores"]


def test_10_to_the_12_pixels_are_predicted_from_arithmetic() -> None:
    work = Work(10**6, depth=3, halo=32, call_seconds=0.05)
    found = predict(work, Costs(), simulate.S3, cluster(1000))
    assert found.output_windows == 1954**2
    assert 1954**2 * 3 <= found.windows < 1954**2 * 3.02
    assert math.isfinite(found.seconds)


def test_costs_are_measured_and_at_least_nothing() -> None:
    costs = least_costs(1)
    assert costs.window + costs.byte > 0
    assert costs.store + costs.encode > 0
    assert min(vars(costs).values()) >= 0


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.skipif(find_program() is None, reason="needs the S3 server SeaweedFS")
def test_what_s3_takes_more_is_measured() -> None:
    costs = s3_costs(1, Costs())
    assert costs.store > Costs().store
    assert costs.fetch > Costs().fetch
    assert replace(costs, store=0, encode=0, fetch=0, decode=0) == replace(
        Costs(), store=0, encode=0, fetch=0, decode=0
    )


def result(measured: float) -> Result:
    case = Case("a fill", CHAIN, 0.0, noise(128))
    return Result(case, measured, 1.0, Counter(put=3, get=4), Counter(put=3, get=5))


@pytest.mark.parametrize(("measured", "shown"), [(0.81, "+23%"), (1.3, "-23%")])
def test_a_prediction_that_is_close_passes(measured: float, shown: str) -> None:
    *_, line = simulate.compared([result(measured)])
    assert line == f"| a fill | {1000 * measured:.0f} ms | 1000 ms | {shown} | 3 and 4 | 3 and 5 |"


@pytest.mark.parametrize("measured", [0.75, 1.4])
def test_a_prediction_that_is_off_fails(measured: float) -> None:
    with pytest.raises(SystemExit, match="more than 25% off"):
        list(simulate.compared([result(1.0), result(measured)]))


@pytest.mark.benchmark
def test_three_fills_take_as_long_as_predicted() -> None:
    results = check(rounds=3)
    assert len(results) == 3
    assert [result.case.name for result in results if abs(result.error) > simulate.TOLERANCE] == []


def test_a_fill_is_predicted_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    simulate.main(["--side", "4096", "--tile", "256", "--window", "256", "--stride", "256", "--call-seconds", "1"])
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "| 4.3 min | 1.00 | 256 | 24 | 61 MB | f |"


def test_an_unknown_way_to_fill_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        simulate.main(["--how", "magic"])
    assert "--how is shards or cluster, not magic" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "400 ms"), (90, "90 s"), (7200, "2.0 h"), (10**9, "32 years")])
def test_a_time_has_a_unit_that_suits_it(seconds: float, shown: str) -> None:
    assert simulate.duration(seconds) == shown


def test_the_page_shows_what_the_simulator_predicts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    for table in simulate.TABLES.values():
        assert "\n".join(table(simulate.S3_COSTS)) in page, "python -m tests.benchmarks.simulate --tables prints them"
