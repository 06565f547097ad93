"""Ctrl-C and other exceptions at random moments, what is seen of lines, and what must still work then."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import infinite_tensor
import infinite_tensor_stores

LIBRARY = tuple(f"{module.__path__[0]}/" for module in (infinite_tensor, infinite_tensor_stores))
"""The folders of the library."""

_PATIENCE = 30.0


@contextmanager
def lines_seen(within: Callable[[FrameType], bool], see: Callable[[FrameType], object]) -> Iterator[None]:
    """Have `see` called before each line that this thread comes to in calls that are `within`.

    The lines of all other calls are not even looked at, which saves most of the time that tracing takes.
    """
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "call":
            return trace if within(frame) else None
        if event == "line":
            see(frame)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    """Have a signal handled in another way within the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def alarms_handled_by(handler: Callable[[], object]) -> Iterator[None]:
    """Call a function from the handler of the signal that timers send; no timer runs on after it."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        handler()

    with handled(signal.SIGALRM, handle):
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def press_ctrl_c() -> None:
    """As in a terminal, right now."""
    signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupted_by_a_timer(
    interrupt: Callable[[], object] = press_ctrl_c,
    kind: type[BaseException] = KeyboardInterrupt,
    every: float = 0.0,
) -> Iterator[Callable[[float, Callable[[], object]], bool]]:
    """What does something and says whether Ctrl-C, which a timer presses after so many seconds, came out of it.

    Or another exception, of this kind, which ``interrupt()`` raises. With `every`, it is pressed again and again, so
    many seconds apart.

    While the main thread blocks signals, as it does where it starts a thread, the kernel gives them to another; Python
    may hear of one when what it was for is over, and such a late one means nothing.
    """
    is_doing = False

    def tell() -> None:
        nonlocal is_doing
        if is_doing:
            is_doing = bool(every)
            interrupt()

    def attempt(action: Callable[[], object]) -> None:
        nonlocal is_doing
        try:
            action()
        finally:
            # One that comes before this line is raised here, and the next one comes a millisecond later.
            is_doing = False

    def is_interrupted(seconds: float, action: Callable[[], object]) -> bool:
        nonlocal is_doing
        is_out = False
        try:
            is_doing = True
            signal.setitimer(signal.ITIMER_REAL, seconds, every)
            attempt(action)
        except kind:
            is_out = True
        is_doing = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        return is_out

    def raise_in_time(number: int, frame: FrameType | None) -> None:
        # The second of two that were put off may come when what it was for is over.
        if is_doing or not every:
            signal.default_int_handler(number, frame)

    hook = sys.unraisablehook
    # Python itself drops one that comes while an object is freed, and the hook of pytest must not be cut off.
    sys.unraisablehook = lambda _: None
    try:
        with handled(signal.SIGINT, raise_in_time), alarms_handled_by(tell):
            yield is_interrupted
    finally:
        sys.unraisablehook = hook


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
