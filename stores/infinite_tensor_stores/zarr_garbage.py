"""Deleting what no definition of a Zarr store refers to."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zarr.abc.store import Store

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.report import Garbage
from infinite_tensor_stores.names import TENSOR
from infinite_tensor_stores.zarr_layout import DOCUMENT, Place, definition_in, incarnation_of, is_temporary
from infinite_tensor_stores.zarr_listing import children, pages, sized_pages, sizes_of, temporary_files_in
from infinite_tensor_stores.zarr_loop import sync
from infinite_tensor_stores.zarr_objects import concurrently, delete_folder, get_many
from infinite_tensor_stores.zarr_ours import ours_at_root


class Sweep:
    """Deletes garbage and counts it. What is not ours is left alone.

    Parameters
    ----------
    store : zarr Store
        Where it is.
    concurrency : int
        Requests at a time.

    Attributes
    ----------
    logs : list of str
        Prefixes of the logs that were deleted.
    """

    def __init__(self, store: Store, concurrency: int) -> None:
        self.logs: list[str] = []
        self._store = store
        self._concurrency = concurrency
        self._objects = 0
        self._bytes = 0

    def run(self) -> Garbage:
        """Go over the whole store."""
        ours = ours_at_root(self._store, self._concurrency)
        for name, inside in ours.items():
            if name.startswith(TENSOR):
                self._sweep_incarnations(name, inside)
                self._sweep_logs(name)
        if temporary_files_in(self._store):
            self._sweep_temporary_files([name for name in children(self._store, "") if is_temporary(name, DOCUMENT)])
            for name in ours:
                for keys in pages(self._store, name):
                    self._sweep_temporary_files([key for key in keys if is_temporary(key)])
        return Garbage(self._objects, self._bytes)

    def _sweep_temporary_files(self, keys: list[str]) -> None:
        self._count(sizes_of(self._store, keys, self._concurrency))
        concurrently(self._store.delete, keys, self._concurrency)

    def _sweep_incarnations(self, name: str, inside: Sequence[str]) -> None:
        for folder in inside:
            incarnation, prefix = incarnation_of(folder), f"{name}/{folder}"
            if incarnation is None or self._in_use(name, incarnation):
                continue
            counted = self._objects, self._bytes
            for sizes in sized_pages(self._store, prefix, self._concurrency):
                self._count(sizes.values())
            # Counting may have taken long.
            if self._in_use(name, incarnation):
                self._objects, self._bytes = counted
            else:
                sync(delete_folder, self._store, prefix)

    def _sweep_logs(self, name: str) -> None:
        """Delete the logs of complete tiles."""
        try:
            definition = self._definition(name)
        except (ValueError, StoreError):
            return
        if definition is None:
            return
        place = Place.of(definition)
        for sizes in sized_pages(self._store, place.logs, self._concurrency):
            parts = [(key, part[0]) for key in sizes if (part := place.tile_of_part(key)) is not None]
            tiles = list(dict.fromkeys(tile for _, tile in parts))
            exist = concurrently(self._store.exists, map(place.chunk, tiles), self._concurrency)
            complete = {tile for tile, there in zip(tiles, exist, strict=True) if there}
            self._count([sizes[key] for key, tile in parts if tile in complete])
            finished = list(map(place.log, complete))
            concurrently(lambda log: delete_folder(self._store, log), finished, self._concurrency)
            self.logs += finished

    def _in_use(self, name: str, incarnation: str) -> bool:
        """Whether the definition of a group names this incarnation, or cannot be read to the end."""
        try:
            definition = self._definition(name)
        except (ValueError, StoreError):
            return True
        return definition is not None and definition["incarnation"] == incarnation

    def _definition(self, name: str) -> dict[str, object] | None:
        (document,) = get_many(self._store, [f"{name}/{DOCUMENT}"])
        return None if document is None else definition_in(document, name)

    def _count(self, sizes: Collection[int]) -> None:
        self._objects += len(sizes)
        self._bytes += sum(sizes)
