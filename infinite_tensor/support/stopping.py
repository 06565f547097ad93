"""Stops reads that are no longer wanted, between two calls of ``f``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_stop: ContextVar[Callable[[], bool] | None] = ContextVar("stop", default=None)


class Stopped(Exception):  # noqa: N818  (no error)
    """A read was stopped because it is no longer wanted. What it has computed is kept."""


@contextmanager
def stopping(stop: Callable[[], bool]) -> Iterator[None]:
    """As soon as ``stop()`` is True, make reads of this thread raise Stopped before the next call of ``f``.

    Any thread may call ``stop()``. A running call of ``f`` is finished, with all reads that it makes.
    """
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def end_if_unwanted() -> None:
    """Raise Stopped if the work of this thread is no longer wanted."""
    stop = _stop.get()
    if stop is not None and stop():
        raise Stopped
