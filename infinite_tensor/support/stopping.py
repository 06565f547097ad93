"""Stops unwanted reads between two calls of ``f``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_stop: ContextVar[Callable[[], bool] | None] = ContextVar("stop", default=None)


class Stopped(Exception):  # noqa: N818  (no error)
    """An unwanted read was stopped.

    Results computed so far are kept.
    """


@contextmanager
def stopping(stop: Callable[[], bool]) -> Iterator[None]:
    """Stop reads of this thread as soon as ``stop()`` is True.

    Reads raise Stopped before the next call of ``f``. A running call of ``f`` is finished, with all reads in it. Any
    thread may call ``stop()``.
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
