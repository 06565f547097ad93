"""Ctrl-C while a store changes its state: it is put off until the change is done.

Python raises KeyboardInterrupt between any two lines of the main thread, and on no other. So the outermost call into a
store, `store_call`, puts a handler that only takes note in the place of the one that is there, and calls that one when
it ends. The former handler is back while a function of the user runs, see `running_f`, and while nothing is changed,
as where a thread waits for a lock, see `at_rest`; who waits for a condition looks for what has been noted: from there
Ctrl-C comes through at once. What only looks at a store, see `looking`, needs none of this.

Other exceptions from outside, of another signal handler or thrown into a thread, may leave a change half done. A call
that one of them has ended tells its stores, which must then be opened again. Where one comes as a call begins or ends,
the handler that takes note may be left there, and the call among those that this thread is in. So that handler, and
the next call, look whether the call is still on the stack.

A signal handler runs between two lines of whatever its thread is doing. If that is a call into a store, it may hold
locks that a flush would wait for, and nobody would release them. So a handler that begins a call there is told so.
"""

from __future__ import annotations

# Without what `signal` makes of it, which takes seven times as long.
import _signal  # type: ignore[import-not-found]
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from signal import SIGINT, valid_signals
from types import FrameType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from infinite_tensor.errors import StoreError

_LOOK_SECONDS = 0.05
"""How often a thread that waits looks whether it was interrupted."""


class _Store(Protocol):
    """What a call uses."""

    def cut_through(self, error: BaseException) -> None:
        """A call has ended in the middle of a change."""


class _Here(threading.local):
    """What this thread is doing.

    Attributes
    ----------
    call : store_call or None
        The innermost call that it is in, unless that runs a function of the user.
    looking : threading.Lock
        Held while it looks at a store.
    known : BaseException or None
        What came from a function of the user, or where the thread waited: nothing was half done.
    is_main : bool
        Whether Python handles signals here.
    """

    def __init__(self) -> None:
        self.is_main = threading.current_thread() is threading.main_thread()
        self.call: store_call | None = None
        self.looking = threading.Lock()
        self.known: BaseException | None = None

    def innermost(self) -> store_call | None:
        """`call`, without those that were cut through before they could say that they had ended."""
        while self.call is not None and not self.call.is_within(sys._getframe()):  # noqa: SLF001  (the only way)
            self.call = self.call.outer
        return self.call

    def free_for(self, stores: Mapping[int, object]) -> store_call | None:
        """The innermost call, if it uses none of these stores; StoreError if it does."""
        call = self.innermost()
        if self.looking.locked() or (call is not None and not call.stores.keys().isdisjoint(stores)):
            store = next(iter(stores.values()), "a store")
            raise StoreError(
                f"{store} cannot be used here: this thread is in the middle of another call, which a signal handler, "
                "or a function that the library has called, has interrupted. In a handler set a flag, and act on it "
                "after that call, or call request_flush() of a tile store, which does so"
            )
        return call


_here = _Here()


class _TakesNote:
    """The handler of SIGINT that puts Ctrl-C off; where it was left behind, it is as if it was not there.

    A second Ctrl-C that comes before the first one has come through is not put off.
    """

    def __init__(self) -> None:
        self._former: Any = None
        self.has_noted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        call, first = _here.call, not self.has_noted
        self.has_noted = first and call is not None and call.is_within(frame)
        if not self.has_noted:
            self._former(number, frame)

    def put_off(self) -> None:
        """Take note of interrupts from now on."""
        # Known before it is replaced.
        handler = _signal.getsignal(SIGINT)
        if handler is not self:
            self._former = handler
        # Not where interrupts are ignored, end the process, or are handled by no Python.
        if callable(self._former):
            _signal.signal(SIGINT, self)

    def show(self) -> None:
        """Have interrupts come through from now on."""
        if _signal.getsignal(SIGINT) is self:
            _signal.signal(SIGINT, self._former)

    def tell(self) -> None:
        """Have one come through that was noted."""
        self.has_noted = False
        self._former(SIGINT, sys._getframe())  # noqa: SLF001  (what handlers are given)

    def restore_in_child(self) -> None:
        """What the parent of this process has noted is not this one's."""
        _here.__init__()  # type: ignore[misc]
        self.has_noted = False
        self.show()


_ctrl_c = _TakesNote()

# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ctrl_c.restore_in_child)


