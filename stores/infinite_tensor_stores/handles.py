"""A store backend with one handle object for each tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch

from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.documents import name_of
from infinite_tensor.tilestore.inventory import Damage
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.messages import cleared_elsewhere, warn_of_damage
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor.values.dtypes import from_stored
from infinite_tensor_stores.files import Unreadable

T = TypeVar("T")


class TensorHandle(ABC):
    """A tensor in a storage.

    The methods are those of `Backend`, without the argument `tensor_id`. A tensor that is cleared and created again
    gets a new handle, for its new incarnation.

    Parameters
    ----------
    tensor_id : str
        The id of the tensor.
    layout : TileLayout
        The tiles of the tensor.
    owner : object
        The store; messages show its str.

    Attributes
    ----------
    released : bool
        Whether the store no longer uses this object, because the tensor was cleared or registered again.
    """

    def __init__(self, tensor_id: str, layout: TileLayout, owner: object) -> None:
        self.tensor_id = tensor_id
        self.layout = layout
        self.owner = owner
        self.released = False

    @abstractmethod
    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """Read complete tiles.

        Return None for a tile that is not complete.
        """

    @abstractmethod
    def write_tiles(self, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles."""

    @abstractmethod
    def read_partials(self, tiles: Sequence[Index]) -> list[PartialTile | None]:
        """Read the merged logs of partial tiles.

        Return None for a tile without a log.
        """

    @abstractmethod
    def write_partials(self, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add a part to the log of each tile.

        If `partials` maps a tile to None, the log of this tile is deleted.
        """

    @abstractmethod
    def delete_tiles(self, tiles: Sequence[Index]) -> None:
        """Delete the data of tiles, complete or partial."""

    @abstractmethod
    def generation(self) -> str:
        """Return a text that changes whenever any process deletes tiles.

        Results computed from the tensor are out of date if the text has changed.
        """

    @abstractmethod
    def has_tiles(self, tiles: Sequence[Index]) -> list[bool]:
        """Return for each tile whether it is complete."""

    @abstractmethod
    def find_tiles(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find complete tiles and logs in the box ``[low, high)``.

        Return the set of complete tiles, and the set of tiles with a log.
        """

    @abstractmethod
    def damages(self, *, repair: bool) -> Iterator[Damage]:
        """Check everything stored, and iterate over the damages.

        If `repair` is True, damaged data is deleted.
        """

    def tile_from(self, tile: Index, block: np.ndarray[Any, Any] | Exception | None) -> torch.Tensor | None:
        """Convert a stored block to a tile.

        If `block` is an exception, warn of a damaged tile, and return None.
        """
        intact = self.intact(tile, block)
        return None if intact is None else from_stored(intact, self.layout.dtype)

    def intact(self, tile: Index, found: T | Exception | None) -> T | None:
        """Return `found`, or warn of a damaged tile.

        If `found` is an exception, warn and return None.
        """
        if isinstance(found, Exception):
            warn_of_damage(self.owner, f"tile {tile} of tensor {self.tensor_id!r} is damaged ({found})")
            return None
        return found

    def partial_from(self, place: str, parts: Sequence[bytes | Exception]) -> PartialTile | None:
        """Merge the log of a partial tile.

        Damaged parts are skipped with a warning.
        """
        log = [ValueError(data.reason) if isinstance(data, Unreadable) else data for data in parts]
        return PartialTile.from_log(log, place, self.owner)


Handle = TypeVar("Handle", bound=TensorHandle)


class HandleStore(PersistentTileStore, Generic[Handle]):
    """A store with a `TensorHandle` for each stored tensor.

    The store refers to handles only weakly: a handle exists as long as something uses its tensor. There is no handle
    for a cleared tensor, or for a tensor missing from a read-only store.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._handles: WeakValueDictionary[str, Handle] = WeakValueDictionary()
        super().__init__(*args, **options)

    @property
    @abstractmethod
    def _vanished(self) -> bool:
        """Whether the whole store was deleted after opening.

        Only called on an open store.
        """

    @abstractmethod
    def _handle_of(self, definition: Mapping[str, Any]) -> Handle:
        """Return the handle for an intact definition.

        Raise ValueError or OSError if stored data does not match the definition.
        """

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> Handle:
        handle = self._handle_of(definition)
        self._release(tensor_id)
        self._handles[tensor_id] = handle
        return handle

    def _bound(self) -> list[Handle]:
        # `valuerefs` copies in a single step, because other threads may add and remove tensors.
        return [handle for each in self._handles.valuerefs() if (handle := each()) is not None]

    def _bind_again(self, tensor_id: str, bound: object) -> None:
        if bound is not None:
            self._handles[tensor_id] = bound  # type: ignore[assignment]

    def _delete_tensor(self, tensor_id: str) -> None:
        self._release(tensor_id)
        super()._delete_tensor(tensor_id)

    def _close_backend(self) -> None:
        for tensor_id in list(self._handles):
            self._release(tensor_id)

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        name = name_of(tensor_id)
        try:
            definition = self._documents.find(name)
        except ValueError as error:
            return [Damage("definition", None, self._document_path(name), str(error))]
        if definition is None:
            # Raises StoreError, unless a read-only store has registered an unstored tensor.
            self.tensor_definition(tensor_id)
            return []
        return self._damages(definition, repair=repair)

    def _damages(self, definition: Mapping[str, Any], *, repair: bool) -> list[Damage]:
        return list(self._handle_of(definition).damages(repair=repair))

    def _release(self, tensor_id: str) -> None:
        handle = self._handles.pop(tensor_id, None)
        if handle is not None:
            handle.released = True

    def _handle(self, tensor_id: str) -> Handle | None:
        handle = self._handles.get(tensor_id)
        if handle is None:
            self._check_open()
        return handle

    def _writable_handle(self, tensor_id: str) -> Handle:
        handle = self._handle(tensor_id)
        if handle is None:
            raise cleared_elsewhere(self, tensor_id)
        return handle

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        handle = self._handle(tensor_id)
        return [None] * len(tile_indices) if handle is None else handle.read_tiles(tile_indices)

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        self._writable_handle(tensor_id).write_tiles(tiles)

    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        handle = self._handle(tensor_id)
        return [None] * len(tile_indices) if handle is None else handle.read_partials(tile_indices)

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        self._writable_handle(tensor_id).write_partials(partials)

    def _delete_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> None:
        self._writable_handle(tensor_id).delete_tiles(tile_indices)

    def _generation(self, tensor_id: str) -> str | None:
        handle = self._handle(tensor_id)
        return None if handle is None else handle.generation()

    def _has_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bool]:
        handle = self._handle(tensor_id)
        return [False] * len(tile_indices) if handle is None else handle.has_tiles(tile_indices)

    def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        handle = self._handle(tensor_id)
        return (set(), set()) if handle is None else handle.find_tiles(low, high)
