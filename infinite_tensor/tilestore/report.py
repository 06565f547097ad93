"""What a store tells of itself: what is stored of a tensor, what is damaged, what was deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from infinite_tensor.geometry.points import Index


@dataclass(frozen=True)
class TensorInfo:
    """What a store knows of one tensor.

    Attributes
    ----------
    tensor_id : str
        Its id.
    definition : dict
        What decides its values and its layout, as stored.
    tiles_complete, tiles_partial : int
        Tiles whose pixels are all final, and tiles of which some windows are still missing.
    bytes_stored : int
        Size of all that is stored, in bytes.
    location : str
        Where its tiles are: the path of the Zarr array within the store, say.
    """

    tensor_id: str
    definition: dict[str, Any]
    tiles_complete: int
    tiles_partial: int
    bytes_stored: int
    location: str


@dataclass(frozen=True)
class Damage:
    """Something stored that is not what was written there.

    Attributes
    ----------
    kind : {"definition", "array", "tile", "partial"}
        ``definition``, ``array`` (the metadata of the tensor's array), ``tile`` (a complete one) or ``partial``
        (a part of the log of a partial tile).
    tile : tuple of int or None
        The tile's index, where it is one.
    location : str
        Where it is within the store.
    reason : str
        What is wrong with it.
    """

    kind: Literal["definition", "array", "tile", "partial"]
    tile: Index | None
    location: str
    reason: str


class Dropped(NamedTuple):
    """What `TileStore.drop` has found and dropped: windows in memory, or tiles that were stored."""

    windows: int = 0
    tiles: int = 0


@dataclass(frozen=True)
class Garbage:
    """What `TileStore.gc` has deleted: how many stored objects, and their size in bytes."""

    objects: int = 0
    bytes: int = 0
