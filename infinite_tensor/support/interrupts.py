"""What stays right when a Ctrl-C, any asynchronous exception, or a signal handler comes in between.

An exception can come between any two lines, those of a ``finally`` included. What still works then is ``with``
over a `threading.Lock`, which the interpreter itself releases. So a thread that sets a mark for which others wait holds
the lock of that mark meanwhile, and a mark whose lock is free belongs to nobody any more.

`threading.Condition` is no help: it takes its lock back in Python code, and interrupted there, ``with`` releases a lock
that is not held.

A signal handler runs between two lines of whatever its thread is doing. If that is a read, it may hold locks that a
flush would wait for, and nobody would release them. So each thread knows which stores it is inside of, and a handler
that calls one again is told so. Inside of an ``f`` a thread holds nothing, and may use any store.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Self, TypeVar

from infinite_tensor.errors import StoreError

_LOOK_AGAIN_SECONDS = 0.5
"""Who was interrupted between a change and telling of it has told nobody."""


class Mark:
    """Says that something is under way: true while `running`, a lock, is held.

    Its owner works ``with mark.running:``; who finds the mark of somebody who is gone takes it away.
    """

    __slots__ = ("__weakref__", "running")

    def __init__(self) -> None:
        self.running = threading.Lock()

    @property
    def is_under_way(self) -> bool:
        """Whether its owner is still at work."""
        return self.running.locked()

    def wait(self) -> None:
        """Return when its owner has come to an end, however that was."""
        with self.running:
            pass


class interrupts_shown:  # noqa: N801  (reads as a statement: ``with interrupts_shown():``)
    """Shows the Ctrl-C behind an error that was raised on its way out.

    The standard library waits on conditions, also where a thread is started or a future waited for.
    """

    def __enter__(self) -> Self:
        self._handled = sys.exception()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        handled, self._handled = self._handled, None
        _show_interrupt(error, handled)


def _show_interrupt(error: BaseException | None, handled: BaseException | None) -> None:
    """Raise the Ctrl-C, or another exception that is no error, that an error came out of, if there is one.

    What the caller was handling when it made the call, `handled`, is behind every error and has nothing to do with it.
    """
    behind = error
    while isinstance(behind, Exception):
        earlier = behind.__cause__ or behind.__context__
        behind = None if earlier is handled else earlier
    # Storage may cancel a request by itself.
    if behind is not None and behind is not error and not isinstance(behind, asyncio.CancelledError):
        try:
            raise behind
        finally:
            # It holds this frame, which would hold it.
            del behind, error, handled


class Changes:
    """Tells threads that wait, without any lock held, that something has changed."""

    def __init__(self) -> None:
        self._bells: set[threading.Lock] = set()

    def bell(self) -> threading.Lock:
        """What `wait` waits for; made while nothing can change, so that no change is missed."""
        bell = threading.Lock()
        bell.acquire()
        self._bells.add(bell)
        return bell

    def wait(self, bell: threading.Lock, seconds: float = _LOOK_AGAIN_SECONDS) -> bool:
        """Return at the next change, or after a while, and whether it was a change: look again in any case."""
        return bell.acquire(timeout=seconds)

    def tell(self) -> None:
        """Something has changed. Not to be called by several threads at a time."""
        for bell in list(self._bells):
            self._bells.discard(bell)
            if bell.locked():
                bell.release()


class StoreCall:
    """One call into stores by one thread.

    Who makes the call asks `store_call` for one and works ``with call.running:``, where `begin` comes first. Marks
    are locks, since an interrupt cannot leave them behind.

    Attributes
    ----------
    running : threading.Lock
        Held during the call.
    in_f : threading.Lock
        Held while the call runs an ``f``.
    """

    __slots__ = ("in_f", "running", "stores")

    def __init__(self) -> None:
        self.running = threading.Lock()
        self.in_f = threading.Lock()
        # By their ids: nothing here is to keep a store alive.
        self.stores: set[int] = set()

    def begin(self, *stores: object, reads: bool = False, looks: bool = False) -> None:
        """The call begins, with these stores.

        Parameters
        ----------
        stores : TileStore
            What it uses.
        reads : bool
            Whether it computes windows, which are shared with every other read.
        looks : bool
            Whether it changes nothing, and so may be made in the middle of another call.

        Raises
        ------
        StoreError
            If the thread is inside of one of them already, or of any read, and not in an ``f``.
        """
        entered = {_READS, *map(id, stores)} if reads else {*map(id, stores)}
        if self is not _here.outermost:
            # In one step, as a handler may come in between: without calls that have come to an end, in whatever way.
            _here.inner[:] = [call for call in _here.inner if call.running.locked()]
            outer = _here.inner[-1] if _here.inner else _here.outermost
            if not (outer.in_f.locked() or looks or outer.stores.isdisjoint(entered)):
                raise StoreError(
                    f"{stores[0]} cannot be used here: this thread is in the middle of another call, which a signal "
                    "handler, or a function that the library has called, has interrupted. In a handler call "
                    "request_flush() instead: what is finished is stored after the current batch of windows"
                )
            entered |= outer.stores
            _here.inner.append(self)
        self.stores = entered


_READS = 0
"""No store has this id."""


class _Here(threading.local):
    """The calls of this thread: one that is made in no other, and those within it, the innermost one last."""

    def __init__(self) -> None:
        self.outermost = StoreCall()
        self.inner: list[StoreCall] = []


_here = _Here()


def store_call() -> StoreCall:
    """A call that is about to begin on this thread."""
    outermost = _here.outermost
    return StoreCall() if outermost.running.locked() else outermost


Owner = TypeVar("Owner")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def store_method(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """A method of a store that is a call into it, with StoreError where its thread is in the middle of another one."""
    return _called(method, looks=False)


def store_query(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """A method of a store that is a call into it and changes nothing; a backend may use it in its own methods."""
    return _called(method, looks=True)


def _called(
    method: Callable[Concatenate[Owner, Given], Result], *, looks: bool
) -> Callable[Concatenate[Owner, Given], Result]:
    @functools.wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        call = store_call()
        with call.running:
            # What a store holds stands for it: that is what the engine knows.
            call.begin(getattr(self, "contents", self), looks=looks)
            return method(self, *args, **kwargs)

    return called


def enter(store: object) -> None:
    """The innermost call of this thread comes to another store."""
    if call := _innermost():
        call.stores.add(id(store))


def running_f() -> threading.Lock:
    """What to hold while this thread runs an ``f``, or another function of the user: the mark of its innermost call."""
    call = _innermost()
    return threading.Lock() if call is None or call.in_f.locked() else call.in_f


def _innermost() -> StoreCall | None:
    for call in (*reversed(_here.inner), _here.outermost):
        if call.running.locked():
            return call
    return None
