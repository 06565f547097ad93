"""Draws `docs/images/borders.png` and `docs/images/seams.png`, which docs/blending.md shows.

``python docs/drawings/borders.py`` writes both; ``--folder`` says where to.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt

from infinite_tensor import InfiniteTensor, TensorWindow, UncoveredPixelsWarning

EXTENT, SIZE, STRIDE, MARGIN = 92, 32, 24, 46
PADDINGS: Sequence[Any] = (("constant", 0.0), "edge", "reflect", "symmetric", "wrap")
BLENDS = (None, "first", "last", "max", "mean", "linear", "hann", "gaussian")


def image() -> torch.Tensor:
    """A shape without any symmetry, so that each mirror image can be told."""
    y, x = torch.meshgrid(torch.arange(EXTENT), torch.arange(EXTENT), indexing="ij")
    picture = 0.25 + 0.35 * x / EXTENT
    picture[(y - 50) ** 2 + (x - 54) ** 2 < 18**2] = 1.0
    picture[8:72, 10:18] = 0.9
    picture[8:16, 10:46] = 0.9
    return picture


def borders(path: Path) -> None:
    """What becomes of windows at the end of an image, and what stands beyond it."""
    picture = image()
    source = InfiniteTensor((EXTENT, EXTENT), lambda _ctx: picture, TensorWindow((EXTENT, EXTENT)))
    window = TensorWindow((SIZE, SIZE), stride=STRIDE)
    shown = []
    for edge in ("drop", "clip"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncoveredPixelsWarning)
            copied = InfiniteTensor(
                (EXTENT, EXTENT),
                lambda _ctx, region: region,
                window,
                args=[source],
                args_windows=[window],
                args_padding="edge",
                edge=edge,
                blend="last",
            )
        shown.append((f'edge="{edge}"', copied[...], 0))
    for padding in PADDINGS:
        tile = TensorWindow((SIZE, SIZE))
        around = InfiniteTensor(
            (None, None), lambda _ctx, region: region, tile, args=[source], args_windows=[tile], args_padding=padding
        )
        name = padding if isinstance(padding, str) else padding[0]
        shown.append((f'args_padding="{name}"', around[-MARGIN : EXTENT + MARGIN, -MARGIN : EXTENT + MARGIN], MARGIN))
    figure, axes = plt.subplots(2, 4, figsize=(11, 5.8), layout="constrained")
    for axis, (title, pixels, margin) in zip(axes.flat, shown, strict=False):
        axis.imshow(pixels, cmap="viridis", vmin=0, vmax=1)
        axis.add_patch(
            plt.Rectangle((margin - 0.5, margin - 0.5), EXTENT, EXTENT, fill=False, edgecolor="white", linewidth=1.2)
        )
        axis.set_title(title, fontsize=10)
    finish(figure, axes, path)


def seams(path: Path) -> None:
    """What each blend makes of windows that disagree."""
    window = TensorWindow((SIZE, SIZE), stride=SIZE // 2)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")

    def guess(ctx: tuple[int, int]) -> torch.Tensor:
        """The same waves everywhere, seen brighter or darker by each window."""
        level = torch.rand(1, generator=torch.Generator().manual_seed(31 * ctx[0] + ctx[1] + 500)) * 0.5 + 0.1
        waves = torch.sin((y + ctx[0] * SIZE / 2) / 9) * torch.cos((x + ctx[1] * SIZE / 2) / 7)
        return level + 0.15 * waves

    figure, axes = plt.subplots(2, 4, figsize=(11, 5.8), layout="constrained")
    for axis, blend in zip(axes.flat, BLENDS, strict=True):
        blended = InfiniteTensor((None, None), guess, window, blend=blend)
        axis.imshow(blended[0:96, 0:96], cmap="viridis", vmin=0, vmax=1 if blend is not None else 2.4)
        axis.set_title("the sum" if blend is None else f'blend="{blend}"', fontsize=10)
    finish(figure, axes, path)


def finish(figure: Any, axes: Any, path: Path) -> None:
    """Without ticks, and no empty frames."""
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        if not axis.images:
            axis.set_axis_off()
    figure.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1] / "images")
    folder = parser.parse_args().folder
    borders(folder / "borders.png")
    seams(folder / "seams.png")
