"""Draws `docs/images/show.png`, and writes `docs/drawings/repr.html`, both of which docs/viewing.md shows.

``python docs/drawings/notebook.py`` writes both; ``--folder`` says where to.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, noise, sl

DOCS = Path(__file__).parents[1]


def land() -> tuple[InfiniteTensor, InfiniteTensor]:
    """Hills, and their colours."""
    store = MemoryTileStore()
    rough = noise((None, None), seed=7, dims=("y", "x"))
    height = rough.map(smooth, halo=24, window=64, store=store, tensor_id="height")
    window = TensorWindow((3, 64, 64), dimension_map=(None, 1, 2))
    read = TensorWindow((64, 64), dimension_map=(1, 2))
    colours = InfiniteTensor(
        (3, None, None),
        paint,
        window,
        args=[height],
        args_windows=[read],
        tile_store=store,
        tensor_id="colours",
        dims=("c", "y", "x"),
    )
    return height, colours


def smooth(region: torch.Tensor) -> torch.Tensor:
    """The mean of the pixels around each, four times."""
    for _ in range(4):
        region = torch.nn.functional.avg_pool2d(region[None, None], 13, 1)[0, 0]
    return region


def paint(_ctx: tuple[int, ...], height: torch.Tensor) -> torch.Tensor:
    """Sea and land."""
    level = ((height - 0.48) / 0.04).clamp(0, 1)
    sea = torch.stack([0.1 + 0.1 * level, 0.3 + 0.4 * level, 0.5 + 0.4 * level])
    ground = torch.stack([0.2 + 0.7 * level, 0.45 + 0.4 * level, 0.2 + 0.5 * level])
    return torch.where(level < 0.5, sea, ground)


def main(images: Path, drawings: Path) -> None:
    """Read some of the land, and show it."""
    height, colours = land()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    height.show(sl[-128:128, -64:256], ax=axes[0], cmap="terrain")
    colours.show(sl[:, -128:128, -64:256], ax=axes[1])
    figure.savefig(images / "show.png", dpi=80, metadata={"Software": None})
    plt.close(figure)
    (drawings / "repr.html").write_text(f"{colours._repr_html_()}\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for both; default: where the page has them")
    folder = parser.parse_args().folder
    main(folder or DOCS / "images", folder or DOCS / "drawings")
