"""What a persistent store is built on: the methods that move definitions, tiles and partial tiles."""

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
    """Bytes in and out; what they mean, and when they move, is `PersistentTileStore`'s.

    Authors implement four methods for tiles, and for definitions either three or four: those of single definitions, or
    those of documents, which keep groups as well. Of the others they override what their storage can do. They are
    called from several threads, though tiles and partial tiles are written by one thread at a time, and raise OSError
    where storage fails. The suite in `infinite_tensor.testing` tells whether they hold.
    """

    @abstractmethod
    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        """The complete tiles, in the order asked for; None where there is none.

        A tile that is stored but damaged is None too, with a `DamagedDataWarning`.
        """

    @abstractmethod
    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles, each atomically; one that is there already is replaced by an equal one."""

    @abstractmethod
    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        """All that was written of the partial tiles, merged (`PartialTile.merged`); None where nothing was."""

    @abstractmethod
    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add to what is stored of partial tiles; None deletes all of it. Never loses what another wrote."""

    # Documents: definitions of tensors (their names begin with ``t-``) and of groups (``g-``), JSON objects each.

    def _read_documents(self, names: Sequence[str]) -> list[Document]:  # noqa: ARG002
        """The documents of these names, in their order; None where there is none, ValueError for what is damaged."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _create_document(self, name: str, document: dict[str, Any]) -> None:  # noqa: ARG002
        """Create a document, whole or not at all. Where somebody else has just created it, leave that one."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _delete_document(self, name: str) -> None:  # noqa: ARG002
        """Delete a document, then what belongs to it, as the tiles of a tensor; one that does not exist is no error."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _list_documents(self, kind: str) -> list[str]:  # noqa: ARG002
        """The names of all documents that begin with `kind`."""
        raise _lacking(self, *DOCUMENT_METHODS)

    def _document_path(self, name: str) -> str:
        """Where a document lies, for messages."""
        return name

    def _is_ours(self, name: str) -> bool:  # noqa: ARG002
        """Whether what lies under the name of a document, and cannot be read as one, is of this library."""
        return True

    def _check_definition(self, definition: Mapping[str, Any]) -> None:  # noqa: B027  (most need nothing)
        """ValueError if an intact definition makes no sense to this backend."""

    @property
    def _documents(self) -> Documents:
        """The definitions in its documents."""
        return Documents(self)

    # Definitions of tensors.

    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        """The definition that was written for a tensor, or None."""
        return self._documents.read(tensor_id, TENSOR)

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        """Create a tensor. Where another process has just created it, leave that one's definition."""
        # The incarnation tells this tensor from those that had the id before it, and from those that will have it.
        self._documents.write(tensor_id, TENSOR, {**definition, "incarnation": secrets.token_hex(8)})

    def _delete_tensor(self, tensor_id: str) -> None:
        """Delete everything of a tensor, the definition first. One that does not exist is no error."""
        self._delete_document(name_of(tensor_id))

    def _list_tensors(self) -> list[str]:
        """Ids of all tensors that are stored."""
        if not offers(self, "_list_documents"):
            raise _lacking(self, "_list_tensors")
        return self._documents.ids(TENSOR)

    @property
    def _is_near(self) -> bool:
        """Whether it takes no request to read a definition, so that all may be read for a warning."""
        return True

    # Groups: definitions apart from those of tensors, whose ids they may have.

    def _read_group(self, group_id: str) -> dict[str, Any] | None:
        """The definition that was written for a group, or None; StoreError if it is damaged."""
        return self._documents.read(group_id, GROUP)

    def _write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group. Where another process has just created it, leave that one's definition."""
        self._documents.write(group_id, GROUP, definition)

    def _delete_group(self, group_id: str) -> None:
        """Delete a group; one that does not exist is no error."""
        self._delete_document(name_of(group_id, GROUP))

    def _list_groups(self) -> list[str]:
        """Ids of all groups."""
        return self._documents.ids(GROUP)

    # Copies. Between two backends that encode the tiles of a tensor alike, what is stored of them moves as it is.

    def _write_copy(self, tensor_id: str, definition: dict[str, Any], original: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Create a tensor as `_write_definition` does, stored as much as may be like one that is stored elsewhere.

        `original` is what some backend, not always of this class, has stored as the definition of that one.
        """
        self._write_definition(tensor_id, definition)

    def _encoding(self, tensor_id: str) -> object:  # noqa: ARG002
        """How the tiles of a tensor are encoded; None where they cannot be had as they are stored.

        Where that of another backend is equal to it, each takes what the other has read encoded.
        """
        return None

    def _read_encoded(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bytes | None]:  # noqa: ARG002
        """What is stored of complete tiles, intact; None where there is none, with a warning where it is damaged."""
        raise _lacking(self, "_read_encoded")

    def _write_encoded(self, tensor_id: str, tiles: Mapping[Index, bytes]) -> None:  # noqa: ARG002
        """Store complete tiles, each atomically, that a backend of an equal `_encoding` has read."""
        raise _lacking(self, "_write_encoded")

    # What a backend may override.

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> object:  # noqa: ARG002
        """Called when a tensor is registered, with its definition as `_read_definition` returned it.

        What it returns is kept while somebody has the tensor, or something of it is in memory. A tensor that is used
        again after that is registered again.
        """
        return None

    def _bind_again(self, tensor_id: str, bound: object) -> None:  # noqa: B027  (most need nothing)
        """Called with what `_bind_tensor` returned, where weak references to it may have been cleared too early.

        The garbage collector does so before a store that it frees can hand over what is not stored yet.
        """

    def _has_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bool]:
        """Whether each tile is there complete. A backend that can tell without reading them does."""
        return [tile is not None for tile in self._read_tiles(tensor_id, tile_indices)]

    def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """Which tiles of a box ``[low, high)`` are complete, and of which something is stored.

        A backend that can tell without reading them all does.
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
        """Delete all that is stored of some tiles, complete and partial, by whatever process they were written.

        The partial ones first. One of which nothing is stored is no error.
        """
        raise _lacking(self, "_delete_tiles")

    def _generation(self, tensor_id: str) -> str | None:  # noqa: ARG002
        """Another text after each `_delete_tiles` of a tensor, by whatever process; None where that is not kept."""
        return None

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:  # noqa: ARG002
        """What is stored of a tensor."""
        raise _lacking(self, "_describe_tensor")

    def _stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize | None:  # noqa: ARG002
        """How many complete tiles of a tensor there are, counted up to about `most`, in a request or two.

        None where that cannot be told so quickly.
        """
        return None

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:  # noqa: ARG002
        """What is damaged of all that is stored of a tensor; dropped, but for a definition, if it is to be repaired."""
        raise _lacking(self, "_verify_tensor")

    def _collect_garbage(self) -> Garbage:
        """Delete what no definition refers to, and the logs of complete tiles."""
        raise _lacking(self, "_collect_garbage")

    def _drop_partials(self, older_than: float) -> Garbage:  # noqa: ARG002
        """Delete all parts of tiles that are not complete, where the newest is older than so many seconds.

        The last part of a tile first. ValidationError where no times are kept and `older_than` is not 0.
        """
        raise _lacking(self, "_drop_partials")

    def _flush_backend(self) -> None:  # noqa: B027  (most need nothing)
        """Bring what was written to where a crash of the process cannot harm it."""

    def _close_backend(self) -> None:  # noqa: B027  (most need nothing)
        """Close files and connections."""


def offers(backend: Backend, method: str) -> bool:
    """Whether an optional method of a backend does something: by itself, or by documents."""
    if getattr(type(backend), method) is not getattr(Backend, method):
        return True
    return method in _BY_DOCUMENTS and all(offers(backend, needed) for needed in DOCUMENT_METHODS)


def _lacking(backend: Backend, *methods: str) -> NotImplementedError:
    missing = ", ".join(method for method in methods if not offers(backend, method))
    return NotImplementedError(
        f"{type(backend).__name__} cannot do that: it needs {missing}, see infinite_tensor.tilestore.persistent.backend"
    )


class Documents:
    """The definitions of tensors and groups that a backend keeps as documents: read, written, listed and checked."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def read(self, given: str, kind: str) -> dict[str, Any] | None:
        """The definition of an id, None where there is none; StoreError if it is damaged, or not of this library."""
        name = name_of(given, kind)
        try:
            return self.find(name)
        except ValueError as error:
            damaged = damaged_group if kind == GROUP else damaged_definition
            raise damaged(self._backend, given, self._backend._document_path(name), error) from error

    def find(self, name: str) -> dict[str, Any] | None:
        """The definition under a name, None where there is none.

        Raises
        ------
        ValueError
            If it is damaged.
        StoreError
            If it is in a format of a later version, or what lies there is not of this library.
        """
        try:
            return self.definition_in(name, *self._backend._read_documents([name]))
        except ValueError:
            self.check_ours(name)
            raise

    def write(self, given: str, kind: str, definition: Mapping[str, Any]) -> None:
        """Create the definition of an id. Where somebody else has just created it, leave that one."""
        self._backend._create_document(name_of(given, kind), sealed(definition))

    def ids(self, kind: str, prefix: str = "") -> list[str]:
        """The ids that begin with `prefix`, as names tell them, those of damaged documents too; else documents do.

        Documents of other ids are not read, and none is checked, which takes far longer.
        """
        found: list[str] = []
        names = [name for name in self._backend._list_documents(kind) if may_begin(name, prefix)]
        for name, document in zip(names, self._backend._read_documents(names), strict=True):
            if not self._is_there(name, document):
                continue
            told = id_of(name) or _id_in(name, document)
            if told is None:
                what = f"is damaged, and does not tell which {KINDS[kind]} it defined"
                warn_of_damage(self._backend, f"{self._backend._document_path(name)} {what}")
            elif told.startswith(prefix):
                found.append(told)
        return found

    def some_ids(self, kind: str, most: int) -> tuple[list[str], int]:
        """The first ids that names tell, up to `most`, and how many more there may be. No document is checked."""
        names = sorted(self._backend._list_documents(kind))
        looked = names[: 2 * most]
        found = zip(looked, self._backend._read_documents(looked), strict=True)
        # A name may be left behind by a tensor that was cleared.
        told = [id_of(name) or name for name, document in found if document is not None]
        return told[:most], len(told[most:]) + len(names) - len(looked)

    def holds(self, given: str, kind: str) -> bool:
        """Whether there is a document of ours for an id, intact or not."""
        name = name_of(given, kind)
        return self._is_there(name, *self._backend._read_documents([name]))

    def _is_there(self, name: str, document: Document) -> bool:
        return document is not None and (isinstance(document, dict) or self._backend._is_ours(name))

    def readers(self) -> dict[str, dict[str, Any]]:
        """The definitions of tensors, by their ids, less those that are computed from nothing and beside nothing."""
        names, found = self._backend._list_documents(TENSOR), {}
        for name, document in zip(names, self._backend._read_documents(names), strict=True):
            # To check one takes far longer than to read it.
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
        """The definition that a document is, None for none; ValueError and StoreError as of `find`."""
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
        """StoreError if what lies under the name of a document is not of this library."""
        if not self._backend._is_ours(name):
            what = f"{KINDS[kind_of(name)]} {id_of(name) or name!r}"
            raise in_the_way(self._backend, self._backend._document_path(name), what)


def _id_in(name: str, document: Document) -> str | None:
    """The id in a document, if its name is made of that."""
    kind = kind_of(name)
    given = document.get(f"{KINDS[kind]}_id") if isinstance(document, dict) else None
    return given if isinstance(given, str) and name_of(given, kind) == name else None
