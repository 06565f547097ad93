"""`PersistentTileStore`, the base class of persistent stores."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.given import checked_bytes, quoted
from infinite_tensor.tilestore.adapter import StoreBackend, StoreRef
from infinite_tensor.tilestore.backend import Backend
from infinite_tensor.tilestore.cache import TileCache
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import Damage, Garbage, TensorInfo
from infinite_tensor.tilestore.lru import LRU, check_limit
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.registry import Registry
from infinite_tensor.tilestore.storage import Storage
from infinite_tensor.tilestore.store import TileStore
from infinite_tensor.tilestore.stored_definition import FORMAT

__all__ = ["FORMAT", "Damage", "Garbage", "PartialTile", "PersistentTileStore", "TensorInfo"]

K = TypeVar("K", bound=type)


def taking_former_keywords(kind: K) -> K:
    """Make a store class accept ``tile_cache_size=``, as in version 0.2.

    A constructor with a parameter of this name is left unchanged.
    """
    constructor: Callable[..., None] | None = vars(kind).get("__init__")
    if constructor is None or "tile_cache_size" in inspect.signature(constructor).parameters:
        return kind

    @functools.wraps(constructor)
    def construct(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if "tile_cache_size" in kwargs:
            message = "tile_cache_size= is deprecated; use cache_size_tiles="
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            kwargs["cache_size_tiles"] = kwargs.pop("tile_cache_size")
        constructor(self, *args, **kwargs)

    kind.__init__ = construct  # type: ignore[misc]
    return kind


@taking_former_keywords
class PersistentTileStore(TileStore):
    """Base class of stores with tiles outside of the process.

    A subclass implements eight methods, and any of the optional ones: those of `Backend` and `TensorHandle`, under the
    names in [Writing a backend](backends.md).

    Parameters
    ----------
    tile_size : int or tuple of int, optional
        Extent of a tile in pixels: one int for all unbounded dimensions, one int per unbounded dimension
        (in both cases a tile spans the finite ones), or one int per dimension. A tensor that is stored with another
        tile size raises ValidationError. By default, a stored tensor keeps its tile size. Tiles of a new tensor have 1
        to 4 MiB, all channels, and about the same number of windows along each dimension, such as 512 x 512 pixels of
        float32.
    cache_size_bytes : int, str or None
        Limit of the cache of tiles in memory, in bytes or as ``"400MB"``.
    cache_size_tiles : int or None
        Limit of the cache as a number of tiles.
    flush_interval : float
        Seconds after which windows of incomplete tiles are stored. Checked when windows are added.
    read_only : bool
        If True, stored tiles are read, and computed tiles stay in memory only.
    workers : int
        The number of threads on which a read runs ``f``.
    backend : Backend, optional
        Where tensors are stored. By default, the methods of the subclass.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        taking_former_keywords(cls)

    def __init__(
        self,
        tile_size: int | Sequence[int] | None = None,
        cache_size_bytes: int | str | None = 100 * 2**20,
        cache_size_tiles: int | None = None,
        *,
        flush_interval: float = 30.0,
        read_only: bool = False,
        workers: int = 1,
        backend: Backend | None = None,
    ) -> None:
        limits = checked_bytes("cache_size_bytes", cache_size_bytes), check_limit("cache_size_tiles", cache_size_tiles)
        if isinstance(flush_interval, bool) or not isinstance(flush_interval, int | float) or flush_interval < 0:
            raise ValidationError(f"flush_interval must be 0 or more seconds, got {quoted(flush_interval)}")
        self._store_ref = StoreRef(self)
        storage = Storage(StoreBackend(self._store_ref) if backend is None else backend)
        registry = Registry(storage, tile_size, read_only=read_only)
        tiles = TileCache(storage, registry, LRU(*limits), flush_interval, self._store_ref, read_only=read_only)
        super().__init__(Contents(storage, registry, tiles, read_only=read_only), workers=workers)
        self._flush_interval = flush_interval
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        """Recreate locks in a forked child.

        A backend may override this method.
        """

    @property
    def tile_size(self) -> int | Sequence[int] | None:
        """The tile size of new tensors, as given to the constructor."""
        return self._contents.registry.tile_size

    def _options(self) -> dict[str, Any]:
        entries = self._contents.tiles.entries
        return {
            "tile_size": self.tile_size,
            "cache_size_bytes": entries.max_bytes,
            "cache_size_tiles": entries.max_items,
            "flush_interval": self._flush_interval,
            "workers": self._contents.workers,
        }

    def __del__(self) -> None:
        # `__init__` may have failed halfway. At the exit of the interpreter, modules may be gone.
        if sys is not None and not sys.is_finalizing() and hasattr(self, "_contents"):
            self._store_ref.bind(self)
            self._contents.tiles.store_rest()
