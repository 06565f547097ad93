"""The memory shared by all maps that are computed in windows and were given no store."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from infinite_tensor.support.forks import Lock
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.memory import MemoryTileStore
from infinite_tensor.values.functions import Functions

_SHARE = 8
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class _MapCache(MemoryTileStore):
    """A store that is never closed, and emptied of tensors that are gone."""

    def close(self, *, discard: bool = False) -> None:
        """Do nothing, because other tensors use the store."""

    def __reduce__(self) -> tuple[Callable[[], MemoryTileStore], tuple[()]]:
        """Unpickle as the shared store of the other process."""
        return map_cache, ()


def map_cache() -> MemoryTileStore:
    """Return the store of all maps that have windows, but no store of their own.

    They have windows because of `window`, `batch_size` or a network. A map with a `tensor_id` has a store of the same
    size for itself. The least recently used windows are dropped when all of them take more than an eighth of the
    machine's memory. To change the limit, set ``map_cache().cache_size_bytes``.

    Examples
    --------
    >>> map_cache().cache_size_bytes = "2GB"
    """
    global _store  # noqa: PLW0603  (one for the process)
    with _LOCK:
        if _store is None:
            _store = _MapCache(_memory() // _SHARE)
        while _gone:
            gone, record = _gone.popleft()
            if record is not None:
                _store._contents.tiles.forget(record)
            for tensor_id in _store.tensor_ids(f"{gone}/"):
                _store._contents.delete(tensor_id)
        return _store


_LOCK = Lock()
_store: MemoryTileStore | None = None
_gone: deque[tuple[str, Record | None]] = deque()


def forget_after(holder: Any, tensor_id: str) -> None:
    """Forget a tensor in the cache of maps after its `holder` is gone.

    The function of the tensor is let go at once, its tiles with the next call of `map_cache`.
    """
    weakref.finalize(holder, _forget, tensor_id).atexit = False


def _forget(tensor_id: str) -> None:
    # A finalizer may run at any moment, also within a call of the store: it does what takes no lock.
    assert _store is not None
    record = _store._contents.registry.forget(tensor_id)
    if record is not None:
        record.functions = Functions()
        record.spec = replace(record.spec, definition=replace(record.spec.definition, functions=record.functions))
    _gone.append((tensor_id, record))


def _memory() -> int:
    """Return the memory of the machine or of the container, in bytes."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in map(Path, _CGROUP):
        if limit.exists() and (text := limit.read_text().strip()).isdigit():
            found = min(found, int(text))
    return found
