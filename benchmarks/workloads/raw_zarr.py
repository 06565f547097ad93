"""Floors of what a Zarr store can do: zarr-python moving the same chunks with the same codecs, many in one call.

They run in the environment of this repository, and take the array that our store makes.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import torch
import zarr

from . import functions, loops, reading, storing
from .functions import Function
from .stage import Stage


def fill(stage: Stage) -> None:
    """64 MiB of noise in chunks of 512x512, set at once."""
    function = functions.noisy(storing.TILE, storing.TILE)
    path = _empty_copy(stage, _array(stage, function, storing.TILE, storing.TILE, storing.TILE))
    pixels = loops.dense(function, 2, 0, storing.EXTENT, storing.TILE, storing.TILE).numpy()
    stage.timed(lambda: _write(path, pixels))


def new_array(stage: Stage) -> None:
    """64 MiB of noise from memory into a new array of zarr's own, in chunks of 512x512."""
    function, numbers = functions.noisy(storing.TILE, storing.TILE), itertools.count()
    pixels = loops.dense(function, 2, 0, storing.EXTENT, storing.TILE, storing.TILE).numpy()

    def write() -> None:
        zarr.create_array(
            stage.scratch / str(next(numbers)),
            shape=pixels.shape,
            chunks=(storing.TILE, storing.TILE),
            dtype=pixels.dtype,
        )[...] = pixels

    stage.timed(write, rounds=3)


def reopen(stage: Stage) -> None:
    """Open the array that our store has filled, and read the 64 MiB."""
    function = functions.noisy(storing.TILE, storing.TILE)
    path = _array(stage, function, storing.TILE, storing.TILE, storing.EXTENT)
    pixels = stage.timed(lambda: _read(path, storing.EXTENT), rounds=2)
    assert torch.equal(pixels, loops.dense(function, 2, 0, storing.EXTENT, storing.TILE, storing.TILE))


def small_windows(stage: Stage) -> None:
    """16384 windows of 16x16 by a plain loop, and the 64 chunks set at once."""
    size, extent = storing.SMALL_WINDOW, storing.SMALL_EXTENT
    function = functions.patterned(size, size)
    path = _empty_copy(stage, _array(stage, function, size, storing.SMALL_TILE, storing.SMALL_TILE))
    counts = extent // size, extent // size
    stage.timed(lambda: _write(path, loops.assembled(function, counts, size).numpy()))


def random_stored(stage: Stage) -> None:
    """64x64 pixels at random places of an array that is open."""
    function, corners = functions.noisy(64, 64), reading.places(reading.EXTENT, reading.FEW_READS)
    path = _array(stage, function, 64, 256, reading.EXTENT)
    array, (y, x) = zarr.open_array(path, mode="r"), _origin(path)
    found = stage.timed(
        lambda: [
            torch.from_numpy(
                np.asarray(array[y + top : y + top + reading.READ, x + left : x + left + reading.READ]),
            )
            for top, left in corners
        ],
        per=len(corners),
        rounds=2,
    )
    reading.check_reads(found, corners, loops.dense(function, 2, 0, reading.EXTENT, 64, 64))


def _array(stage: Stage, function: Function, window: int, tile: int, extent: int) -> Path:
    """The array of a store that holds a square of pixels from 0."""
    path = stage.scratch / "store"
    with stage.store(path, tile_size=tile) as store:
        reading.plane(store, function, window)[0:extent, 0:extent]
        store.flush()
        return path / str(store.tensor_info("plane").location)


def _empty_copy(stage: Stage, array: Path) -> Path:
    copy = stage.scratch / "raw"
    copy.mkdir()
    shutil.copy(array / "zarr.json", copy)
    return copy


def _origin(path: Path) -> tuple[int, int]:
    y, x = json.loads((path / "zarr.json").read_text())["attributes"]["infinite_tensor"]["origin"]
    return y, x


def _write(path: Path, pixels: np.ndarray) -> None:
    (y, x), (height, width) = _origin(path), pixels.shape
    zarr.open_array(path, mode="r+")[y : y + height, x : x + width] = pixels


def _read(path: Path, extent: int) -> torch.Tensor:
    y, x = _origin(path)
    return torch.from_numpy(np.asarray(zarr.open_array(path, mode="r")[y : y + extent, x : x + extent]))
