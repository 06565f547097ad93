"""`MemoryTileStore`, the store in memory: tiles without storage."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch

from infinite_tensor.geometry.points import Index
from infinite_tensor.support.allocation import as_array, as_tensor
from infinite_tensor.support.given import checked_bytes
from infinite_tensor.support.interrupts import store_method
from infinite_tensor.tilestore.backend import Backend, Unstored
from infinite_tensor.tilestore.cache import TileCache
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.documents import Document
from infinite_tensor.tilestore.inventory import Garbage
from infinite_tensor.tilestore.layout import Record, TileLayout
from infinite_tensor.tilestore.lru import LRU, check_limit
from infinite_tensor.tilestore.partial import TileInProgress
from infinite_tensor.tilestore.registry import Registry
from infinite_tensor.tilestore.storage import Entry, Key, Storage
from infinite_tensor.tilestore.store import TileStore
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.spec import TensorSpec


class MemoryTensor(Unstored):
    """Tiles that are only in the cache, for what reads a store's storage, such as a copy."""

    def __init__(self, tensor_id: str, layout: TileLayout, tiles: weakref.ref[TileCache]) -> None:
        super().__init__(tensor_id, layout, None)
        # The cache holds the records of its tiles, and thereby this object.
        self._tiles = tiles

    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """Return the complete tiles in memory."""
        found = self._held(tiles)
        return [None if isinstance(entry, TileInProgress | None) else as_tensor(entry).cpu() for entry in found]

    def find_in(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find the tiles in memory."""
        cache = self._tiles()
        record = None if cache is None else cache.record(self.tensor_id)
        entries = {} if cache is None or record is None else cache.held(record, low, high)
        begun = {tile: entry for tile, entry in entries.items() if isinstance(entry, TileInProgress)}
        return entries.keys() - begun.keys(), {tile for tile, entry in begun.items() if not entry.empty}

    def _held(self, tiles: Sequence[Index]) -> list[Entry | None]:
        cache = self._tiles()
        return [None] * len(tiles) if cache is None else cache.look(cache.record(self.tensor_id), tiles)


class MemoryBackend(Backend):
    """Stores groups in memory; the registry has the tensors."""

    def __init__(self, entries: LRU[Key, Entry]) -> None:
        self._entries = entries
        self._groups: dict[str, dict[str, Any]] = {}
        self.tiles: weakref.ref[TileCache]

    def __repr__(self) -> str:
        limits = {"cache_size_bytes": self._entries.max_bytes, "cache_size_windows": self._entries.max_items}
        return f"MemoryTileStore({', '.join(f'{name}={n}' for name, n in limits.items() if n is not None)})"

    def read_documents(self, names: Sequence[str]) -> list[Document]:
        """See `Backend`."""
        return [self._groups.get(name) for name in names]

    def create_document(self, name: str, document: dict[str, Any]) -> None:
        """See `Backend`."""
        self._groups[name] = document

    def delete_document(self, name: str) -> None:
        """See `Backend`."""
        self._groups.pop(name, None)

    def list_documents(self, kind: str) -> list[str]:
        """See `Backend`."""
        return [name for name in self._groups if name.startswith(kind)]

    def tensor(self, stored: StoredTensor) -> NoReturn:
        """Never called: nothing is stored."""
        raise AssertionError(stored)

    def unstored(self, tensor_id: str, layout: TileLayout) -> MemoryTensor:
        """See `Backend`."""
        return MemoryTensor(tensor_id, layout, self.tiles)

    def collect_garbage(self) -> Garbage:
        """See `Backend`."""
        return Garbage()

    def drop_partials(self, older_than: float) -> Garbage:  # noqa: ARG002
        """See `Backend`."""
        return Garbage()

    def close(self) -> None:
        """See `Backend`."""
        self._groups.clear()


class MemoryContents(Contents):
    """Tiles in one cache for all tensors, without storage."""

    outlives_process = False

    def __init__(
        self, max_bytes: int | None, max_tiles: int | None, tile_size: int | Sequence[int] | None = None
    ) -> None:
        entries: LRU[Key, Entry] = LRU(max_bytes, max_tiles)
        backend = MemoryBackend(entries)
        storage = Storage(backend)
        registry = Registry(storage, tile_size, in_memory=True)
        tiles = TileCache(storage, registry, entries, in_memory=True)
        backend.tiles = weakref.ref(tiles)
        super().__init__(storage, registry, tiles)

    @store_method
    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """Move the tiles of a tensor to another device or dtype.

        With another dtype, tiles with pixels computed from several values are dropped instead.
        """
        with self.lock:
            self.check_open()
            old = self.registry.record_of(spec)
            kept = moved.dtype == spec.dtype or (spec.reduction is None and spec.blender.picks)
            layout = TileLayout(spec.shape, old.layout.tile_shape, moved.dtype, old.layout.largest)
            handle = self.storage.backend.unstored(moved.tensor_id, layout)
            new = replace(old, spec=replace(moved, held=None), layout=layout, handle=handle, device=moved.device)
            there = {tile: _moved(entry, new) for tile, entry in self.tiles.of(old).items() if kept}
            self.registry.replace(old, new, moved)
            self.tiles.forget(old)
            self.tiles.put(new, there)

    def specs_downstream(self) -> list[TensorSpec]:
        """Return the specs of all tensors; none after `close`."""
        return [record.spec for record in self.registry.known()]

    def check_droppable(self, tensor_id: str) -> None:
        """Do nothing: tiles in memory can always be dropped."""

    def clear_cache(self, tensor_id: str) -> None:
        """Drop all tiles of a tensor."""
        record = self.registry.records.get(tensor_id)
        if record is not None:
            self.tiles.forget(record)

    def close(self, *, discard: bool) -> None:  # noqa: ARG002  (nothing is pending)
        """Drop all tensors and groups."""
        super().close(discard=True)


def _moved(entry: Entry, record: Record) -> Entry:
    if isinstance(entry, TileInProgress):
        return entry.copied(record)
    return as_array(as_tensor(entry).to(record.device, record.spec.dtype))


class MemoryTileStore(TileStore):
    """Store in memory, with one cache for all tensors.

    If a limit is exceeded, the least recently used tiles are dropped first. A read in progress keeps its tiles until
    their last use, so it may exceed the limits. The limits apply again when the read ends.

    Parameters
    ----------
    cache_size_bytes : int or str, optional
        Limit for all tiles together, in bytes or as ``"400MB"``. None: no limit.
    cache_size_windows : int, optional
        Limit for the number of tiles. None: no limit.
    tile_size : int or tuple of int, optional
        Extent of a tile in pixels, as for `PersistentTileStore`. By default, where the windows of a tensor lie side by
        side, a tile is a window, or a row of small windows; where they overlap, a tile has about 256 KiB.
    workers : int
        The number of threads on which a read runs ``f``.
    """

    def __init__(
        self,
        cache_size_bytes: int | str | None = None,
        cache_size_windows: int | None = None,
        *,
        tile_size: int | Sequence[int] | None = None,
        workers: int = 1,
    ) -> None:
        limits = (
            checked_bytes("cache_size_bytes", cache_size_bytes),
            check_limit("cache_size_windows", cache_size_windows),
        )
        super().__init__(MemoryContents(*limits, tile_size), workers=workers)

    @property
    def cache_size_bytes(self) -> int | None:
        """Limit in bytes, None for no limit."""
        return self._contents.tiles.entries.max_bytes

    @cache_size_bytes.setter
    def cache_size_bytes(self, value: int | str | None) -> None:
        self._contents.tiles.limit(checked_bytes("cache_size_bytes", value))

    @property
    def cache_size_windows(self) -> int | None:
        """Limit for the number of tiles, None for no limit."""
        return self._contents.tiles.entries.max_items

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the limits, not the windows."""
        options: dict[str, Any] = {"tile_size": self._contents.registry.tile_size, "workers": self._contents.workers}
        return partial(type(self), **options), (self.cache_size_bytes, self.cache_size_windows)

    def __str__(self) -> str:
        return str(self._contents)
