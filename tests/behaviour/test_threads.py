"""Many threads over one chain: each window is computed once, nobody waits for what he does not need."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ValidationError

# Inside: the moment when a read waits.
from infinite_tensor.engine.claims import CLAIMS
from tests.support.building import built, store_of
from tests.support.counting import Counted
from tests.support.pipelines import WindowFunction, subtract
from tests.support.reference import Index, Reference, Stage
from tests.support.stores import sample

T = TypeVar("T")

THREADS = 16
LIMIT = 30.0
"""Seconds after which a test takes threads to be stuck."""

KINDS = ["memory", "zarr", "zarr-small", "hdf5"]

STAGES = (
    Stage((None, None), torch.float32, TensorWindow((6, 6), (4, 4)), WindowFunction(0, (6, 6), torch.float32)),
    Stage(
        (None, None),
        torch.float64,
        TensorWindow((5, 5)),
        WindowFunction(1, (5, 5), torch.float64),
        args=((0, TensorWindow((7, 7), (5, 5), (-1, -1))),),
    ),
    Stage(
        (None, None),
        torch.float32,
        TensorWindow((8, 8), (5, 5)),
        WindowFunction(2, (8, 8), torch.float32),
        # A diamond: the second arg is what the first is computed from.
        args=((1, TensorWindow((9, 9), (5, 5), (-2, 0))), (0, TensorWindow((4, 4), (5, 5)))),
        blend=subtract,
    ),
)


def make_store(kind: str, path: Path) -> TileStore:
    # The small cache throws out what one thread has while others still need it.
    return store_of(kind.removesuffix("-small"), path, **({"cache_size_tiles": 2} if kind == "zarr-small" else {}))


class Gate:
    """Where an ``f`` stops until it is opened."""

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    def stop(self) -> None:
        self._reached.set()
        assert self._opened.wait(LIMIT)

    def wait(self) -> None:
        """Return once the ``f`` is there."""
        assert self._reached.wait(LIMIT)

    def open(self) -> None:
        self._opened.set()


class Flaky(Counted):
    """Notes the calls that return; every so often one raises instead."""

    def __init__(self, f: Callable[..., torch.Tensor], seed: int | None) -> None:
        super().__init__(f)
        self.raised = 0
        self._random = None if seed is None else random.Random(seed)  # noqa: S311

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> Any:
        if self._random is not None and self._random.random() < 0.1:
            self.raised += 1
            raise Unlucky
        # Long enough in numpy without the lock of the interpreter for other threads to come in between.
        np.sort(np.arange(20_000)[::-1])
        return super().__call__(ctx, *regions)


class Unlucky(Exception):  # noqa: N818
    """What a flaky ``f`` raises."""


def build(store: TileStore, seed: int | None) -> tuple[list[InfiniteTensor], list[Flaky]]:
    tensors: list[InfiniteTensor] = []
    functions = [Flaky(stage.f, None if seed is None else seed + n) for n, stage in enumerate(STAGES)]
    for number, (stage, f) in enumerate(zip(STAGES, functions, strict=True)):
        reads = [(tensors[n], window) for n, window in stage.args]
        options: dict[str, Any] = {"dtype": stage.dtype, "blend": stage.blend}
        tensors.append(built(f, stage.window, *reads, store=store, name=f"stage {number}", **options))
    return tensors, functions


def started(work: Callable[[], T]) -> Future[T]:
    """Runs `work` on a thread of its own, which does not keep the tests from ending where it is stuck."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again by result())
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def together(work: Callable[[int], T], count: int = THREADS) -> list[T]:
    """The results of ``work(0)`` to ``work(count - 1)``, which begin at the same time."""
    start = threading.Barrier(count, timeout=LIMIT)

    def begun(number: int) -> T:
        start.wait()
        return work(number)

    return [future.result(LIMIT) for future in [started(partial(begun, number)) for number in range(count)]]


