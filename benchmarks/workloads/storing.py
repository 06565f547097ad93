"""Tensors that are filled into files and read back."""

from __future__ import annotations

import itertools

import torch

from . import functions, loops
from .reading import plane, timed_fill
from .stage import Stage

EXTENT = 4096
TILE = 512
SMALL_EXTENT = 2048
SMALL_TILE = 256
SMALL_WINDOW = 16
LARGE = 16384, 32768
LARGE_BLOCK = 2048
LARGE_CACHE = 64 * 2**20


def fill(stage: Stage) -> None:
    """64 MiB of noise, a window to a tile of 512x512, until the store is closed."""
    function, store = functions.noisy(TILE, TILE), stage.store(tile_size=TILE)
    tensor = plane(store, function, TILE)
    pixels = timed_fill(stage, store, lambda: tensor[0:EXTENT, 0:EXTENT])
    assert torch.equal(pixels, loops.dense(function, 2, 0, EXTENT, TILE, TILE))


def reopen(stage: Stage) -> None:
    """Open the store, read the 64 MiB, and close it."""
    function, store = functions.noisy(TILE, TILE), stage.store(tile_size=TILE)
    plane(store, function, TILE)[0:EXTENT, 0:EXTENT]
    stage.finish(store)

    def read() -> torch.Tensor:
        again = stage.store(tile_size=TILE)
        pixels: torch.Tensor = plane(again, function, TILE)[0:EXTENT, 0:EXTENT]
        stage.finish(again)
        return pixels

    pixels = stage.timed(read, rounds=2)
    assert torch.equal(pixels, loops.dense(function, 2, 0, EXTENT, TILE, TILE))


def small_windows(stage: Stage) -> None:
    """16384 windows of 16x16 into tiles of 256x256, until the store is closed."""
    function, store = functions.patterned(SMALL_WINDOW, SMALL_WINDOW), stage.store(tile_size=SMALL_TILE)
    tensor = plane(store, function, SMALL_WINDOW)
    pixels = timed_fill(stage, store, lambda: tensor[0:SMALL_EXTENT, 0:SMALL_EXTENT])
    assert torch.equal(pixels, loops.dense(function, 2, 0, SMALL_EXTENT, SMALL_WINDOW, SMALL_WINDOW))


def large(stage: Stage) -> None:
    """2 GiB, read block by block with a cache of 64 MiB: by how much the memory of the process grows."""
    function, store = functions.flat(TILE, TILE), stage.store(tile_size=TILE, cache_size_bytes=LARGE_CACHE)
    tensor = plane(store, function, TILE)

    def read() -> None:
        for top, left in itertools.product(*(range(0, extent, LARGE_BLOCK) for extent in LARGE)):
            pixels = tensor[top : top + LARGE_BLOCK, left : left + LARGE_BLOCK]
            corner = function((top // TILE, left // TILE))
            assert torch.equal(pixels[:TILE, :TILE], corner)
        stage.finish(store)

    stage.peak(read)
