"""Whole chunks through the Zarr face of a tensor, beside the tensor itself and beside zarr alone.

All of it was computed before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import zarr

from infinite_tensor import InfiniteTensor, sl

from . import functions, loops, raw_zarr, storing
from .reading import plane
from .stage import Stage

SQUARE = sl[0 : storing.EXTENT, 0 : storing.EXTENT]


def cached_by_zarr(stage: Stage) -> None:
    """The same by zarr, from an array of its own in memory, with no compression."""
    pixels = _pixels()
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=pixels.shape,
        chunks=(storing.TILE, storing.TILE),
        dtype=np.float32,
        compressors=None,
        filters=None,
    )
    array[...] = pixels.numpy()
    found = stage.timed(lambda: torch.from_numpy(np.asarray(array[...])), rounds=10)
    assert torch.equal(found, pixels)


def _through_the_face(stage: Stage, make: Callable[[Stage], InfiniteTensor]) -> None:
    """64 MiB in chunks of 512x512 through the face."""
    face = make(stage).as_zarr(SQUARE)
    pixels = stage.timed(lambda: torch.from_numpy(np.asarray(face[...])), rounds=10)
    assert torch.equal(pixels, _pixels())


def _directly(stage: Stage, make: Callable[[Stage], InfiniteTensor]) -> None:
    """The same by a read of the tensor."""
    tensor = make(stage)
    pixels = stage.timed(lambda: tensor[SQUARE], rounds=10)
    assert torch.equal(pixels, _pixels())


def _filled(stage: Stage) -> InfiniteTensor:
    """A tensor whose tiles are in memory."""
    tensor = plane(stage.store(tile_size=storing.TILE), functions.noisy(storing.TILE, storing.TILE), storing.TILE)
    assert tensor[SQUARE].numel()
    tensor.tile_store.flush()
    return tensor


def _reopened(stage: Stage) -> InfiniteTensor:
    """A tensor whose tiles are on disk, all but one."""
    stage.finish(_filled(stage).tile_store)
    store = stage.store(tile_size=storing.TILE, cache_size_tiles=1)
    return plane(store, functions.noisy(storing.TILE, storing.TILE), storing.TILE)


def _pixels() -> torch.Tensor:
    function = functions.noisy(storing.TILE, storing.TILE)
    return loops.dense(function, 2, 0, storing.EXTENT, storing.TILE, storing.TILE)


cached, cached_directly = partial(_through_the_face, make=_filled), partial(_directly, make=_filled)
stored, stored_directly = partial(_through_the_face, make=_reopened), partial(_directly, make=_reopened)
stored_by_zarr = raw_zarr.reopen
