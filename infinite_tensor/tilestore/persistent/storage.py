"""A backend as the parts of its store use it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.tilestore.inventory import Damage, Garbage, TensorInfo
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.messages import stored_errors, warn_of_damage
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.backend import Backend, offers

_FEW_TILES = 64


class Storage:
    """Calls a backend; what that raises becomes a StoreError that names store, tensor and tile.

    The backend is the store itself, which its parts must not keep alive: it is held weakly. Who uses them holds the
    store, by a tensor, say.
    """

    def __init__(self, backend: Backend) -> None:
        self.attach(backend)

    def attach(self, backend: Backend) -> None:
        """Use this backend, again where the garbage collector may have forgotten it."""
        self._backend = weakref.ref(backend)

    @property
    def backend(self) -> Backend:
        """The backend; StoreError where the garbage collector is just freeing the store."""
        backend = self._backend()
        if backend is None:
            raise StoreError("the store is being freed together with whatever uses it here; close it before")
        return backend

    def __repr__(self) -> str:
        return repr(self._backend())

    def read_definition(self, tensor_id: str, action: str = "read") -> dict[str, Any] | None:
        """What is stored as the definition of a tensor, not checked; None where there is nothing."""
        backend = self.backend
        with stored_errors(backend, action, tensor_id):
            return backend._read_definition(tensor_id)

    def create(self, tensor_id: str, definition: dict[str, Any]) -> dict[str, Any]:
        """Store the definition of a new tensor; what is stored then: another's, where another process was first."""
        backend = self.backend
        with stored_errors(backend, "register", tensor_id):
            backend._write_definition(tensor_id, definition)
            stored = backend._read_definition(tensor_id)
            if stored is None:
                raise StoreError(f"{backend!r}: tensor {tensor_id!r} was created and is gone again; try once more")
            return stored

    def bind(self, tensor_id: str, definition: Mapping[str, Any]) -> None:
        """Get ready for the tiles of a tensor that is stored with this definition."""
        backend = self.backend
        with stored_errors(backend, "open", tensor_id):
            backend._bind_tensor(tensor_id, definition)

    def definitions(self) -> dict[str, dict[str, Any]]:
        """What is stored as the definitions of tensors, by their ids."""
        backend = self.backend
        with stored_errors(backend, "list", None):
            return backend._read_definitions()

    def tensor_ids(self) -> list[str]:
        """Ids of all tensors that are stored."""
        backend = self.backend
        with stored_errors(backend, "list", None):
            found = backend._list_tensors()
        for name in found:
            if not isinstance(name, str):
                raise StoreError(f"{backend!r} holds {name!r:.200} as a tensor_id, which is no str; it may be damaged")
        return found

    def read_tiles(self, record: Record, tiles: Sequence[Index]) -> dict[Index, torch.Tensor | None]:
        """The complete tiles, None where there is none that can be one."""
        backend, tensor_id, layout = self.backend, record.spec.tensor_id, record.layout
        with stored_errors(backend, "read", tensor_id, tiles):
            found = dict(zip(tiles, backend._read_tiles(tensor_id, tiles), strict=True))
        for tile, block in found.items():
            if block is not None and (block.dtype != layout.dtype or block.shape != layout.tile_shape):
                given, wanted = f"{block.dtype} {tuple(block.shape)}", f"{layout.dtype} {layout.tile_shape}"
                warn_of_damage(backend, f"tile {tile} of tensor {tensor_id!r} is {given}, not {wanted}")
                found[tile] = None
        return found

    def read_partials(self, record: Record, tiles: Sequence[Index]) -> dict[Index, PartialTile | None]:
        """What is stored of incomplete tiles, None where nothing is."""
        backend, tensor_id = self.backend, record.spec.tensor_id
        with stored_errors(backend, "read", tensor_id, tiles):
            return dict(zip(tiles, backend._read_partials(tensor_id, tiles), strict=True))

    def write(
        self, tensor_id: str, complete: Mapping[Index, torch.Tensor], changes: Mapping[Index, PartialTile | None]
    ) -> None:
        """Store complete tiles, then what has become of incomplete ones; None deletes what is stored of these."""
        backend = self.backend
        with stored_errors(backend, "store", tensor_id, [*{**complete, **changes}]):
            if complete:
                backend._write_tiles(tensor_id, complete)
            if changes:
                backend._write_partials(tensor_id, changes)

    def find(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Which tiles of a box ``[low, high)`` are complete, and of which something is stored."""
        backend = self.backend
        with stored_errors(backend, "list", tensor_id):
            return backend._find_tiles(tensor_id, low, high)

    def find_partials(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> set[Index]:
        """Of which tiles of a box parts are stored; some may be complete by now."""
        backend = self.backend
        with stored_errors(backend, "list", tensor_id):
            return backend._find_partials(tensor_id, low, high)

    def has_tiles(self, tensor_id: str, tiles: Sequence[Index]) -> bool:
        """Whether all of some tiles are there complete."""
        backend = self.backend
        with stored_errors(backend, "look for", tensor_id):
            return all(backend._has_tiles(tensor_id, tiles))

    def delete_tensor(self, tensor_id: str) -> None:
        """Delete everything of a tensor, the definition first."""
        backend = self.backend
        with stored_errors(backend, "delete", tensor_id):
            backend._delete_tensor(tensor_id)

    def check_droppable(self, tensor_id: str) -> None:
        """NotImplementedError if the backend cannot delete tiles."""
        backend = self.backend
        if not offers(backend, "_delete_tiles"):
            backend._delete_tiles(tensor_id, [])

    def drop(self, tensor_id: str, tiles: BoxUnion) -> int:
        """Delete all that is stored of some tiles; how many there were."""
        backend = self.backend
        with stored_errors(backend, "drop", tensor_id):
            complete, partial = backend._find_tiles(tensor_id, *tiles.hull)
            found = tiles.held(list(complete | partial))
            # Where there are few, also what nobody finds any more: parts behind a gap in a log.
            few = tiles.most_points <= _FEW_TILES
            backend._delete_tiles(tensor_id, list(tiles.points()) if few else found)
            backend._flush_backend()
        return len(found)

    def describe(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo | None:
        """What is stored of a tensor; None where its definition is not."""
        backend = self.backend
        with stored_errors(backend, "describe", tensor_id):
            stored = backend._read_definition(tensor_id) is not None
            return backend._describe_tensor(tensor_id, definition) if stored else None

    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        """What is damaged of all that is stored of a tensor; dropped, where it is to be repaired."""
        backend = self.backend
        with stored_errors(backend, "verify", tensor_id):
            return backend._verify_tensor(tensor_id, repair=repair)

    def read_group(self, group_id: str) -> dict[str, Any] | None:
        """What is stored as the definition of a group, not checked; None where there is nothing."""
        backend = self.backend
        with stored_errors(backend, "read", None, group_id=group_id):
            return backend._read_group(group_id)

    def write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group."""
        backend = self.backend
        with stored_errors(backend, "save", None, group_id=group_id):
            backend._write_group(group_id, definition)
            backend._flush_backend()

    def delete_group(self, group_id: str) -> None:
        """Delete a group; one that does not exist is no error."""
        backend = self.backend
        with stored_errors(backend, "delete", None, group_id=group_id):
            backend._delete_group(group_id)
            backend._flush_backend()

    def group_ids(self) -> list[str]:
        """Ids of all groups."""
        backend = self.backend
        with stored_errors(backend, "list", None):
            return backend._list_groups()

    def collect_garbage(self) -> Garbage:
        """Delete what no definition refers to."""
        backend = self.backend
        with stored_errors(backend, "clean", None):
            return backend._collect_garbage()

    def flush(self) -> None:
        """Bring what was written to where a crash of the process cannot harm it."""
        backend = self.backend
        with stored_errors(backend, "flush", None):
            backend._flush_backend()

    def close(self) -> None:
        """Close files and connections."""
        self.backend._close_backend()
