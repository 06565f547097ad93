"""What is stored leaves the store: for another store, or for a Zarr group without one. The peer has neither."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from . import functions, loops
from .reading import plane
from .stage import Stage
from .storing import EXTENT, TILE


def export(stage: Stage) -> None:
    """Write the 64 MiB to a Zarr group: from storage, or from memory."""
    function, store = functions.noisy(TILE, TILE), stage.store(tile_size=TILE)
    plane(store, function, TILE)[0:EXTENT, 0:EXTENT]
    if stage.variant != "memory":
        stage.finish(store)
        store = stage.store(tile_size=TILE)
    tensor, targets = plane(store, function, TILE), (stage.scratch / f"{number}.zarr" for number in itertools.count())
    region = (slice(0, EXTENT), slice(0, EXTENT))
    written: list[Path] = []

    def write() -> None:
        written.append(next(targets))
        tensor.export(region, written[-1], progress=False)
        tensor.clear_cache()

    stage.timed(write, rounds=3)
    stage.finish(store)
    pixels = torch.from_numpy(np.asarray(zarr.open_array(written[-1] / "plane", mode="r")[...]))
    assert torch.equal(pixels, loops.dense(function, 2, 0, EXTENT, TILE, TILE))


def copy(stage: Stage) -> None:
    """Copy the 64 MiB into another store, until that is closed."""
    source, target = _stored(stage), stage.store(stage.scratch / "copy", tile_size=TILE)

    def moved() -> int:
        tiles: int = source.copy("plane", target, progress=False).tiles
        stage.finish(target)
        return tiles

    assert stage.timed(moved) == (EXTENT // TILE) ** 2
    source.close()


def copy_floor(stage: Stage) -> None:
    """Copy the folder of the same store by ``cp``."""
    _stored(stage).close()
    folder, copied = stage.scratch / "store", stage.scratch / "copy"
    stage.timed(lambda: subprocess.run(["cp", "-r", folder, copied], check=True))  # noqa: S607  (whichever cp there is)
    assert len(list(copied.rglob("*"))) == len(list(folder.rglob("*")))


def _stored(stage: Stage) -> Any:
    """A store of 64 MiB of noise."""
    store = stage.store(tile_size=TILE)
    plane(store, functions.noisy(TILE, TILE), TILE)[0:EXTENT, 0:EXTENT]
    store.flush()
    return store
