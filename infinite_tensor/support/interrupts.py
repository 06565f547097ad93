"""Defers Ctrl-C until the running change of a store is done.

Python raises KeyboardInterrupt between any two lines of the main thread, and on no other thread. So the outermost call
into a store (`store_call`) replaces the handler of SIGINT by one that only records the signal. When the call ends, it
calls the former handler. If `act_as_ctrl_c` is the handler of another signal, this signal is deferred in the same way.

In two parts of a call, the former handler is restored, so that Ctrl-C takes effect at once: while a function of the
user runs (`running_f`), and while nothing is being changed (`at_rest`), for example because the thread waits for a
lock. A thread waiting for a condition checks regularly whether a Ctrl-C is recorded. Code that only looks at a store
(`looking`) may be interrupted at any point.

Other exceptions can come from outside too: from another signal handler, or thrown into a thread. Such an exception may
leave a change half done. A call ended by such an exception reports the exception to its stores, which must then be
reopened. If the exception arrives while a call begins or ends, the recording handler may stay installed, and the call
may stay registered with its thread. So the recording handler and the next call check whether the call still runs.

A signal handler runs between two lines of whatever its thread is doing. If the thread is in a call into a store, that
call may hold locks for which a flush in the handler would wait forever. So a store call in such a handler raises
StoreError.
"""

from __future__ import annotations

# Not `signal`: its conversions to enums make each call take seven times as long.
import _signal  # type: ignore[import-not-found]
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from signal import SIGINT, default_int_handler, valid_signals
from types import FrameType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from infinite_tensor.errors import StoreError

_LOOK_SECONDS = 0.05
"""How often a waiting thread checks for an interrupt."""


class _Store(Protocol):
    def cut_through(self, error: BaseException) -> None:
        """Record a change cut off by `error`."""


class _Here(threading.local):
    """The state of this thread.

    Attributes
    ----------
    call : store_call or None
        The innermost running call into a store. None while a function of the user runs.
    looking : threading.Lock
        Locked while the thread reads from a store without changing it.
    known : BaseException or None
        The last exception that interrupted no change of a store, or was already reported to the stores.
    is_main : bool
        Whether Python handles signals on this thread.
    """

    def __init__(self) -> None:
        self.is_main = threading.current_thread() is threading.main_thread()
        self.call: store_call | None = None
        self.looking = threading.Lock()
        self.known: BaseException | None = None

    def innermost(self) -> store_call | None:
        """Return the innermost call still running.

        Calls cut off before their end are dropped.
        """
        while self.call is not None and not self.call.is_within(sys._getframe()):  # noqa: SLF001  (the only way)
            self.call = self.call.outer
        return self.call

    def free_for(self, stores: Mapping[int, object]) -> store_call | None:
        """Return the innermost running call of this thread, or None.

        Raise StoreError if this thread may not use `stores` now: the running call already uses one of them, or the
        thread is inside a ``with looking(...)``.
        """
        call = self.innermost()
        if self.looking.locked() or (call is not None and not call.stores.keys().isdisjoint(stores)):
            store = next(iter(stores.values()), "a store")
            raise StoreError(
                f"{store} cannot be used here, because this thread is in the middle of another call; in a signal "
                "handler, set a flag and use the store later, or call request_flush() of a tile store"
            )
        return call


_here = _Here()


class _TakesNote:
    """A handler of SIGINT to defer Ctrl-C.

    If the first Ctrl-C has not yet taken effect, a second Ctrl-C is not deferred. A handler left installed by mistake
    passes Ctrl-C on.
    """

    def __init__(self) -> None:
        self._former: Any = None
        self._noted: Any = None

    @property
    def has_noted(self) -> bool:
        """Whether a recorded interrupt has not taken effect yet."""
        return self._noted is not None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.note(self._former, number, frame)

    def note(self, handler: Any, number: int, frame: FrameType | None) -> None:
        """Call the former `handler` now, or record the interrupt if a call into a store is running."""
        call, first = _here.call, not self.has_noted
        self._noted = handler if first and call is not None and call.is_within(frame) else None
        if not self.has_noted:
            handler(number, frame)

    def put_off(self) -> None:
        """Record interrupts from now on, instead of calling the former handler."""
        # The former handler must be known before it is replaced.
        handler = _signal.getsignal(SIGINT)
        if handler is not self:
            self._former = handler
        # Without a handler in Python, interrupts are not recorded.
        if callable(self._former):
            _signal.signal(SIGINT, self)

    def show(self) -> None:
        """Let interrupts take effect from now on."""
        if _signal.getsignal(SIGINT) is self:
            _signal.signal(SIGINT, self._former)

    def tell(self) -> None:
        """Let a recorded interrupt take effect."""
        handler, self._noted = self._noted, None
        handler(SIGINT, sys._getframe())  # noqa: SLF001  (the frame that handlers are given)

    def restore_in_child(self) -> None:
        """Forget the records of the parent process in a forked child."""
        _here.__init__()  # type: ignore[misc]
        self._noted = None
        self.show()


