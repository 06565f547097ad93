"""Keeps objects usable in a forked child.

A fork copies locks held by other threads, but not the threads to release them.
"""

from __future__ import annotations

import os
import weakref
from _thread import RLock
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar, overload


class Renewable(Protocol):
    """An object with locks or other state to replace in a forked child."""

    def _renew_after_fork(self) -> None: ...


_known: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(holder: Renewable) -> None:
    """Call ``holder._renew_after_fork()`` in every forked child.

    The method runs before anything else in the child, if `holder` is still alive. The method must create new locks, and
    must not do input or output.
    """
    _known.add(holder)


def _renew_all() -> None:
    for holder in list(_known):
        holder._renew_after_fork()  # noqa: SLF001  (of the protocol above)


os.register_at_fork(after_in_child=_renew_all)


class Lock(RLock):  # type: ignore[misc]  # final for type checkers only
    """A reentrant lock with support for forks and pickle.

    In a forked child and after unpickling, the lock is free. ``with`` calls methods of the base class, which are not
    written in Python: a Ctrl-C between taking the lock and the body of ``with`` would leave the lock taken.
    """

    def __init__(self) -> None:
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._at_fork_reinit()  # type: ignore[attr-defined]  # as Python itself does

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801  (named as the one of functools)
    """`functools.cached_property` without its lock.

    Before Python 3.12, `functools.cached_property` computes under a lock shared by all objects of the class. If another
    thread forks the process at this time, the lock stays locked in the child. Without the lock, two threads may both
    compute the value, with the same result.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # From now on, Python finds the value in the instance's __dict__ without calling the descriptor.
        value = instance.__dict__[self.name] = self.compute(instance)
        return value
