"""``workers=N``: the windows of one read on N threads."""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, ValidationError, ZarrTileStore
from tests.support.building import built, store_of
from tests.support.counting import Constant, Counted

LIMIT = 30.0


def tensor(f: Callable[..., Any], *reads: InfiniteTensor, **options: Any) -> InfiniteTensor:
    return built(f, 4, *reads, **options)


def meeting(count: int) -> Callable[..., torch.Tensor]:
    """An ``f`` that returns once `count` threads are in it."""
    barrier = threading.Barrier(count)

    def f(ctx: tuple[int, ...], *_regions: torch.Tensor) -> torch.Tensor:
        barrier.wait(LIMIT)
        return torch.full((4,), float(ctx[0]))

    return f


def test_a_read_runs_f_on_as_many_threads_as_it_says() -> None:
    t = tensor(meeting(3))
    assert t.read(slice(0, 24), workers=3).tolist() == [float(x // 4) for x in range(24)]


@pytest.mark.parametrize("kind", ["memory", "zarr", "hdf5"])
def test_a_store_says_how_many_threads_its_tensors_run_on(kind: str, tmp_path: Path) -> None:
    t = tensor(meeting(3), store=store_of(kind, tmp_path, workers=3))
    assert t[0:24].tolist() == [float(x // 4) for x in range(24)]


def test_a_stream_runs_on_as_many_threads_as_it_says() -> None:
    t = tensor(lambda contexts: [meeting_of_two(ctx) for ctx in contexts], batch_size=1)
    meeting_of_two = meeting(2)
    regions = t.iter_regions([slice(0, 16)], workers=2)
    assert [region.tolist() for ready in regions for region in ready] == [[float(x // 4) for x in range(16)]]


def test_one_thread_is_the_default() -> None:
    threads = set()

    def f(_ctx: tuple[int, ...]) -> torch.Tensor:
        threads.add(threading.get_ident())
        return torch.ones(4)

    tensor(f)[0:400]
    assert threads == {threading.get_ident()}


def test_several_threads_take_no_more_calls_than_one() -> None:
    f = Counted(lambda _ctx: torch.ones(4))
    tensor(f, batch_size=8).read(slice(0, 400), workers=4)
    assert sorted(f.batches) == [4, *[8] * 12]


def test_f_is_run_without_gradients_on_every_thread() -> None:
    weight = torch.ones(4, requires_grad=True)
    t = tensor(lambda _ctx: weight * 2)
    with torch.inference_mode():
        region = t.read(slice(0, 64), workers=2)
    assert region.tolist() == [2.0] * 64
    assert not region.requires_grad
    assert not region.is_inference()


def test_what_f_raises_comes_through_and_what_was_finished_stays() -> None:
    broken = True

    @Counted
    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        if ctx == (20,) and broken:
            raise ArithmeticError("twenty")
        return torch.full((4,), float(ctx[0]))

    t = tensor(f)
    with pytest.raises(ArithmeticError, match="twenty") as caught:
        t.read(slice(0, 400), workers=3)
    assert any("(20,)" in note for note in caught.value.__notes__)
    broken = False
    assert t.read(slice(0, 400), workers=3).tolist() == [float(x // 4) for x in range(400)]
    assert sorted(f.calls) == sorted([*((number,) for number in range(100)), (20,)])


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to a thread are POSIX")
def test_no_f_runs_on_after_a_ctrl_c() -> None:
    ended, outlived, here = threading.Event(), list[bool](), threading.get_ident()

    def f(ctx: tuple[int]) -> torch.Tensor:
        if ctx == (0,):
            # One that comes in the moment in which a thread is put to sleep does not wake it.
            ended.wait(0.02)
            signal.pthread_kill(here, signal.SIGINT)
        # It takes its time, so that it is seen where nobody waits for it.
        outlived.append(ended.wait(0.05))
        return torch.ones(4)

    with pytest.raises(KeyboardInterrupt):
        tensor(f).read(slice(0, 80), workers=2)
    ended.set()
    assert len(outlived) < 20
    assert not any(outlived)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_workers_need_be_a_positive_int(wrong: Any) -> None:
    for use in (lambda: MemoryTileStore(workers=wrong), lambda: tensor(Constant((4,))).read(0, workers=wrong)):
        with pytest.raises(ValidationError, match="workers"):
            use()


def test_workers_are_pickled_with_a_store(tmp_path: Path) -> None:
    for store in (MemoryTileStore(workers=5), ZarrTileStore(tmp_path, workers=5)):
        assert pickle.loads(pickle.dumps(store))._contents.workers == 5  # noqa: S301


def test_windows_begun_behind_a_slow_call_are_another_readers_to_take() -> None:
    entered, done = threading.Event(), threading.Event()
    computed_by: dict[int, int] = {}

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        computed_by[ctx[0]] = threading.get_ident()
        if ctx == (3000,):
            entered.set()
            assert done.wait(LIMIT)
        return torch.full((4,), float(ctx[0]))

    t = tensor(f)
    first = threading.Thread(target=lambda: t[0:20000])
    first.start()
    assert entered.wait(LIMIT)
    # The quick ones before it have had many begun at once.
    beyond = sorted(set(range(5000)) - computed_by.keys())
    assert t[4 * beyond[-1] : 4 * beyond[-1] + 4].tolist() == [float(beyond[-1])] * 4
    done.set()
    first.join(LIMIT)
    assert len(computed_by) == 5000


def test_other_threads_stop_soon_after_one_has_failed() -> None:
    failed = threading.Event()

    @Counted
    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        if ctx == (0,):
            failed.set()
            raise ArithmeticError
        assert failed.wait(LIMIT)
        threading.Event().wait(0.001)
        return torch.ones(4)

    with pytest.raises(ArithmeticError):
        tensor(f).read(slice(0, 40_000), workers=3)
    assert len(f.counts) < 5_000