@pytest.mark.parametrize("kind", sample(KINDS))
@pytest.mark.parametrize("seed", sample([None, 1, 2], 1))
def test_sixteen_threads_compute_each_window_once(kind: str, seed: int | None, tmp_path: Path) -> None:
    store = make_store(kind, tmp_path)
    tensors, functions = build(store, seed)

    def work(number: int) -> list[Any]:
        chance, found = random.Random(number), []  # noqa: S311
        for _ in range(6):
            stage = chance.choice([2, 2, 2, 1, 0])
            low = (chance.randrange(-20, 20), chance.randrange(-20, 20))
            high = (low[0] + chance.randrange(1, 20), low[1] + chance.randrange(1, 20))
            while True:
                try:
                    pixels = tensors[stage][low[0] : high[0], low[1] : high[1]]
                    break
                except Unlucky:
                    continue
            found.append((stage, (low, high), pixels))
        return found

    found = [each for several in together(work) for each in several]
    store.close()
    for function in functions:
        assert len(function.calls) == len(set(function.calls))
    assert seed is None or sum(function.raised for function in functions) > 0
    reference = Reference(STAGES)
    for stage, box, pixels in found:
        assert torch.equal(torch.nan_to_num(pixels), torch.nan_to_num(reference.region(stage, box)[0]))


def test_two_reads_of_one_slow_window_call_f_once_and_both_get_it() -> None:
    gate = Gate()
    f = Counted(lambda _ctx: torch.full((4,), 7.0), lambda _ctx: gate.stop())
    t = built(f, 4, store=MemoryTileStore(cache_size_windows=1))
    first = started(lambda: t[0:4])
    gate.wait()
    second = started(lambda: t[2:4])
    wait_until_a_read_waits()
    gate.open()
    assert [first.result(LIMIT).tolist(), second.result(LIMIT).tolist()] == [[7.0] * 4, [7.0] * 2]
    assert f.calls == [(0,)]


