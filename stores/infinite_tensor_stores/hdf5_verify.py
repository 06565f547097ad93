"""Looking for damage in what is stored of one tensor in an HDF5 file, and dropping what is damaged."""

from __future__ import annotations

from collections.abc import Iterator

from infinite_tensor.tilestore.report import Damage
from infinite_tensor_stores.hdf5_file import SharedFile
from infinite_tensor_stores.hdf5_slots import DEFINITION, TileSlots, definition_in


def tiles_in(file: SharedFile, name: str) -> TileSlots | Damage:
    """The tiles of a tensor, or what keeps from getting at them."""
    with file.lock:
        group = file.h5[name]
        try:
            definition = definition_in(group)
            if definition is None:
                raise ValueError("it is gone")
        except ValueError as error:
            return Damage("definition", None, f"{group.name}/{DEFINITION}", str(error))
        try:
            return file.group(name, definition)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises what it pleases on a damaged file)
            return Damage("array", None, f"/{name}/tiles", str(error))


def damages(file: SharedFile, group: TileSlots, *, repair: bool) -> Iterator[Damage]:
    """What is damaged of the tiles; the lock is held for one batch at a time, so that reads take turns."""
    for first in group.slots():
        with file.lock:
            found = group.damages(first, repair=repair)
        yield from found
    for tile in group.log.tiles():
        with file.lock:
            found = group.log.damages(tile, repair=repair)
        yield from found
