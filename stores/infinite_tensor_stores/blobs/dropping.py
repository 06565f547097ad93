"""Closing blobs that nobody refers to any more."""

from __future__ import annotations

import threading

from infinite_tensor_stores.blobs.rows import Rows

_closing: set[threading.Thread] = set()


def close_dropped(rows: Rows) -> None:
    """Store what a blob that nobody refers to any more has not stored yet."""
    if not rows.holds_right:
        # Memory and connections go with it.
        return
    if not rows.needs_loop:
        rows.close()
        return
    # This may run anywhere, on zarr's own thread too, which must not wait for itself.
    thread = threading.Thread(target=_close_now, args=(rows,), name="infinite_tensor-blob")
    _closing.add(thread)
    thread.start()


def _close_now(rows: Rows) -> None:
    try:
        rows.close()
    finally:
        _closing.discard(threading.current_thread())


def wait_for_dropped() -> None:
    """Return when blobs that were dropped are closed."""
    for thread in list(_closing):
        thread.join()
