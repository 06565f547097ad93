"""Closing connections that nobody closes: the client of s3fs says aloud that they are open when it is dropped."""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from typing import Any

from zarr.core.sync import loop

from infinite_tensor_stores.zarr_loop import sync

_open: set[Any] = set()
_inherited: list[Any] = []


def close_with(holder: object, connections: Any) -> None:
    """Close `connections`, the context manager of a client, when `holder` is dropped or the interpreter exits."""
    _open.add(connections)
    weakref.finalize(holder, _drop, connections, os.getpid()).atexit = False


async def close(connections: Any) -> None:
    """Close what `close_with` was given."""
    if connections in _open:
        _open.remove(connections)
        await connections.__aexit__(None, None, None)


def _drop(connections: Any, owner: int) -> None:
    # Whatever thread this runs on, it must not wait.
    if os.getpid() == owner and loop[0] is not None and loop[0].is_running():
        asyncio.run_coroutine_threadsafe(close(connections), loop[0])


@atexit.register
def _close_all() -> None:
    for connections in list(_open):
        sync(close, connections)


def _keep_inherited() -> None:
    # They are the parent's. To drop them would close nothing, and say that they are open.
    _inherited.extend(_open)
    _open.clear()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)
