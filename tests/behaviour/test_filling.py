"""Large regions: what they cost, and computing them ahead of reads."""

from __future__ import annotations

import io
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.multiprocessing.spawn import start_processes

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
from infinite_tensor.errors import RegionError
from infinite_tensor.filling import Progress
from tests.support.building import built
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.interpreters import CONTEXT, run

MIB = 2**20
WINDOW = TensorWindow((16, 16))
HALO = TensorWindow((20, 20), stride=16, offset=-2)


def softened(ctx: tuple[int, ...], *regions: torch.Tensor) -> torch.Tensor:
    if not regions:
        return torch.arange(256.0).reshape(16, 16) + 1000 * ctx[0] + ctx[1]
    return regions[0][2:-2, 2:-2] + regions[0][4:, :-4]


class Stopped(Counted):
    """Can be told to stop at a call."""

    def __init__(self) -> None:
        super().__init__(softened)
        self.stop_at: int | None = None
        self.error: type[BaseException] = KeyboardInterrupt

    def __call__(self, ctx: Any, *regions: Any) -> Any:
        if len(self.calls) == self.stop_at:
            raise self.error
        return super().__call__(ctx, *regions)


def chain(store: TileStore, depth: int = 4, **options: Any) -> tuple[InfiniteTensor, list[Stopped]]:
    functions = [Stopped() for _ in range(depth)]
    t = built(functions[0], WINDOW, store=store, name="0", **options)
    for number, f in enumerate(functions[1:], 1):
        t = built(f, WINDOW, (t, HALO), store=store, name=str(number), **options)
    return t, functions


def made(functions: list[Stopped]) -> list[int]:
    return [len(f.calls) for f in functions]


@pytest.fixture
def store(tmp_path: Path) -> ZarrTileStore:
    return ZarrTileStore(tmp_path / "store", tile_size=64)


@pytest.fixture(name="f")
def _f() -> Stopped:
    return Stopped()


@pytest.fixture(name="t")
def _t(store: ZarrTileStore, f: Stopped) -> InfiniteTensor:
    return built(f, WINDOW, store=store, name="0")


