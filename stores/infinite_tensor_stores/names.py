"""Tensor ids as names in a store: nothing a user gives can point outside of it."""

from __future__ import annotations

import hashlib

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
_LONGEST = 120


def name_of(tensor_id: str) -> str:
    """A file name for `tensor_id`, distinct for distinct ids also where case does not count.

    Bytes of its UTF-8 that are lower-case letters, digits, dot, underscore or hyphen stay; all others become
    ``=XX``. What would be longer than 120 bytes is cut short and made distinct by a SHA-256.
    """
    encoded = tensor_id.encode()
    name = "t-" + "".join(chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in encoded)
    if name.endswith("."):
        # Windows drops a final dot.
        name = f"{name[:-1]}=2E"
    if len(name) <= _LONGEST:
        return name
    return f"{name[:48]}={hashlib.sha256(encoded).hexdigest()}"
