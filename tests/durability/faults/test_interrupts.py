"""Ctrl-C and other exceptions in the middle of what a thread asks of a store: what changes is done, and it works on."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from zarr.abc.buffer import Buffer
from zarr.storage import MemoryStore

from infinite_tensor import InfiniteTensor, MemoryTileStore, StoreError, ValidationError, ZarrTileStore, sl

# Inside: what puts Ctrl-C off is tested before each of its own lines.
from infinite_tensor.support import interrupts
from tests.durability.faults.conftest import check_stored, pair
from tests.durability.faults.subjects import STORES, SUBJECTS
from tests.support.building import line, ones, store_of
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.interrupts import (
    LIBRARY,
    finishes,
    handled,
    interrupted_by_a_timer,
    lines_seen,
    press_ctrl_c,
)
from tests.support.reference import Index

PATIENCE = 30.0

needs_timers = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")


# At random moments: all that may be interrupted, by all that interrupts.


class Reload(BaseException):
    """What a server raises in its handler of a signal."""


def raise_reload() -> None:
    raise Reload


PRESSES: dict[str, tuple[Callable[[], object], type[BaseException], float]] = {
    "Ctrl-C": (press_ctrl_c, KeyboardInterrupt, 0.0),
    "Ctrl-C again and again": (press_ctrl_c, KeyboardInterrupt, 2e-3),
    "another exception": (raise_reload, Reload, 0.0),
}


@needs_timers
@pytest.mark.parametrize("turns", [44, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("press", PRESSES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_at_random_moments(name: str, press: str, turns: int, tmp_path: Path) -> None:
    subject, draw, cuts = SUBJECTS[name](name, tmp_path), np.random.default_rng(len(name)), 0
    interrupt, kind, every = PRESSES[press]
    with interrupted_by_a_timer(interrupt, kind, every) as is_interrupted:
        handler = signal.getsignal(signal.SIGINT)
        for turn in range(turns):
            cuts += is_interrupted(draw.uniform(1e-5, 3e-3), subject.action(turn, draw))
            finishes(subject.check)
            subject.check()
            if kind is Reload:
                # What a cut has left of a call goes with the next one of its thread that is not served from memory.
                subject.flush()
            assert signal.getsignal(signal.SIGINT) is handler
    assert cuts > turns // 20
    finishes(subject.end)


@needs_timers
@pytest.mark.parametrize("kind", ["memory", "zarr", "hdf5"])
def test_fills_that_are_interrupted_again_and_again_lose_no_finished_window(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy this machine is, the store does not hang.
    monkeypatch.setattr(interrupts, "_PATIENCE_SECONDS", 600.0)

    def f(ctx: Index) -> torch.Tensor:
        time.sleep(2e-4)
        return torch.full((4,), float(ctx[0]))

    draw, counted, cuts = np.random.default_rng(0), Counted(f), 0
    with store_of(kind, tmp_path, 16) as store:
        t = line(store, counted)
        with interrupted_by_a_timer(every=2e-3) as is_interrupted:
            for _ in range(20):
                cuts += is_interrupted(draw.uniform(0, 0.03), lambda: t.fill(slice(0, 1000), progress=False))
        assert cuts
        assert t[0:1000].tolist() == np.arange(250).repeat(4).tolist()
        # Only a call of f that was cut off is made again.
        assert len(counted.calls) - len(set(counted.calls)) <= cuts


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 7))])
@pytest.mark.parametrize("name", ["memory-limited", "zarr", "hdf5", "blob"])
def test_a_handler_that_uses_a_store_at_any_line_is_refused_or_finds_it_right(
    name: str, number: int, tmp_path: Path
) -> None:
    """For a lock that its own thread holds, it would wait for ever."""
    subject, draw, lines = SUBJECTS[name](name, tmp_path), np.random.default_rng(number), itertools.count()
    refused: list[Exception] = []

    def handle(_frame: FrameType) -> None:
        if next(lines) % 101 == number:
            try:
                subject.look()
            except (StoreError, ValidationError) as error:
                # A ValidationError where the handler came while the window that it reads was computed.
                refused.append(error)

    def use() -> None:
        for turn in range(len(subject.USES)):  # type: ignore[attr-defined]
            act = subject.action(turn, draw)
            with lines_seen(lambda frame: frame.f_code.co_filename.startswith(LIBRARY), handle):
                act()
            subject.check()
        subject.end()

    finishes(use)
    assert refused


# At chosen moments.


class Scene(DictTileStore):
    """A tensor of overlapping windows, and what happens once while its store reads, blends, or runs its f."""

    def __init__(self) -> None:
        self.where, self.went_on = "", False
        self.happens: Callable[[], object] = press_ctrl_c
        super().__init__({}, tile_size=16)
        self.f = Counted(self._f)
        self.t = line(self, self.f, stride=2, blend=self._blend, version=1)

    def once(self, where: str, happens: Callable[[], object]) -> None:
        self.where, self.happens, self.went_on = where, happens, False

    def _at(self, where: str, result: Any) -> Any:
        if where == self.where:
            self.where = ""
            self.happens()
            self.went_on = True
        return result

    def _f(self, _ctx: Index) -> torch.Tensor:
        return self._at("f", torch.ones(4))  # type: ignore[no-any-return]

    def _blend(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self._at("blend", a + b)  # type: ignore[no-any-return]

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        return self._at("store", super()._read_tiles(tensor_id, tile_indices))  # type: ignore[no-any-return]


def three_times() -> None:
    for _ in range(3):
        press_ctrl_c()


def terminated() -> None:
    signal.raise_signal(signal.SIGTERM)


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("where", "happens", "kind", "goes_on"),
    [
        ("store", press_ctrl_c, KeyboardInterrupt, True),
        ("store", three_times, KeyboardInterrupt, True),
        ("blend", press_ctrl_c, KeyboardInterrupt, True),
        ("f", press_ctrl_c, KeyboardInterrupt, False),
        ("store", raise_reload, Reload, False),
        ("blend", raise_reload, Reload, False),
        ("f", raise_reload, Reload, False),
        # A backend that raises a TimeoutError by itself has failed to read.
        ("store", raising(TimeoutError()), StoreError, False),
        ("blend", raising(ArithmeticError()), ArithmeticError, False),
    ],
)
def test_what_changes_is_done_first_and_nothing_is_lost(
    where: str, happens: Callable[[], object], kind: type[BaseException], goes_on: bool
) -> None:
    with Scene() as scene:
        assert scene.t[0:16].tolist() == [2] * 16
        scene.once(where, happens)
        with pytest.raises(kind):
            scene.t[16:32]
        assert scene.went_on == goes_on
        assert scene.t[0:32].tolist() == [2] * 32
        assert max(scene.f.counts.values()) == 1 or not goes_on
        scene.flush()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_a_signal_that_acts_as_ctrl_c_is_put_off_even_if_ctrl_c_is_ignored(handler: Any) -> None:
    with handled(signal.SIGINT, handler), handled(signal.SIGTERM, interrupts.act_as_ctrl_c):
        scene = Scene()
        scene.once("store", terminated)
        with pytest.raises(KeyboardInterrupt):
            scene.t[0:16]
        assert scene.went_on
        assert scene.t[0:16].tolist() == [2] * 16


def test_where_a_store_hangs_a_later_ctrl_c_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_PATIENCE_SECONDS", 0.05)

    def hang() -> None:
        for _ in range(100):
            press_ctrl_c()
            time.sleep(0.01)

    scene = Scene()
    scene.once("store", hang)
    with pytest.raises(KeyboardInterrupt):
        scene.t[0:16]
    assert not scene.went_on
    assert scene.t[0:16].tolist() == [2] * 16


@contextmanager
def pressed_once(begun: threading.Event, seconds: float = 0.0) -> Iterator[None]:
    """Ctrl-C comes to this thread so long after something has begun."""
    here = threading.get_ident()

    def press() -> None:
        assert begun.wait(PATIENCE)
        time.sleep(seconds)
        signal.pthread_kill(here, signal.SIGINT)

    watcher = threading.Thread(target=press)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    watcher.join()


def test_ctrl_c_while_a_thread_waits_for_another_one_comes_at_once() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def f(_ctx: Index) -> torch.Tensor:
        begun.set()
        assert may_end.wait(PATIENCE)
        return torch.ones(4)

    counted = Counted(f)
    t = line(MemoryTileStore(), counted)
    other = threading.Thread(target=lambda: t[0:4])
    other.start()
    assert begun.wait(PATIENCE)
    with pressed_once(begun, 0.1):
        t[0:4]
    may_end.set()
    other.join(PATIENCE)
    assert t[0:4].tolist() == [1] * 4
    assert counted.calls == [(0,)]


class Gated(MemoryStore):
    """Writes parts of partial tiles once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = threading.Event(), threading.Event()

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if "/partial-" in key:
            self.begun.set()
            assert await asyncio.to_thread(self.gate.wait, PATIENCE)
        await super().set_if_not_exists(key, value)


