"""One tensor in an HDF5 file, as one store sees it: slots that all stores of the process share, under their lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.inventory import Damage
from infinite_tensor.tilestore.messages import cleared_elsewhere, remade_elsewhere
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.values.dtypes import to_stored
from infinite_tensor_stores.handles import TensorHandle
from infinite_tensor_stores.hdf5.file import SharedFile, reserve
from infinite_tensor_stores.hdf5.members import is_defined
from infinite_tensor_stores.hdf5.slots import TileSlots


class HDF5Tensor(TensorHandle):
    """The tiles of one incarnation of a tensor.

    The lock of the file is held for one batch at a time, so that reads and background writes take turns.

    Parameters
    ----------
    file : SharedFile
        Where it is.
    slots : TileSlots
        What lies in its HDF5 group.
    tensor_id : str
        Its id.
    owner : object
        Whose str stands in messages.
    flush_interval : float
        Seconds after which what was written is brought into the file.
    """

    def __init__(
        self, file: SharedFile, slots: TileSlots, tensor_id: str, owner: object, flush_interval: float
    ) -> None:
        super().__init__(tensor_id, slots.layout, owner)
        self._file = file
        self.slots = slots
        self._flush_interval = flush_interval

    def read_tiles(self, tiles: Sequence[Index]) -> list[torch.Tensor | None]:
        """The complete tiles."""
        found: list[torch.Tensor | None] = []
        for batch in self._batches(tiles):
            with self._file.lock:
                self._file.opened(self.owner)
                blocks = self.slots.read(batch)
            found += map(self.tile_from, batch, blocks)
        return found

    def write_tiles(self, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles."""
        self._file.check_process(self.owner)
        for batch in self._batches(list(tiles)):
            with self._file.lock:
                h5 = self._file.opened(self.owner)
                self._check_there()
                reserve(h5, len(batch) * self.layout.tile_bytes)
                self.slots.write({tile: to_stored(tiles[tile]) for tile in batch})
        self._file.flush(older_than=self._flush_interval)

    def read_partials(self, tiles: Sequence[Index]) -> list[PartialTile | None]:
        """What their logs hold."""
        log = self.slots.log
        with self._file.lock:
            self._file.opened(self.owner)
            self._check_there()
            parts = list(map(log.read, tiles))
        return list(map(self.partial_from, map(log.place, tiles), parts))

    def write_partials(self, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add a part to the log of each, or finish it."""
        self._file.check_process(self.owner)
        log = self.slots.log
        for tile, part in partials.items():
            with self._file.lock:
                h5 = self._file.opened(self.owner)
                self._check_there()
                if part is None:
                    self._file.finish(self.slots, tile)
                else:
                    data = part.to_bytes(log.place(tile))
                    reserve(h5, len(data))
                    log.append(tile, data)
        self._file.flush(older_than=self._flush_interval)

    def delete_tiles(self, tiles: Sequence[Index]) -> None:
        """Delete logs, and free slots."""
        self._file.check_process(self.owner)
        with self._file.lock:
            h5 = self._file.opened(self.owner)
            self._check_there()
            reserve(h5, 0)
            self.slots.mark_drop()
            self.slots.log.delete(tiles)
            self.slots.delete(tiles)

    def generation(self) -> str:
        """What the last deletion has left."""
        with self._file.lock:
            self._file.opened(self.owner)
            return self.slots.drops

    def has_tiles(self, tiles: Sequence[Index]) -> list[bool]:
        """Whether each tile has a slot."""
        with self._file.lock:
            self._file.opened(self.owner)
            return self.slots.has(tiles)

    def find_tiles(self, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """The tiles of a box that have a slot, and those that have a log."""
        with self._file.lock:
            self._file.opened(self.owner)
            return self.slots.find(low, high)

    def damages(self, *, repair: bool) -> Iterator[Damage]:
        """What is damaged of the tiles and of the parts of logs."""
        with self._file.lock:
            self._file.opened(self.owner)
            starts, logged = self.slots.slots(), self.slots.log.tiles()
        batches = [
            *(partial(self.slots.damages, first, repair=repair) for first in starts),
            *(partial(self.slots.log.damages, tile, repair=repair) for tile in logged),
        ]
        for look in batches:
            with self._file.lock:
                h5 = self._file.opened(self.owner)
                if repair:
                    reserve(h5, 0)
                found = look()
            yield from found

    def _batches(self, tiles: Sequence[Index]) -> Iterator[Sequence[Index]]:
        length = self.slots.batch
        return (tiles[begin : begin + length] for begin in range(0, len(tiles), length))

    def _check_there(self) -> None:
        """StoreError if another store has cleared the tensor, or the file has vanished. The file's lock is held."""
        if self.released:
            # The caller knows.
            return
        if self._file.vanished:
            replaced = Path(self._file.h5.filename).exists()
        elif self.slots.gone:
            replaced = is_defined(self._file.h5, self.slots.name.removeprefix("/"))
        else:
            return
        raise (remade_elsewhere if replaced else cleared_elsewhere)(self.owner, self.tensor_id)
