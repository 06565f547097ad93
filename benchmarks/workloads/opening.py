"""How long a store takes from being opened to the first pixels, as it holds more and more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from . import functions
from .reading import plane
from .stage import Stage

TILE = 8
LINKS = 30_000
"""File systems limit the names of one file; ext4 allows 65,000."""

PER_FOLDER = 1000


def tiles(stage: Stage) -> None:
    """Open a store with a number of tiles in it, and read one of them."""
    _open(stage, _made(stage, "tiles"))


def tensors(stage: Stage) -> None:
    """Open a store with a number of tensors in it, and read a tile of one of them."""
    _open(stage, _made(stage, "tensors"))


def _open(stage: Stage, path: Path) -> None:
    function = functions.patterned(TILE, TILE)

    def read() -> torch.Tensor:
        store = stage.store(path, tile_size=TILE)
        pixels: torch.Tensor = plane(store, function, TILE)[0:TILE, 0:TILE]
        store.close()
        return pixels

    pixels = stage.timed(read, rounds=10)
    assert torch.equal(pixels, function((0, 0)))


def _made(stage: Stage, what: str) -> Path:
    path = stage.kept / f"{what}-{stage.variant}-{stage.size}"
    if not path.exists():
        scratch = stage.scratch / "store"
        make = {"tiles": _make_tiles, "tensors": _make_tensors}[what]
        make(stage, scratch)
        scratch.rename(path)
    return path


def _make_tiles(stage: Stage, path: Path) -> None:
    """In Zarr a tile is a file: the first is a true one, the others are more names of it."""
    with stage.store(path, tile_size=TILE) as store:
        columns = 1 if stage.variant == "zarr" else min(stage.size, 100)
        rows = 1 if stage.variant == "zarr" else stage.size // columns
        plane(store, functions.patterned(TILE, TILE), TILE)[0 : rows * TILE, 0 : columns * TILE]
    if stage.variant == "zarr":
        (chunk,) = (found for found in path.glob("*/tiles-*/c/*/*") if found.is_file())
        _multiply(chunk, stage.size)


def _multiply(chunk: Path, number: int) -> None:
    row, column = int(chunk.parent.name), int(chunk.name)
    source = chunk
    for begin in range(0, number, PER_FOLDER):
        folder = chunk.parents[1] / str(row + begin // PER_FOLDER)
        folder.mkdir(exist_ok=True)
        first = folder / str(column)
        if begin % LINKS:
            os.link(source, first)
        elif begin:
            source = Path(shutil.copy(chunk, first))
        for i in range(1, min(PER_FOLDER, number - begin)):
            os.link(source, f"{folder}/{column + i}")


def _make_tensors(stage: Stage, path: Path) -> None:
    """In Zarr a tensor is a folder: the first is a true one, the others are more names of its files."""
    names = ["plane"] if stage.variant == "zarr" else ["plane", *(f"plane-{i}" for i in range(1, stage.size))]
    with stage.store(path, tile_size=TILE) as store:
        for name in names:
            plane(store, functions.patterned(TILE, TILE), TILE, name=name)[0:TILE, 0:TILE]
    if stage.variant == "zarr":
        (folder,) = (found for found in path.iterdir() if found.is_dir())
        for number in range(1, stage.size):
            shutil.copytree(folder, path / f"{folder.name}-{number}", copy_function=os.link)