def test_ctrl_c_while_a_flush_waits_for_storage_comes_at_once_and_loses_nothing() -> None:
    storage = Gated()
    store = ZarrTileStore(storage, tile_size=64)
    chain = pair(store)
    pixels, calls = chain.slope[0:20, 0:20], chain.calls.copy()
    with pressed_once(storage.begun):
        store.flush()
    assert torch.equal(chain.slope[0:20, 0:20], pixels)
    assert chain.calls == calls
    storage.gate.set()
    store.close()
    check_stored(ZarrTileStore(storage, tile_size=64), pixels)


@pytest.mark.parametrize("kind", STORES)
def test_nobody_waits_for_a_call_that_another_exception_has_cut_through(kind: str, tmp_path: Path) -> None:
    """Thrown into a thread, as by a handler, at a line where what was claimed is about to be stored."""
    t = line(STORES[kind](tmp_path), ones)

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
    finishes(lambda: t[0:8])


# Handlers.


def handlers_in(scene: Scene) -> list[object]:
    """The handlers of Ctrl-C in the middle of a read, and between the parts of a stream."""
    found: list[object] = []
    scene.once("store", lambda: found.append(signal.getsignal(signal.SIGINT)))
    scene.t[0:4]
    return found + [signal.getsignal(signal.SIGINT) for _ in scene.t.iter_regions([sl[0:4], sl[0:8]])]


