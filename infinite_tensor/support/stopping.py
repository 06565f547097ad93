"""Reads that nobody wants any more: they end between two calls of ``f``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_stop: ContextVar[Callable[[], bool] | None] = ContextVar("stop", default=None)


class Stopped(Exception):  # noqa: N818  (no error)
    """A read has ended, since nobody wants it; what it had computed by then is kept."""


@contextmanager
def stopping(stop: Callable[[], bool]) -> Iterator[None]:
    """Reads of this thread raise Stopped before the next call of ``f`` once ``stop()`` is true; any thread asks that.

    A call that has begun is finished, with all that it reads itself.
    """
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def end_if_unwanted() -> None:
    """Raise Stopped where nobody wants what this thread does any more."""
    stop = _stop.get()
    if stop is not None and stop():
        raise Stopped
