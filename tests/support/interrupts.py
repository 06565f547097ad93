"""The lines that a thread comes to, KeyboardInterrupt at any of them, and what must still work then."""

from __future__ import annotations

import dis
import itertools
import linecache
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar, TypeAlias

import infinite_tensor
import infinite_tensor_stores

LIBRARY = tuple(f"{module.__path__[0]}/" for module in (infinite_tensor, infinite_tensor_stores))
"""The folders of the library."""

_PATIENCE = 30.0

Line: TypeAlias = tuple[str, int]
"""A file and the number of a line."""


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
def interrupted_where(
    chosen: Callable[[Line], bool],
    within: Callable[[CodeType], bool] = lambda _code: True,
    *,
    of: tuple[str, ...] = LIBRARY,
) -> Iterator[None]:
    """KeyboardInterrupt before the first line that this thread comes to and that is `chosen`.

    Only lines of files in the folders `of`, and of functions that are `within`, are looked at.
    """
    # Of who enters the `with`.
    done, here = False, sys._getframe(2)

    def is_looked_at(frame: FrameType) -> bool:
        code = frame.f_code
        return not done and code.co_filename.startswith(of) and within(code) and not _is_in_a_finalizer(frame, here)

    def interrupt(frame: FrameType) -> None:
        nonlocal done
        code, line = frame.f_code, frame.f_lineno
        if not done and _Lines.of(code).can_be_interrupted(frame.f_lasti, line):
            done = chosen((code.co_filename, line))
            if done:
                raise KeyboardInterrupt

    with lines_seen(is_looked_at, interrupt):
        yield


def interrupted_at(number: int, *, of: tuple[str, ...] = LIBRARY) -> AbstractContextManager[None]:
    """KeyboardInterrupt before the `number`-th line that this thread comes to in files in the folders `of`."""
    lines = itertools.count(1)
    return interrupted_where(lambda _line: next(lines) == number, of=of)


class NewLines:
    """Lines that have not been interrupted yet; of all lines, every `share`-th."""

    def __init__(self, share: int = 1) -> None:
        self._share = share
        self._seen: set[Line] = set()
        self._chosen: dict[int, set[Line]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __call__(self, line: Line) -> bool:
        """Whether to interrupt here."""
        new = line not in self._seen and self._is_chosen(*line)
        if new:
            self._seen.add(line)
        return new

    def are_left_in(self, code: CodeType) -> bool:
        """Whether a function has lines at which to interrupt it."""
        # By its identity, as in `_Lines`.
        chosen = self._chosen.get(id(code))
        if chosen is None:
            file = code.co_filename
            numbers = {number for _, _, number in code.co_lines() if number is not None}
            chosen = {(file, number) for number in numbers if self._is_chosen(file, number)}
            self._chosen[id(code)] = chosen
        return not chosen <= self._seen

    def _is_chosen(self, file: str, number: int) -> bool:
        return (number + _length_of_name(file)) % self._share == 0


@cache
def _length_of_name(file: str) -> int:
    return len(Path(file).name)


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


def _is_in_a_finalizer(frame: FrameType, outermost: FrameType) -> bool:
    """Whether Python calls this as it frees an object: it drops an exception that is raised there.

    What `outermost` was called from does not count.
    """
    caller: FrameType | None = frame
    while caller is not None and caller is not outermost:
        if caller.f_code.co_name == "__del__" or _is_told_of_the_dead(caller):
            return True
        caller = caller.f_back
    return False


def _is_told_of_the_dead(frame: FrameType) -> bool:
    """Whether it is the callback of a weak reference, which is given that and has no use for it.

    A `weakref.finalize` that is called by hand is given none.
    """
    code = frame.f_code
    last = code.co_varnames[code.co_argcount - 1] if code.co_argcount else ""
    given = frame.f_locals.get(last) if last.startswith("_") else None
    return isinstance(given, weakref.ref) and given() is None


class _Lines:
    """What is to be known of the lines of a function, looked up once: there are very many events."""

    _known: ClassVar[dict[int, _Lines]] = {}

    def __init__(self, code: CodeType) -> None:
        self._instructions = code.co_code
        self._withs = _withs_in(code)
        self._unprotected = _unprotected_in(code)
        self.code = code

    @classmethod
    def of(cls, code: CodeType) -> _Lines:
        """Found by the identity of the code, whose hash takes longer than all else; it is kept alive."""
        found = cls._known.get(id(code))
        if found is None:
            found = cls._known[id(code)] = cls(code)
        return found

    def can_be_interrupted(self, at: int, line: int) -> bool:
        """Whether Python handles signals before a line, of which the instruction `at` is next.

        It does not before a bare ``try:``, where no ``with`` protects it either; nor where the block of a ``with``
        ends: Python then comes to the line of the ``with`` again, and handles no signal before the exit; nor, from
        Python 3.12 on, at some jumps, where the exception of a tracer, and in Python 3.13 any Ctrl-C, misses it.
        """
        is_protected = at not in self._unprotected and at <= self._withs.get(line, at)
        return is_protected and self._instructions[at] != dis.opmap["NOP"]


def _withs_in(code: CodeType) -> dict[int, int]:
    """Where the instructions of each line that begins a ``with`` begin."""
    first: dict[int, int] = {}
    for start, _, line in code.co_lines():
        if line is not None and linecache.getline(code.co_filename, line).lstrip().startswith("with "):
            first.setdefault(line, start)
    return first


def _unprotected_in(code: CodeType) -> frozenset[int]:
    """Instructions of which a ``with`` around them hears nothing, though it should: jumps, and where loops begin."""
    if sys.version_info < (3, 12):
        return frozenset()
    jumps = {each.argval for each in dis.get_instructions(code) if each.opname.startswith("JUMP_BACKWARD")}
    ends: dict[int, int] = {}
    for each in dis._parse_exception_table(code):
        jumps.update(range(ends.get(each.target, each.start), each.start))
        ends[each.target] = each.end
    return frozenset(jumps)


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