_ctrl_c = _TakesNote()


def act_as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Handle a signal such as SIGTERM as if it were Ctrl-C: raise KeyboardInterrupt.

    This works even if SIGINT is ignored.
    """
    if _here.call is None or _here.call.is_shown:
        default_int_handler(number, frame)
    else:
        _ctrl_c.note(default_int_handler, number, frame)


os.register_at_fork(after_in_child=_ctrl_c.restore_in_child)


class store_call:  # noqa: N801  (reads as a statement: ``with store_call(contents):``)
    """A call into stores by one thread, not interrupted by Ctrl-C.

    Never use the context around a ``yield``.

    Parameters
    ----------
    stores : Contents
        The stores used by the call. `enter` adds more stores later.

    Attributes
    ----------
    stores : dict of int to Contents
        The stores used so far, by ``id()``.
    outer : store_call or None
        The enclosing call into another store, or None.
    is_shown : bool
        Whether interrupts take effect now, instead of being deferred.

    Raises
    ------
    StoreError
        If a call into one of the stores is already running on this thread. A function of the user, run by such a call,
        may use the stores.
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
            # While interrupts take effect, nothing is half done.
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
        """Whether the call is still running.

        `frame` is the current frame of the thread.
        """
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None

    def put_off(self) -> None:
        """Defer interrupts from now on."""
        if self.is_on_main:
            _ctrl_c.put_off()
        self.is_shown = False

    def come_through(self) -> None:
        """Let interrupts take effect from now on, including a recorded interrupt."""
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
    """Whether an exception was raised by a signal handler, or thrown into the thread."""
    if not isinstance(error, Exception):
        return True
    handlers = [_signal.getsignal(number) for number in valid_signals()]
    codes = [getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers]
    # A backend may have caught the exception from outside, and raised another error from it.
    traces = [each.__traceback__ for each in (error, error.__cause__) if each is not None]
    return any(frame.f_code in codes for trace in traces for frame, _ in traceback.walk_tb(trace))


def looking(store: object) -> threading.Lock:
    """Return a lock for reading from `store` without changing anything.

    Use it as in ``with looking(store):``. The lock does not defer Ctrl-C, so it must not be held during a change. A
    signal handler using a store meanwhile gets a StoreError.

    Raises
    ------
    StoreError
        As for `store_call`.
    """
    _here.free_for({id(store): store})
    return _here.looking


def enter(store: _Store) -> None:
    """Register another store with the call of this thread."""
    if _here.call is not None:
        _here.call.stores[id(store)] = store


def entered() -> list[Any]:
    """Return the stores used so far by the call of this thread."""
    return [] if _here.call is None else [*_here.call.stores.values()]


class at_rest:  # noqa: N801  (likewise)
    """A context to let interrupts take effect at once.

    Use this only where nothing is half done.
    """

    __slots__ = ("_call",)

    def __init__(self) -> None:
        call = _here.call
        self._call = None if call is None or call.is_shown else call

    def __enter__(self) -> None:
        if self._call is not None:
            self._call.come_through()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._call is not None:
            # An error within `changing` may have left a change half done.
            if error is not None and self._call.is_shown:
                _here.known = error
            self._call.put_off()


class changing:  # noqa: N801  (likewise)
    """A context within `at_rest` to defer interrupts again.

    Use this around a change.
    """

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
    """A context for calling a function of the user.

    Interrupts take effect at once, as in `at_rest`. The function may use any store, even the store of the running
    call.
    """

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
    """Wait until a lock is free."""
    with at_rest(), lock:
        pass


def wait_until(reached: Callable[[], bool], changed: threading.Condition) -> None:
    """Wait until ``reached()`` is True.

    The caller must hold `changed`. ``reached()`` is checked regularly, and after each notification of `changed`.
    """
    while not reached():
        changed.wait(_LOOK_SECONDS)
        show_interrupt()


def show_interrupt() -> None:
    """Let a deferred interrupt take effect.

    Call this only where nothing is half done.
    """
    if _ctrl_c.has_noted and _here.call is not None and _here.call.is_on_main:
        try:
            _ctrl_c.tell()
        except BaseException as error:
            _here.known = error
            raise


def known(error: BaseException) -> BaseException:
    """Record that stores need not be told of an error, and return the error.

    For example, an error may come from a call into stores on another thread. That call has already told the stores.
    """
    _here.known = error
    return error


Owner = TypeVar("Owner")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def store_method(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """Decorate a method, to run as a `store_call`.

    The call uses the store contents in ``self._contents``. Without this attribute, it uses ``self``.
    """

    @functools.wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with store_call(getattr(self, "_contents", cast("_Store", self))):
            return method(self, *args, **kwargs)

    return called


def store_query(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """Decorate a read-only method of a store.

    Unlike a `store_method`, the method can be called within another call.
    """
    as_call = store_method(method)

    @functools.wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        is_free = not _here.looking.locked() and _here.innermost() is None
        return (as_call if is_free else method)(self, *args, **kwargs)

    return called
