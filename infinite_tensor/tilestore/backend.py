"""The storage methods of a persistent store, for definitions and tiles."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import MOST_AT_ONCE, Index, check_count
from infinite_tensor.tilestore.documents import (
    GROUP,
    KINDS,
    TENSOR,
    Document,
    checked,
    id_of,
    kind_of,
    may_begin,
    name_of,
    sealed,
)
from infinite_tensor.tilestore.inventory import Damage, Garbage, StoredSize, TensorInfo
from infinite_tensor.tilestore.messages import damaged_definition, damaged_group, in_the_way, warn_of_damage
from infinite_tensor.tilestore.partial import PartialTile

_TILES_AT_ONCE = 64
DOCUMENT_METHODS = ("_read_documents", "_create_document", "_delete_document", "_list_documents")
_BY_DOCUMENTS = (
    *("_read_definition", "_write_definition", "_delete_tensor", "_list_tensors"),
    *("_read_group", "_write_group", "_delete_group", "_list_groups"),
)


class Backend(ABC):
    """Base class with the storage methods of a persistent store.

    A backend only reads and writes. `PersistentTileStore` decides when, and what the data means.

    A backend must implement four methods for tiles: `_read_tiles`, `_write_tiles`, `_read_partials` and
    `_write_partials`. For definitions, it must implement either `_read_definition`, `_write_definition` and
    `_delete_tensor`, or the four methods for documents. With the methods for documents, it can store groups too. All
    other methods are optional.

    Methods are called from several threads, but only one thread at a time writes tiles and partial tiles. A method
    raises OSError if storage fails. The test suite in `infinite_tensor.testing` checks whether a backend follows these
    rules.
    """

    @abstractmethod
    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        """Read complete tiles, in the given order.

        Return None for a missing or partial tile. For a damaged tile, issue a `DamagedDataWarning` and return None.
        """

    @abstractmethod
    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store each complete tile atomically.

        If a tile is already stored, replace it: the stored tile may be damaged.
        """

    @abstractmethod
    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        """Read partial tiles, in the given order.

        All parts of a tile are merged by `PartialTile.merged`. Return None for a tile without parts.
        """

    @abstractmethod
    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add a part to each partial tile, or delete the partial tile.

        `partials` maps each tile index to the new part, or to None to delete all stored parts. When a part is added,
        all other parts must be kept, also parts that other processes add at the same time.
        """

    # Documents: JSON objects, each the definition of a tensor (names begin with ``t-``) or of a group (``g-``).

    def _read_documents(self, names: Sequence[str]) -> list[Document]:  # noqa: ARG002
        """Read documents by name, in the given order.

        Return None for a missing document, and a ValueError for a damaged document.
        """
        raise _lacking(self, *DOCUMENT_METHODS)

    def _create_document(self, name: str, document: dict[str, Any]) -> None:  # noqa: ARG002
        """Create a document atomically.

        If another process has just created the document, keep the existing document.
        """
        raise _lacking(self, *DOCUMENT_METHODS)

    def _replace_document(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:  # noqa: ARG002
        """Replace the definition of a tensor atomically by one with more names of dimensions or metadata.

        Do nothing if the stored definition is not `old`, because another process has replaced or deleted it. Optional:
        without this method, names and metadata that are given after the tensor was stored are not stored.
        """
        raise _lacking(self, "_replace_document")

    def _delete_document(self, name: str) -> None:  # noqa: ARG002
        """Delete a document, then its data.

        The data is for example the tiles of a tensor. A missing document is not an error.
        """
        raise _lacking(self, *DOCUMENT_METHODS)

    def _list_documents(self, kind: str) -> list[str]:  # noqa: ARG002
        """Return all document names starting with `kind`."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _document_path(self, name: str) -> str:
        """Return the path of a document, for messages."""
        return name

    def _is_ours(self, name: str) -> bool:  # noqa: ARG002
        """Return whether an unreadable document was written by this library.

        Called if the document `name` cannot be read. Return False if the data there belongs to another program.
        """
        return True

    def _check_definition(self, definition: Mapping[str, Any]) -> None:  # noqa: B027  (most need nothing)
        """Check that an intact definition is valid for this backend.

        Raise ValueError if the definition is invalid.
        """

    @property
    def _documents(self) -> Documents:
        return Documents(self)

    # Definitions of tensors.

    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        """Return the stored definition of a tensor, or None."""
        return self._documents.read(tensor_id, TENSOR)

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        """Create a tensor.

        If another process has just created the tensor, keep the existing definition.
        """
        self._documents.write(tensor_id, TENSOR, definition)

    def _delete_tensor(self, tensor_id: str) -> None:
        """Delete all data of a tensor, the definition first.

        A missing tensor is not an error.
        """
        self._delete_document(name_of(tensor_id))

    def _list_tensors(self) -> list[str]:
        """Return the ids of all stored tensors."""
        if not offers(self, "_list_documents"):
            raise _lacking(self, "_list_tensors")
        return self._documents.ids(TENSOR)

    @property
    def _is_near(self) -> bool:
        """Whether definitions are read without network requests."""
        return True

    # Groups. A group and a tensor can have the same id, because definitions are stored separately.

    def _read_group(self, group_id: str) -> dict[str, Any] | None:
        """Return the stored definition of a group, or None.

        Raise StoreError if the definition is damaged.
        """
        return self._documents.read(group_id, GROUP)

    def _write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group.

        If another process has just created the group, keep the existing definition.
        """
        self._documents.write(group_id, GROUP, definition)

    def _delete_group(self, group_id: str) -> None:
        """Delete a group.

        A missing group is not an error.
        """
        self._delete_document(name_of(group_id, GROUP))

    def _list_groups(self) -> list[str]:
        """Return the ids of all groups."""
        return self._documents.ids(GROUP)

    # Copies. If two backends encode the tiles of a tensor in the same way, encoded tiles are copied between them.

    def _write_copy(self, tensor_id: str, definition: dict[str, Any], original: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Create a tensor for a copy, without tiles.

        `original` is the stored definition of the copied tensor, maybe from a backend of another class. If possible,
        choose the encoding of the copied tensor, such as its compression.
        """
        self._write_definition(tensor_id, definition)

    def _encoding(self, tensor_id: str) -> object:  # noqa: ARG002
        """Return an identifier for the encoding of tiles, such as the compression settings.

        If two backends return equal values, a copy between them passes encoded tiles from `_read_encoded` to
        `_write_encoded`. Return None if encoded tiles of the tensor cannot be read or written.
        """
        return None

    def _read_encoded(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bytes | None]:  # noqa: ARG002
        """Read complete tiles without decoding.

        Return None for a missing tile. For a damaged tile, issue a `DamagedDataWarning` and return None.
        """
        raise _lacking(self, "_read_encoded")

    def _write_encoded(self, tensor_id: str, tiles: Mapping[Index, bytes]) -> None:  # noqa: ARG002
        """Store each encoded complete tile atomically.

        The tiles were read from a backend with an equal `_encoding`.
        """
        raise _lacking(self, "_write_encoded")

    # Optional methods.

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> object:  # noqa: ARG002
        """Return an object for the store to keep while a tensor is in use, such as an open array.

        Called when the tensor is registered. `definition` is the result of `_read_definition`. The store keeps the
        returned object while the tensor is in use or some of its tiles are in memory. If the tensor is used again
        later, it is registered again.
        """
        return None

    def _bind_again(self, tensor_id: str, bound: object) -> None:  # noqa: B027  (most need nothing)
        """Restore weak references to `bound`, the object returned by `_bind_tensor` for this tensor.

        Called when the garbage collector frees the store, because some tiles may still have to be stored. The garbage
        collector may have cleared all weak references to `bound`. A backend without such references need not override
        this method.
        """

    def _has_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bool]:
        """Check which tiles are complete in storage.

        The result has a bool for each tile.

        Override this method if the backend can check without reading tiles.
        """
        return [tile is not None for tile in self._read_tiles(tensor_id, tile_indices)]

    def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Find the tiles stored in the box ``[low, high)``.

        Return the set of complete tiles, and the set of tiles with stored parts. Override this method if the backend
        can find these tiles without reading all tiles.
        """
        check_count(math.prod(b - a for a, b in zip(low, high, strict=True)), MOST_AT_ONCE)
        tiles = itertools.product(*map(range, low, high))
        complete: set[Index] = set()
        begun: set[Index] = set()
        while some := list(itertools.islice(tiles, _TILES_AT_ONCE)):
            tiles_found = zip(some, self._read_tiles(tensor_id, some), strict=True)
            complete |= {tile for tile, found in tiles_found if found is not None}
            parts_found = zip(some, self._read_partials(tensor_id, some), strict=True)
            begun |= {tile for tile, found in parts_found if found is not None}
        return complete, begun

    def _delete_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> None:  # noqa: ARG002
        """Delete complete and partial tiles.

        Tiles and parts from other processes are deleted too. Partial data is deleted first. A missing tile is not an
        error.
        """
        raise _lacking(self, "_delete_tiles")

    def _generation(self, tensor_id: str) -> str | None:  # noqa: ARG002
        """Return a text identifying the last deletion of tiles.

        The text changes whenever any process calls `_delete_tiles`. Return None if the backend keeps no such text.
        """
        return None

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:  # noqa: ARG002
        """Describe a tensor and its stored data."""
        raise _lacking(self, "_describe_tensor")

    def _stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize | None:  # noqa: ARG002
        """Count the complete tiles of a tensor.

        The count may stop after `most` tiles. Use only one or two requests. Return None if the backend cannot count
        that quickly.
        """
        return None

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:  # noqa: ARG002
        """Check all stored data of a tensor, and list damaged data.

        If `repair` is True, delete the damaged data, but never a definition.
        """
        raise _lacking(self, "_verify_tensor")

    def _collect_garbage(self) -> Garbage:
        """Delete data without a definition, and the logs of complete tiles."""
        raise _lacking(self, "_collect_garbage")

    def _drop_partials(self, older_than: float) -> Garbage:  # noqa: ARG002
        """Delete all partial tiles unchanged for `older_than` seconds.

        The parts of a tile are deleted from the last to the first, so a crash leaves only its first parts. Raise
        ValidationError if `older_than` is not 0 and the storage records no times.
        """
        raise _lacking(self, "_drop_partials")

    def _flush_backend(self) -> None:  # noqa: B027  (most need nothing)
        """Make all written data safe against a crash of the process."""

    def _close_backend(self) -> None:  # noqa: B027  (most need nothing)
        """Close files and connections."""


def offers(backend: Backend, method: str) -> bool:
    """Return whether a backend implements an optional method.

    The methods for definitions, such as `_read_definition`, also count as implemented if the backend has all methods
    for documents.
    """
    if getattr(type(backend), method) is not getattr(Backend, method):
        return True
    return method in _BY_DOCUMENTS and all(offers(backend, needed) for needed in DOCUMENT_METHODS)


def _lacking(backend: Backend, *methods: str) -> NotImplementedError:
    missing = ", ".join(method for method in methods if not offers(backend, method))
    return NotImplementedError(
        f"{type(backend).__name__} does not implement {missing}; see infinite_tensor.tilestore.backend"
    )


class Documents:
    """Reads, writes, lists and checks definitions stored as documents."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def read(self, given: str, kind: str) -> dict[str, Any] | None:
        """Return the definition of an id, or None.

        Raise StoreError if the definition is damaged, or if the data belongs to another program.
        """
        name = name_of(given, kind)
        try:
            return self.find(name)
        except ValueError as error:
            damaged = damaged_group if kind == GROUP else damaged_definition
            raise damaged(self._backend, given, self._backend._document_path(name), error) from error

    def find(self, name: str) -> dict[str, Any] | None:
        """Return the definition under a name, or None.

        Raises
        ------
        ValueError
            If the definition is damaged.
        StoreError
            If the definition has the format of a later version, or if the data belongs to another program.
        """
        try:
            return self.definition_in(name, *self._backend._read_documents([name]))
        except ValueError:
            self.check_ours(name)
            raise

    def write(self, given: str, kind: str, definition: Mapping[str, Any]) -> None:
        """Create the definition of an id.

        If another process has just created the definition, keep the existing definition.
        """
        self._backend._create_document(name_of(given, kind), sealed(definition))

    def ids(self, kind: str, prefix: str = "") -> list[str]:
        """List the ids starting with `prefix`.

        Ids of damaged documents are included, because a check of all documents would take far longer. An id is derived
        from the name of its document, or read from the document if the name was shortened. Documents of other ids are
        not read.
        """
        found: list[str] = []
        names = [name for name in self._backend._list_documents(kind) if may_begin(name, prefix)]
        for name, document in zip(names, self._backend._read_documents(names), strict=True):
            if not self._is_there(name, document):
                continue
            told = id_of(name) or _id_in(name, document)
            if told is None:
                what = f"is damaged, and the id of its {KINDS[kind]} is unknown"
                warn_of_damage(self._backend, f"{self._backend._document_path(name)} {what}")
            elif told.startswith(prefix):
                found.append(told)
        return found

    def some_ids(self, kind: str, most: int) -> tuple[list[str], int]:
        """Return up to `most` ids, and an upper bound for the number of further ids.

        The ids are derived from the names of documents. No document is checked.
        """
        names = sorted(self._backend._list_documents(kind))
        looked = names[: 2 * most]
        found = zip(looked, self._backend._read_documents(looked), strict=True)
        # A cleared tensor may leave a name behind, without a document.
        told = [id_of(name) or name for name, document in found if document is not None]
        return told[:most], len(told[most:]) + len(names) - len(looked)

    def holds(self, given: str, kind: str) -> bool:
        """Return whether this library has stored a document for an id.

        The document may be damaged.
        """
        name = name_of(given, kind)
        return self._is_there(name, *self._backend._read_documents([name]))

    def _is_there(self, name: str, document: Document) -> bool:
        return document is not None and (isinstance(document, dict) or self._backend._is_ours(name))

    def readers(self) -> dict[str, dict[str, Any]]:
        """Return the definitions of tensors, by id.

        Tensors without args are left out, unless they are outputs of an ``f`` with several outputs. Unreadable
        definitions are left out too.
        """
        names, found = self._backend._list_documents(TENSOR), {}
        for name, document in zip(names, self._backend._read_documents(names), strict=True):
            # Skip tensors without args first, because the check takes far longer than reading.
            if isinstance(document, dict) and document.get("args") == [] and "output" not in document:
                continue
            try:
                definition = self.definition_in(name, document)
            except (ValueError, StoreError) as error:
                if self._backend._is_ours(name):
                    what = f"the definition in {self._backend._document_path(name)} cannot be read ({error})"
                    warn_of_damage(self._backend, what)
                continue
            if definition is not None:
                found[str(definition["tensor_id"])] = definition
        return found

    def definition_in(self, name: str, document: Document) -> dict[str, Any] | None:
        """Check a document, and return the definition in the document.

        Return None if `document` is None. Raise the errors of `find`.
        """
        if document is None:
            return None
        try:
            definition = checked(document, name)
        except StoreError as error:
            where = self._backend._document_path(name)
            raise StoreError(f"{self._backend}: the definition in {where} cannot be read: {error}") from error
        if kind_of(name) == TENSOR:
            self._backend._check_definition(definition)
        return definition

    def check_ours(self, name: str) -> None:
        """Check that the data under a document name belongs to this library.

        Raise StoreError if the data belongs to another program.
        """
        if not self._backend._is_ours(name):
            what = f"{KINDS[kind_of(name)]} {id_of(name) or name!r}"
            raise in_the_way(self._backend, self._backend._document_path(name), what)


def _id_in(name: str, document: Document) -> str | None:
    kind = kind_of(name)
    given = document.get(f"{KINDS[kind]}_id") if isinstance(document, dict) else None
    return given if isinstance(given, str) and name_of(given, kind) == name else None
