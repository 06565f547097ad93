"""Draws `docs/images/endless.png`, which docs/terrain.md shows: three places of one world, far from each other.

``python docs/drawings/endless.py`` writes it; ``--folder`` says where to.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt

from infinite_tensor import MemoryTileStore

ROOT = Path(__file__).parents[2]
SIDE = 320
PLACES: Sequence[tuple[str, tuple[int, str], tuple[int, str]]] = (
    ("near the origin", (-120, "-120"), (0, "0")),
    ("10**12 pixels to the east", (0, "0"), (10**12, "10**12")),
    ("10**15 pixels to the south-west", (10**15, "10**15"), (-(10**15), "-10**15")),
)
"""Where each square is; its first row and column, and how they are written."""


def endless(path: Path) -> None:
    """Squares of the terrain of the examples, labelled with their rows and columns."""
    torch.set_num_threads(1)
    example = runpy.run_path(str(ROOT / "examples" / "terrain.py"))
    _, picture = example["terrain"](0, MemoryTileStore())
    figure, axes = plt.subplots(1, 3, figsize=(11, 4.2), layout="constrained")
    for axis, (title, (y, row), (x, column)) in zip(axes.flat, PLACES, strict=True):
        axis.imshow(picture[:, y : y + SIDE, x : x + SIDE].permute(1, 2, 0).numpy())
        axis.set_title(title)
        axis.set_xticks([0, SIDE - 1], [f"column\n{column}", f"+ {SIDE}"])
        axis.set_yticks([0, SIDE - 1], [f"row\n{row}", f"+ {SIDE}"])
    figure.suptitle("One tensor of shape (3, None, None): each place is computed when it is read")
    figure.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    endless(parser.parse_args().folder / "endless.png")
