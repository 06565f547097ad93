"""Keys and ``zarr.json`` documents of a tensor in a Zarr hierarchy."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.geometry.points import COORDINATE_LIMIT, Index
from infinite_tensor.tilestore.documents import name_of
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.definition import Definition, Json, json_scalar, names_of, scalar_from_json
from infinite_tensor.values.dtypes import stored_dtype, to_stored
from infinite_tensor_stores.files import parsed

ATTRIBUTE = "infinite_tensor"
BLOB = "infinite_tensor_blob"
"""The attribute that marks an array as a TensorBlob."""
DOCUMENT = "zarr.json"
OME = "ome"
"""The attribute of a group for readers of OME-Zarr."""
_VERSION = "0.5"
_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
_EXAMPLES = {2: ("y", "x"), 3: ("c", "y", "x"), 4: ("c", "z", "y", "x"), 5: ("t", "c", "z", "y", "x")}

_FOLDER = re.compile(r"(tiles|partial)-(?P<incarnation>[0-9a-f]{16})")
_LONGEST_LOG = 10**6
_TEMPORARY = re.compile(r"[^/]*\.[0-9a-f]{32}\.partial")


class ArrayPlace:
    """Keys of the objects for one tensor.

    A tensor that is cleared and created again is a new incarnation, with new keys.

    Attributes
    ----------
    stored : StoredTensor
        The stored definition of the tensor.
    layout : TileLayout
        The tiles of the tensor, each of which is a chunk.
    origin : tuple of int
        The index of pixel 0 in the array.
    group : str
        Key of the document with the definition.
    array, logs : str
        Folders of the array with the complete tiles, and of the logs of partial tiles.
    shared : str
        Key of the announcement; see `Writers` in `zarr.tensor`.
    drops : str
        Key of an object with a random text, replaced whenever tiles are deleted.

    Raises
    ------
    ValueError
        If the definition is invalid.
    """

    def __init__(self, stored: StoredTensor) -> None:
        self.stored, self.layout = stored, stored.layout
        self.origin = checked_origin(stored)
        name = name_of(stored.tensor_id)
        self.group = f"{name}/{DOCUMENT}"
        self.array = f"{name}/{folder_of_tiles(stored)}"
        self.logs = f"{name}/partial-{stored.incarnation}"
        self.shared = f"{self.logs}/shared"
        self.drops = f"{self.logs}/drops"
        self._first = [o // n for o, n in zip(self.origin, self.layout.tile_shape, strict=True)]

    def chunk(self, tile: Index) -> str:
        """Return the key of a complete tile."""
        return f"{self.array}/c/{'/'.join(map(str, map(operator.add, tile, self._first)))}"

    def log(self, tile: Index) -> str:
        """Return the key prefix for the log of a partial tile.

        Each part of the log also contains this text, as a name of the tile.
        """
        return f"{self.logs}/0.{'.'.join(map(str, tile))}"

    def tile_of_chunk(self, key: str) -> Index | None:
        """Return the tile for the key of a chunk.

        Return None if `key` is not the key of a chunk in this array.
        """
        chunk = _ints(key.removeprefix(f"{self.array}/c/").split("/"))
        if chunk is None or len(chunk) != len(self.origin):
            return None
        tile = tuple(map(operator.sub, chunk, self._first))
        return tile if self.chunk(tile) == key else None

    def tile_of_part(self, key: str) -> tuple[Index, int] | None:
        """Return the partial tile and the part number for the key of a log part.

        Return None if `key` is not the key of a log part.
        """
        log, _, end = key.removeprefix(f"{self.logs}/").rpartition("/")
        tile, number = _ints(log.split(".")), _ints([end])
        if tile is None or len(tile) != len(self.origin) + 1 or number is None or not 0 <= number[0] < _LONGEST_LOG:
            return None
        return (tile[1:], number[0]) if f"{self.log(tile[1:])}/{number[0]}" == key else None


def part_of(log: str, number: int = 0) -> str:
    """Return the key of a part in a log."""
    return f"{log}/{number}"


def origin_of(shape: Sequence[int | None], tile: Sequence[int]) -> Index:
    """Return the array index of pixel 0.

    The index is 0 in a finite dimension, and the middle of the array in an unbounded dimension.
    """
    return tuple(
        [
            0 if extent is not None else -(-COORDINATE_LIMIT // size) * size
            for extent, size in zip(shape, tile, strict=True)
        ]
    )


def checked_origin(stored: StoredTensor) -> Index:
    """Return the array index of pixel 0. Raise ValueError if the definition has another one."""
    origin, found = origin_of(stored.layout.shape, stored.layout.tile_shape), stored.fields.get("origin")
    if found != list(origin):
        raise ValueError(f"the origin is {found!r:.200}, not {list(origin)}")
    return origin


def tensor_document(stored: StoredTensor) -> bytes:
    """Return the ``zarr.json`` of a tensor's group.

    It contains the definition, and metadata for other programs. This metadata follows from the definition, and this
    library never reads it.
    """
    ome = ome_of(stored, folder_of_tiles(stored))
    return group_document(stored.fields, None if ome is None else {OME: ome})


def folder_of_tiles(stored: StoredTensor) -> str:
    """Return the name of the array with the complete tiles."""
    return f"tiles-{stored.incarnation}"


def array_document(stored: StoredTensor) -> dict[str, Any]:
    """Return the ``zarr.json`` of the array with the complete tiles.

    Other programs need this document to open the array. It is computed from the definition alone.
    """
    tensor, layout = stored.definition, stored.layout
    middle = origin_of(layout.shape, layout.tile_shape)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2 * half if extent is None else extent for extent, half in zip(layout.shape, middle, strict=True)],
        "data_type": stored_dtype(tensor.dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(layout.tile_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _fill_value(tensor),
        "codecs": stored.fields.get("codecs"),
        "attributes": {ATTRIBUTE: {"origin": list(middle)}},
        "dimension_names": list(names_of(tensor.dims, len(layout.shape))),
    }


def array_bytes(stored: StoredTensor) -> bytes:
    """Return `array_document` as stored."""
    return dumped(array_document(stored))


def is_temporary(key: str, of: str | None = None) -> bool:
    """Return whether a key names a temporary file.

    A `LocalStore` renames a temporary file when it is complete. If `of` is given, only a temporary file for the key
    `of` counts.
    """
    name = key.rpartition("/")[2]
    return _TEMPORARY.fullmatch(name) is not None and (of is None or name.startswith(f"{of.rpartition('.')[0]}."))


def incarnation_of(folder: str) -> str | None:
    """Return the incarnation in the name of a folder.

    Return None if this is not the name of a folder with tiles or logs.
    """
    found = _FOLDER.fullmatch(folder)
    return None if found is None else found["incarnation"]


def _fill_value(tensor: Definition) -> Json:
    init = scalar_from_json(tensor.fill)
    fill = torch.tensor([0 if init is None else init], dtype=tensor.dtype, device="cpu")
    dtype = torch.uint16 if tensor.dtype is torch.bfloat16 else tensor.dtype
    return json_scalar("blend_init", to_stored(fill)[0].item(), dtype)


def _ints(parts: Sequence[str]) -> Index | None:
    try:
        return tuple([int(part) for part in parts])
    except ValueError:
        return None


# The content of a ``zarr.json``: the author, and the attributes of this library.


def group_document(attributes: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> bytes:
    """Return the ``zarr.json`` of a group.

    `attributes` are the attributes of this library; `others` are the attributes of other specifications.
    """
    return dumped({"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: attributes, **(others or {})}})


def attributes_in(document: bytes, node: str = "group") -> dict[str, Any] | None:
    """Return this library's attributes from a ``zarr.json``.

    Return None if there are no such attributes. Raise ValueError if the document is damaged.
    """
    found = parsed(document)
    attributes = found.get("attributes", {})
    if found.get("zarr_format") != 3 or found.get("node_type") != node or not isinstance(attributes, dict):
        raise ValueError(f"not the metadata of a Zarr {node}")
    ours = attributes.get(ATTRIBUTE)
    if ours is not None and not isinstance(ours, dict):
        raise ValueError(f"the attribute {ATTRIBUTE!r} is {ours!r}")
    return ours


def member_in(attributes: Mapping[str, Any]) -> str | None:
    """Describe what `attributes` define, such as ``tensor 'map'``.

    `attributes` are those of this library in a ``zarr.json``. Return None for the root of a store.
    """
    for kind in ("tensor", "group"):
        if f"{kind}_id" in attributes:
            return f"{kind} {attributes[f'{kind}_id']!r:.200}"
    return None


def redefined(document: bytes, new: StoredTensor) -> bytes:
    """Replace the definition in the ``zarr.json`` of a tensor's group.

    Attributes of others are kept. `new` may have names that the tensor lacked, so that it becomes OME-Zarr.
    """
    found, ours = parsed(document), parsed(tensor_document(new))["attributes"]
    attributes = {**ours, **found.get("attributes", {}), ATTRIBUTE: ours[ATTRIBUTE]}
    return dumped({**found, "attributes": attributes})


def renamed(document: bytes, new: StoredTensor) -> bytes:
    """Set the names of dimensions in the ``zarr.json`` of a tensor's array.

    A damaged document is returned unchanged.
    """
    found = _readable(document)
    return dumped({**found, "dimension_names": array_document(new)["dimension_names"]}) if found else document


def array_in(document: bytes) -> str | None:
    """Describe the array in a ``zarr.json``, for error messages.

    Return None if the document does not describe an array.
    """
    found = _readable(document)
    if found.get("node_type") != "array":
        return None
    attributes = found.get("attributes")
    blob = attributes.get(BLOB) if isinstance(attributes, dict) else None
    if not isinstance(blob, dict):
        return "a Zarr array; choose another path"
    rows, shape, dtype = (str(blob.get(name))[:200] for name in ("rows", "shape", "dtype"))
    return f"a TensorBlob, not a store: {rows} rows of shape {shape} and {dtype}; TensorBlob.open reads it"


def is_zarr_of_others(document: bytes) -> bool:
    """Return whether a ``zarr.json`` is certainly from another program.

    Return False for a document of this library, even with a damaged byte.
    """
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
    """Encode a ``zarr.json``."""
    # Attributes of users may contain NaN, which zarr writes too.
    return json.dumps(document, indent=2).encode()


# Metadata for readers of OME-Zarr 0.5 in a tensor's group (https://ngff.openmicroscopy.org/0.5).


def ome_of(stored: StoredTensor, path: str) -> dict[str, Any] | None:
    """Return the OME-Zarr attribute for a tensor's group.

    Return None if `why_no_ome` gives a reason.

    Parameters
    ----------
    stored : StoredTensor
        The stored definition of the tensor.
    path : str
        Path of the tensor's array within the group.
    """
    tensor = stored.definition
    if why_no_ome(tensor) is not None or tensor.dims is None:
        return None
    return {
        "version": _VERSION,
        "multiscales": [
            {
                "name": stored.tensor_id,
                "axes": [{"name": name, "type": _TYPES[name]} for name in tensor.dims],
                "datasets": [
                    {
                        "path": path,
                        # A finite tensor begins at index 0 of its array, so no translation is needed.
                        "coordinateTransformations": [{"type": "scale", "scale": [1.0] * len(tensor.dims)}],
                    }
                ],
            }
        ],
    }


def why_no_ome(tensor: Definition) -> str | None:
    """Explain why a tensor has no OME-Zarr metadata.

    Return None if the tensor has OME-Zarr metadata.
    """
    ndim, dims = len(tensor.shape), tensor.dims
    if None in tensor.shape:
        return f"OME-Zarr needs finite arrays, and shape {tensor.shape} is unbounded"
    if ndim not in _EXAMPLES:
        return f"OME-Zarr needs 2 to 5 dimensions, and shape {tensor.shape} has {ndim}"
    if tensor.dtype is torch.bfloat16:
        return "bfloat16 is stored as uint16, and other programs would show wrong numbers"
    if dims is None:
        return f"dimensions have no names; store a new tensor with names such as dims={_EXAMPLES[ndim]}"
    if not _fit(dims):
        return (
            f"its dims are {dims}, and OME-Zarr needs some of t, c, z, y and x in this order, with at least two of "
            "z, y and x"
        )
    return None


def _fit(dims: Sequence[str]) -> bool:
    in_order = [name for name in _TYPES if name in dims]
    return list(dims) == in_order and sum(_TYPES[name] == "space" for name in dims) >= 2
