"""Where the objects of a tensor lie in a Zarr hierarchy, and what each ``zarr.json`` says, to us and to others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infinite_tensor.geometry.points import COORDINATE_LIMIT, Index
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.persistent.documents import largest_part, layout_of, name_of
from infinite_tensor.values.definition import Definition, Json, json_scalar, names_of, scalar_from_json
from infinite_tensor.values.dtypes import stored_dtype, to_stored
from infinite_tensor_stores.files import parsed

ATTRIBUTE = "infinite_tensor"
BLOB = "infinite_tensor_blob"
"""The attribute of the array that is a blob."""
DOCUMENT = "zarr.json"
OME = "ome"
"""The attribute of a group that programs look for which read OME-Zarr."""
_VERSION = "0.5"
_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
_EXAMPLES = {2: ("y", "x"), 3: ("c", "y", "x"), 4: ("c", "z", "y", "x"), 5: ("t", "c", "z", "y", "x")}

_FOLDER = re.compile(r"(tiles|partial)-(?P<incarnation>[0-9a-f]{16})")
_LONGEST_LOG = 10**6
_TEMPORARY = re.compile(r"[^/]*\.[0-9a-f]{32}\.partial")


@dataclass(frozen=True)
class Place:
    """Where the tiles of one incarnation of a tensor are.

    Attributes
    ----------
    name : str
        The tensor's group.
    definition : mapping
        What defines it.
    layout : TileLayout
        How the tensor is cut into tiles, each of which is a chunk.
    origin : tuple of int
        Index of pixel 0 in the array, in pixels per dimension.
    largest_part : int
        A part of a log has no more bytes: the tile, and a piece of each window that covers it.
    """

    name: str
    definition: Mapping[str, Any]
    layout: TileLayout
    origin: Index
    largest_part: int

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> Place:
        """The place that a definition means; ValueError where it makes no sense."""
        tensor, layout = layout_of(definition)
        origin = origin_of(layout.shape, layout.tile_shape)
        if definition.get("origin") != list(origin):
            raise ValueError(f"its origin is {definition.get('origin')!r:.200}, not {list(origin)}")
        return cls(name_of(definition["tensor_id"]), definition, layout, origin, largest_part(tensor, layout))

    @property
    def group(self) -> str:
        """Key of the document that holds the definition."""
        return f"{self.name}/{DOCUMENT}"

    @property
    def array(self) -> str:
        """The folder of the array of complete tiles."""
        return f"{self.name}/{folder_of_tiles(self.definition)}"

    @property
    def logs(self) -> str:
        """The folder of the logs of partial tiles."""
        return f"{self.name}/partial-{self.definition['incarnation']}"

    @property
    def shared(self) -> str:
        """Key of what tells that others than its creator write the tensor."""
        return f"{self.logs}/shared"

    @property
    def drops(self) -> str:
        """Key of what is another text after tiles were deleted."""
        return f"{self.logs}/drops"

    def chunk(self, tile: Index) -> str:
        """Key of a complete tile."""
        chunk = [i + o // n for i, o, n in zip(tile, self.origin, self.layout.tile_shape, strict=True)]
        return f"{self.array}/c/{'/'.join(map(str, chunk))}"

    def log(self, tile: Index) -> str:
        """Prefix of the log of a partial tile, which also names the tile in its parts."""
        return f"{self.logs}/0.{'.'.join(map(str, tile))}"

    def tile_of_chunk(self, key: str) -> Index | None:
        """The tile whose chunk has this key; None if it is no chunk of this array."""
        chunk = _ints(key.removeprefix(f"{self.array}/c/").split("/"))
        if chunk is None or len(chunk) != len(self.origin):
            return None
        tile = tuple([i - o // n for i, o, n in zip(chunk, self.origin, self.layout.tile_shape, strict=True)])
        return tile if self.chunk(tile) == key else None

    def tile_of_part(self, key: str) -> tuple[Index, int] | None:
        """The partial tile whose log has a part of this key, and the part's number; None if it is no such key."""
        log, _, end = key.removeprefix(f"{self.logs}/").rpartition("/")
        tile, number = _ints(log.split(".")), _ints([end])
        if tile is None or len(tile) != len(self.origin) + 1 or number is None or not 0 <= number[0] < _LONGEST_LOG:
            return None
        return (tile[1:], number[0]) if f"{self.log(tile[1:])}/{number[0]}" == key else None


def part_of(log: str, number: int = 0) -> str:
    """The key of one part of a log."""
    return f"{log}/{number}"