@pytest.mark.parametrize("batch_size", [None, 3])
def test_two_reads_of_one_region_share_its_windows_call_by_call(batch_size: int | None) -> None:
    both, calls = threading.Barrier(2, timeout=LIMIT), list[tuple[int, Any]]()

    def f(contexts: Any) -> Any:
        # Each waits for the other one, so that neither can be ahead.
        both.wait()
        calls.append((threading.get_ident(), contexts))
        return torch.ones(4) if batch_size is None else [torch.ones(4) for _ in contexts]

    t = built(f, 4, batch_size=batch_size)
    assert [pixels.tolist() for pixels in together(lambda _: t[0:96], 2)] == [[1] * 96] * 2
    assert sorted(Counter(thread for thread, _ in calls).values()) == [12 // (batch_size or 1)] * 2
    windows = [ctx for _, contexts in calls for ctx in ([contexts] if batch_size is None else contexts)]
    assert sorted(windows) == [(x,) for x in range(24)]


def wait_until_a_read_waits() -> None:
    """Return once a read waits for windows of others."""
    never = threading.Event()
    for _ in range(int(LIMIT * 100)):
        if CLAIMS._changed._waiters:  # type: ignore[attr-defined]
            return
        never.wait(0.01)
    pytest.fail("no read waits")


@pytest.mark.parametrize("kind", ["memory", "zarr"])
def test_a_read_served_from_the_cache_does_not_wait_for_a_slow_f(kind: str, tmp_path: Path) -> None:
    gate = Gate()

    def f(ctx: Index) -> torch.Tensor:
        if ctx[0] > 3:
            gate.stop()
        return torch.full((4,), float(ctx[0]))

    # One tile holds all windows: the slow ones and those that are known.
    t = built(f, 4, store=store_of(kind, tmp_path, 64))
    t[0:16]
    slow = started(lambda: t[0:32])
    gate.wait()
    assert t[2:14].unique().tolist() == [0, 1, 2, 3]
    assert not slow.done()
    gate.open()
    assert slow.result(LIMIT).unique().tolist() == list(range(8))


def test_a_small_read_need_not_wait_for_a_large_one_that_has_begun() -> None:
    gate = Gate()
    f = Counted(lambda ctx: torch.full((4,), float(ctx[0])), lambda ctx: gate.stop() if ctx == (0,) else None)
    t = built(lambda _c, region: region, 4, built(f, 4))
    large = started(lambda: t[0:400])
    gate.wait()
    assert started(lambda: t[320:330]).result(LIMIT).tolist() == [float(x // 4) for x in range(320, 330)]
    assert not large.done()
    gate.open()
    assert large.result(LIMIT).tolist() == [float(x // 4) for x in range(400)]
    assert len(f.calls) == len(set(f.calls)) == 100


def test_who_waited_for_an_f_that_raised_computes_the_window_himself() -> None:
    gate = Gate()

    def f(_ctx: Index) -> torch.Tensor:
        if not gate.reached:
            gate.stop()
            raise Unlucky
        return torch.ones(4)

    t = built(lambda _c, region: region + 1, 4, built(f, 4))
    first: Future[torch.Tensor] = started(lambda: t[0:4])
    gate.wait()
    second = started(lambda: t[0:4])
    wait_until_a_read_waits()
    gate.open()
    with pytest.raises(Unlucky):
        first.result(LIMIT)
    assert second.result(LIMIT).tolist() == [2] * 4


@pytest.mark.parametrize("kind", ["memory", "zarr"])
def test_who_waits_for_windows_of_a_tensor_gets_none_of_another_that_takes_its_place(kind: str, tmp_path: Path) -> None:
    going = threading.Event()
    store = store_of(kind, tmp_path, 64)

    def made(f: Callable[[Index], torch.Tensor], version: int) -> InfiniteTensor:
        return built(f, 4, store=store, name="t", version=version)

    def f(_ctx: Index) -> torch.Tensor:
        if not going.is_set():
            going.set()
            wait_until_a_read_waits()
            store.clear_tensor("t")
            made(lambda _ctx: torch.full((4,), 7.0), 2)[0:32]
        return torch.ones(4)

    t = made(f, 1)
    first = started(lambda: t[0:32])
    assert going.wait(LIMIT)
    second = started(lambda: t[0:32])
    assert first.result(LIMIT).unique().tolist() == [1]
    assert second.result(LIMIT).unique().tolist() == [1]


@pytest.mark.parametrize("workers", [1, 3])
def test_an_f_may_read_any_other_window_of_its_own_tensor(workers: int) -> None:
    @Counted
    def f(ctx: Index) -> torch.Tensor:
        # Earlier ones and later ones, in the midst of many quick calls.
        other = {3: ctx[0] + 1, 5: ctx[0] - 2}.get(ctx[0] % 7)
        return torch.full((1,), float(ctx[0])) if other is None else t.read(slice(other, other + 1), workers=workers)

    t = built(f, 1)
    found = t.read(slice(0, 700), workers=workers).tolist()
    assert found == [{3: x + 1, 5: x - 1}.get(x % 7, x) for x in range(700)]
    assert len(f.counts) == 700
    # Threads that may not wait for each other compute a window once each.
    assert len(f.calls) == 700 or workers > 1


@pytest.mark.parametrize("workers", [1, 3])
def test_an_f_may_read_what_an_earlier_call_has_computed_on_a_thread_of_its_own(workers: int) -> None:
    @Counted
    def f(ctx: Index) -> Any:
        earlier = slice(ctx[0] - 1, ctx[0])
        return torch.zeros(1) if ctx == (0,) else started(lambda: t[earlier]).result(LIMIT) + 1

    t = built(f, 1)
    found = started(lambda: t.read(slice(0, 12), workers=workers)).result(LIMIT)
    assert found.tolist() == list(range(12))
    assert len(f.calls) == 12


def test_what_fails_to_be_stored_for_another_thread_is_raised_by_the_one_that_has_computed_it() -> None:
    failing = [OSError("the disk is full")]

    def f(ctx: Index) -> Any:
        if ctx == (1,):
            # The other read computes nothing itself, and may end in whatever way.
            started(lambda: t[0:1]).exception(LIMIT)
        return torch.ones(1)

    def notice(_progress: object) -> None:
        if failing:
            raise failing.pop()

    t = built(f, 1)
    with pytest.raises(OSError, match="disk"):
        t.fill(slice(0, 4), progress=notice)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_read_within_reads_may_need_what_one_around_it_has_claimed(workers: int) -> None:
    # A later window of what the read around this one computes.
    source = Counted(lambda ctx: t[4:8] if ctx == (0,) else torch.ones(4))
    outer = Counted(lambda _ctx: t[0:8][:4])
    t = built(lambda _ctx, region: region + 1, 4, built(source, 4))
    top = built(outer, 4)
    assert started(lambda: top.read(slice(0, 4), workers=workers)).result(LIMIT).tolist() == [3.0] * 4
    assert ({*source.calls}, outer.calls) == ({(0,), (1,)}, [(0,)])
    # Threads that may not wait for each other compute a window once each.
    assert len(source.calls) == 2 or workers > 1


def test_a_read_within_an_f_waits_for_no_other_thread() -> None:
    gate = Gate()
    f = Counted(lambda _ctx: torch.ones(4), lambda _ctx: None if gate.reached else gate.stop())
    source = built(f, 4)
    t = built(lambda _ctx: source[0:4] + 1, 4)
    first = started(lambda: source[0:4])
    gate.wait()
    assert started(lambda: t[0:4]).result(LIMIT).tolist() == [2.0] * 4
    assert not first.done()
    gate.open()
    assert first.result(LIMIT).tolist() == [1.0] * 4
    assert f.calls == [(0,), (0,)]


def test_a_read_within_an_f_may_need_itself_what_it_computes_beside_another_one() -> None:
    gate = Gate()

    def source(ctx: Index) -> Any:
        if ctx == (1,):
            return torch.ones(4)
        if gate.reached:
            return t[4:8]
        gate.stop()
        raise Unlucky

    s = built(source, 4)
    t = built(lambda _ctx, region: region + 1, 4, s)
    top = built(lambda _ctx: t[0:8][:4], 4)
    unlucky = started(lambda: s[0:4])
    gate.wait()
    assert started(lambda: top[0:4]).result(LIMIT).tolist() == [3.0] * 4
    gate.open()
    assert isinstance(unlucky.exception(LIMIT), Unlucky)


def test_tensors_that_need_each_other_are_an_error_in_every_thread() -> None:
    gate = Gate()

    def source(_ctx: Index) -> Any:
        gate.stop()
        return reader[0:4]

    upstream = built(source, 4, name="upstream")
    reader = built(lambda _ctx, region: region, 4, upstream)
    top = built(lambda _ctx: reader[0:4], 4)
    reads = [started(lambda: upstream[0:4])]
    gate.wait()
    reads.append(started(lambda: top[0:4]))
    gate.open()
    check_each_would_need_itself(reads)


def check_each_would_need_itself(reads: Sequence[Future[Any]]) -> None:
    errors = [read.exception(timeout=LIMIT) for read in reads]
    assert all(isinstance(error, ValidationError) and "would need itself" in str(error) for error in errors)


def test_a_read_on_threads_goes_on_where_another_one_has_taken_all_of_a_tensor() -> None:
    gate = Gate()
    first = built(Counted(lambda _ctx: torch.zeros(4), lambda _ctx: gate.stop()), 4)
    second = built(lambda _ctx: torch.ones(4), 4)
    both = built(lambda _ctx, a, b: a + b, 4, second, first)
    large = started(lambda: both.read(slice(0, 8), workers=2))
    gate.wait()
    assert second[0:8].tolist() == [1.0] * 8
    gate.open()
    assert large.result(LIMIT).tolist() == [1.0] * 8


def test_windows_of_two_workers_that_need_each_other_are_an_error() -> None:
    meeting = Meeting()

    def f(ctx: Index) -> Any:
        meeting.come(ctx)
        other = 1 - ctx[0]
        return t[4 * other : 4 * other + 4]

    t = built(f, 4)
    with pytest.raises(ValidationError, match="itself"):
        started(lambda: t.read(slice(0, 8), workers=2)).result(LIMIT)


def check_reads_within_reads(seed: int, workers: int) -> None:
    """Eight threads read tensors of which windows read windows that come later in a random order."""
    dice = random.Random(seed)  # noqa: S311
    order = [(name, x) for name in range(4) for x in range(12)]
    dice.shuffle(order)
    reads = {place: dice.sample(order[at + 1 :], min(dice.randrange(4), 47 - at)) for at, place in enumerate(order)}
    values: dict[tuple[int, int], float] = {}
    for place in reversed(order):
        values[place] = 1 + sum(values[other] for other in reads[place])

    def f(ctx: Index, name: int) -> torch.Tensor:
        others = reads.get((name, ctx[0]), ())
        found = (tensors[other].read(slice(x, x + 1), workers=workers) for other, x in others)
        return sum(found, start=torch.ones(1, dtype=torch.float64))

    window = TensorWindow((1,))
    tensors = [built(partial(f, name=name), window, shape=(12,), dtype=torch.float64) for name in range(4)]
    found = together(lambda thread: tensors[thread % 4].read(slice(0, 12), workers=workers), 8)
    for thread, pixels in enumerate(found):
        assert pixels.tolist() == [values[thread % 4, x] for x in range(12)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_reads_within_reads_of_many_threads_come_to_an_end(seed: int, workers: int) -> None:
    check_reads_within_reads(seed, workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_random_reads_within_reads_come_to_an_end(workers: int) -> None:
    for seed in range(2, 60):
        check_reads_within_reads(seed, workers)


def test_a_window_that_needs_itself_is_an_error() -> None:
    def f(ctx: Index) -> Any:
        return t[ctx[0] : ctx[0] + 1]

    t = built(f, 1, name="snake")
    with pytest.raises(ValidationError, match="itself"):
        t[3:4]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", sample(KINDS))
def test_an_f_may_read_windows_that_lie_in_the_same_call(tmp_path: Path, kind: str, workers: int) -> None:
    def single(ctx: Index) -> Any:
        (x,) = ctx
        return torch.ones(4) if x % 7 < 2 else alone[3 * x - 3 : 3 * x].repeat(2)[1:5] + x

    def batched(indices: list[Index]) -> list[Any]:
        reading = [x for (x,) in indices if x % 7 >= 2]
        before = t.read([slice(3 * x - 3, 3 * x) for x in reading], workers=workers)
        found = {x: pixels.repeat(2)[1:5] + x for x, pixels in zip(reading, before, strict=True)}
        return [found.get(x, torch.ones(4)) for (x,) in indices]

    window = TensorWindow((4,), (3,))
    alone = built(single, window)
    t = built(batched, window, store=make_store(kind, tmp_path), batch_size=8)
    assert torch.equal(started(lambda: t.read(slice(0, 90), workers=workers)).result(LIMIT), alone[0:90])


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("batch_size", [2, (1, 2, 4), 8])
def test_windows_of_one_call_that_need_each_other_are_an_error(batch_size: Any, at_once: bool) -> None:
    def f(indices: list[Index]) -> list[torch.Tensor]:
        others = [slice(x ^ 1, (x ^ 1) + 1) for (x,) in indices]
        return list(t[others]) if at_once else [t[other] for other in others]

    t = built(f, 1, name="snake", batch_size=batch_size)
    with pytest.raises(ValidationError, match="itself"):
        t[0:8]


class Meeting:
    """Where two threads meet: each the first time that it comes by a name of its own."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2, timeout=LIMIT)
        self._met: set[object] = set()

    def come(self, name: object) -> None:
        if name not in self._met:
            self._met.add(name)
            self._both.wait()


def test_windows_of_two_threads_that_need_each_other_are_an_error() -> None:
    meeting = Meeting()

    def a(_ctx: Index) -> Any:
        meeting.come("a")
        return second[0:1]

    def b(_ctx: Index) -> Any:
        meeting.come("b")
        return first[0:1]

    first, second = built(a, 1, name="first"), built(b, 1, name="second")
    check_each_would_need_itself([started(lambda: first[0:1]), started(lambda: second[0:1])])


def test_threads_that_only_seem_to_wait_for_each_other_both_finish() -> None:
    meeting = Meeting()

    @Counted
    def a(ctx: Index) -> Any:
        if ctx[0] == 1:
            return torch.full((1,), 5.0)
        meeting.come("a")
        return second[0:1] + 1

    @Counted
    def b(_ctx: Index) -> Any:
        meeting.come("b")
        # The thread that reads first[0:2] has claimed window 1 as well, and waits for this very window.
        return first[1:2] + 1

    first = built(a, 1)
    second = built(b, 1)
    reads = [started(lambda: first[0:2]), started(lambda: second[0:1])]
    pixels = [read.result(timeout=LIMIT).tolist() for read in reads]
    assert pixels == [[7.0, 5.0], [6.0]]
    assert ({*a.calls}, {*b.calls}) == ({(0,), (1,)}, {(0,)})


def test_reads_that_meet_fill_their_batches_with_allowed_sizes_only() -> None:
    f = Flaky(lambda ctx: torch.full((4,), float(ctx[0])), None)
    t = built(f, 4, batch_size=(1, 4))
    for number, pixels in enumerate(together(lambda number: t[8 * number : 8 * number + 150])):
        assert pixels.tolist() == [float(x // 4) for x in range(8 * number, 8 * number + 150)]
    assert set(f.batches) <= {1, 4}
    assert len(f.calls) == len(f.counts)
