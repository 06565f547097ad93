"""The way over for files of version 0.4: their complete tiles become tiles of a tensor of this version."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.arguments import checked_id, checked_progress
from infinite_tensor.support.given import quoted
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.messages import warn_of_damage
from infinite_tensor.tilestore.persistent.contents import PersistentContents
from infinite_tensor.values.definition import differences
from infinite_tensor.values.dtypes import dtype_name, from_stored, stored_dtype
from infinite_tensor.values.weights import WeightedMean
from infinite_tensor.views.copied import CopyReport, CopyTally, CopyWatcher, TensorCopy
from infinite_tensor.views.copying import store_blocks
from infinite_tensor_stores.hdf5.version04 import OldTensor, opened
from infinite_tensor_stores.targets import local_path

_BATCH_TILES = 64
_BATCH_BYTES = 2**25


def copy_from_04(
    filepath: str | os.PathLike[str],
    tensor: InfiniteTensor,
    *,
    tensor_id: str | None = None,
    progress: bool | str | CopyWatcher = True,
) -> CopyReport:
    """Take over what an HDF5 file of version 0.4 holds of a tensor: its complete tiles.

    Build the tensor as your script does, on a store of this version and with the tile size of the file, and hand it in.
    Tiles into which version 0.4 had blended every window are stored as they are; the others are left to be computed.
    From then on the tensor continues with what was stored. The file is only read. Of a chain, take over each tensor.
    Called again, it moves only what is missing, so that a copy that was killed continues.

    Version 0.4 wrote down the shape, dtype and windows of a tensor and the ids of its args. These are compared. It did
    not write down `f`, `blend`, `blend_init` or what `version` stands for: make sure yourself that they are those that
    filled the file. It blended windows in the order in which they were computed, so sums of floats may differ in their
    last bits from what this version computes, and a blend for which order matters may differ altogether.

    Parameters
    ----------
    filepath : str or path
        The file, on a local disk. No other process may be writing to it.
    tensor : InfiniteTensor
        The tensor, on a store that outlives the process.
    tensor_id : str, optional
        Its id in the file. Default: the one that it has now.
    progress : bool, "always" or callable
        As for `store.copy`.

    Returns
    -------
    CopyReport
        What was moved, what was there already, and how many tiles were left out as some of their windows are missing.

    Raises
    ------
    ValidationError
        If the tensor is not the one in the file, and the message lists what differs; or if its store keeps no tiles or
        is read-only, or it was declared in a way that version 0.4 did not know. Nothing has been copied then.
    StoreError
        If there is no such file or tensor, or something cannot be read or stored.
    """
    checked_progress(progress)
    record, target = _record_of(tensor)
    old_id = record.spec.tensor_id if tensor_id is None else checked_id(tensor_id)
    path, call = _checked_path(filepath), store_call()
    with opened(path, old_id) as old, call.running, CopyTally(progress) as tally:
        call.begin(target)
        _check_same(record, tensor, old, path)
        target.flush()
        copied = _copy(record, old, target, tally)
        target.check_there(record)
        target.storage.flush()
        target.tiles.drop_in_progress(record.spec.tensor_id)
        return tally.finish(CopyReport((copied,), (), str(tensor.tile_store), tally.seconds))


def _checked_path(filepath: object) -> Path:
    if not isinstance(filepath, str | os.PathLike):
        raise ValidationError(f"filepath must be a path, got {quoted(filepath)}")
    return local_path(os.fspath(filepath))


def _record_of(tensor: object) -> tuple[Record, PersistentContents]:
    if not isinstance(tensor, InfiniteTensor):
        raise ValidationError(f"tensor must be an InfiniteTensor, got {quoted(tensor)}")
    node = node_of(tensor)
    spec, target = node.spec, node.contents
    if not isinstance(target, PersistentContents):
        raise ValidationError(
            f"tensor {spec.tensor_id!r} must be on a store that keeps tiles, such as tile_store='world.zarr', and is "
            f"on {tensor.tile_store}"
        )
    target.check_writable("take tiles over")
    if spec.reduction is not None or isinstance(spec.blend, WeightedMean | str):
        raise ValidationError(
            f"tensor {spec.tensor_id!r} is reduced or blended in a way that version 0.4 did not know: nothing that "
            "it has stored can be of this tensor"
        )
    with target.lock:
        return target.registry.record_of(spec), target


def _check_same(record: Record, tensor: InfiniteTensor, old: OldTensor, path: Path) -> None:
    """ValidationError that lists in what a tensor differs from the one in a file."""
    tensor_id = record.spec.tensor_id
    if any(isinstance(window, dict) and window.get("dimension_map") for window in _windows_of(old)):
        raise ValidationError(
            f"{str(path)!r}: the windows of tensor {tensor_id!r} have a dimension_map, under which version 0.4 counted "
            "windows in another way; compute it again"
        )
    lines = differences(*_compared(record, tensor, old))
    if lines:
        listed = "".join(f"\n  {line}" for line in lines)
        raise ValidationError(
            f"{str(path)!r}: what is stored there is not tensor {tensor_id!r} as it is declared now:{listed}\n"
            "Declare it as it was. A tile_size is given to the store before it holds the tensor: clear_tensor("
            f"{tensor_id!r}) makes it forget the one that it has."
        )


def _windows_of(old: OldTensor) -> list[Any]:
    listed = old.meta["args_windows"]
    return [old.meta["output_window"], *(listed if isinstance(listed, list) else [])]


def _compared(record: Record, tensor: InfiniteTensor, old: OldTensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file says of a tensor, and what the declaration does."""
    spec, tile = record.spec, record.layout.tile_shape
    # Version 0.4 tiled no finite dimension.
    whole = all(extent in (None, size) for extent, size in zip(spec.shape, tile, strict=True))
    tile_size = [size for size, extent in zip(tile, spec.shape, strict=True) if extent is None or not whole]
    names = [arg.tensor_id for arg in spec.definition.args]
    stored = {name: old.meta[name] for name in ("shape", "dtype", "output_window", "args_windows")}
    given: dict[str, Any] = {
        "shape": list(spec.shape),
        "dtype": dtype_name(spec.dtype),
        "output_window": tensor.output_window.to_dict(),
        "args_windows": [window.to_dict() for window in tensor.args_windows],
    }
    return (
        {**stored, "args": _shown_args(old.meta["args"], names), "tile_size": list(old.tile_size)},
        {**given, "args": _shown_args(names, old.meta["args"]), "tile_size": tile_size},
    )


