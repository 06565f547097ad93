"""A backend as the parts of its store use it."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.interrupts import interrupts_shown
from infinite_tensor.tilestore.inventory import Damage, Garbage, StoredSize, TensorInfo
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.messages import warn_of_damage
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.backend import Backend, offers

_FEW_TILES = 64

_KEPT = ". Nothing stored is harmed; what was to be stored is kept in memory, flush to try again"
_ADVICE = {
    "store": _KEPT,
    "flush": _KEPT,
    "copy": ". The original is as it was, and so is what has been copied before; copy again to continue",
}


class _Call(interrupts_shown):
    """A call of a backend: what it raises becomes a StoreError that names store, tensor and tile.

    A ValidationError stays one.
    """

    def __init__(
        self, of: Storage, action: str, tensor_id: str | None = None, tiles: Sequence[Index] = (), group_id: str = ""
    ) -> None:
        self.backend = of.backend
        self._action = action
        self._tensor_id = tensor_id
        self._tiles = tiles
        self._group_id = group_id

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        super().__exit__(kind, error, trace)
        if isinstance(error, Exception) and not isinstance(error, StoreError | ValidationError):
            what = f"group {self._group_id!r}" if self._group_id else "its backend"
            if self._tensor_id is not None:
                what = f"tensor {self._tensor_id!r}"
            if self._tiles:
                more = f" and {len(self._tiles) - 1} more" if len(self._tiles) > 1 else ""
                what = f"tile {self._tiles[0]}{more} of {what}"
            advice = _ADVICE.get(self._action, "")
            raise StoreError(
                f"{self.backend} could not {self._action} {what}: {type(error).__name__}: {error}{advice}"
            ) from error


class Storage:
    """Calls a backend; what that raises becomes a StoreError that names store, tensor and tile.

    The backend is the store itself, which its parts must not keep alive: it is held weakly. Who uses them holds the
    store, by a tensor, say.

    Attributes
    ----------
    writing : threading.RLock
        Held while tiles are written, and while a tensor is deleted, or loses tiles.
    """

    def __init__(self, backend: Backend) -> None:
        self.attach(backend)
        self._renew_after_fork()
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        # Backends need not be ready for two that write tiles at a time: the background writer, and a copy. A tensor is
        # deleted under it too, so that who holds it and has looked whether the tensor is there writes into that one.
        self.writing = threading.RLock()

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
        return str(self._backend())

    def read_definition(self, tensor_id: str, action: str = "read") -> dict[str, Any] | None:
        """What is stored as the definition of a tensor, not checked; None where there is nothing."""
        with _Call(self, action, tensor_id) as call:
            return call.backend._read_definition(tensor_id)

    def create(
        self, tensor_id: str, definition: dict[str, Any], original: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Store the definition of a new tensor; what is stored then: another's, where another process was first.

        It is to be stored as `original` is, where that is given: the definition of another tensor, as it is stored.
        """
        with _Call(self, "register", tensor_id) as call:
            if original is None:
                call.backend._write_definition(tensor_id, definition)
            else:
                call.backend._write_copy(tensor_id, definition, original)
            stored = call.backend._read_definition(tensor_id)
            if stored is None:
                raise StoreError(f"{self}: tensor {tensor_id!r} was created and is gone again; try once more")
            return stored

    def bind(self, tensor_id: str, definition: Mapping[str, Any]) -> object:
        """Get ready for the tiles of a tensor that is stored with this definition, while somebody has the result."""
        with _Call(self, "open", tensor_id) as call:
            return call.backend._bind_tensor(tensor_id, definition)

    def bind_again(self, tensor_id: str, bound: object) -> None:
        """Use what `bind` returned, which the garbage collector may have the backend forget."""
        self.backend._bind_again(tensor_id, bound)

    @property
    def is_near(self) -> bool:
        """Whether it takes no request to read a definition."""
        return self.backend._is_near

    def definitions(self) -> dict[str, dict[str, Any]]:
        """What is stored as the definitions of tensors, by their ids."""
        with _Call(self, "list") as call:
            return call.backend._read_definitions()

    def holds(self, tensor_id: str) -> bool:
        """Whether a tensor is stored, intact or not."""
        with _Call(self, "look for", tensor_id) as call:
            return call.backend._holds(tensor_id)

    def some_ids(self, most: int) -> tuple[list[str], int]:
        """The first ids of tensors that are stored, and how many more there may be."""
        with _Call(self, "list") as call:
            return call.backend._some_ids(most)

    def tensor_ids(self, prefix: str) -> list[str]:
        """Ids of all tensors that are stored, which begin with `prefix`."""
        with _Call(self, "list") as call:
            found = call.backend._ids_beginning(prefix) if prefix else call.backend._list_tensors()
        for name in found:
            if not isinstance(name, str):
                raise StoreError(f"{self} holds {name!r:.200} as a tensor_id, which is no str; it may be damaged")
        return found

    def read_tiles(self, record: Record, tiles: Sequence[Index]) -> dict[Index, torch.Tensor | None]:
        """The complete tiles, None where there is none that can be one."""
        tensor_id, layout = record.spec.tensor_id, record.layout
        with _Call(self, "read", tensor_id, tiles) as call:
            found = dict(zip(tiles, call.backend._read_tiles(tensor_id, tiles), strict=True))
        for tile, block in found.items():
            if block is not None and (block.dtype != layout.dtype or block.shape != layout.tile_shape):
                given, wanted = f"{block.dtype} {tuple(block.shape)}", f"{layout.dtype} {layout.tile_shape}"
                warn_of_damage(self, f"tile {tile} of tensor {tensor_id!r} is {given}, not {wanted}")
                found[tile] = None
        return found

    def read_partials(self, record: Record, tiles: Sequence[Index]) -> dict[Index, PartialTile | None]:
        """What is stored of incomplete tiles, None where nothing is."""
        tensor_id = record.spec.tensor_id
        with _Call(self, "read", tensor_id, tiles) as call:
            return dict(zip(tiles, call.backend._read_partials(tensor_id, tiles), strict=True))

    def write(
        self,
        tensor_id: str,
        complete: Mapping[Index, torch.Tensor],
        changes: Mapping[Index, PartialTile | None],
        action: str = "store",
    ) -> None:
        """Store complete tiles, then what has become of incomplete ones; None deletes what is stored of these.

        `action` is what it is done for, for messages.
        """
        with _Call(self, action, tensor_id, [*{**complete, **changes}]) as call, self.writing:
            if complete:
                call.backend._write_tiles(tensor_id, complete)
            if changes:
                call.backend._write_partials(tensor_id, changes)

    def encoding(self, tensor_id: str) -> object:
        """How the tiles of a tensor are encoded; None where they cannot be had so."""
        with _Call(self, "look at", tensor_id) as call:
            return call.backend._encoding(tensor_id)

    def read_encoded(self, tensor_id: str, tiles: Sequence[Index]) -> dict[Index, bytes | None]:
        """Complete tiles as they are stored, None where there is none that is intact."""
        with _Call(self, "read", tensor_id, tiles) as call:
            return dict(zip(tiles, call.backend._read_encoded(tensor_id, tiles), strict=True))

    def write_encoded(self, tensor_id: str, tiles: Mapping[Index, bytes]) -> None:
        """Store complete tiles that are encoded already."""
        with _Call(self, "copy", tensor_id, list(tiles)) as call, self.writing:
            call.backend._write_encoded(tensor_id, tiles)

    @property
    def finds_tiles(self) -> bool:
        """Whether it can tell which tiles of a tensor there are, wherever they lie."""
        return offers(self.backend, "_find_tiles")

    def those_there(self, tensor_id: str, tiles: Sequence[Index]) -> list[Index]:
        """Those of some tiles that are there complete."""
        with _Call(self, "look for", tensor_id) as call:
            return list(itertools.compress(tiles, call.backend._has_tiles(tensor_id, tiles)))

    def find(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Which tiles of a box ``[low, high)`` are complete, and of which something is stored."""
        with _Call(self, "list", tensor_id) as call:
            return call.backend._find_tiles(tensor_id, low, high)

    def find_partials(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> set[Index]:
        """Of which tiles of a box parts are stored; some may be complete by now."""
        with _Call(self, "list", tensor_id) as call:
            return call.backend._find_partials(tensor_id, low, high)

    def has_tiles(self, tensor_id: str, tiles: Sequence[Index]) -> bool:
        """Whether all of some tiles are there complete."""
        return len(self.those_there(tensor_id, tiles)) == len(tiles)

    def delete_tensor(self, tensor_id: str) -> None:
        """Delete everything of a tensor, the definition first."""
        with _Call(self, "delete", tensor_id) as call, self.writing:
            call.backend._delete_tensor(tensor_id)

    def check_droppable(self, tensor_id: str) -> None:
        """NotImplementedError if the backend cannot delete tiles."""
        backend = self.backend
        if not offers(backend, "_delete_tiles"):
            backend._delete_tiles(tensor_id, [])

    def drop(self, tensor_id: str, tiles: BoxUnion) -> int:
        """Delete all that is stored of some tiles; how many there were."""
        with _Call(self, "drop", tensor_id) as call, self.writing:
            complete, partial = call.backend._find_tiles(tensor_id, *tiles.hull)
            found = tiles.held(list(complete | partial))
            # Where there are few, also what nobody finds any more: parts behind a gap in a log.
            few = tiles.most_points <= _FEW_TILES
            call.backend._delete_tiles(tensor_id, list(tiles.points()) if few else found)
            call.backend._flush_backend()
        return len(found)

    def generation(self, tensor_id: str) -> tuple[str, str] | None:
        """What tells its tiles from those before a tensor was cleared, or lost tiles; None where that is not kept."""
        with _Call(self, "read", tensor_id) as call:
            stored = call.backend._read_definition(tensor_id)
            drops = None if stored is None else call.backend._generation(tensor_id)
        return None if stored is None or drops is None else (stored.get("incarnation", ""), drops)

    def describe(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo | None:
        """What is stored of a tensor; None where its definition is not."""
        with _Call(self, "describe", tensor_id) as call:
            stored = call.backend._read_definition(tensor_id) is not None
            return call.backend._describe_tensor(tensor_id, definition) if stored else None

    def stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize | None:
        """How many complete tiles of a tensor there are, counted up to about `most`; None where that takes long."""
        with _Call(self, "describe", tensor_id) as call:
            return call.backend._stored_size(tensor_id, definition, most)

    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        """What is damaged of all that is stored of a tensor; dropped, where it is to be repaired."""
        with _Call(self, "verify", tensor_id) as call:
            return call.backend._verify_tensor(tensor_id, repair=repair)

    def read_group(self, group_id: str) -> dict[str, Any] | None:
        """What is stored as the definition of a group, not checked; None where there is nothing."""
        with _Call(self, "read", group_id=group_id) as call:
            return call.backend._read_group(group_id)

    def write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group."""
        with _Call(self, "save", group_id=group_id) as call:
            call.backend._write_group(group_id, definition)
            call.backend._flush_backend()

    def delete_group(self, group_id: str) -> None:
        """Delete a group; one that does not exist is no error."""
        with _Call(self, "delete", group_id=group_id) as call:
            call.backend._delete_group(group_id)
            call.backend._flush_backend()

    def group_ids(self) -> list[str]:
        """Ids of all groups."""
        with _Call(self, "list") as call:
            return call.backend._list_groups()

    def collect_garbage(self) -> Garbage:
        """Delete what no definition refers to."""
        with _Call(self, "clean") as call:
            return call.backend._collect_garbage()

    def drop_partials(self, older_than: float) -> Garbage:
        """Delete what is stored of half-computed tiles to which nothing has been added for so many seconds."""
        with _Call(self, "clean") as call, self.writing:
            return call.backend._drop_partials(older_than)

    def flush(self) -> None:
        """Bring what was written to where a crash of the process cannot harm it."""
        with _Call(self, "flush") as call:
            call.backend._flush_backend()

    def close(self) -> None:
        """Close files and connections."""
        self.backend._close_backend()
