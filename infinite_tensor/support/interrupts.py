"""Puts Ctrl-C off until the running change of a store is done.

Python raises KeyboardInterrupt between any two lines of the main thread, and on no other thread. So the outermost call
into a store replaces the handler of SIGINT by one that notes the signal while a store may be changing, and calls the
former handler as soon as none is: while a function of the user runs, while the thread waits, and when the call ends.

Exceptions of other signal handlers are not put off. All state is right between any two lines, or says that it is
spoilt, so such an exception costs at most windows that must be computed again. It may also keep a call from being
unregistered. So a thread knows its calls by weak references: what is left of a call ends with its frames.

A signal handler runs between two lines of whatever its thread is doing. If the thread is in a call into a store, that
call may hold locks for which a flush in the handler would wait forever. So a call in such a handler raises StoreError.
"""

from __future__ import annotations

# Not `signal`: its conversions to enums make each call take seven times as long.
import _signal  # type: ignore[import-not-found]
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from signal import SIGINT, default_int_handler
from types import FrameType
from typing import Any, Concatenate, ParamSpec, TypeVar

from infinite_tensor.errors import StoreError

_LOOK_SECONDS = 0.05
"""How often a waiting thread checks for an interrupt."""
_PATIENCE_SECONDS = 3.0
"""After this time, another Ctrl-C is not put off, because a storage may hang."""


class _Here(threading.local):
    """What this thread is doing.

    Attributes
    ----------
    is_main : bool
        Whether Python handles signals on this thread.
    call : callable
        Returns the innermost call into stores, or None.
    looking : threading.Lock
        Locked while the thread reads from a store without changing it.
    """

    def __init__(self) -> None:
        self.is_main = threading.current_thread() is threading.main_thread()
        self.call: Callable[[], _Call | None] = lambda: None
        self.looking = threading.Lock()

    def check_free(self, stores: tuple[object, ...]) -> None:
        """Raise StoreError if this thread is in the middle of another call into one of the stores."""
        call = self.call()
        if self.looking.locked() or not (call is None or call.stores.isdisjoint(stores)):
            raise StoreError(
                f"{stores[0] if stores else 'a store'} cannot be used here, because this thread is in the middle of "
                "another call; in a signal handler, set a flag and use the store later, or call request_flush() of a "
                "tile store"
            )


_here = _Here()


class _CtrlC:
    """The handler of SIGINT during calls into stores.

    Attributes
    ----------
    noted : callable or None
        The handler to call as soon as no store may be changing.
    """

    def __init__(self) -> None:
        self.noted: Any = None
        self._former: Any = None
        self._since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _here.call() is None:
            # An exception came before the end of a call.
            self.remove()
        self.handle(self._former, number, frame)

    def handle(self, handler: Any, number: int, frame: FrameType | None) -> None:
        """Call `handler` now, or note that it must be called."""
        call = _here.call()
        is_long = self.noted is not None and time.monotonic() - self._since > _PATIENCE_SECONDS
        if call is None or call.is_open or is_long:
            self.noted = None
            handler(number, frame)
        elif self.noted is None:
            self.noted, self._since = handler, time.monotonic()

    def come(self) -> None:
        """Call the handler that was noted, if any."""
        if self.noted is not None and _here.is_main:
            handler, self.noted = self.noted, None
            handler(SIGINT, sys._getframe())  # noqa: SLF001  (the frame that handlers are given)

    def install(self) -> None:
        handler = _signal.getsignal(SIGINT)
        # Without a handler in Python, Ctrl-C is ignored, or ends the process.
        if callable(handler) and handler is not self:
            # Set first, because the next signal may come at any moment.
            self._former = handler
            _signal.signal(SIGINT, self)

    def remove(self) -> None:
        if _signal.getsignal(SIGINT) is self:
            _signal.signal(SIGINT, self._former)

    def renew(self) -> None:
        """Begin without calls, in a forked child."""
        _here.__init__()  # type: ignore[misc]
        self.noted = None
        self.remove()


_ctrl_c = _CtrlC()
os.register_at_fork(after_in_child=_ctrl_c.renew)


def act_as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Handle a signal such as SIGTERM as if it were Ctrl-C: raise KeyboardInterrupt.

    This works even if SIGINT is ignored.
    """
    _ctrl_c.handle(default_int_handler, number, frame)


class _Call:
    """A part of what a thread does, during which Ctrl-C is put off, or comes at once.

    Contexts can be nested. Never use one around a ``yield``.

    Attributes
    ----------
    stores : set
        The stores that signal handlers of this thread must not use.
    is_open : bool
        Whether Ctrl-C comes at once, because nothing is half done.
    """

    __slots__ = ("__weakref__", "_outer", "_this", "is_open", "stores")

    def __init__(self, stores: set[object], *, is_open: bool) -> None:
        self.stores, self.is_open = stores, is_open
        self._this = weakref.ref(self)

    def __enter__(self) -> None:
        self._outer = outer = _here.call
        try:
            # First, because a handler without a call removes itself.
            _here.call = self._this
            if not self.is_open and _here.is_main and outer() is None:
                _ctrl_c.install()
            if self.is_open and _ctrl_c.noted is not None:
                _ctrl_c.come()
        except BaseException:
            _here.call = outer
            raise

    def __exit__(self, *_error: object) -> None:
        _here.call = self._outer
        if not self.is_open and _here.is_main:
            outer = self._outer()
            if outer is None:
                _ctrl_c.remove()
            if outer is None or outer.is_open:
                _ctrl_c.come()


def store_call(*stores: object) -> _Call:
    """Return a context for a call into stores, not interrupted by Ctrl-C.

    `enter` adds more stores later. Raise StoreError if a call into one of the stores is already running on this thread.
    A function of the user, run by such a call, may use the stores.
    """
    _here.check_free(stores)
    return _Call({*stores, *entered()}, is_open=False)


def at_rest() -> _Call:
    """Return a context in which Ctrl-C comes at once. Use it only where nothing is half done."""
    return _Call(entered(), is_open=True)


def running_f() -> _Call:
    """Return a context for calling a function of the user.

    Ctrl-C comes at once, as in `at_rest`. The function may use any store.
    """
    return _Call(set(), is_open=True)


def entered() -> set[Any]:
    """Return the stores used so far by the call of this thread."""
    call = _here.call()
    return set() if call is None else call.stores


def enter(store: object) -> None:
    """Register another store with the call of this thread."""
    entered().add(store)


def looking(store: object) -> threading.Lock:
    """Return a context for reading from `store` without changing anything.

    The context does not put Ctrl-C off, and takes less time. Raise StoreError as `store_call` does.
    """
    _here.check_free((store,))
    return _here.looking


def show_interrupt() -> None:
    """Let a Ctrl-C that was put off come now. Call this only where nothing is half done."""
    with at_rest():
        pass


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


Owner = TypeVar("Owner")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def store_method(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """Decorate a method, to run as a `store_call`.

    The call uses the store contents in ``self._contents``. Without this attribute, it uses ``self``.
    """

    @functools.wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with store_call(getattr(self, "_contents", self)):
            return method(self, *args, **kwargs)

    return called


def store_query(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """Decorate a read-only method of a store.

    Unlike a `store_method`, the method can be called within another call.
    """
    as_call = store_method(method)

    @functools.wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return (method if entered() or _here.looking.locked() else as_call)(self, *args, **kwargs)

    return called
