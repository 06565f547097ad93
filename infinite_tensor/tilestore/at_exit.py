"""Flushing, at interpreter exit, the stores that are still alive.

`atexit` and `weakref.finalize` run too late: zarr's event loop and thread pools no longer take work then.
`threading._register_atexit`, which `concurrent.futures` uses for the same purpose, runs before that.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from typing import Protocol


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
            store._flush_at_exit()
        except Exception:  # noqa: BLE001
            # Nobody is left to catch it; the other stores still want their turn.
            traceback.print_exc()


threading._register_atexit(flush_all)  # type: ignore[attr-defined]
