"""Where the objects of a tensor lie in a Zarr hierarchy, and what describes its array to other readers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infinite_tensor.geometry.points import COORDINATE_LIMIT, Index
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.persistent.documents import largest_part, layout_of, name_of
from infinite_tensor.values.definition import Definition, Json, json_scalar, scalar_from_json
from infinite_tensor.values.dims import names_of
from infinite_tensor_stores.dtypes import stored_dtype, to_stored
from infinite_tensor_stores.zarr.ome import OME, ome_of
from infinite_tensor_stores.zarr.zarr_json import ATTRIBUTE, DOCUMENT, dumped, group_document

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
