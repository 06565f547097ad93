"""The storage methods under a persistent store: they read and write definitions, tiles and partial tiles."""

from __future__ import annotations

import itertools
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import MOST_AT_ONCE, Index, check_count
from infinite_tensor.tilestore.inventory import Damage, Garbage, StoredSize, TensorInfo
from infinite_tensor.tilestore.messages import damaged_definition, damaged_group, in_the_way, warn_of_damage
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.documents import (
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

_TILES_AT_ONCE = 64
DOCUMENT_METHODS = ("_read_documents", "_create_document", "_delete_document", "_list_documents")
_BY_DOCUMENTS = (
    *("_read_definition", "_write_definition", "_delete_tensor", "_list_tensors"),
    *("_read_group", "_write_group", "_delete_group", "_list_groups"),
)


class Backend(ABC):
    """Reads and writes bytes. `PersistentTileStore` decides what they mean, and when to read and write.

    A backend must implement four methods for tiles: `_read_tiles`, `_write_tiles`, `_read_partials` and
    `_write_partials`. For definitions, it must implement either `_read_definition`, `_write_definition` and
    `_delete_tensor`, or the four methods for documents; with the latter it can store groups too. All other methods are
    optional. Methods are called from several threads, but only one thread at a time writes tiles and partial tiles. A
    method raises OSError if storage fails. The test suite in `infinite_tensor.testing` checks that a backend keeps this
    contract.
    """

    @abstractmethod
    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        """Read complete tiles, in the given order. Return None for a tile that is not stored complete.

        For a damaged tile, issue a `DamagedDataWarning` and return None.
        """

    @abstractmethod
    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles, each atomically. A tile that already exists is replaced by an equal one."""

    @abstractmethod
    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        """Read all parts of each partial tile, merged by `PartialTile.merged`. Return None for a tile without parts."""

    @abstractmethod
    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add one part to each stored partial tile; None deletes the tile. Keep the parts that other processes add."""

    # Documents: JSON objects, each the definition of a tensor (names begin with ``t-``) or of a group (``g-``).

    def _read_documents(self, names: Sequence[str]) -> list[Document]:  # noqa: ARG002
        """Read documents by their names, in order. Return None for a missing one, a ValueError for a damaged one."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _create_document(self, name: str, document: dict[str, Any]) -> None:  # noqa: ARG002
        """Create a document atomically. If another process has just created it, keep the existing one."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _delete_document(self, name: str) -> None:  # noqa: ARG002
        """Delete a document, then its data, such as the tiles of a tensor. A missing document is not an error."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _list_documents(self, kind: str) -> list[str]:  # noqa: ARG002
        """The names of all documents that begin with `kind`."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _document_path(self, name: str) -> str:
        """Where a document is stored, for messages."""
        return name

    def _is_ours(self, name: str) -> bool:  # noqa: ARG002
        """Whether an unreadable document was written by this library, not by another program."""
        return True

    def _check_definition(self, definition: Mapping[str, Any]) -> None:  # noqa: B027  (most need nothing)
        """Raise ValueError if an intact definition is invalid for this backend."""

    @property
    def _documents(self) -> Documents:
        """The definitions that are stored as documents."""
        return Documents(self)

    # Definitions of tensors.

    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        """The stored definition of a tensor, or None."""
        return self._documents.read(tensor_id, TENSOR)

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        """Create a tensor. If another process has just created it, keep the existing definition."""
        # The incarnation distinguishes this tensor from earlier and later ones with the same id.
        self._documents.write(tensor_id, TENSOR, {**definition, "incarnation": secrets.token_hex(8)})

    def _delete_tensor(self, tensor_id: str) -> None:
        """Delete everything of a tensor, the definition first. A missing tensor is not an error."""
        self._delete_document(name_of(tensor_id))

    def _list_tensors(self) -> list[str]:
        """The ids of all stored tensors."""
        if not offers(self, "_list_documents"):
            raise _lacking(self, "_list_tensors")
        return self._documents.ids(TENSOR)

    @property
    def _is_near(self) -> bool:
        """Whether definitions are read without network requests."""
        return True

    # Groups: their definitions are separate from those of tensors, so a group and a tensor can have the same id.

    def _read_group(self, group_id: str) -> dict[str, Any] | None:
        """The stored definition of a group, or None; StoreError if it is damaged."""
        return self._documents.read(group_id, GROUP)

    def _write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group. If another process has just created it, keep the existing definition."""
        self._documents.write(group_id, GROUP, definition)

    def _delete_group(self, group_id: str) -> None:
        """Delete a group. A missing group is not an error."""
        self._delete_document(name_of(group_id, GROUP))

    def _list_groups(self) -> list[str]:
        """Ids of all groups."""
        return self._documents.ids(GROUP)

    # Copies. If two backends encode the tiles of a tensor in the same way, encoded tiles are copied between them.

    def _write_copy(self, tensor_id: str, definition: dict[str, Any], original: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Create a tensor that will be a copy of an original. If possible, encode its tiles like the original's.

        `original` is the stored definition of the original, whose backend may be of another class.
        """
        self._write_definition(tensor_id, definition)

    def _encoding(self, tensor_id: str) -> object:  # noqa: ARG002
        """How the tiles of a tensor are encoded; None if encoded tiles cannot be read or written.

        If two backends return equal values, each can write the encoded tiles that the other has read.
        """
        return None

    def _read_encoded(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bytes | None]:  # noqa: ARG002
        """Read complete tiles without decoding. Return None for a missing tile; for a damaged one, warn too."""
        raise _lacking(self, "_read_encoded")

    def _write_encoded(self, tensor_id: str, tiles: Mapping[Index, bytes]) -> None:  # noqa: ARG002
        """Store each complete tile atomically. A backend with an equal `_encoding` has encoded them."""
        raise _lacking(self, "_write_encoded")

    # Optional methods.

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> object:  # noqa: ARG002
        """Called when a tensor is registered, with its definition as `_read_definition` returned it.

        The store keeps the returned object while the tensor is in use or some of its tiles are in memory. If the
        tensor is used again later, it is registered again.
        """
        return None

    def _bind_again(self, tensor_id: str, bound: object) -> None:  # noqa: B027  (most need nothing)
        """Bind the tensor again to `bound`, the object that `_bind_tensor` returned for it.

        The garbage collector may have cleared the backend's weak references to `bound`.
        """

    def _has_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bool]:
        """For each tile, whether it is stored complete. Override this if the backend can tell without reading tiles."""
        return [tile is not None for tile in self._read_tiles(tensor_id, tile_indices)]

    def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Return two sets of tiles in the box ``[low, high)``: the complete tiles, and the tiles with stored parts.

        Override this if the backend can find these tiles without reading all tiles.
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
        """Delete everything stored of some tiles, complete and partial, whichever process wrote it.

        Partial data is deleted first. A tile that is not stored is not an error.
        """
        raise _lacking(self, "_delete_tiles")

    def _generation(self, tensor_id: str) -> str | None:  # noqa: ARG002
        """A text that changes whenever any process calls `_delete_tiles`; None if the backend keeps no such text."""
        return None

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:  # noqa: ARG002
        """Describe a tensor and what is stored of it."""
        raise _lacking(self, "_describe_tensor")

    def _stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize | None:  # noqa: ARG002
        """Count the complete tiles of a tensor, up to about `most`, with one or two requests.

        Return None if the backend cannot count that quickly.
        """
        return None

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:  # noqa: ARG002
        """Check everything stored of a tensor and list damaged data; `repair` deletes it, but never a definition."""
        raise _lacking(self, "_verify_tensor")

    def _collect_garbage(self) -> Garbage:
        """Delete everything that no definition refers to, and the logs of complete tiles."""
        raise _lacking(self, "_collect_garbage")

    def _drop_partials(self, older_than: float) -> Garbage:  # noqa: ARG002
        """Delete all partial tiles to which nothing was added for `older_than` seconds.

        The parts of a tile are deleted from the last to the first, so a crash leaves only its first parts. Raises
        ValidationError if `older_than` is not 0 and the storage records no times.
        """
        raise _lacking(self, "_drop_partials")

    def _flush_backend(self) -> None:  # noqa: B027  (most need nothing)
        """Make everything written safe against a crash of the process."""

    def _close_backend(self) -> None:  # noqa: B027  (most need nothing)
        """Close files and connections."""


