"""Take over what an HDF5 file of version 0.4 holds of a tensor: the tiles into which it had blended every window.

Declare the tensor as your script does, on a new store with the tile size of the file (512 by default in version 0.4),
and name it: `python take_over_04.py world.h5 model.py:world`. Of a chain, take over each tensor. The file is only read;
run again, this moves what is missing. Tiles that lack windows are left to be computed.

The file tells the shape, dtype and windows of a tensor, its tile size and the ids of its args, which are compared. It
does not tell `f`, `blend`, `blend_init` or a seed: make sure yourself that they are those that filled it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import runpy
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import torch

from infinite_tensor import InfiniteTensor, ValidationError
from infinite_tensor.tilestore.store import contents_of

BATCH = 64  # tiles


def take_over(path: str | os.PathLike[str], tensor: InfiniteTensor, old_id: str | None = None) -> tuple[int, int]:
    """Move the complete tiles of a tensor that had this id in the file; how many were moved, and how many are left."""
    store, moved, left = tensor.tile_store, 0, 0
    tile = store.tensor_definition(tensor.tensor_id)["tile_size"]
    # What it has in memory would hide what comes over.
    store.flush()
    tensor.clear_cache()
    # What a store asks of its storage; see infinite_tensor.tilestore.backend.
    stored = contents_of(store).registry.records[tensor.tensor_id].handle
    with h5py.File(path, "r") as file:
        group = file["tensors"][old_id or tensor.tensor_id]
        check_same(group["metadata"].attrs, tensor, tile)
        names = iter(group["tiles"])
        while some := {index_of(name, tensor): group["tiles"][name] for name in itertools.islice(names, BATCH)}:
            there = stored.find(list(some))
            missing = {index: some[index] for index, found in zip(some, there, strict=True) if not found}
            complete = {index: tiles for index, tiles in missing.items() if is_complete(index, tiles, tensor, tile)}
            stored.write_tiles({index: torch.from_numpy(tiles[()]) for index, tiles in complete.items()})
            moved, left = moved + len(complete), left + len(missing) - len(complete)
    store.flush()
    return moved, left


def index_of(name: str, tensor: InfiniteTensor) -> tuple[int, ...]:
    """The tile that version 0.4 calls ``i_j``, with an index per unbounded dimension; finite ones are one tile."""
    along = map(int, name.split("_"))
    return tuple(0 if extent is not None else next(along) for extent in tensor.shape)


def is_complete(index: Sequence[int], dataset: Any, tensor: InfiniteTensor, tile: Sequence[int]) -> bool:
    """Whether every window over a tile was blended into it."""
    window, ranges = tensor.output_window, []
    for i, n, extent, size, stride, offset in zip(
        index, tile, tensor.shape, window.size, window.stride, window.offset, strict=True
    ):
        first, stop = -((size - 1 + offset - i * n) // stride), -((offset - (i + 1) * n) // stride)
        if extent is not None:  # Windows that reach past its ends did not exist.
            first, stop = max(first, -(offset // stride)), min(stop, (extent - size - offset) // stride + 1)
        ranges.append(range(first, stop))
    known = {tuple(map(int, str(name).split("_"))) for name in dataset.attrs.get("contributions", ())}
    return bool(known) and known.issuperset(itertools.product(*ranges))


def check_same(stored: Mapping[str, Any], tensor: InfiniteTensor, tile: Sequence[int]) -> None:
    """ValidationError that lists in what a tensor differs from the one in the file."""
    meta, ids = json.loads(stored["meta"]), [arg.tensor_id for arg in tensor.args]
    given = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "output_window": tensor.output_window.to_dict(),
        "args_windows": [window.to_dict() for window in tensor.args_windows],
        "tile_size": [n for n, extent in zip(tile, tensor.shape, strict=True) if extent is None],
        # Ids that were not given are random ones, of 36 characters.
        "args": [there if len(str(there)) == 36 else own for there, own in zip(meta["args"] or (), ids, strict=False)],
    }
    found = meta | {"args": meta["args"] or [], "tile_size": [int(n) for n in stored["tile_size"]]}
    lines = [f"{name}: stored {found[name]}, given {value}" for name, value in given.items() if found[name] != value]
    if tensor.output_window.dimension_map is not None:
        lines.append("version 0.4 counted windows with a dimension_map in another way")
    if lines:
        raise ValidationError(f"what the file holds is not tensor {tensor.tensor_id!r}:\n  " + "\n  ".join(lines))


def main() -> None:
    """Take over one tensor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the HDF5 file of version 0.4")
    parser.add_argument("tensor", help="file.py:name of the tensor, on a store that keeps tiles")
    parser.add_argument("--old-id", help="the id of the tensor in the file, if it was another one")
    given = parser.parse_args()
    script, _, name = given.tensor.rpartition(":")
    moved, left = take_over(given.file, runpy.run_path(script)[name], given.old_id)
    print(f"{moved} tiles taken over, {left} that lack windows left to be computed")


if __name__ == "__main__":
    main()