class TestPlan:
    def test_a_million_by_a_million_pixels_take_no_time(self, store: ZarrTileStore) -> None:
        t, _ = chain(store)
        begun = time.process_time()
        plan = t.plan(sl[0 : 10**6, 0 : 10**6])
        assert time.process_time() - begun < 1
        assert plan.exact
        assert plan.tensors[-1].windows == (10**6 // 16) ** 2
        assert plan.tensors[0].windows == (10**6 // 16 + 6) ** 2

    @pytest.mark.parametrize(
        ("along", "stride", "reads", "windows"),
        [
            (10**5, 1, [TensorWindow((1,), stride=10)], 10**5),
            (2 * 10**7, 2, [TensorWindow((2,)), TensorWindow((2,), offset=6)], 10**7 + 3),
            (2 * 10**7, 2, [TensorWindow((2,)), TensorWindow((4,), 2, -1)], 10**7 + 2),
            (2 * 10**7, 2, [TensorWindow((2,)), TensorWindow((2,), offset=10**9)], 2 * 10**7),
        ],
        ids=["gaps", "overlap", "halo", "far apart"],
    )
    def test_what_is_read_is_counted_once(self, along: int, stride: int, reads: Any, windows: int) -> None:
        base = built(lambda _ctx: torch.ones(2), 2)
        plan = built(torch.add, stride, *((base, read) for read in reads)).plan(sl[0:along])
        assert plan.exact
        assert [tensor.windows for tensor in plan.tensors] == [windows, along // stride]

    def test_gaps_are_counted_too_where_there_are_very_many_windows(self) -> None:
        base = built(lambda _ctx: torch.ones(2), 2)
        t = built(lambda _ctx, x: x, 1, (base, TensorWindow((1,), stride=10)))
        plan = t.plan(sl[0 : 10**6])
        assert not plan.exact
        assert [tensor.windows for tensor in plan.tensors] == [5 * 10**6 - 4, 10**6]
        assert "about 4,999,996" in repr(plan)
        assert "about 4,999,996" in plan._repr_html_()

    @pytest.mark.parametrize(("dims", "exact"), [(1, True), (7, False)])
    def test_places_that_overlap_are_counted_once_in_few_dimensions(self, dims: int, exact: bool) -> None:
        window = TensorWindow((2,) * dims)
        base = built(lambda _ctx: torch.ones((2,) * dims), window)
        reads = [(base, TensorWindow((2,) * dims, None, (2 * number,) * dims)) for number in range(3)]
        t = built(lambda _ctx, *read: sum(read), window, *reads)
        along = {1: 10**7, 7: 12}[dims]
        plan = t.plan((slice(0, 2 * along),) * dims)
        assert plan.exact == exact
        assert [tensor.windows for tensor in plan.tensors] == [(along + 2) ** dims, along**dims]

    def test_what_is_too_large_to_look_at_is_bounded(self, t: InfiniteTensor) -> None:
        t[0:64, 0:64]
        plan = t.plan(sl[0 : 10**6, 0 : 10**6])
        assert not plan.exact
        assert "upper bounds" in str(plan)
        assert "about 3,906,250,000" in str(plan)
        assert plan.windows == (10**6 // 16) ** 2

    def test_it_is_a_table_in_a_notebook(self) -> None:
        t = built(lambda _ctx: torch.ones(2), 2, name="<b>")
        shown = t.plan(sl[0:4])._repr_html_()
        assert ">&lt;b&gt;</td>" in shown
        assert "<b>" not in shown

    def test_tiles_that_arrive_in_storage_meanwhile_are_counted(self) -> None:
        class Arriving(DictTileStore):
            """What was on its way when a look into storage began arrives while it ends."""

            def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> Any:
                found = super()._find_tiles(tensor_id, low, high)
                arrival = threading.Thread(target=self.clear_cache, args=(tensor_id,))
                arrival.start()
                arrival.join()
                return found

        with Arriving({}, tile_size=24) as store:
            t = built(softened, WINDOW, store=store, name="t")
            t[0:48, 0:48]
            assert t.plan(sl[0:48, 0:48]).windows == 0


class TestFill:
    def test_a_process_that_comes_later_finds_all_tiles(self, store: ZarrTileStore, tmp_path: Path) -> None:
        t, _ = chain(store)
        report = t.fill(sl[0:100, 0:100], progress=False)
        opened = ZarrTileStore(tmp_path / "store", mode="r").open("3")
        assert opened.coverage(sl[0:128, 0:192]).tolist() == [[True, True, False], [True, True, False]]
        assert report.tensors[-1].tiles == 4
        assert report.tensors[-1].bytes == 4 * 64 * 64 * 4

    @pytest.mark.parametrize(
        "options",
        [
            {"workers": 0},
            {"max_memory": -1},
            {"max_memory": 10**6},
            {"progress": "yes"},
            {"shard": (2, 2)},
            {"shard": 3},
            {"pyramid": "medain"},
        ],
        ids=str,
    )
    def test_bad_options_are_refused(self, t: InfiniteTensor, f: Stopped, options: dict[str, Any]) -> None:
        (name,) = options
        with pytest.raises(ValidationError, match="method" if name == "pyramid" else name):
            t.fill(sl[0:64, 0:64], **options)
        assert not f.calls

    @pytest.mark.parametrize("shards", [0, -1, 1.5, "8", True])
    def test_shards_of_a_plan_are_a_number(self, t: InfiniteTensor, shards: Any) -> None:
        with pytest.raises(ValidationError, match="shards"):
            t.plan(sl[0:64, 0:64], shards=shards)

    @pytest.mark.parametrize("region", [sl[0:64, :], [sl[0:64, 0:64], sl[64:128, 0:64]]], ids=["slice", "list"])
    def test_what_is_no_region_is_refused(self, t: InfiniteTensor, f: Stopped, region: Any) -> None:
        for use in (t.fill, t.plan, t.coverage, t.is_filled):
            with pytest.raises(RegionError, match=r"unbounded|several"):
                use(region)
        assert not f.calls

    def test_an_unknown_option_is_refused(self, t: InfiniteTensor, f: Stopped) -> None:
        misspelt: dict[str, Any] = {"worker": 2}
        for filled in (t, TensorGroup({"t": t})):
            with pytest.raises(TypeError, match="'workers'"):
                filled.fill(sl[0:64, 0:64], **misspelt)
        assert not f.calls

    @pytest.mark.parametrize("shares", [1, 3, 4, 7])
    def test_shards_fill_a_region_together_and_share_no_tile(self, shares: int, t: InfiniteTensor, f: Stopped) -> None:
        reports = [t.fill(sl[0:100, 0:250], shard=(rank, shares), progress=False) for rank in range(shares)]
        assert set(f.counts.values()) == {1}
        assert sum(report.tiles for report in reports) == 8
        assert min(report.tiles for report in reports) == 8 // shares
        assert t.is_filled(sl[0:100, 0:250])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_ends_a_fill_loses_nothing(error: type[BaseException], store: ZarrTileStore, tmp_path: Path) -> None:
    t, functions = chain(store)
    functions[2].stop_at, functions[2].error = 50, error
    with pytest.raises(error):
        t.fill(sl[0:128, 0:128], progress=False)
    again, others = chain(ZarrTileStore(tmp_path / "store", tile_size=64))
    again.fill(sl[0:128, 0:128], progress=False)
    calls = [f.counts + g.counts for f, g in zip(functions, others, strict=True)]
    assert [set(counter.values()) for counter in calls] == [{1}] * 4


class TestUpstream:
    @pytest.mark.parametrize("kind", ["memory", "zarr"])
    def test_hardly_anything_is_computed_twice_however_small_the_cache(self, kind: str, tmp_path: Path) -> None:
        zarr = ZarrTileStore(tmp_path / "store", tile_size=64, cache_size_bytes=1)
        t, functions = chain(MemoryTileStore(cache_size_bytes=1) if kind == "memory" else zarr)
        plan = t.plan(sl[0:512, 0:512])
        t.fill(sl[0:512, 0:512], progress=False)
        assert plan.windows <= sum(made(functions)) <= 1.1 * plan.windows

    def test_strips_compute_little_twice(self) -> None:
        t, functions = chain(MemoryTileStore(cache_size_bytes=1, tile_size=256))
        region = sl[0:2048, 0:1024]
        plan = t.plan(region, max_memory=68 * MIB)
        report = t.fill(region, max_memory=68 * MIB, progress=False)
        for told in (plan, report):
            assert told.bands == 2
            assert "in 2 bands" in str(told)
        assert plan.windows < sum(made(functions)) <= 1.05 * plan.windows

    def test_an_upstream_tensor_in_memory_does_not_outgrow_it(self, tmp_path: Path) -> None:
        memory, window = MemoryTileStore(), TensorWindow((512, 512))
        base = built(virtual, window, store=memory, name="base")
        t = built(lambda _ctx, x: x, window, base, store=ZarrTileStore(tmp_path / "store", tile_size=512), name="t")
        t.fill(sl[0:8192, 0:4096], progress=False)
        assert memory.tensor_info("base").bytes_stored <= 64 * MIB
        assert memory.cache_size_bytes is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# Without ipykernel, which is not installed for the tests.
NOTEBOOK = """
import sys, types
from infinite_tensor.filling.progress import Tally

assert "tqdm.auto" not in sys.modules
shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules |= {"ipykernel": None, "ipywidgets": None, "IPython": types.SimpleNamespace(get_ipython=lambda: shell)}
with Tally(3, progress=True) as tally:
    tally.count("t", 3)
"""


class TestProgress:
    def test_a_callable_is_told_until_the_end_and_then_of_the_report(self, store: ZarrTileStore) -> None:
        t, functions = chain(store)
        told: list[Progress] = []
        report = t.fill(sl[0:128, 0:128], progress=told.append)
        assert told[-1].done == told[-1].total == sum(made(functions))
        assert [p.done for p in told] == sorted(p.done for p in told)
        assert told[-1].seconds >= 0
        assert [p.report for p in told] == [*[None] * (len(told) - 1), report]
        nothing = t.fill(sl[0:0, 0:128], progress=told.append)
        assert (told[-1].report, nothing.tensors) == (nothing, ())

    def test_a_fill_that_fails_tells_no_report(self, t: InfiniteTensor, f: Stopped) -> None:
        f.stop_at, f.error = 3, RuntimeError
        told: list[Progress] = []
        with pytest.raises(RuntimeError):
            t.fill(sl[0:64, 0:64], progress=told.append)
        assert told
        assert all(p.report is None for p in told)

    def test_without_a_terminal_a_line_tells_now_and_then_what_is_left(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, t: InfiniteTensor
    ) -> None:
        monkeypatch.setattr("infinite_tensor.filling.progress.LINE_SECONDS", 0.0)
        t.fill(sl[0:64, 0:64])
        lines = capsys.readouterr().err.splitlines()
        assert re.fullmatch(r"\d+ of 16 windows, about [01] min left", lines[0])
        assert lines[-1] == "16 of 16 windows, about 0 min left"

    def test_inside_a_live_display_of_rich_lines_take_the_place_of_a_bar(
        self, monkeypatch: pytest.MonkeyPatch, t: InfiniteTensor
    ) -> None:
        monkeypatch.setattr("infinite_tensor.filling.progress.LINE_SECONDS", 0.0)
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        with Console(file=screen, force_terminal=True, width=80).status("working"):
            t.fill(sl[0:64, 0:64])
        assert "16 of 16 windows, about 0 min left" in screen.getvalue()
        assert "window/s" not in screen.getvalue()

    @pytest.mark.parametrize("progress", [True, "always"])
    @pytest.mark.parametrize("in_a_notebook", [False, True])
    @pytest.mark.parametrize("screen", ["none", "closed", "least"])
    def test_it_fills_whatever_standard_error_is(
        self, monkeypatch: pytest.MonkeyPatch, t: InfiniteTensor, progress: Any, in_a_notebook: bool, screen: str
    ) -> None:
        monkeypatch.setattr("infinite_tensor.filling.progress.LINE_SECONDS", 0.0)
        if in_a_notebook:
            monkeypatch.setitem(sys.modules, "ipykernel", sys)
        closed = io.StringIO()
        closed.close()
        least = SimpleNamespace(write=lambda _: None, flush=lambda: None)
        monkeypatch.setattr(sys, "stderr", {"none": None, "closed": closed, "least": least}[screen])
        assert t.fill(sl[0:64, 0:64], progress=progress).windows == 16

    def test_a_notebook_without_widgets_shows_a_bar_of_text_and_no_warning(self) -> None:
        found = run("-c", NOTEBOOK)
        assert found.returncode == 0
        begin, end = found.stderr.split("\n")[1:-1]
        assert " 0/3 [" in begin
        assert " 3/3 [" in end

    def test_a_bar_that_is_asked_for_counts_windows(self, monkeypatch: pytest.MonkeyPatch, t: InfiniteTensor) -> None:
        shown = io.StringIO()
        monkeypatch.setattr(sys, "stderr", shown)
        t.fill(sl[0:64, 0:64], progress="always")
        assert "16/16" in shown.getvalue()
        assert "window/s, 1 tiles stored]" in shown.getvalue()


class TestCoverage:
    def test_a_partial_tile_is_not_covered(self, store: ZarrTileStore, tmp_path: Path, t: InfiniteTensor) -> None:
        t[0:64, 0:63]
        t[0:64, 64:80]
        store.close()
        opened = ZarrTileStore(tmp_path / "store").open("0")
        assert opened.coverage(sl[0:64, 0:128]).tolist() == [[True, False]]
        assert not opened.is_filled(sl[0:64, 0:128])

    def test_of_a_tensor_of_which_nothing_is_stored_no_window_is_looked_at(self, t: InfiniteTensor) -> None:
        assert not t.is_filled(sl[0 : 10**9, 0 : 10**9])


def virtual(_ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(512, 512)


def growth(folder: Path, extent: int, most: int) -> int:
    """By how much the most memory that this process has held grows while a region is filled."""
    with ZarrTileStore(folder / "store", tile_size=512, cache_size_bytes=64 * MIB) as tiles:
        t = built(virtual, (512, 512), store=tiles, name="t")
        t.fill(sl[-512:0, -512:0], progress=False)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        t.fill(sl[0:extent, 0:extent], max_memory=most, progress=False)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units")
@pytest.mark.parametrize("extent", [16384, pytest.param(65536, marks=pytest.mark.slow)])
def test_a_fill_keeps_to_its_memory(extent: int, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert child.submit(growth, tmp_path, extent, 256 * MIB).result() < 256 * MIB


def fill_shard(rank: int, count: int, folder: Path) -> None:
    """One process of several that torch starts: the group gives it its share."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(count)}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=count
    )
    with ZarrTileStore(folder / "store", tile_size=64) as tiles:
        t, functions = chain(tiles)
        shard = torch.distributed.get_rank(), torch.distributed.get_world_size()
        t.fill(sl[0:256, 0:512], shard=shard, progress=False)
        calls = torch.tensor([made(functions)[-1]])
        torch.distributed.all_reduce(calls)
        assert calls.item() == 16 * 32
    torch.distributed.destroy_process_group()


def test_processes_of_torch_fill_a_region_together(tmp_path: Path) -> None:
    start_processes(fill_shard, (4, tmp_path), nprocs=4, start_method="forkserver")
    opened = ZarrTileStore(tmp_path / "store", mode="r").open("3")
    expected, _ = chain(MemoryTileStore())
    assert opened.is_filled(sl[0:256, 0:512])
    assert torch.equal(opened[0:256, 0:512], expected[0:256, 0:512])


def test_what_is_stored_in_a_read_only_store_is_filled_already(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s", tile_size=16) as store:
        built(lambda _: torch.ones(16), 16, store=store, name="t").fill(slice(0, 64), progress=False)
    with ZarrTileStore(tmp_path / "s", mode="r") as store:
        t = store.open("t")
        assert t.fill(slice(0, 64), progress=False).windows == 0
        with pytest.raises(ValidationError, match="read-only"):
            t.fill(slice(0, 65), progress=False)


def test_all_of_a_finite_tensor_is_filled_by_default(store: ZarrTileStore, t: InfiniteTensor, f: Stopped) -> None:
    finite = built(f, WINDOW, store=store, name="finite", shape=(48, 64))
    assert finite.plan().calls == 3 * 4
    assert not finite.is_filled()
    finite.fill(progress=False)
    assert len(f.calls) == 3 * 4
    assert finite.is_filled()
    assert finite.coverage().all()
    for method in (t.plan, t.fill, t.is_filled, t.coverage):
        with pytest.raises(RegionError, match="dimension"):
            method()