def offers(backend: Backend, method: str) -> bool:
    """Whether a backend implements an optional method, itself or through the methods for documents."""
    if getattr(type(backend), method) is not getattr(Backend, method):
        return True
    return method in _BY_DOCUMENTS and all(offers(backend, needed) for needed in DOCUMENT_METHODS)


def _lacking(backend: Backend, *methods: str) -> NotImplementedError:
    missing = ", ".join(method for method in methods if not offers(backend, method))
    return NotImplementedError(
        f"{type(backend).__name__} cannot do that: it needs {missing}, see infinite_tensor.tilestore.persistent.backend"
    )


class Documents:
    """Reads, writes, lists and checks the definitions of tensors and groups that a backend keeps as documents."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def read(self, given: str, kind: str) -> dict[str, Any] | None:
        """Return the definition of an id, or None. Raise StoreError if it is damaged, or not of this library."""
        name = name_of(given, kind)
        try:
            return self.find(name)
        except ValueError as error:
            damaged = damaged_group if kind == GROUP else damaged_definition
            raise damaged(self._backend, given, self._backend._document_path(name), error) from error

    def find(self, name: str) -> dict[str, Any] | None:
        """Return the definition under a name, or None if there is none.

        Raises
        ------
        ValueError
            If it is damaged.
        StoreError
            If it has the format of a later version, or does not belong to this library.
        """
        try:
            return self.definition_in(name, *self._backend._read_documents([name]))
        except ValueError:
            self.check_ours(name)
            raise

    def write(self, given: str, kind: str, definition: Mapping[str, Any]) -> None:
        """Create the definition of an id. If another process has just created it, keep the existing one."""
        self._backend._create_document(name_of(given, kind), sealed(definition))

    def ids(self, kind: str, prefix: str = "") -> list[str]:
        """List the ids that begin with `prefix`, including ids of damaged documents.

        An id is derived from the name of its document, or read from the document if the name was shortened. Documents
        of other ids are not read. No document is checked, because checks take far longer.
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
        """Return up to `most` ids, and how many more there may be.

        The ids are derived from the names of documents. No document is checked.
        """
        names = sorted(self._backend._list_documents(kind))
        looked = names[: 2 * most]
        found = zip(looked, self._backend._read_documents(looked), strict=True)
        # A tensor that was cleared may have left its name behind, without a document.
        told = [id_of(name) or name for name, document in found if document is not None]
        return told[:most], len(told[most:]) + len(names) - len(looked)

    def holds(self, given: str, kind: str) -> bool:
        """Whether this library has stored a document for an id, intact or damaged."""
        name = name_of(given, kind)
        return self._is_there(name, *self._backend._read_documents([name]))

    def _is_there(self, name: str, document: Document) -> bool:
        return document is not None and (isinstance(document, dict) or self._backend._is_ours(name))

    def readers(self) -> dict[str, dict[str, Any]]:
        """The definitions, by id, of all tensors that have args or are one of several outputs of the same ``f``."""
        names, found = self._backend._list_documents(TENSOR), {}
        for name, document in zip(names, self._backend._read_documents(names), strict=True):
            # Skip all other tensors before the check, which takes far longer than reading.
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
        """Return the definition in a document, or None if `document` is None. Raises the errors of `find`."""
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
        """Raise StoreError if what is stored under the name of a document does not belong to this library."""
        if not self._backend._is_ours(name):
            what = f"{KINDS[kind_of(name)]} {id_of(name) or name!r}"
            raise in_the_way(self._backend, self._backend._document_path(name), what)


def _id_in(name: str, document: Document) -> str | None:
    """Return the id in a document if `name` is the name for this id, else None."""
    kind = kind_of(name)
    given = document.get(f"{KINDS[kind]}_id") if isinstance(document, dict) else None
    return given if isinstance(given, str) and name_of(given, kind) == name else None