def origin_of(shape: Sequence[int | None], tile: Sequence[int]) -> Index:
    """The array index of pixel 0: in the middle of an unbounded dimension, on a tile's border."""
    return tuple(
        [
            0 if extent is not None else -(-COORDINATE_LIMIT // size) * size
            for extent, size in zip(shape, tile, strict=True)
        ]
    )


def tensor_document(definition: Mapping[str, Any]) -> bytes:
    """The ``zarr.json`` of a tensor's group: what defines it, and what other programs look for.

    What they look for follows from the definition, and is never read again.
    """
    ome = ome_of(definition, folder_of_tiles(definition))
    return group_document(definition, None if ome is None else {OME: ome})


def folder_of_tiles(definition: Mapping[str, Any]) -> str:
    """Name of the array of complete tiles in the tensor's group."""
    return f"tiles-{definition['incarnation']}"


def array_document(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The ``zarr.json`` of the array of complete tiles, for other readers: all of it follows from the definition."""
    tensor, layout = layout_of(definition)
    middle = origin_of(layout.shape, layout.tile_shape)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2 * half if extent is None else extent for extent, half in zip(layout.shape, middle, strict=True)],
        "data_type": stored_dtype(tensor.dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(layout.tile_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _fill_value(tensor),
        "codecs": definition.get("codecs"),
        "attributes": {ATTRIBUTE: {"origin": list(middle)}},
        "dimension_names": list(names_of(tensor.dims, len(layout.shape))),
    }


def array_bytes(definition: Mapping[str, Any]) -> bytes:
    """`array_document` as it is stored."""
    return dumped(array_document(definition))


def is_temporary(key: str, of: str | None = None) -> bool:
    """Whether an object is what zarr's LocalStore writes before it renames it, left behind by a process that ended.

    With `of`, whether it would have been renamed so.
    """
    name = key.rpartition("/")[2]
    return _TEMPORARY.fullmatch(name) is not None and (of is None or name.startswith(f"{of.rpartition('.')[0]}."))


def incarnation_of(folder: str) -> str | None:
    """The incarnation whose tiles or logs a folder of a tensor holds; None if it is no such folder."""
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


# What a ``zarr.json`` says: whose it is, and the attributes of this library in it.


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


# What a tensor's group says to programs that read OME-Zarr 0.5 (https://ngff.openmicroscopy.org/0.5).


def ome_of(definition: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """The attribute of a tensor's group, or None where `why_no_ome` says why there is none.

    Parameters
    ----------
    definition : mapping
        What defines the tensor.
    path : str
        Path of its array within the group.
    """
    tensor, _ = layout_of(definition)
    if _misfit(tensor) is not None or tensor.dims is None:
        return None
    return {
        "version": _VERSION,
        "multiscales": [
            {
                "name": definition["tensor_id"],
                "axes": [{"name": name, "type": _TYPES[name]} for name in tensor.dims],
                "datasets": [
                    {
                        "path": path,
                        # A finite tensor begins at index 0 of its array, so that there is nothing to translate.
                        "coordinateTransformations": [{"type": "scale", "scale": [1.0] * len(tensor.dims)}],
                    }
                ],
            }
        ],
    }


def why_no_ome(definition: Mapping[str, Any]) -> str | None:
    """What keeps a tensor from being told of in OME-Zarr; None if nothing does."""
    return _misfit(layout_of(definition)[0])


def _misfit(tensor: Definition) -> str | None:
    ndim, dims = len(tensor.shape), tensor.dims
    if None in tensor.shape:
        return f"OME-Zarr holds finite arrays, and shape {tensor.shape} is unbounded"
    if ndim not in _EXAMPLES:
        return f"OME-Zarr holds arrays of 2 to 5 dimensions, and shape {tensor.shape} has {ndim}"
    if tensor.dtype is torch.bfloat16:
        return "its bfloat16 is stored as the uint16 of its bits, which other programs would show as numbers"
    if dims is None:
        return f"its dimensions have no names; store a new tensor with dims={_EXAMPLES[ndim]}, if that is what they are"
    if not _fit(dims):
        return (
            f"its dims are {dims}, and those of OME-Zarr are t, c, z, y and x in this order, some left out, with at "
            "least two of z, y and x"
        )
    return None


def _fit(dims: Sequence[str]) -> bool:
    in_order = [name for name in _TYPES if name in dims]
    return list(dims) == in_order and sum(_TYPES[name] == "space" for name in dims) >= 2
