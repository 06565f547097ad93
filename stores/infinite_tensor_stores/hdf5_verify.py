"""Looking for damage in what is stored of one tensor in an HDF5 file, and mending it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infinite_tensor.tilestore.report import Damage
from infinite_tensor_stores.hdf5_file import SharedFile
from infinite_tensor_stores.hdf5_slots import COPY, DEFINITION, TileSlots, definition_in, put_definition


def looked_over(file: SharedFile, name: str, *, repair: bool) -> tuple[list[Damage], TileSlots | None]:
    """What is damaged of the frame of a tensor, and its tiles, if they can be got at."""
    with file.lock:
        group = file.h5[name]
        found, definition = _definition_in(group, repair=repair)
        if definition is None:
            return found, None
        try:
            return found, file.group(name, definition)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (h5py raises what it pleases on a damaged file)
            return [*found, Damage("array", None, f"/{name}/tiles", str(error))], None


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


def _definition_in(group: Any, *, repair: bool) -> tuple[list[Damage], dict[str, Any] | None]:
    """What is damaged of the definition and its copy, and one of them that is not."""
    intact, reasons = {}, {}
    for key in (DEFINITION, COPY):
        try:
            intact[key] = definition_in(group, key)
        except ValueError as error:
            reasons[key] = str(error)
    if intact.get(DEFINITION) is not None and intact.get(COPY) != intact[DEFINITION]:
        reasons.setdefault(COPY, "it is not the same as the definition")
    definition = intact.get(DEFINITION) or intact.get(COPY)
    if repair and definition is not None:
        for key in reasons:
            put_definition(group, key, definition)
    return [Damage("definition", None, f"{group.name}/{key}", reason) for key, reason in reasons.items()], definition
