"""The definitions in a backend: reading, writing, listing and checks."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.backend import Backend, TensorHandle
from infinite_tensor.tilestore.documents import (
    GROUP,
    KINDS,
    TENSOR,
    Document,
    id_of,
    intact,
    kind_of,
    may_begin,
    name_of,
    sealed,
)
from infinite_tensor.tilestore.inventory import Damage
from infinite_tensor.tilestore.messages import (
    damaged_definition,
    damaged_group,
    in_the_way,
    warn_of_damage,
    warn_of_lost,
)
from infinite_tensor.tilestore.stored_definition import StoredTensor

_INCARNATION = re.compile(r"[0-9a-f]{16}")


class Documents:
    """Reads, lists and checks the definitions in a backend.

    All methods raise StoreError if the storage fails.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def _read(self, names: Sequence[str], to: str = "list", what: str = "its backend") -> list[Document]:
        return self._backend.ask(self._backend.read_documents, names, to=to, what=what)

    def _list(self, kind: str) -> list[str]:
        return self._backend.ask(self._backend.list_documents, kind, to="list")

    def _is_ours(self, name: str) -> bool:
        return self._backend.ask(self._backend.is_ours, name, to="read", what=self._backend.document_path(name))

    def tensor(self, tensor_id: str, to: str = "read") -> StoredTensor | None:
        """Return the definition of a tensor, or None.

        Raise StoreError if the definition is damaged, or if the data belongs to another program.
        """
        name = name_of(tensor_id)
        try:
            return self.find(name, to, f"tensor {tensor_id!r}")
        except ValueError as error:
            raise damaged_definition(self._backend, tensor_id, self._backend.document_path(name), error) from error

    def find(self, name: str, to: str = "read", what: str = "a definition") -> StoredTensor | None:
        """Return the definition of a tensor under the name of its document, or None.

        Raises
        ------
        ValueError
            If the definition is damaged.
        StoreError
            If the definition has the format of a later version, or if the data belongs to another program.
        """
        try:
            return self.tensor_in(name, *self._read([name], to, what))
        except ValueError:
            self.check_ours(name)
            raise

    def create(self, tensor_id: str, definition: dict[str, Any], original: Mapping[str, Any] | None) -> StoredTensor:
        """Store the definition of a new tensor.

        Return the definition stored afterwards. If another process was faster, the definition of that process is
        returned. `original` may be the stored definition of another tensor. The new tensor is then encoded like that
        tensor.
        """
        # The incarnation distinguishes the tensor from earlier and later tensors with the same id.
        definition = {**definition, "incarnation": secrets.token_hex(8)}
        self._backend.ask(self._backend.create, definition, original, to="register", what=f"tensor {tensor_id!r}")
        stored = self.tensor(tensor_id, "register")
        if stored is None:
            raise StoreError(f"{self._backend}: tensor {tensor_id!r} was deleted right after it was created; try again")
        return stored

    def replace(self, old: StoredTensor, more: Mapping[str, Any]) -> None:
        """Add names or metadata to a definition, if it is still the `old` one.

        If the backend cannot, issue a MeaningLostWarning.
        """
        what, backend = f"tensor {old.tensor_id!r}", self._backend
        if "_replace_document" in backend.lacks:
            warn_of_lost(f"{what} in {backend}", ["what was given after it was stored"])
            return
        new = sealed({**old.fields, **more})
        backend.ask(backend.replace_document, name_of(old.tensor_id), old.fields, new, to="register", what=what)

    def handle(self, stored: StoredTensor) -> TensorHandle:
        """Return a handle for a stored tensor."""
        return self._backend.ask(self._backend.tensor, stored, to="open", what=f"tensor {stored.tensor_id!r}")

    def create_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Create a group."""
        backend, name, what = self._backend, name_of(group_id, GROUP), f"group {group_id!r}"
        backend.ask(backend.create_document, name, sealed(definition), to="save", what=what)
        backend.ask(backend.flush, to="save", what=what)

    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage] | None:
        """Check all stored data of a tensor, and list damaged data; None if the tensor is not stored."""
        name, what = name_of(tensor_id), f"tensor {tensor_id!r}"
        try:
            stored = self.find(name, "verify", what)
        except ValueError as error:
            return [Damage("definition", None, self._backend.document_path(name), str(error))]
        if stored is None:
            return None
        return self._backend.ask(self._backend.verify, stored, repair=repair, to="verify", what=what)

    def tensor_in(self, name: str, document: Document) -> StoredTensor | None:
        """Check a document, and return the definition in it; None if there is no document.

        Raise the errors of `find`.
        """
        if document is None:
            return None
        fields = intact(document, name)
        try:
            stored = StoredTensor.from_json(fields)
        except StoreError as error:
            where = self._backend.document_path(name)
            raise StoreError(f"{self._backend}: the definition in {where} cannot be read: {error}") from error
        incarnation = fields.get("incarnation")
        if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
            raise ValueError(f"the incarnation is {incarnation!r:.200}, not 16 hexadecimal digits")
        _ = stored.layout
        self._backend.check(stored)
        return stored

    def group(self, group_id: str) -> dict[str, Any] | None:
        """Return the definition of a group, or None. Raise the errors of `tensor`."""
        name = name_of(group_id, GROUP)
        (document,) = self._read([name], "read", f"group {group_id!r}")
        try:
            return None if document is None else intact(document, name)
        except ValueError as error:
            self.check_ours(name)
            raise damaged_group(self._backend, group_id, self._backend.document_path(name), error) from error

    def ids(self, kind: str, prefix: str = "") -> list[str]:
        """List the ids starting with `prefix`.

        Ids of damaged documents are included, because a check of all documents would take far longer. An id is derived
        from the name of its document, or read from the document if the name was shortened. Documents of other ids are
        not read.
        """
        found: list[str] = []
        names = [name for name in self._list(kind) if may_begin(name, prefix)]
        for name, document in zip(names, self._read(names), strict=True):
            if not self._is_there(name, document):
                continue
            told = id_of(name) or _id_in(name, document)
            if told is None:
                what = f"is damaged, and the id of its {KINDS[kind]} is unknown"
                warn_of_damage(self._backend, f"{self._backend.document_path(name)} {what}")
            elif told.startswith(prefix):
                found.append(told)
        return found

    def holds(self, tensor_id: str) -> bool:
        """Return whether this library has stored a definition of a tensor, which may be damaged."""
        name = name_of(tensor_id)
        return self._is_there(name, *self._read([name], "look for", f"tensor {tensor_id!r}"))

    def _is_there(self, name: str, document: Document) -> bool:
        return document is not None and (isinstance(document, dict) or self._is_ours(name))

    def readers(self) -> list[StoredTensor]:
        """Return the definitions of tensors.

        Tensors without args are left out, unless they are outputs of an ``f`` with several outputs. Unreadable
        definitions are left out too.
        """
        names, found = self._list(TENSOR), []
        for name, document in zip(names, self._read(names), strict=True):
            # Skip tensors without args first, because the check takes far longer than reading.
            if isinstance(document, dict) and document.get("args") == [] and "output" not in document:
                continue
            try:
                stored = self.tensor_in(name, document)
            except (ValueError, StoreError) as error:
                if self._is_ours(name):
                    what = f"the definition in {self._backend.document_path(name)} cannot be read ({error})"
                    warn_of_damage(self._backend, what)
                continue
            if stored is not None:
                found.append(stored)
        return found

    def check_ours(self, name: str) -> None:
        """Check that the data under a document name belongs to this library.

        Raise StoreError if the data belongs to another program.
        """
        if not self._is_ours(name):
            what = f"{KINDS[kind_of(name)]} {id_of(name) or name!r}"
            raise in_the_way(self._backend, self._backend.document_path(name), what)


def _id_in(name: str, document: Document) -> str | None:
    kind = kind_of(name)
    given = document.get(f"{KINDS[kind]}_id") if isinstance(document, dict) else None
    return given if isinstance(given, str) and name_of(given, kind) == name else None
