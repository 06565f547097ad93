"""Flushing the stores of a worker process when it is terminated.

A `torch.utils.data.DataLoader` ends its workers by SIGTERM where they are persistent, or take more than five seconds to
end by themselves; `at_exit` never has its turn then.
"""

from __future__ import annotations

import os
import signal
import threading
from queue import SimpleQueue
from types import FrameType

from infinite_tensor.tilestore.at_exit import flush_all

_MOST_SECONDS = 60.0
"""Whoever terminates a process may wait for its end, so storage that hangs must not hold that up for ever."""


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
