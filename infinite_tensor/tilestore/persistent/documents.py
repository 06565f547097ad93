"""Documents: the definitions of tensors and of groups that a backend keeps, checked before anything is made of them.

They are JSON objects with a digest of themselves, under names that no id leads out of a store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.layout import TileLayout, gathered_layout
from infinite_tensor.tilestore.messages import damaged_definition, damaged_group, in_the_way, warn_of_damage
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.definition import Definition
from infinite_tensor.values.reduction import reduction_from_json

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
_LONGEST = 120
_KEPT = 48
"""Of a name that would be longer."""

TENSOR = "t-"
"""What the names of tensors begin with."""
GROUP = "g-"
"""What the names of groups of tensors begin with."""
KINDS = {TENSOR: "tensor", GROUP: "group"}
"""What messages, and the keys of ids, call them."""

Document: TypeAlias = dict[str, Any] | ValueError | None
"""What lies under a name: a JSON object, something that cannot be read as one, or nothing."""

_ESCAPED = re.compile(rb"=([0-9A-F]{2})")


def name_of(given: str, kind: str = TENSOR) -> str:
    """A file name for the id of a tensor or group, distinct for distinct ids also where case does not count.

    Bytes of its UTF-8 that are lower-case letters, digits, dot, underscore or hyphen stay; all others become
    ``=XX``. What would be longer than 120 bytes is cut short and ends in ``==``, which no other name contains, and
    a SHA-256.
    """
    name = kind + _escaped(given)
    if name.endswith("."):
        # Windows drops a final dot.
        name = f"{name[:-1]}=2E"
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_KEPT]}=={hashlib.sha256(given.encode()).hexdigest()}"


def may_begin(name: str, prefix: str) -> bool:
    """Whether `name_of` may have made `name` of an id that begins with `prefix`; for sure where the name is not cut."""
    cut = "==" in name
    wanted = f"{name[: len(TENSOR)]}{_escaped(prefix)}"
    return name.startswith(wanted[:_KEPT] if cut else wanted.removesuffix("."))


def _escaped(given: str) -> str:
    return "".join(chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in given.encode())


def kind_of(name: str) -> str:
    """Whether a name is of a `GROUP` or of a `TENSOR`."""
    return GROUP if name.startswith(GROUP) else TENSOR


def id_of(name: str) -> str | None:
    """The id that `name_of` made `name` of; None if it does not tell."""
    kind = kind_of(name)
    try:
        encoded = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), name.removeprefix(kind).encode())
        found = encoded.decode()
    except ValueError:
        return None
    return found if name_of(found, kind) == name else None


def sealed(definition: Mapping[str, Any]) -> dict[str, Any]:
    """`definition` with its digest, for `intact`."""
    return {**definition, "digest": _digest(definition)}


def intact(found: object, name: str) -> dict[str, Any]:
    """The definition as `sealed` returned it; `found` is what lies under its name, or what keeps it from being read.

    What it says of a tensor is still to be checked, as `checked` does.

    Raises
    ------
    ValueError
        If it is damaged, or not one at all.
    """
    if isinstance(found, ValueError):
        raise found
    if not isinstance(found, dict) or "digest" not in found:
        raise ValueError("there is no definition")
    if found["digest"] != _digest(found):
        raise ValueError("its content does not match its digest")
    kind = kind_of(name)
    given = found.get(f"{KINDS[kind]}_id")
    if not isinstance(given, str) or name_of(given, kind) != name:
        raise ValueError(f"it defines {KINDS[kind]} {given!r:.200}")
    return found


def _digest(definition: Mapping[str, Any]) -> str:
    try:
        fields = {key: value for key, value in definition.items() if key != "digest"}
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Documents:
    """The definitions of tensors and groups that a backend keeps as documents: read, written, listed and checked.

    Attributes
    ----------
    owner : object
        Whose str stands in messages.
    fetch, create, list_names, path, is_ours, check : callable
        `Backend._read_documents`, ``_create_document``, ``_list_documents``, ``_document_path``, ``_is_ours`` and
        ``_check_definition`` of the backend.
    """

    owner: object
    fetch: Callable[[Sequence[str]], list[Document]]
    create: Callable[[str, dict[str, Any]], None]
    list_names: Callable[[str], list[str]]
    path: Callable[[str], str]
    is_ours: Callable[[str], bool]
    check: Callable[[Mapping[str, Any]], None]

    def read(self, given: str, kind: str) -> dict[str, Any] | None:
        """The definition of an id, None where there is none; StoreError if it is damaged, or not of this library."""
        name = name_of(given, kind)
        try:
            return self.find(name)
        except ValueError as error:
            damaged = damaged_group if kind == GROUP else damaged_definition
            raise damaged(self.owner, given, self.path(name), error) from error

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
            return self.definition_in(name, *self.fetch([name]))
        except ValueError:
            self.check_ours(name)
            raise

    def write(self, given: str, kind: str, definition: Mapping[str, Any]) -> None:
        """Create the definition of an id. Where somebody else has just created it, leave that one."""
        self.create(name_of(given, kind), sealed(definition))

    def ids(self, kind: str, prefix: str = "") -> list[str]:
        """The ids that begin with `prefix`, as names tell them, those of damaged documents too; else documents do.

        Documents of other ids are not read, and none is checked, which takes far longer.
        """
        found: list[str] = []
        names = [name for name in self.list_names(kind) if may_begin(name, prefix)]
        for name, document in zip(names, self.fetch(names), strict=True):
            if not self._is_there(name, document):
                continue
            told = id_of(name) or _id_in(name, document)
            if told is None:
                what = f"is damaged, and does not tell which {KINDS[kind]} it defined"
                warn_of_damage(self.owner, f"{self.path(name)} {what}")
            elif told.startswith(prefix):
                found.append(told)
        return found

    def some_ids(self, kind: str, most: int) -> tuple[list[str], int]:
        """The first ids that names tell, up to `most`, and how many more there may be. No document is checked."""
        names = sorted(self.list_names(kind))
        looked = names[: 2 * most]
        found = zip(looked, self.fetch(looked), strict=True)
        # A name may be left behind by a tensor that was cleared.
        told = [id_of(name) or name for name, document in found if document is not None]
        return told[:most], len(told[most:]) + len(names) - len(looked)

    def holds(self, given: str, kind: str) -> bool:
        """Whether there is a document of ours for an id, intact or not."""
        name = name_of(given, kind)
        return self._is_there(name, *self.fetch([name]))

    def _is_there(self, name: str, document: Document) -> bool:
        return document is not None and (isinstance(document, dict) or self.is_ours(name))

    def readers(self) -> dict[str, dict[str, Any]]:
        """The definitions of tensors, by their ids, less those that are computed from nothing and beside nothing."""
        # To check one takes far longer than to read it.
        names = self.list_names(TENSOR)
        documents = zip(names, self.fetch(names), strict=True)
        found = {}
        for name, definition in self._checked(each for each in documents if not _stands_alone(each[1])):
            if isinstance(definition, Exception):
                warn_of_damage(self.owner, f"the definition in {self.path(name)} cannot be read ({definition})")
            else:
                found[str(definition["tensor_id"])] = definition
        return found

    def definition_in(self, name: str, document: Document) -> dict[str, Any] | None:
        """The definition that a document is, None for none; ValueError and StoreError as of `find`."""
        if document is None:
            return None
        try:
            definition = checked(document, name)
        except StoreError as error:
            raise StoreError(f"{self.owner}: the definition in {self.path(name)} cannot be read: {error}") from error
        if kind_of(name) == TENSOR:
            self.check(definition)
        return definition

    def check_ours(self, name: str) -> None:
        """StoreError if what lies under the name of a document is not of this library."""
        if not self.is_ours(name):
            raise in_the_way(self.owner, self.path(name), f"{KINDS[kind_of(name)]} {id_of(name) or name!r}")

    def _checked(self, documents: Iterable[tuple[str, Document]]) -> Iterator[tuple[str, dict[str, Any] | Exception]]:
        """The definitions that documents of ours are, or what is wrong with them."""
        for name, document in documents:
            try:
                found: dict[str, Any] | Exception | None = self.definition_in(name, document)
            except (ValueError, StoreError) as error:
                found = error if self.is_ours(name) else None
            if found is not None:
                yield name, found


def _id_in(name: str, document: Document) -> str | None:
    """The id in a document, if its name is made of that."""
    kind = kind_of(name)
    given = document.get(f"{KINDS[kind]}_id") if isinstance(document, dict) else None
    return given if isinstance(given, str) and name_of(given, kind) == name else None


def _stands_alone(document: Document) -> bool:
    return isinstance(document, dict) and document.get("args") == [] and "output" not in document


_INCARNATION = re.compile(r"[0-9a-f]{16}")


def checked(found: object, name: str) -> dict[str, Any]:
    """A definition that is `intact`, and one that a tensor or group can have.

    Raises
    ------
    ValueError
        If it is damaged, or not one at all.
    StoreError
        If it is intact, and in a format of a later version.
    """
    definition = intact(found, name)
    if kind_of(name) == TENSOR:
        layout_of(definition)
        incarnation = definition.get("incarnation")
        if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
            raise ValueError(f"its incarnation is {incarnation!r:.200}, not 16 hexadecimal digits")
    return definition


def layout_of(definition: Mapping[str, Any]) -> tuple[Definition, TileLayout]:
    """What a definition says of a tensor and of its tiles; errors as of `StoredTensor.from_json`."""
    stored = StoredTensor.from_json(definition)
    if stored.tile_size is None:
        raise ValueError("its tile_size is missing")
    tensor = stored.definition
    return tensor, TileLayout(tensor.shape, stored.tile_size, tensor.dtype)


_ENTRY_BYTES = 2**12


def largest_part(tensor: Definition, layout: TileLayout) -> int:
    """The bytes that a part of the log of a tile can have."""
    if tensor.reduction is not None:
        layout = gathered_layout(reduction_from_json(tensor.reduction), layout)
    window, windows, piece = tensor.gathered.output_window, 1, layout.dtype.itemsize
    for size, stride, tile in zip(window.size, window.stride, layout.tile_shape, strict=True):
        windows *= (tile + size - 2) // stride + 1
        piece *= min(size, tile)
    return layout.tile_bytes + _ENTRY_BYTES + windows * (piece + _ENTRY_BYTES)
