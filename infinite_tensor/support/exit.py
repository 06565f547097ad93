"""Flushes open stores at the exit of the interpreter and at SIGTERM.

Functions of `atexit` run after all threads except daemons have ended. So results stored by a thread after the last line
of the main thread are flushed too.

`atexit` does not run in children of multiprocessing. There, functions registered by `threading._register_atexit` run
when the main thread ends. `concurrent.futures` uses this as well. After the end of the main thread, no function can be
registered, but a thread may still import a module of this library for the first time. So this module registers one
function early. This function calls all functions in a list, and modules can add functions to the list at any time.

A `torch.utils.data.DataLoader` ends its workers by SIGTERM if they are persistent, or if they take more than five
seconds to end by themselves. Then the exit functions of the interpreter do not run.
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
"""The time limit for a flush at SIGTERM. The sender may be waiting, and the storage may hang."""


class _Flushable(Protocol):
    def _flush_at_exit(self) -> None: ...


_alive: weakref.WeakSet[_Flushable] = weakref.WeakSet()


def flush_at_exit(store: _Flushable) -> None:
    """Register `store` for a flush at the exit of the interpreter.

    The registration does not keep `store` alive.
    """
    _alive.add(store)


def flush_all() -> None:
    """Flush all open stores.

    An error is printed, and the next store is flushed.
    """
    for store in list(_alive):
        try:
            store._flush_at_exit()  # noqa: SLF001  (of the protocol above)
        except Exception:  # noqa: BLE001
            # No caller is left to catch the error, and other stores must still be flushed.
            traceback.print_exc()


def end_before_flush(end: Callable[[], object]) -> None:
    """Call ``end`` after the main thread has ended, before stores are flushed."""
    _first_ends.append(end)


def end_after_flush(end: Callable[[], object]) -> None:
    """Call ``end`` at the exit of the interpreter, after the last flush of stores."""
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
    """Flush stores at SIGTERM, before the process ends.

    Do nothing if the signal already has a handler. Do nothing outside the main thread, because no handler can be set
    there.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    process, asked = os.getpid(), SimpleQueue[None]()

    def told(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == process:
            asked.put(None)
        else:
            # A forked child has no thread waiting for the signal.
            os._exit(128 + number)

    # Do not flush in the handler: the interrupted main thread may hold a lock needed for the flush.
    threading.Thread(target=_end, args=(asked,), name="infinite_tensor-termination", daemon=True).start()
    signal.signal(signal.SIGTERM, told)


def _end(asked: SimpleQueue[None]) -> None:
    asked.get()
    limit = threading.Timer(_MOST_SECONDS, os._exit, [128 + signal.SIGTERM])
    limit.daemon = True
    limit.start()
    flush_all()
    # Any other status would be reported as a crashed worker.
    os._exit(0)


# The function registered last is called first. The thread pools have registered a function in the import above, to
# finish all queues. The flush must be called before, and is registered after.
threading._register_atexit(_end_and_flush)  # type: ignore[attr-defined]  # noqa: SLF001  (see above)
