"""Documents: definitions of tensors and of groups, under names that nothing a user gives can lead out of the store.

They are JSON objects that carry a digest of themselves, so that damage never passes for truth.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.definition import Definition

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
_LONGEST = 120

TENSOR = "t-"
"""What the names of tensors begin with."""
GROUP = "g-"
"""What the names of groups of tensors begin with."""

_ESCAPED = re.compile(rb"=([0-9A-F]{2})")


def name_of(given: str, kind: str = TENSOR) -> str:
    """A file name for the id of a tensor or group, distinct for distinct ids also where case does not count.

    Bytes of its UTF-8 that are lower-case letters, digits, dot, underscore or hyphen stay; all others become
    ``=XX``. What would be longer than 120 bytes is cut short and ends in ``==``, which no other name contains, and
    a SHA-256.
    """
    encoded = given.encode()
    name = kind + "".join(chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in encoded)
    if name.endswith("."):
        # Windows drops a final dot.
        name = f"{name[:-1]}=2E"
    if len(name) <= _LONGEST:
        return name
    return f"{name[:48]}=={hashlib.sha256(encoded).hexdigest()}"


def id_of(name: str, kind: str = TENSOR) -> str | None:
    """The id that `name_of` made `name` of; None if it does not tell."""
    try:
        encoded = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), name.removeprefix(kind).encode())
        found = encoded.decode()
    except ValueError:
        return None
    return found if name_of(found, kind) == name else None


_INCARNATION = re.compile(r"[0-9a-f]{16}")


def sealed(definition: Mapping[str, Any]) -> dict[str, Any]:
    """`definition` with its digest, for `checked`."""
    return {**definition, "digest": _digest(definition)}


def checked(found: object, name: str) -> dict[str, Any]:
    """The definition of a tensor as `sealed` returned it; `found` is what lies under its name.

    Raises
    ------
    ValueError
        If it is damaged, or not one at all.
    StoreError
        If it is intact, and in a format of a later version.
    """
    found = intact(found)
    if not isinstance(found.get("tensor_id"), str):
        raise ValueError(f"it defines tensor {found.get('tensor_id')!r:.200}")  # noqa: TRY004  (what it holds is a value)
    layout_of(found)
    if not isinstance(found.get("incarnation"), str) or not _INCARNATION.fullmatch(found["incarnation"]):
        raise ValueError(f"its incarnation is {found.get('incarnation')!r:.200}, not 16 hexadecimal digits")
    if name_of(found["tensor_id"]) != name:
        raise ValueError(f"it defines tensor {found['tensor_id']!r}")
    return found


def intact(found: object) -> dict[str, Any]:
    """What `sealed` returned, of a tensor or of anything else; ValueError if it is not as it was, or is one itself."""
    if isinstance(found, ValueError):
        raise found
    if not isinstance(found, dict) or "digest" not in found:
        raise ValueError("there is no definition")
    if found["digest"] != _digest(found):
        raise ValueError("its content does not match its digest")
    return found


def layout_of(definition: Mapping[str, Any]) -> tuple[Definition, TileLayout]:
    """What a definition says of a tensor and of its tiles; errors as of `StoredTensor.from_json`."""
    stored = StoredTensor.from_json(definition)
    if stored.tile_size is None:
        raise ValueError("its tile_size is missing")
    tensor = stored.definition
    return tensor, TileLayout(tensor.shape, stored.tile_size, tensor.dtype)


def _digest(definition: Mapping[str, Any]) -> str:
    try:
        fields = {key: value for key, value in definition.items() if key != "digest"}
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return hashlib.sha256(canonical.encode()).hexdigest()
