"""Floors of what files can do: each tile uncompressed in a file of its own."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from . import functions, loops
from .stage import Stage
from .storing import EXTENT, TILE


def fill(stage: Stage) -> None:
    """64 files of 1 MiB."""
    pixels = loops.dense(functions.noisy(TILE, TILE), 2, 0, EXTENT, TILE, TILE)
    stage.timed(lambda: _write(stage.scratch, pixels))


def reopen(stage: Stage) -> None:
    """Read 64 files of 1 MiB into one region."""
    pixels = loops.dense(functions.noisy(TILE, TILE), 2, 0, EXTENT, TILE, TILE)
    _write(stage.scratch, pixels)
    assert torch.equal(stage.timed(lambda: _read(stage.scratch), rounds=2), pixels)


def _write(folder: Path, pixels: torch.Tensor) -> None:
    array = pixels.numpy()
    for top, left in itertools.product(range(0, EXTENT, TILE), repeat=2):
        np.ascontiguousarray(array[top : top + TILE, left : left + TILE]).tofile(folder / f"{top}.{left}")


def _read(folder: Path) -> torch.Tensor:
    result = torch.empty(EXTENT, EXTENT)
    array = result.numpy()
    for top, left in itertools.product(range(0, EXTENT, TILE), repeat=2):
        tile = np.fromfile(folder / f"{top}.{left}", dtype=np.float32)
        array[top : top + TILE, left : left + TILE] = tile.reshape(TILE, TILE)
    return result
