"""KeyboardInterrupt at any line of the library, and what must still work then."""

from __future__ import annotations

import itertools
import linecache
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dis import opmap
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import infinite_tensor
import infinite_tensor_stores

_LIBRARY = tuple(f"{module.__path__[0]}/" for module in (infinite_tensor, infinite_tensor_stores))
_PATIENCE = 30.0
_FINALIZER = weakref.finalize.__call__.__code__

Line: TypeAlias = tuple[str, int]
"""A file and the number of a line."""


@contextmanager
def interrupted_where(chosen: Callable[[Line], bool]) -> Iterator[None]:
    """KeyboardInterrupt before the first line of the library that this thread comes to and that is `chosen`."""
    before, done = sys.gettrace(), False

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal done
        if event == "call":
            if done or not _is_of_the_library(frame.f_code) or _is_in_a_finalizer(frame):
                return None
        elif event == "line" and not done and not (_does_nothing(frame) or _leaves_a_with(frame)):
            done = chosen((frame.f_code.co_filename, frame.f_lineno))
            if done:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupted_at(number: int) -> AbstractContextManager[None]:
    """KeyboardInterrupt before the `number`-th line of the library that this thread comes to."""
    lines = itertools.count(1)
    return interrupted_where(lambda _line: next(lines) == number)


class NewLines:
    """Lines that have not been interrupted yet; of all lines, every `share`-th."""

    def __init__(self, share: int = 1) -> None:
        self._share = share
        self._seen: set[Line] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def __call__(self, line: Line) -> bool:
        """Whether to interrupt here."""
        file, number = line
        new = line not in self._seen and (number + len(Path(file).name)) % self._share == 0
        if new:
            self._seen.add(line)
        return new


@contextmanager
def alarms_handled_by(handler: Callable[[], object]) -> Iterator[None]:
    """Call a function from the handler of the signal that timers send; no timer runs on after it."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        handler()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interrupted_by_a_timer() -> Iterator[Callable[[float, Callable[[], object]], bool]]:
    """What does something and says whether Ctrl-C, by the signal of a timer after so many seconds, came out of it.

    While the main thread blocks signals, as it does where it starts a thread, the kernel gives them to another; Python
    may hear of one when what it was for is over, and such a late one means nothing.
    """
    is_doing = False

    def interrupt() -> None:
        nonlocal is_doing
        if is_doing:
            is_doing = False
            raise KeyboardInterrupt

    def is_interrupted(seconds: float, action: Callable[[], object]) -> bool:
        nonlocal is_doing
        try:
            is_doing = True
            signal.setitimer(signal.ITIMER_REAL, seconds)
            action()
            is_doing = False
        except KeyboardInterrupt:
            return True
        signal.setitimer(signal.ITIMER_REAL, 0)
        return False

    with alarms_handled_by(interrupt):
        yield is_interrupted


def _is_in_a_finalizer(frame: FrameType) -> bool:
    """Whether Python calls this as it frees an object: it drops an exception that is raised there."""
    caller: FrameType | None = frame
    while caller is not None:
        code = caller.f_code
        # One that is called by hand is given no reference.
        if code.co_name == "__del__" or (code is _FINALIZER and caller.f_locals["_"] is not None):
            return True
        caller = caller.f_back
    return False


@cache
def _is_of_the_library(code: CodeType) -> bool:
    return code.co_filename.startswith(_LIBRARY)


def _does_nothing(frame: FrameType) -> bool:
    """Whether the line is a bare ``try:``, before which Python handles no signal, and where no ``with`` protects it."""
    return _instructions_of(frame.f_code)[frame.f_lasti] == opmap["NOP"]


@cache
def _instructions_of(code: CodeType) -> bytes:
    """Kept: Python copies them whenever it is asked."""
    return code.co_code


def _leaves_a_with(frame: FrameType) -> bool:
    """Whether the block of a ``with`` ends: Python comes to its line again, and handles no signal before the exit."""
    return frame.f_lasti > _withs_in(frame.f_code).get(frame.f_lineno, frame.f_lasti)


@cache
def _withs_in(code: CodeType) -> dict[int, int]:
    """Where the instructions of each line that begins a ``with`` begin."""
    first: dict[int, int] = {}
    for start, _, line in code.co_lines():
        if line is not None and linecache.getline(code.co_filename, line).lstrip().startswith("with "):
            first.setdefault(line, start)
    return first


def finishes(action: Callable[[], object]) -> None:
    """Do it on another thread, which must come to an end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  (raised again below)
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    assert not thread.is_alive()
    if raised:
        raise raised[0]