class store_call:  # noqa: N801  (reads as a statement: ``with store_call(contents):``)
    """One call into stores by one thread, which Ctrl-C does not come into; never around a ``yield``.

    Parameters
    ----------
    stores : Contents
        Those that it uses, as far as they are known.

    Attributes
    ----------
    stores : dict of int to Contents
        The stores that it has come to, by their ids.
    outer : store_call or None
        The call, of other stores, that has begun this one: that of a store whose backend stands on another, say.
    is_shown : bool
        Whether interrupts come through just now.

    Raises
    ------
    StoreError
        If the thread is in the middle of another call of one of them, and in no function of the user.
    """

    __slots__ = ("_frame", "is_on_main", "is_shown", "outer", "stores")

    def __init__(self, *stores: _Store) -> None:
        self.stores: dict[int, Any] = {id(store): store for store in stores}
        self.outer: store_call | None = None
        self.is_on_main = _here.is_main
        self.is_shown = False
        self._frame: FrameType | None = None

    def __enter__(self) -> Self:
        self.outer = outer = _here.free_for(self.stores)
        if outer is not None:
            self.stores |= outer.stores
        self._frame = sys._getframe(1)  # noqa: SLF001  (the only way)
        try:
            self.put_off()
            _here.call = self
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            # While interrupts come through, nothing is half done either.
            if error is not None and not self.is_shown and error is not _here.known and _is_from_outside(error):
                for store in self.stores.values():
                    store.cut_through(error)
        finally:
            self._end()
        _here.known = None if self.outer is None else error
        if _ctrl_c.has_noted and self.is_on_main and self.outer is None:
            _ctrl_c.tell()

    def _end(self) -> None:
        try:
            if self.is_on_main and self.outer is None:
                _ctrl_c.show()
        finally:
            _here.call, self._frame = self.outer, None

    def is_within(self, frame: FrameType | None) -> bool:
        """Whether it is under way, where a thread has come to a frame."""
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None

    def put_off(self) -> None:
        """Put interrupts off from now on."""
        if self.is_on_main:
            _ctrl_c.put_off()
        self.is_shown = False

    def come_through(self) -> None:
        """Have interrupts come through from now on, and one that was noted before."""
        self.is_shown = True
        try:
            if self.is_on_main:
                _ctrl_c.show()
                if _ctrl_c.has_noted:
                    _ctrl_c.tell()
        except BaseException as error:
            self.put_off()
            _here.known = error
            raise


def _is_from_outside(error: BaseException) -> bool:
    """Whether an exception is none of an error of what has run, but that of a signal handler, say."""
    if not isinstance(error, Exception):
        return True
    handlers = [_signal.getsignal(number) for number in valid_signals()]
    codes = [getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers]
    # A backend may have raised an error of its own from it.
    traces = [each.__traceback__ for each in (error, error.__cause__) if each is not None]
    return any(frame.f_code in codes for trace in traces for frame, _ in traceback.walk_tb(trace))


def looking(store: object) -> threading.Lock:
    """What a thread holds while it only looks at a store, which an interrupt may end anywhere: a lock of its own.

    Raises
    ------
    StoreError
        If the thread is in the middle of a call, as in `store_call`.
    """
    _here.free_for({id(store): store})
    return _here.looking


def enter(store: _Store) -> None:
    """The call of this thread comes to another store."""
    if _here.call is not None:
        _here.call.stores[id(store)] = store


def entered() -> list[Any]:
    """The stores that the call of this thread has come to."""
    return [] if _here.call is None else [*_here.call.stores.values()]


class at_rest:  # noqa: N801  (likewise)
    """While it is entered, interrupts come through: this thread waits, or changes nothing that others see."""

    __slots__ = ("_call",)

    def __init__(self) -> None:
        call = _here.call
        self._call = None if call is None or call.is_shown else call

    def __enter__(self) -> None:
        if self._call is not None:
            self._call.come_through()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._call is not None:
            # Not out of a change.
            if error is not None and self._call.is_shown:
                _here.known = error
            self._call.put_off()


class changing:  # noqa: N801  (likewise)
    """Within `at_rest`, a change that others see: interrupts are put off while it is entered."""

    __slots__ = ("_call",)

    def __enter__(self) -> None:
        call = _here.call
        self._call = call if call is not None and call.is_shown else None
        if self._call is not None:
            self._call.put_off()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._call is not None and error is None:
            self._call.come_through()


class running_f(at_rest):  # noqa: N801  (likewise)
    """The same where this thread runs an ``f``, or another function of the user, which may use any store."""

    __slots__ = ("_around",)

    def __init__(self) -> None:
        super().__init__()
        self._around = _here.call

    def __enter__(self) -> None:
        super().__enter__()
        _here.call = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        _here.call = self._around


def wait_for(lock: threading.Lock) -> None:
    """Return when nobody holds a lock."""
    with at_rest(), lock:
        pass


def wait_until(reached: Callable[[], bool], changed: threading.Condition) -> None:
    """Return once something is reached, which is looked at after each change; called with the condition held."""
    while not reached():
        changed.wait(_LOOK_SECONDS)
        show_interrupt()


def show_interrupt() -> None:
    """Have an interrupt come through that has been put off; called where nothing is half done."""
    if _ctrl_c.has_noted and _here.call is not None and _here.call.is_on_main:
        try:
            _ctrl_c.tell()
        except BaseException as error:
            _here.known = error
            raise


def known(error: BaseException) -> BaseException:
    """The same error, which comes from a function of the user, or out of a part of this call: no cause to tell."""
    _here.known = error
    return error


Owner = TypeVar("Owner")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def store_method(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """A method of a store, or of what it holds, that is a call into it."""

    @functools.wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with store_call(getattr(self, "_contents", cast("_Store", self))):
            return method(self, *args, **kwargs)

    return called


def store_query(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """The same for one that changes nothing, and may be called in the middle of a call: by a backend, say."""
    as_call = store_method(method)

    @functools.wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        is_free = not _here.looking.locked() and _here.innermost() is None
        return (as_call if is_free else method)(self, *args, **kwargs)

    return called
