"""`MemoryTileStore`, the store in memory: tiles without storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch

from infinite_tensor.geometry.points import Index
from infinite_tensor.support.allocation import as_array, as_tensor
from infinite_tensor.support.given import checked_bytes
from infinite_tensor.support.interrupts import store_method
from infinite_tensor.tilestore.backend import Backend
from infinite_tensor.tilestore.cache import TileCache
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import Damage, Garbage, StoredSize
from infinite_tensor.tilestore.layout import Record, TileLayout
from infinite_tensor.tilestore.lru import LRU, check_limit
from infinite_tensor.tilestore.partial import PartialTile, TileInProgress
from infinite_tensor.tilestore.registry import Registry
from infinite_tensor.tilestore.storage import Entry, Key, Storage
from infinite_tensor.tilestore.store import TileStore
from infinite_tensor.values.spec import TensorSpec


class MemoryBackend(Backend):
    """Tiles that are only in the cache, for what reads a store's storage, such as a copy."""

    def __init__(self, entries: LRU[Key, Entry]) -> None:
        self._entries = entries
        self._groups: dict[str, dict[str, Any]] = {}

    def __repr__(self) -> str:
        limits = {"cache_size_bytes": self._entries.max_bytes, "cache_size_windows": self._entries.max_items}
        return f"MemoryTileStore({', '.join(f'{name}={n}' for name, n in limits.items() if n is not None)})"

    def keep(self, registry: Registry, tiles: TileCache) -> None:
        """Set where the tensors and tiles are."""
        self._registry, self._tiles = registry, tiles

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        entries = self._entries_at(tensor_id, tile_indices)
        return [
            None if entry is None or isinstance(entry, TileInProgress) else as_tensor(entry).cpu() for entry in entries
        ]

    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        # Held until the end: other threads change tiles in progress.
        with self._tiles.lock:
            entries = self._entries_at(tensor_id, tile_indices)
            return [entry.unstored() if isinstance(entry, TileInProgress) else None for entry in entries]

    def _entries_at(self, tensor_id: str, tiles: Sequence[Index]) -> list[Entry | None]:
        record = self._registry.records.get(tensor_id)
        with self._tiles.lock:
            return [None if record is None else self._entries.look((record, tile)) for tile in tiles]

    def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        record = self._registry.records.get(tensor_id)
        entries = {} if record is None else self._tiles.held(record, low, high)
        begun = {tile: entry for tile, entry in entries.items() if isinstance(entry, TileInProgress)}
        return entries.keys() - begun.keys(), {tile for tile, entry in begun.items() if not entry.empty}

    def _write_tiles(self, *_: object) -> NoReturn:
        raise AssertionError

    def _write_partials(self, *_: object) -> NoReturn:
        raise AssertionError

    def _delete_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> None:
        """Do nothing: `Contents.drop` takes the tiles out of the cache."""

    def _read_definition(self, tensor_id: str) -> None:
        """Return None: the registry has the definition."""

    def _delete_tensor(self, tensor_id: str) -> None:
        """Do nothing: `Contents.delete` takes the tensor out of the registry."""

    def _list_tensors(self) -> list[str]:
        return [record.spec.tensor_id for record in self._registry.known()]

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:  # noqa: ARG002
        return []

    def _collect_garbage(self) -> Garbage:
        return Garbage()

    def _drop_partials(self, older_than: float) -> Garbage:  # noqa: ARG002
        return Garbage()

    def _read_group(self, group_id: str) -> dict[str, Any] | None:
        return self._groups.get(group_id)

    def _write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        self._groups[group_id] = definition

    def _delete_group(self, group_id: str) -> None:
        self._groups.pop(group_id, None)

    def _list_groups(self) -> list[str]:
        return list(self._groups)

    def _close_backend(self) -> None:
        self._groups.clear()


class MemoryContents(Contents):
    """Tiles in one cache for all tensors, without storage."""

    outlives_process = False

    def __init__(
        self, max_bytes: int | None, max_tiles: int | None, tile_size: int | Sequence[int] | None = None
    ) -> None:
        entries: LRU[Key, Entry] = LRU(max_bytes, max_tiles)
        self._backend = MemoryBackend(entries)
        storage = Storage(self._backend)
        registry = Registry(storage, tile_size, in_memory=True)
        tiles = TileCache(storage, registry, entries, in_memory=True)
        self._backend.keep(registry, tiles)
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
            new = replace(old, spec=replace(moved, held=None), layout=layout, device=moved.device)
            there = {tile: _moved(entry, new) for tile, entry in self.tiles.of(old).items() if kept}
            self.registry.replace(old, new, moved)
            self.tiles.forget(old)
            self.tiles.put(new, there)

    def specs_downstream(self) -> list[TensorSpec]:
        """Return the specs of all tensors; none after `close`."""
        return [record.spec for record in self.registry.known()]

    def check_droppable(self, tensor_id: str) -> None:
        """Do nothing: tiles in memory can always be dropped."""

    def stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize:  # noqa: ARG002  (counting is fast)
        """Return the number of complete tiles in memory, their size, and the number of other tiles."""
        info = self.info_of(tensor_id)
        return StoredSize(info.tiles_complete, info.bytes_stored, pending=info.tiles_partial)

    def clear_cache(self, tensor_id: str) -> None:
        """Drop all tiles of a tensor."""
        record = self.registry.records.get(tensor_id)
        if record is not None:
            self.tiles.forget(record)

    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        """Return an empty list: nothing in memory is damaged."""
        self.definition_of(tensor_id)
        return super().verify(tensor_id, repair=repair)

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
