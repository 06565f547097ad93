"""`MemoryTileStore`: windows in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from infinite_tensor.support.visits import visited
from infinite_tensor.tilestore.lru import check_limit
from infinite_tensor.tilestore.memory.contents import MemoryContents
from infinite_tensor.tilestore.store import TileStore


class MemoryTileStore(TileStore):
    """Keeps windows in memory, in one cache for all its tensors, least recently used first out.

    A read in progress keeps the windows it needs until their last use, so a read may exceed the limits
    and still finish; afterwards they hold.

    Parameters
    ----------
    cache_size_bytes : int, optional
        Limit in bytes for all windows together. None: no limit.
    cache_size_windows : int, optional
        Limit in windows. None: no limit.
    workers : int
        On how many threads a read runs ``f``.
    """

    contents: MemoryContents

    def __init__(
        self, cache_size_bytes: int | None = None, cache_size_windows: int | None = None, *, workers: int = 1
    ) -> None:
        limits = (
            check_limit("cache_size_bytes", cache_size_bytes),
            check_limit("cache_size_windows", cache_size_windows),
        )
        super().__init__(MemoryContents(*limits), workers=workers)

    @property
    def cache_size_bytes(self) -> int | None:
        """Limit in bytes, None for no limit."""
        return self.contents.kept.windows.max_bytes

    @cache_size_bytes.setter
    def cache_size_bytes(self, value: int | None) -> None:
        self.contents.kept.limit(check_limit("cache_size_bytes", value), self.cache_size_windows)

    @property
    def cache_size_windows(self) -> int | None:
        """Limit in windows, None for no limit."""
        return self.contents.kept.windows.max_items

    @visited
    def close(self, *, discard: bool = False) -> None:
        """Forget everything."""
        super().close(discard=discard)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the limits, not the windows."""
        return partial(type(self), workers=self.workers), (self.cache_size_bytes, self.cache_size_windows)

    def __repr__(self) -> str:
        return repr(self.contents)
