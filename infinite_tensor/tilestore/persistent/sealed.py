"""Documents as they are stored: JSON objects with a digest of themselves, under names that no id leads out of a store.

Nothing here needs torch: what a store holds can be listed long before that is imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

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

    What it says of a tensor is still to be checked: `infinite_tensor.tilestore.persistent.documents` does.

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
