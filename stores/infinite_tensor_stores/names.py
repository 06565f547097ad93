"""Ids as names in a store: nothing a user gives can point outside of it."""

from __future__ import annotations

import hashlib
import re

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
