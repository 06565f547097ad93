"""What a store asks of a storage: a `Backend` for definitions, and a `TensorHandle` for the tiles of each tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import MOST_AT_ONCE, Index, check_count
from infinite_tensor.tilestore.documents import (
    Document,
    name_of,
    sealed,
)
from infinite_tensor.tilestore.inventory import Damage, Garbage, TensorInfo
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.messages import lacking, warn_of_damage
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.stored_definition import StoredTensor

T = TypeVar("T")

_TILES_AT_ONCE = 64
_KEPT = ". Stored data is intact; unstored data is kept in memory; call flush() to try again"
_ADVICE = {
    "store": _KEPT,
    "flush": _KEPT,
    "copy": ". The original and everything copied so far are intact; copy again to continue",
}


class TensorHandle:
    """A tensor in a storage.

    A tensor that is cleared and created again gets a new handle, for its new incarnation. Several threads may read at a
    time. One thread writes tiles and partial tiles, while others read. A method raises OSError if storage fails.

    Parameters
    ----------
    tensor_id : str
        The id of the tensor.
    layout : TileLayout
        The tiles of the tensor.
    owner : object
        The backend; messages show its str.

    Attributes
    ----------
    encoding : object
        An identifier for the encoding of tiles, such as the compression settings. If two handles have equal values, a
        copy between them passes encoded tiles from `read_encoded` to `write_encoded`. None if there are none.
    released : bool
        Whether the store no longer uses this object, because the tensor was cleared or the store was closed.
    """

    encoding: object = None

    def __init__(self, tensor_id: str, layout: TileLayout, owner: object) -> None:
        self.tensor_id = tensor_id
        self.layout = layout
        self.owner = owner
        self.released = False

    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """Read complete tiles, in the given order.

        Return None for a missing or partial tile. For a damaged tile, issue a `DamagedDataWarning` and return None.
        """
        raise NotImplementedError

    def write_tiles(self, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store each complete tile atomically.

        If a tile is already stored, replace it: the stored tile may be damaged.
        """
        raise NotImplementedError

    def read_partials(self, tiles: Sequence[Index]) -> list[PartialTile | None]:
        """Read partial tiles, in the given order, with all parts of a tile merged.

        Return None for a tile without parts. Raise StoreError if the tensor was cleared, even for no tiles.
        """
        raise NotImplementedError

    def write_partials(self, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add a part to each partial tile, or delete its stored parts if the part is None.

        When a part is added, all other parts must be kept, also parts that other processes add at the same time.
        """
        raise NotImplementedError

    def find(self, tiles: Sequence[Index]) -> list[bool]:
        """Return for each tile whether it is complete. Override this if the backend can look without reading."""
        return [tile is not None for tile in self.read_tiles(tiles)]

    def find_in(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find the tiles stored in the box ``[low, high)``.

        Return the set of complete tiles, and the set of tiles with stored parts. Override this if the backend can look
        without reading all tiles.
        """
        check_count(math.prod(b - a for a, b in zip(low, high, strict=True)), MOST_AT_ONCE)
        tiles = itertools.product(*map(range, low, high))
        complete: set[Index] = set()
        begun: set[Index] = set()
        while some := list(itertools.islice(tiles, _TILES_AT_ONCE)):
            complete.update(itertools.compress(some, self.find(some)))
            begun |= {tile for tile, part in zip(some, self.read_partials(some), strict=True) if part is not None}
        return complete, begun

    def delete_tiles(self, tiles: Sequence[Index]) -> None:
        """Delete complete and partial tiles, also those of other processes, partial data first."""

    def generation(self) -> str | None:
        """Return a text that changes whenever any process calls `delete_tiles`. None if there is no such text."""
        return None

    def read_encoded(self, tiles: Sequence[Index]) -> list[bytes | None]:
        """Read complete tiles as `read_tiles`, without decoding."""
        raise NotImplementedError

    def write_encoded(self, tiles: Mapping[Index, bytes]) -> None:
        """Store each encoded complete tile atomically. The tiles come from a handle with an equal `encoding`."""
        raise NotImplementedError

    def damages(self, *, repair: bool) -> Iterator[Damage]:
        """Check everything stored, and iterate over the damages. If `repair` is True, damaged data is deleted."""
        raise NotImplementedError

    def intact(self, tile: Index, found: T | Exception | None) -> T | None:
        """Return `found`, or None with a warning of a damaged tile if it is an exception."""
        if isinstance(found, Exception):
            warn_of_damage(self.owner, f"tile {tile} of tensor {self.tensor_id!r} is damaged ({found})")
            return None
        return found


class Unstored(TensorHandle):
    """A tensor that is not stored, in a read-only store."""

    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """Return None for each tile."""
        return [None] * len(tiles)

    def read_partials(self, tiles: Sequence[Index]) -> list[PartialTile | None]:
        """Return None for each tile."""
        return [None] * len(tiles)

    def find_in(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:  # noqa: ARG002
        """Return two empty sets."""
        return set(), set()

    def write_tiles(self, tiles: Mapping[Index, torch.Tensor]) -> None:  # noqa: ARG002
        """Never called: the store is read-only."""
        raise AssertionError

    def write_partials(self, partials: Mapping[Index, PartialTile | None]) -> None:  # noqa: ARG002
        """Never called: the store is read-only."""
        raise AssertionError


class Backend:
    """Definitions and tensors in a storage.

    A backend only reads and writes. The store decides when, and what the data means. Authors of other backends
    implement the same methods on a subclass of `PersistentTileStore`.

    Attributes
    ----------
    lacks : set of str
        The optional methods that the author of a store has not written.
    """

    lacks: frozenset[str] = frozenset()

    @property
    def is_near(self) -> bool:
        """Whether definitions are read without network requests."""
        return True

    def ask(
        self,
        method: Callable[..., T],
        *given: Any,
        to: str,
        what: str = "its backend",
        tiles: Collection[Index] = (),
        **options: Any,
    ) -> T:
        """Return ``method(*given, **options)``, and turn exceptions into StoreError.

        The message is for example "could not read tile (0, 1) of tensor 'a'", with "read" as `to`, and "tensor 'a'" as
        `what`. A StoreError or ValidationError is raised unchanged.
        """
        try:
            return method(*given, **options)
        except (StoreError, ValidationError):
            raise
        except Exception as error:
            if tiles:
                more = f" and {len(tiles) - 1} more" if len(tiles) > 1 else ""
                what = f"tile {next(iter(tiles))}{more} of {what}"
            advice = _ADVICE.get(to, "")
            raise StoreError(f"{self} could not {to} {what}: {type(error).__name__}: {error}{advice}") from error

    # Documents: JSON objects, each the definition of a tensor (names begin with ``t-``) or of a group (``g-``).

    def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Read documents by name, in the given order.

        Return None for a missing document, and a ValueError for a damaged document.
        """
        raise NotImplementedError

    def create_document(self, name: str, document: dict[str, Any]) -> None:
        """Create a document atomically. If another process has just created it, keep the existing document."""
        raise NotImplementedError

    def delete_document(self, name: str) -> None:
        """Delete a document, then its data, such as the tiles of a tensor. A missing document is not an error."""
        raise NotImplementedError

    def list_documents(self, kind: str) -> list[str]:
        """Return all document names starting with `kind`."""
        raise NotImplementedError

    def replace_document(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Replace the definition of a tensor atomically by one with more names of dimensions or metadata.

        Do nothing if the stored definition is not `old`, because another process has replaced or deleted it.
        """
        raise NotImplementedError

    def document_path(self, name: str) -> str:
        """Return the path of a document, for messages."""
        return name

    def is_ours(self, name: str) -> bool:  # noqa: ARG002
        """Return whether an unreadable document was written by this library, not by another program."""
        return True

    # Tensors.

    def create(self, definition: dict[str, Any], original: Mapping[str, Any] | None) -> None:  # noqa: ARG002
        """Create a tensor.

        `original` may be the stored definition of another tensor, maybe from another kind of backend. If possible, the
        new tensor is encoded like that tensor.
        """
        self.create_document(name_of(definition["tensor_id"]), sealed(definition))

    def check(self, stored: StoredTensor) -> None:
        """Check that an intact definition is valid for this backend. Raise ValueError otherwise."""

    def tensor(self, stored: StoredTensor) -> TensorHandle:
        """Return a handle for a stored tensor. Raise ValueError or OSError if stored data does not match."""
        raise NotImplementedError

    def unstored(self, tensor_id: str, layout: TileLayout) -> TensorHandle:
        """Return a handle for a tensor that is not stored, and never will be."""
        return Unstored(tensor_id, layout, self)

    def describe(self, stored: StoredTensor) -> TensorInfo:  # noqa: ARG002
        """Describe a tensor and its stored data."""
        raise lacking(self, "_describe_tensor")

    def verify(self, stored: StoredTensor, *, repair: bool) -> list[Damage]:
        """Check all stored data of a tensor, and list damaged data. If `repair` is True, delete the damaged data."""
        return list(self.tensor(stored).damages(repair=repair))

    def collect_garbage(self) -> Garbage:
        """Delete data without a definition, and the logs of complete tiles."""
        raise lacking(self, "_collect_garbage")

    def drop_partials(self, older_than: float) -> Garbage:  # noqa: ARG002
        """Delete all partial tiles unchanged for `older_than` seconds.

        The parts of a tile are deleted from the last to the first, so a crash leaves only its first parts. Raise
        ValidationError if `older_than` is not 0 and the storage records no times.
        """
        raise lacking(self, "_drop_partials")

    def flush(self) -> None:
        """Make all written data safe against a crash of the process."""

    def close(self) -> None:
        """Close files and connections."""

    def resume(self) -> None:
        """Prepare for use after `close`."""
