"""Who writes a tensor, so that the only one need not look for tiles that it has never written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zarr.abc.store import Store

from infinite_tensor.geometry.points import Index
from infinite_tensor_stores.zarr_objects import put_many

_BITS = 12
"""A block holds about 2**12 tiles."""


class TileSet:
    """A set of tiles that takes about a bit for each where they lie side by side."""

    def __init__(self) -> None:
        self._blocks: dict[Index, int] = {}

    def __contains__(self, tile: Index) -> bool:
        block, bit = _place_of(tile)
        return bool(self._blocks.get(block, 0) >> bit & 1)

    def update(self, tiles: Iterable[Index]) -> None:
        """Add tiles."""
        for block, bit in map(_place_of, tiles):
            self._blocks[block] = self._blocks.get(block, 0) | 1 << bit


def _place_of(tile: Index) -> tuple[Index, int]:
    """The block that a tile lies in, and its number there."""
    shift = _BITS // len(tile)
    bit = 0
    for i in tile:
        bit = bit << shift | i & (1 << shift) - 1
    return tuple([i >> shift for i in tile]), bit


class Writers:
    """What one store object knows of the others that write a tensor.

    Whoever has created a tensor has written all that is stored of it, until somebody else announces itself, which
    everybody else does before writing for the first time. So one look for the announcement stands for a look for
    each tile.

    Parameters
    ----------
    mark : str
        Key of the announcement.
    founder : bool
        Whether this store object has created the tensor.
    """

    def __init__(self, mark: str, *, founder: bool) -> None:
        self._mark = mark
        self._written: TileSet | None = TileSet() if founder else None
        self._announced = founder

    def doubt(self, tiles: Iterable[Index]) -> list[str]:
        """Keys to look for before `candidates` can tell of some tiles: the announcement, or none."""
        written = self._written
        return [] if written is None or all(tile in written for tile in tiles) else [self._mark]

    def candidates(self, tiles: Iterable[Index], found: Sequence[bytes | None]) -> list[Index]:
        """Those of some tiles of which something may be stored, by what was found under the keys of `doubt`."""
        if any(data is not None for data in found):
            self._written = None
        written = self._written
        return [tile for tile in tiles if written is None or tile in written]

    def will_write(self, store: Store, tiles: Iterable[Index]) -> None:
        """To be called before anything of some tiles is written."""
        if not self._announced:
            put_many(store, {self._mark: b""})
            self._announced = True
        # A thread that reads may find somebody else's announcement meanwhile.
        written = self._written
        if written is not None:
            written.update(tiles)

    def leave(self) -> None:
        """Be one of several from now on: a forked child goes on with what its parent has, beside it."""
        self._written, self._announced = None, False
