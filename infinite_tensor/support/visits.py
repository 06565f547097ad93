"""Which stores a thread is inside of, so that a signal handler that calls one again is told so.

A handler runs between two lines of whatever its thread is doing. If that is a read, it may hold locks that a flush
would wait for, and nobody would release them. Inside of an ``f`` a thread holds nothing, and may use any store.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from infinite_tensor.errors import StoreError


class Visit:
    """One call into stores by one thread.

    Whoever makes the call asks `visit` for one and works ``with visit.running:``, where `begin` comes first. Marks are
    locks, since an interrupt cannot leave them behind; see `infinite_tensor.support.waiting`.

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
            _here.inner[:] = [visit for visit in _here.inner if visit.running.locked()]
            outer = _here.inner[-1] if _here.inner else _here.outermost
            if not (outer.in_f.locked() or looks or outer.stores.isdisjoint(entered)):
                raise StoreError(
                    f"{stores[0]!r} cannot be used here: this thread is in the middle of another call, which a signal "
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
        self.outermost = Visit()
        self.inner: list[Visit] = []


_here = _Here()


def visit() -> Visit:
    """A call that is about to begin on this thread."""
    outermost = _here.outermost
    return Visit() if outermost.running.locked() else outermost


Self = TypeVar("Self")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def visited(method: Callable[Concatenate[Self, Given], Result]) -> Callable[Concatenate[Self, Given], Result]:
    """A method of a store that is a call into it, with StoreError where its thread is in the middle of another one."""
    return _called(method, looks=False)


def looking(method: Callable[Concatenate[Self, Given], Result]) -> Callable[Concatenate[Self, Given], Result]:
    """A method of a store that is a call into it and changes nothing; a backend may use it in its own methods."""
    return _called(method, looks=True)


def _called(
    method: Callable[Concatenate[Self, Given], Result], *, looks: bool
) -> Callable[Concatenate[Self, Given], Result]:
    @functools.wraps(method)
    def called(self: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        call = visit()
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


def _innermost() -> Visit | None:
    calls = (*reversed(_here.inner), _here.outermost)
    return next((call for call in calls if call.running.locked()), None)
