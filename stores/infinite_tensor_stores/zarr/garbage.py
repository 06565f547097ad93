"""What no definition of a Zarr store refers to: incarnations that are gone, logs of complete tiles, temporary files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.persistent.documents import TENSOR
from infinite_tensor.tilestore.report import Garbage
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.zarr.layout import DOCUMENT, Place, incarnation_of, is_temporary
from infinite_tensor_stores.zarr.objects import Objects
from infinite_tensor_stores.zarr.root import Root


class Sweep:
    """Deletes garbage and counts it. What is not ours is left alone.

    Parameters
    ----------
    objects : Objects
        Of the store.
    root : Root
        Likewise.
    definition_of : callable
        ``definition_of(name)`` reads the definition of a tensor, None where there is none; ValueError or StoreError
        where that cannot be read.

    Attributes
    ----------
    logs : list of str
        Prefixes of the logs that were deleted.
    """

    def __init__(self, objects: Objects, root: Root, definition_of: Callable[[str], Mapping[str, Any] | None]) -> None:
        self.logs: list[str] = []
        self._objects = objects
        self._root = root
        self._definition = definition_of
        self._deleted = 0
        self._bytes = 0

    def run(self) -> Garbage:
        """Go over the whole store."""
        ours = self._root.ours()
        for name, inside in ours.items():
            if name.startswith(TENSOR):
                self._sweep_incarnations(name, inside)
                self._sweep_logs(name)
        if self._objects.may_hold_temporary_files:
            self._sweep_temporary_files([name for name in self._objects.children("") if is_temporary(name, DOCUMENT)])
            for name in ours:
                for keys in self._objects.pages(name):
                    self._sweep_temporary_files([key for key in keys if is_temporary(key)])
        return Garbage(self._deleted, self._bytes)

    def _sweep_temporary_files(self, keys: list[str]) -> None:
        self._count(self._objects.sizes(keys))
        self._objects.delete(keys)

    def _sweep_incarnations(self, name: str, inside: Sequence[str]) -> None:
        for folder in inside:
            incarnation, prefix = incarnation_of(folder), f"{name}/{folder}"
            if incarnation is None or self._in_use(name, incarnation):
                continue
            counted = self._deleted, self._bytes
            for sizes in self._objects.sized_pages(prefix):
                self._count(sizes.values())
            # Counting may have taken long.
            if self._in_use(name, incarnation):
                self._deleted, self._bytes = counted
            else:
                sync(self._objects.delete_folder, prefix)

    def _sweep_logs(self, name: str) -> None:
        """Delete the logs of complete tiles."""
        try:
            definition = self._definition(name)
        except (ValueError, StoreError):
            return
        if definition is None:
            return
        place = Place.of(definition)
        for sizes in self._objects.sized_pages(place.logs):
            parts = [(key, part[0]) for key in sizes if (part := place.tile_of_part(key)) is not None]
            tiles = list(dict.fromkeys(tile for _, tile in parts))
            exist = self._objects.exist(map(place.chunk, tiles))
            complete = {tile for tile, there in zip(tiles, exist, strict=True) if there}
            self._count([sizes[key] for key, tile in parts if tile in complete])
            finished = list(map(place.log, complete))
            self._objects.each(self._objects.delete_folder, finished)
            self.logs += finished

    def _in_use(self, name: str, incarnation: str) -> bool:
        """Whether the definition of a group names this incarnation, or cannot be read to the end."""
        try:
            definition = self._definition(name)
        except (ValueError, StoreError):
            return True
        return definition is not None and definition["incarnation"] == incarnation

    def _count(self, sizes: Collection[int]) -> None:
        self._deleted += len(sizes)
        self._bytes += sum(sizes)
