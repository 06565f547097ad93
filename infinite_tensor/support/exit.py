"""Flushing, at the end of a process, the stores that are still alive: when the interpreter exits, and at SIGTERM.

`atexit` runs when all threads but daemons have come to their end, so what a thread stores after the main thread's last
line is flushed too. It does not run in the children of multiprocessing; `threading._register_atexit`, which
`concurrent.futures` uses, does, when the main thread has come to its end. It takes nothing more from then on, so what
is to be done then is kept in lists of our own: a thread that continues may be the first to import a module.

A `torch.utils.data.DataLoader` ends its workers by SIGTERM where they are persistent, or take more than five seconds to
end by themselves; what the interpreter does at its exit never has its turn then.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import thread as _pools  # noqa: F401  (see the last line)
from queue import SimpleQueue
from types import FrameType
from typing import Protocol

_MOST_SECONDS = 60.0
"""Who terminates a process may wait for its end, so storage that hangs must not hold that up for ever."""


class _Flushable(Protocol):
    def _flush_at_exit(self) -> None: ...


_alive: weakref.WeakSet[_Flushable] = weakref.WeakSet()


def flush_at_exit(store: _Flushable) -> None:
    """Have `store` flushed when the interpreter exits, if it is still alive then."""
    _alive.add(store)


def flush_all() -> None:
    """Flush every store that is alive and open; an error is printed, and the next store has its turn."""
    for store in list(_alive):
        try:
            store._flush_at_exit()  # noqa: SLF001  (of the protocol above)
        except Exception:  # noqa: BLE001
            # Nobody is left to catch it; the other stores still want their turn.
            traceback.print_exc()


def end_before_flush(end: Callable[[], object]) -> None:
    """Call ``end()`` when the main thread has come to its end, before stores are flushed."""
    _first_ends.append(end)


def end_after_flush(end: Callable[[], object]) -> None:
    """Call ``end()`` when the interpreter exits, after stores are flushed for the last time."""
    _last_ends.append(end)


_first_ends: list[Callable[[], object]] = []
_last_ends: list[Callable[[], object]] = []


def _end_and_flush() -> None:
    for end in _first_ends:
        end()
    flush_all()


@atexit.register
def _flush_and_end() -> None:
    flush_all()
    for end in _last_ends:
        end()


def flush_at_termination() -> None:
    """Have SIGTERM end this process only after its stores have been flushed.

    Does nothing where something else handles that signal, or off the main thread, where no handler can be set.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    process, asked = os.getpid(), SimpleQueue[None]()

    def told(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == process:
            asked.put(None)
        else:
            # A fork of this process, which has no thread that waits for it.
            os._exit(128 + number)

    # Not in the handler: the main thread, which that interrupts, may hold a lock that the flush would wait for.
    threading.Thread(target=_end, args=(asked,), name="infinite_tensor-termination", daemon=True).start()
    signal.signal(signal.SIGTERM, told)


def _end(asked: SimpleQueue[None]) -> None:
    asked.get()
    limit = threading.Timer(_MOST_SECONDS, os._exit, [128 + signal.SIGTERM])
    limit.daemon = True
    limit.start()
    flush_all()
    # Anything but 0 would be reported as a worker that has crashed.
    os._exit(0)


# Who registers last is called first, and pools, which register when they are imported, would work off their queues.
threading._register_atexit(_end_and_flush)  # type: ignore[attr-defined]  # noqa: SLF001  (see above)