def _shown_args(names: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The ids of args, as far as they can be compared with others: a random one is nobody's."""
    if not isinstance(names, list) or not isinstance(others, list) or len(names) != len(others):
        return list(names)
    return [None if _is_nobodys(a) or _is_nobodys(b) else a for a, b in zip(names, others, strict=True)]


def _is_nobodys(name: object) -> bool:
    try:
        return name is None or (isinstance(name, str) and UUID(name).version == 4)
    except ValueError:
        return False


def _copy(record: Record, old: OldTensor, target: PersistentContents, tally: CopyTally) -> TensorCopy:
    tensor_id, layout = record.spec.tensor_id, record.layout
    tiles, copied = old.tiles(), TensorCopy(tensor_id)
    length = max(1, min(_BATCH_TILES, _BATCH_BYTES // layout.tile_bytes))
    tally.expect(len(tiles))
    for begin in range(0, len(tiles), length):
        some = tiles[begin : begin + length]
        there, blocks, damaged = 0, {}, 0
        for tile, index in _complete(record, old, some).items():
            if target.storage.has_tiles(tensor_id, [index]):
                there += 1
                continue
            try:
                blocks[index] = _block(record, old, tile)
            except ValueError as error:
                warn_of_damage(target, f"tile {tile} of tensor {tensor_id!r} in the file cannot be read ({error})")
                damaged += 1
        store_blocks(record, target, blocks)
        copied = replace(
            copied,
            tiles=copied.tiles + len(blocks),
            there=copied.there + there,
            damaged=copied.damaged + damaged,
            left=copied.left + len(some) - len(blocks) - there - damaged,
            bytes=copied.bytes + sum(block.nbytes for block in blocks.values()),
        )
        tally.count(len(some))
    return copied


def _complete(record: Record, old: OldTensor, tiles: Sequence[Index]) -> dict[Index, Index]:
    """The tiles into which all windows over them were blended, with the index that each has here."""
    grid, layout = record.spec.grid, record.layout
    complete = {}
    for tile in tiles:
        along = iter(tile)
        index = tuple([next(along, 0) if extent is None else 0 for extent in record.spec.shape])
        known = old.windows(tile)
        windows = itertools.product(*map(range, *grid.box(layout.start(index), layout.stop(index))))
        # In a tile that no window covers nothing was blended.
        if known and all(map(known.__contains__, windows)):
            complete[tile] = index
    return complete


def _block(record: Record, old: OldTensor, tile: Index) -> torch.Tensor:
    dtype = record.spec.dtype
    return from_stored(old.pixels(tile, stored_dtype(dtype), record.layout.tile_shape), dtype)