def test_the_handler_of_the_user_is_there_between_the_parts_of_a_stream_and_on_other_threads() -> None:
    own = signal.getsignal(signal.SIGINT)
    in_the_middle, *others = handlers_in(Scene())
    assert in_the_middle != own
    finishes(lambda: others.extend(handlers_in(Scene())))
    assert {*others, signal.getsignal(signal.SIGINT)} == {own}


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_ctrl_c_is_ignored_or_ends_the_process_that_stays(handler: Any) -> None:
    with handled(signal.SIGINT, handler):
        assert handlers_in(Scene()) == [handler] * 3


def test_a_handler_of_ones_own_is_called_when_the_call_ends() -> None:
    called: list[bool] = []
    scene = Scene()
    scene.once("store", press_ctrl_c)
    with handled(signal.SIGINT, lambda *_: called.append(scene.went_on)):
        assert scene.t[0:4].tolist() == [2] * 4
    assert called == [True]


def test_a_handler_that_f_sets_is_the_one_that_is_left() -> None:
    scene = Scene()
    scene.once("f", lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    with handled(signal.SIGINT, signal.getsignal(signal.SIGINT)):
        scene.t[0:4]
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork is POSIX")
@pytest.mark.parametrize("run", [lambda fork: fork(), finishes], ids=["main thread", "another thread"])
def test_a_child_that_is_forked_in_the_middle_of_a_call_has_the_handler_of_the_user(run: Callable[..., Any]) -> None:
    own, statuses, scene = signal.getsignal(signal.SIGINT), list[int](), Scene()

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(0 if signal.getsignal(signal.SIGINT) == own else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    scene.once("store", lambda: run(fork))
    scene.t[0:4]
    assert statuses == [0]


# Inside: at every line of what puts Ctrl-C off.


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

    def f(ctx: Index) -> torch.Tensor:
        # There are calls within a call.
        calls.append(ctx)
        pixels: torch.Tensor = other[4 * ctx[0] : 4 * ctx[0] + 4]
        return pixels

    other = line(MemoryTileStore(cache_size_windows=1), tensor_id="other")
    with DictTileStore({}, tile_size=8) as store:
        t: InfiniteTensor = line(store, f)
        within = lambda frame: frame.f_code.co_filename == interrupts.__file__  # noqa: E731
        with suppress(KeyboardInterrupt, Reload), lines_seen(within, see):
            t[0:4]
        if before:
            check(len(calls) - before[0])
        finishes(lambda: t[0:4])
        assert t[0:8].tolist() == [1] * 8
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    return bool(before)


def no_other_f_has_run(calls_after: int) -> None:
    assert calls_after == 0
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def ctrl_c_works(_calls_after: int) -> None:
    if signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        # Until the next call, which puts it back.
        child = os.fork()
        if not child:
            os._exit(signal.getsignal(signal.SIGINT) != signal.default_int_handler)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork is POSIX")
@pytest.mark.parametrize("step", [pytest.param(6, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("act", "check"), [(press_ctrl_c, no_other_f_has_run), (raise_reload, ctrl_c_works)])
def test_at_each_line_of_what_puts_ctrl_c_off(act: Callable[[], None], check: Callable[[int], None], step: int) -> None:
    assert next(number for number in itertools.count(step=step) if not is_done_at(number, act, check)) > 80
