"""Waiting for other threads so that a Ctrl-C, or any asynchronous exception, leaves nothing behind.

Such an exception can come between any two lines, those of a ``finally`` included. What still works then is ``with``
over a `threading.Lock`, which the interpreter itself releases. So a thread that sets a mark for which others wait holds
the lock of that mark meanwhile, and a mark whose lock is free belongs to nobody any more.

`threading.Condition` is no help: it takes its lock back in Python code, and interrupted there, ``with`` releases a lock
that is not held.
"""

from __future__ import annotations

import asyncio
import sys
import threading

_LOOK_AGAIN_SECONDS = 0.5
"""Who was interrupted between a change and telling of it has told nobody."""


class Mark:
    """Says that something is under way: true while `running`, a lock, is held.

    Its owner works ``with mark.running:``; whoever finds the mark of somebody who is gone takes it away.
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

    def __enter__(self) -> None:
        self._handled = sys.exception()

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

    def wait(self, bell: threading.Lock) -> None:
        """Return at the next change, or after a while: look again in any case."""
        bell.acquire(timeout=_LOOK_AGAIN_SECONDS)
        self._bells.discard(bell)

    def tell(self) -> None:
        """Something has changed. Not to be called by several threads at a time."""
        for bell in list(self._bells):
            self._bells.discard(bell)
            if bell.locked():
                bell.release()
