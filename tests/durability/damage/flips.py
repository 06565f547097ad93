"""Flip bytes anywhere in an HDF5 file, and tell how it is read then: a program, since HDF5 itself may not survive it.

``python -m tests.durability.damage.flips FILE SEED COUNT`` tells of each where, and ``right``, ``WRONG`` or the error.
"""

from __future__ import annotations

import faulthandler
import random
import sys
from pathlib import Path

import torch

from infinite_tensor import HDF5TileStore, StoreError
from tests.durability.damage.intact import READS, TILE, Outcome, build, is_right, read, truth


def main(path: Path, seed: int, count: int) -> None:
    """Read the file once for each flip."""
    intact, expected = path.read_bytes(), truth()
    dice = random.Random(seed)  # noqa: S311  (no secret)
    for number in range(count):
        data, at = bytearray(intact), dice.randrange(len(intact))
        while number % 2 and not data[at]:
            # Much of a small file is space that is reserved for more.
            at = dice.randrange(len(intact))
        data[at] ^= dice.randrange(1, 256)
        damaged = path.with_suffix(f".{number}.h5")
        damaged.write_bytes(data)
        print(at, _told(damaged, expected), flush=True)  # noqa: T201  (what the test reads)
        damaged.unlink()


def _told(path: Path, expected: dict[str, list[torch.Tensor]]) -> str:
    outcome = Outcome.of(lambda: _used(path), StoreError)
    if outcome.error is not None:
        return type(outcome.error).__name__
    return "right" if is_right(outcome.result, expected) else "WRONG"


def _used(path: Path) -> dict[str, list[torch.Tensor]]:
    store = HDF5TileStore(path, tile_size=TILE)
    try:
        found = read(build(store))
        for tensor_id in READS:
            store.tensor_info(tensor_id)
            store.verify(tensor_id)
        store.close()
    finally:
        # What cannot be stored in a damaged file is given up.
        store.close(discard=True)
    return found


if __name__ == "__main__":
    faulthandler.enable()
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
