"""Ctrl-C in the middle of what a thread asks of a store: put off while that changes, and the store works on."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    StoreError,
    TensorWindow,
    TileStore,
    ZarrTileStore,
    sl,
)
from infinite_tensor.geometry.points import Index
from infinite_tensor.support import interrupts
from infinite_tensor.support.interrupts import act_as_ctrl_c
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.durability.faults.conftest import pair
from tests.support.building import line, ones
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.interrupts import (
    finishes,
    handled,
    interrupted_by_a_timer,
    lines_seen,
    press_ctrl_c,
    pressed_by_another_process,
)

SMALL = 3000
"""Bytes of a cache that holds a few windows, or a tile or two."""
PATIENCE = 30.0
WINDOW = TensorWindow((4,))

STORES: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _: MemoryTileStore(),
    "memory-limited": lambda _: MemoryTileStore(cache_size_bytes=SMALL),
    "zarr": lambda path: ZarrTileStore(path / "t.zarr", tile_size=16, cache_size_bytes=SMALL),
    "hdf5": lambda path: HDF5TileStore(path / "t.h5", tile_size=16, cache_size_bytes=SMALL),
}


UNLIMITED: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _: MemoryTileStore(),
    "zarr": lambda path: ZarrTileStore(path / "t.zarr", tile_size=16),
    "hdf5": lambda path: HDF5TileStore(path / "t.h5", tile_size=16),
}


class Slow(DictTileStore):
    """Does something before it reads, stores or deletes tiles, which is in the middle of a call."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self.before = before
        super().__init__({}, tile_size=8)

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        self.before()
        return super()._read_tiles(tensor_id, tile_indices)


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Does something the first time that it is called."""
    actions = [action]

    def act() -> None:
        if actions:
            actions.pop()()

    return act


# One of each kind.


def test_ctrl_c_while_a_store_reads_comes_when_that_is_done() -> None:
    went_on = []

    def press() -> None:
        press_ctrl_c()
        went_on.append(True)

    store, f = Slow(once(press)), Counted(ones)
    t = line(store, f)
    with pytest.raises(KeyboardInterrupt):
        t[0:8]
    assert went_on
    assert f.calls == []
    assert t[0:8].tolist() == [1] * 8


def test_ctrl_c_while_windows_are_blended_loses_none(tmp_path: Path) -> None:
    f = Counted(ones)
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        window = TensorWindow((4,), stride=2)

        def blend(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            if not pressed:
                pressed.append(True)
                press_ctrl_c()
            return a + b

        pressed = [True]
        t = InfiniteTensor((None,), f, window, tile_store=store, tensor_id="t", blend=blend, version=1)
        pressed.clear()
        with pytest.raises(KeyboardInterrupt):
            t[0:16]
        assert t[0:16].tolist() == [2] * 16
    assert len(f.calls) == len(set(f.calls)) == 9


def test_ctrl_c_while_f_runs_comes_at_once() -> None:
    went_on = []

    def f(ctx: Index) -> torch.Tensor:
        if ctx == (1,) and not pressed:
            pressed.append(True)
            press_ctrl_c()
            went_on.append(True)
        return torch.ones(4)

    pressed: list[bool] = []
    counted = Counted(f)
    t = line(MemoryTileStore(), counted)
    with pytest.raises(KeyboardInterrupt):
        t[0:12]
    assert not went_on
    assert t[0:12].tolist() == [1] * 12
    # What was finished is kept.
    assert counted.calls == [(0,), (1,), (1,), (2,)]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to a thread are POSIX")
def test_ctrl_c_while_a_thread_waits_for_another_one_comes_at_once() -> None:
    begun, may_end, here = threading.Event(), threading.Event(), threading.get_ident()

    def f(_ctx: Index) -> torch.Tensor:
        begun.set()
        assert may_end.wait(PATIENCE)
        return torch.ones(4)

    counted = Counted(f)
    t = line(MemoryTileStore(), counted)
    other = threading.Thread(target=lambda: t[0:4])
    other.start()
    assert begun.wait(PATIENCE)
    pressing = threading.Timer(0.1, signal.pthread_kill, [here, signal.SIGINT])
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        t[0:4]
    may_end.set()
    other.join(PATIENCE)
    pressing.join()
    assert t[0:4].tolist() == [1] * 4
    assert counted.calls == [(0,)]


def test_more_ctrl_c_in_the_middle_of_a_change_are_put_off_too() -> None:
    went_on = []

    def press_often() -> None:
        for _ in range(3):
            press_ctrl_c()
        went_on.append(True)

    f = Counted(ones)
    with Slow() as store:
        t = line(store, f)
        t[0:8]
        store.before = once(press_often)
        with pytest.raises(KeyboardInterrupt):
            t[8:16]
        assert went_on
        assert t[0:16].tolist() == [1] * 16
        store.flush()
    assert sorted(f.calls) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("part", [interrupts.at_rest, interrupts.running_f])
def test_what_is_cleaned_up_after_a_ctrl_c_is_not_cut_off_by_the_next_one(part: Callable[[], Any]) -> None:
    cleaned = []

    def cut() -> None:
        with interrupts.store_call():
            try:
                press_ctrl_c()
                with part():
                    raise AssertionError
            finally:
                press_ctrl_c()
                cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        cut()
    assert cleaned


def test_a_ctrl_c_while_a_call_begins_leaves_the_next_one_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the first and the second Ctrl-C of a program that sets a flag at the first.
    came: list[bool] = []
    install = interrupts._ctrl_c.install

    def install_and_press() -> None:
        install()
        press_ctrl_c()

    monkeypatch.setattr(interrupts._ctrl_c, "install", install_and_press)
    former = signal.signal(signal.SIGINT, lambda *_: came.append(is_changing))
    try:
        with interrupts.store_call():
            is_changing = True
            press_ctrl_c()
            is_changing = False
    finally:
        signal.signal(signal.SIGINT, former)
    assert came
    assert not any(came)


def test_where_a_store_hangs_a_later_ctrl_c_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_PATIENCE_SECONDS", 0.05)

    def hang() -> None:
        for _ in range(100):
            press_ctrl_c()
            time.sleep(0.01)
        went_on.append(True)

    went_on: list[bool] = []
    with Slow(once(hang)) as store:
        t = line(store)
        with pytest.raises(KeyboardInterrupt):
            t[0:8]
        assert not went_on
        assert t[0:8].tolist() == [1] * 8


class Reload(BaseException):
    """What a server raises in its handler of a signal."""


def raise_reload() -> None:
    raise Reload


def expire(_number: int, _frame: FrameType | None) -> None:
    """A handler of a time limit."""
    raise TimeoutError


def test_another_exception_in_the_middle_of_a_call_leaves_the_store_as_it_is() -> None:
    f = Counted(ones)
    store = Slow()
    t = line(store, f)
    t[0:8]
    store.before = once(partial(signal.raise_signal, signal.SIGTERM))
    # A backend that raises a TimeoutError by itself has failed to read.
    with handled(signal.SIGTERM, expire), pytest.raises(StoreError, match="TimeoutError"):
        t[8:16]
    store.before = once(raise_reload)
    with pytest.raises(Reload):
        t[8:16]
    assert t[0:16].tolist() == [1] * 16
    assert sorted(f.calls) == [(0,), (1,), (2,), (3,)]


def test_an_error_of_a_blend_closes_no_store() -> None:
    def fails(_a: torch.Tensor, _b: torch.Tensor) -> torch.Tensor:
        if failing:
            raise ArithmeticError
        return _a + _b

    failing: list[bool] = []
    window = TensorWindow((4,), stride=2)
    t = InfiniteTensor((None,), ones, window, tile_store=Slow(), tensor_id="t", blend=fails, version=1)
    failing.append(True)
    with pytest.raises(ArithmeticError):
        t[0:4]
    failing.clear()
    assert t[0:4].tolist() == [2] * 4


def test_what_a_blend_leaves_half_done_is_computed_again() -> None:
    cuts: list[Callable[[], object]] = []

    def blend(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a += 1
        if cuts:
            cuts.pop()()
        return a + b - 1

    f, window = Counted(ones), TensorWindow((4,), stride=2)
    t = InfiniteTensor(
        (None,), f, window, tile_store=MemoryTileStore(tile_size=16), tensor_id="t", blend=blend, version=1
    )
    assert t[0:16].tolist() == [2] * 16
    cuts.append(raise_reload)
    with pytest.raises(Reload):
        t[16:32]
    assert t[0:32].tolist() == [2] * 32


@pytest.mark.parametrize("kind", STORES)
def test_nobody_waits_for_a_call_that_another_exception_has_cut_through(kind: str, tmp_path: Path) -> None:
    """Thrown into a thread, as by a handler, at a line where what was claimed is about to be stored."""
    store = STORES[kind](tmp_path)

    def f(_ctx: Index) -> torch.Tensor:
        return torch.ones(4)

    t = line(store, f)

    def cut(frame: FrameType, event: str, _arg: object) -> Any:
        if event == "call" and frame.f_code.co_name == "deposit":
            sys.settrace(None)
            raise Reload
        return cut

    def cut_through() -> None:
        sys.settrace(cut)
        with pytest.raises(Reload):
            t[0:8]

    finishes(cut_through)

    def read_again() -> None:
        assert t[0:8].tolist() == [1] * 8

    finishes(read_again)


# Handlers.


def handler_in(store: Slow) -> list[object]:
    """The handlers of Ctrl-C in the middle of a read, and between the parts of a stream."""
    found: list[object] = []
    t = line(store)
    store.before = once(lambda: found.append(signal.getsignal(signal.SIGINT)))
    t[0:4]
    found += [signal.getsignal(signal.SIGINT) for _ in t.iter_regions([sl[0:4], sl[0:8]])]
    return found


def test_the_handler_of_the_user_is_there_between_the_parts_of_a_stream() -> None:
    own = signal.getsignal(signal.SIGINT)
    in_the_middle, *others = handler_in(Slow())
    assert in_the_middle != own
    assert others == [own] * 2
    assert signal.getsignal(signal.SIGINT) == own


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_ctrl_c_is_ignored_or_ends_the_process_that_stays(handler: Any) -> None:
    with handled(signal.SIGINT, handler):
        assert handler_in(Slow()) == [handler] * 3


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_a_signal_that_acts_as_ctrl_c_closes_no_store_even_if_ctrl_c_is_ignored(handler: Any) -> None:
    f = Counted(ones)
    with handled(signal.SIGINT, handler), handled(signal.SIGTERM, act_as_ctrl_c):
        t = line(Slow(once(partial(signal.raise_signal, signal.SIGTERM))), f)
        with pytest.raises(KeyboardInterrupt):
            t[0:8]
        assert f.calls == []
        assert t[0:8].tolist() == [1] * 8


def test_a_handler_of_ones_own_is_called_when_the_call_ends() -> None:
    called: list[object] = []

    def in_the_middle() -> None:
        press_ctrl_c()
        called.append("in the middle")

    with handled(signal.SIGINT, lambda number, _frame: called.append(number)):
        assert line(Slow(once(in_the_middle)))[0:4].tolist() == [1] * 4
    assert called == ["in the middle", signal.SIGINT]


def test_a_handler_that_f_sets_is_the_one_that_is_left() -> None:
    def f(_ctx: Index) -> torch.Tensor:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return torch.ones(4)

    with handled(signal.SIGINT, signal.getsignal(signal.SIGINT)):
        line(MemoryTileStore(), f)[0:4]
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork is POSIX")
@pytest.mark.parametrize("on_a_thread", [False, True])
def test_a_child_that_is_forked_in_the_middle_of_a_call_has_the_handler_of_the_user(*, on_a_thread: bool) -> None:
    own = signal.getsignal(signal.SIGINT)

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(0 if signal.getsignal(signal.SIGINT) == own else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def on_another() -> None:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    statuses: list[int] = []
    line(Slow(once(on_another if on_a_thread else fork)))[0:4]
    assert statuses == [0]


def test_other_threads_leave_the_handler_as_it_is() -> None:
    own = signal.getsignal(signal.SIGINT)
    found: list[object] = []
    finishes(lambda: found.extend(handler_in(Slow())))
    assert found == [own] * 3


# At every line of what puts Ctrl-C off.


def reading_another(store: TileStore, calls: list[object]) -> InfiniteTensor:
    """A tensor whose f reads another one, so that there are calls within a call."""
    other = InfiniteTensor((None,), ones, WINDOW, tile_store=MemoryTileStore(cache_size_windows=1), tensor_id="other")

    def f(ctx: Index) -> torch.Tensor:
        calls.append(ctx)
        return other[4 * ctx[0] : 4 * ctx[0] + 4]

    return line(store, f)


def is_done_at(number: int, act: Callable[[], None], check: Callable[[int], None]) -> bool:
    """Do something before one line of what puts Ctrl-C off in a read, and check what has become of it.

    ``check(count)`` is told how many calls of f have ended after it. False where there are not so many lines.
    """
    before: list[int] = []
    calls: list[object] = []
    seen = itertools.count()

    def see(_frame: FrameType) -> None:
        if next(seen) == number:
            before.append(len(calls))
            act()

    with Slow() as store:
        t = reading_another(store, calls)
        with suppress(KeyboardInterrupt, Reload), lines_seen(within_interrupts, see):
            t[0:4]
        if before:
            check(len(calls) - before[0])
        finishes(lambda: t[0:4])
        assert t[0:8].tolist() == [1] * 8
        assert signal.getsignal(signal.SIGINT) == own_handler()
    return bool(before)


def at_lines(step: int, act: Callable[[], None], check: Callable[[int], None]) -> int:
    """Do so at every so many lines; how many there are."""
    return next(number for number in itertools.count(step=step) if not is_done_at(number, act, check))


LINES = pytest.mark.parametrize("step", [pytest.param(6, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])


def within_interrupts(frame: FrameType) -> bool:
    return frame.f_code.co_filename == interrupts.__file__


def own_handler() -> object:
    return signal.default_int_handler


@LINES
def test_ctrl_c_at_each_line_of_what_puts_it_off_comes_before_another_f_runs(step: int) -> None:
    def check(calls_after: int) -> None:
        # In the f that reads another tensor it ends that one.
        assert calls_after == 0
        assert signal.getsignal(signal.SIGINT) == own_handler()

    assert at_lines(step, press_ctrl_c, check) > 80


@LINES
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork is POSIX")
def test_another_exception_at_each_line_of_what_puts_ctrl_c_off_leaves_nothing_behind(step: int) -> None:
    def check(_calls_after: int) -> None:
        if signal.getsignal(signal.SIGINT) != own_handler():
            # Until the next call, which puts it back.
            child = os.fork()
            if not child:
                os._exit(signal.getsignal(signal.SIGINT) != own_handler())
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()

    assert at_lines(step, raise_reload, check) > 80


# At random moments.


def read(tensor: InfiniteTensor, y: int) -> torch.Tensor:
    pixels: torch.Tensor = tensor.read((slice(y, y + 14), slice(0, 14)))
    return pixels


ACTIONS: list[Callable[[InfiniteTensor, int], object]] = [
    read,
    lambda t, y: list(t.iter_regions([sl[y : y + 3, 0:9], sl[y + 9 : y + 14, 2:14]])),
    lambda t, y: t.fill((slice(y, y + 14), slice(0, 14)), progress=False),
    lambda t, y: t.read((slice(y, y + 14), slice(0, 14)), workers=2),
    lambda t, y: t.args[0].invalidate((slice(max(0, y - 9), y + 1), slice(0, 14))),
    lambda t, _y: t.clear_cache(),
    lambda t, _y: t.tile_store.flush(),
    lambda t, y: t.plan((slice(y, y + 14), slice(0, 14))),
]

MORE_ACTIONS: list[Callable[[InfiniteTensor, int], object]] = [
    *ACTIONS,
    lambda t, _y: t.tile_store.clear_tensor("slope"),
    lambda t, _y: t.tile_store.tensor_info("slope"),
]


def undisturbed() -> dict[int, torch.Tensor]:
    """What reads return that nothing comes into, by where they begin."""
    slope = pair(MemoryTileStore()).slope
    return {y: read(slope, y) for y in range(0, 400, 5)}


# Python itself drops an exception that comes in a callback of the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
@pytest.mark.parametrize("turns", [40, pytest.param(1_500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", STORES)
def test_ctrl_c_at_random_moments(kind: str, turns: int, tmp_path: Path) -> None:
    store, draw, pressed = STORES[kind](tmp_path), np.random.default_rng(len(kind)), 0
    top, expected = pair(store).slope, undisturbed()
    with interrupted_by_a_timer() as is_interrupted:
        for turn in range(turns):
            y = 5 * int(draw.integers(80))
            pressed += is_interrupted(draw.uniform(1e-5, 4e-3), partial(ACTIONS[turn % len(ACTIONS)], top, y))
            assert torch.equal(read(top, y), expected[y])
            check_together(store)
    assert pressed > turns // 20
    check_reopened(store, kind, tmp_path, expected)


def check_read(tensor: InfiniteTensor, y: int, expected: torch.Tensor) -> None:
    assert torch.equal(read(tensor, y), expected)


def check_reopened(store: TileStore, kind: str, folder: Path, expected: dict[int, torch.Tensor]) -> None:
    """What a store has stored is right, where it is opened again."""
    finishes(store.close)
    if isinstance(store, PersistentTileStore):
        again = pair(STORES[kind](folder)).slope
        for y, pixels in expected.items():
            check_read(again, y, pixels)


def check_together(store: TileStore) -> None:
    """What a store counts is what it holds, and no window of it is half done."""
    assert not store.closed
    if isinstance(store, PersistentTileStore):
        entries = store._contents.tiles.entries
        assert entries.total_bytes == sum(size for _, size in entries._entries.values())
        assert not any(getattr(entry, "spoilt", False) for _, entry in entries.items())


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of another process are POSIX")
@pytest.mark.parametrize("turns", [30, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", STORES)
def test_two_or_three_ctrl_c_a_few_milliseconds_apart(kind: str, turns: int, tmp_path: Path) -> None:
    store, draw, pressed = STORES[kind](tmp_path), np.random.default_rng(len(kind)), 0
    top, expected = pair(store).slope, undisturbed()
    with pressed_by_another_process() as is_pressed:
        for turn in range(turns):
            y = 5 * int(draw.integers(80))
            after = [draw.uniform(1e-4, 2e-2), *draw.uniform(1e-3, 5e-3, int(draw.integers(1, 3)))]

            def act(turn: int = turn, y: int = y, seconds: float = sum(after)) -> None:
                # So long that all of them come into it, wherever they find it.
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    MORE_ACTIONS[turn % len(MORE_ACTIONS)](top, y)
                    top.read((slice(y + 5, y + 19), slice(0, 14)))

            pressed += is_pressed(after, act)
            finishes(partial(check_read, top, y, expected[y]))
            check_together(store)
    assert pressed > turns // 2
    check_reopened(store, kind, tmp_path, expected)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of another process are POSIX")
@pytest.mark.parametrize("kind", UNLIMITED)
def test_fills_that_are_interrupted_again_and_again_lose_no_finished_window(kind: str, tmp_path: Path) -> None:
    def f(ctx: Index) -> torch.Tensor:
        time.sleep(2e-4)
        return torch.full((4,), float(ctx[0]))

    draw, counted, store, cuts = np.random.default_rng(0), Counted(f), UNLIMITED[kind](tmp_path), 0
    t = line(store, counted)
    with pressed_by_another_process() as is_pressed:
        for _ in range(20):
            # All come while f runs, while the store changes, or in the flush that ends a fill.
            after = [draw.uniform(0, 0.03), *draw.uniform(1e-3, 5e-3, 2)]
            cuts += is_pressed(after, lambda: t.fill(slice(0, 1000), progress=False))
    assert cuts
    assert t[0:1000].tolist() == np.arange(250).repeat(4).tolist()
    # Only a call of f that was cut off is made again.
    assert len(counted.calls) - len(set(counted.calls)) <= cuts
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
@pytest.mark.parametrize("turns", [40, pytest.param(1_500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", STORES)
def test_another_exception_at_random_moments(kind: str, turns: int, tmp_path: Path) -> None:
    """What is stored is right, the store works on, and nobody waits for ever."""
    store, draw, cut = STORES[kind](tmp_path), np.random.default_rng(len(kind)), 0
    top, expected = pair(store).slope, undisturbed()

    handler = signal.getsignal(signal.SIGINT)
    with interrupted_by_a_timer(raise_reload, Reload) as is_interrupted:
        for turn in range(turns):
            y = 5 * int(draw.integers(80))
            cut += is_interrupted(draw.uniform(1e-5, 4e-3), partial(ACTIONS[turn % len(ACTIONS)], top, y))
            finishes(partial(check_read, top, y, expected[y]))
            # What a cut has left of a call goes with the next one of its thread.
            store.flush()
            assert signal.getsignal(signal.SIGINT) is handler
    assert cut > turns // 20
    finishes(store.close)
