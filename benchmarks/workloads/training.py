"""Batches of patches to train on, of a tensor that was filled; they run in the environment of this repository."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from infinite_tensor import PatchDataset, sl

from . import functions, loops, reading
from .stage import Stage

EXTENT = reading.EXTENT
TILE = 256
FEW_TILES = 16
"""A quarter of all."""
PATCH = 64
PATCHES = 1024
BATCH = 64


def warm(stage: Stage) -> None:
    """Random patches of 64x64 in batches of 64, whose tiles are in memory."""
    _batches(stage, 5)


def small_cache(stage: Stage) -> None:
    """The same, where a quarter of the tiles finds room in memory."""
    _batches(stage, 2, cache_size_tiles=FEW_TILES)


def memmap(stage: Stage) -> None:
    """The same patches, each copied out of a mapped file of all pixels."""
    file = stage.scratch / "pixels.npy"
    np.save(file, _pixels().numpy())
    store = stage.store(tile_size=TILE)
    regions = _regions(_dataset(store))
    plane = np.load(file, mmap_mode="r")
    found = stage.timed(
        lambda: [torch.from_numpy(np.array(plane[region])) for region in regions], per=PATCHES, rounds=5
    )
    stage.finish(store)
    _check(found, regions)


def _batches(stage: Stage, rounds: int, **limits: Any) -> None:
    store = stage.store(tile_size=TILE)
    reading.plane(store, functions.noisy(TILE, TILE), TILE)[0:EXTENT, 0:EXTENT]
    stage.finish(store)
    store = stage.store(tile_size=TILE, **limits)
    dataset = _dataset(store)
    batches = [range(first, first + BATCH) for first in range(0, PATCHES, BATCH)]
    # What finds room is there before the clock starts.
    for batch in batches:
        dataset.__getitems__(batch)
    found = stage.timed(
        lambda: [patch for batch in batches for patch in dataset.__getitems__(batch)], per=PATCHES, rounds=rounds
    )
    stage.finish(store)
    _check(found, _regions(dataset))


def _dataset(store: Any) -> PatchDataset[Any]:
    tensor = reading.plane(store, functions.noisy(TILE, TILE), TILE)
    return PatchDataset(tensor, PATCH, sl[0:EXTENT, 0:EXTENT], length=PATCHES)


def _regions(dataset: PatchDataset[Any]) -> list[tuple[slice, slice]]:
    return [dataset.region(i) for i in range(PATCHES)]


def _pixels() -> torch.Tensor:
    return loops.dense(functions.noisy(TILE, TILE), 2, 0, EXTENT, TILE, TILE)


def _check(found: list[torch.Tensor], regions: list[tuple[slice, slice]]) -> None:
    pixels = _pixels()
    for patch, region in zip(found, regions, strict=True):
        assert torch.equal(patch, pixels[region])
