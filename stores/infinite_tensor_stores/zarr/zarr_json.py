"""What a ``zarr.json`` says: whose it is, and the attributes of this library in it, without torch and zarr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from infinite_tensor_stores.files import parsed

ATTRIBUTE = "infinite_tensor"
BLOB = "infinite_tensor_blob"
"""The attribute of the array that is a blob."""
DOCUMENT = "zarr.json"


def group_document(attributes: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> bytes:
    """The ``zarr.json`` of a group that holds `attributes`, and `others` that programs look for, by their names."""
    return dumped({"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: attributes, **(others or {})}})


def attributes_in(document: bytes, node: str = "group") -> dict[str, Any] | None:
    """The attributes of this library in a ``zarr.json``, None where it has none; ValueError if it is damaged."""
    found = parsed(document)
    attributes = found.get("attributes", {})
    if found.get("zarr_format") != 3 or found.get("node_type") != node or not isinstance(attributes, dict):
        raise ValueError(f"it is not the metadata of a Zarr {node}")
    ours = attributes.get(ATTRIBUTE)
    if ours is not None and not isinstance(ours, dict):
        raise ValueError(f"its attribute {ATTRIBUTE!r} is {ours!r}")
    return ours


def member_in(attributes: Mapping[str, Any]) -> str | None:
    """The tensor or group whose definition these attributes of this library are; None for the mark of a store."""
    for kind in ("tensor", "group"):
        if f"{kind}_id" in attributes:
            return f"{kind} {attributes[f'{kind}_id']!r:.200}"
    return None


def attributes_of_others(document: bytes) -> list[str]:
    """The names of the attributes in a ``zarr.json`` that are not of this library, as far as it can be read."""
    attributes = _readable(document).get("attributes", {})
    return [name for name in attributes if name != ATTRIBUTE] if isinstance(attributes, dict) else []


def marked(document: bytes, mark: Mapping[str, Any]) -> bytes:
    """The ``zarr.json`` of a group, perhaps of somebody else, with `mark` as the attributes of this library."""
    found = parsed(document)
    return dumped({**found, "attributes": {**found.get("attributes", {}), ATTRIBUTE: mark}})


def array_in(document: bytes) -> str | None:
    """What array a ``zarr.json`` is that of, and what to do about it; None where it is no array's."""
    found = _readable(document)
    if found.get("node_type") != "array":
        return None
    attributes = found.get("attributes")
    blob = attributes.get(BLOB) if isinstance(attributes, dict) else None
    if not isinstance(blob, dict):
        return "a Zarr array that is not of this library; choose another path"
    rows, shape, dtype = (str(blob.get(name))[:200] for name in ("rows", "shape", "dtype"))
    return f"a TensorBlob, and no store: {rows} rows of shape {shape} and {dtype}; TensorBlob.open reads it"


def has_our_mark(document: bytes) -> bool:
    """Whether there are attributes of this library in a ``zarr.json`` that is intact so far."""
    try:
        return attributes_in(document) is not None
    except ValueError:
        return False


def is_zarr_of_others(document: bytes) -> bool:
    """Whether this library has never written a ``zarr.json``, of which one byte may be damaged."""
    try:
        parsed(document)
    except ValueError:
        return False
    return not any(trace in document for trace in (b'"infinite_tensor"', b'"digest"'))


def _readable(document: bytes) -> dict[str, Any]:
    try:
        return parsed(document)
    except ValueError:
        return {}


def dumped(document: Mapping[str, Any]) -> bytes:
    """A ``zarr.json`` as it is stored."""
    # NaN may stand in the attributes of users; zarr writes it too.
    return json.dumps(document, indent=2).encode()
