"""Names and checks of documents, the stored definitions of tensors and groups.

Documents are JSON objects with a digest. Their names are safe: no id leads to a path outside a store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from infinite_tensor.errors import ValidationError

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
_ESCAPES = [chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in range(256)]
_LONGEST = 120
_KEPT = 48
"""The number of characters before the hash in a long name."""

TENSOR = "t-"
"""The prefix of the names of tensors."""
GROUP = "g-"
"""The prefix of the names of groups of tensors."""
KINDS = {TENSOR: "tensor", GROUP: "group"}
"""The word for each kind, in messages and in keys such as ``tensor_id``."""

Document: TypeAlias = dict[str, Any] | ValueError | None
"""The content under a name: a JSON object, a ValueError for unreadable content, or None for no content."""

_ESCAPED = re.compile(rb"=([0-9A-F]{2})")


def name_of(given: str, kind: str = TENSOR) -> str:
    """Return the file name for a tensor id or group id.

    Distinct ids have distinct names, even if case is ignored. In the UTF-8 bytes of the id, lower-case letters, digits,
    dot, underscore and hyphen are kept. All other bytes become ``=XX``. A name longer than 120 bytes is cut, and ends
    with ``==`` and a SHA-256. No other name contains ``==``.
    """
    name = kind + _escaped(given)
    if name.endswith("."):
        # Windows drops a final dot.
        name = f"{name[:-1]}=2E"
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_KEPT]}=={hashlib.sha256(given.encode()).hexdigest()}"


def may_begin(name: str, prefix: str) -> bool:
    """Return whether `name` may belong to an id starting with `prefix`.

    The answer is certain unless the name was cut.
    """
    cut = "==" in name
    wanted = f"{name[: len(TENSOR)]}{_escaped(prefix)}"
    return name.startswith(wanted[:_KEPT] if cut else wanted.removesuffix("."))


def _escaped(given: str) -> str:
    try:
        return "".join(map(_ESCAPES.__getitem__, given.encode()))
    except UnicodeEncodeError as error:
        raise ValidationError(f"an id must be text, got {given!r:.200}") from error


def kind_of(name: str) -> str:
    """Return the kind of a name: `GROUP` or `TENSOR`."""
    return GROUP if name.startswith(GROUP) else TENSOR


def id_of(name: str) -> str | None:
    """Return the tensor or group id in a file name.

    Return None if the name contains no complete id.
    """
    kind = kind_of(name)
    try:
        encoded = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), name.removeprefix(kind).encode())
        found = encoded.decode()
    except ValueError:
        return None
    return found if name_of(found, kind) == name else None


def sealed(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `definition` with a digest.

    `intact` checks the digest.
    """
    return {**definition, "digest": _digest(definition)}


def intact(found: object, name: str) -> dict[str, Any]:
    """Check the digest and the id of a stored definition, and return the definition.

    Parameters
    ----------
    found : object
        The definition, or the ValueError raised by the read.
    name : str
        The file name of the definition.

    Raises
    ------
    ValueError
        If the definition is damaged or missing.
    """
    if isinstance(found, ValueError):
        raise found
    if not isinstance(found, dict) or "digest" not in found:
        raise ValueError("the definition is missing")
    if found["digest"] != _digest(found):
        raise ValueError("the content does not match the digest")
    kind = kind_of(name)
    given = found.get(f"{KINDS[kind]}_id")
    if not isinstance(given, str) or name_of(given, kind) != name:
        raise ValueError(f"the definition belongs to {KINDS[kind]} {given!r:.200}")
    return found


def _digest(definition: Mapping[str, Any]) -> str:
    try:
        fields = {key: value for key, value in definition.items() if key != "digest"}
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return hashlib.sha256(canonical.encode()).hexdigest()
