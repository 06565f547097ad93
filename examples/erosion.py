"""Erosion: rivers that cut valleys into endless land, and a check that no river runs out of its halo.

``python examples/erosion.py`` writes erosion.png, the land before and after, and prints what a check has found.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import interpolate, pad

from infinite_tensor import InfiniteTensor, noise, sl

REACH, AREA = 64, sl[0:256, 0:384]
NEAR = [(y, x, max(1, (y * y + x * x) ** 0.5)) for y in (-1, 0, 1) for x in (-1, 0, 1)]


def octave(size: int) -> InfiniteTensor:
    """Smooth noise, with a random number every `size` pixels."""
    coarse = noise((None, None), seed=size, dims=("y", "x"))
    return coarse.map(lambda x: interpolate(x[None, None], scale_factor=size, mode="bicubic")[0, 0], halo=2, scale=size)


def eroded(heights: torch.Tensor) -> torch.Tensor:
    """Let a drop from each pixel run downhill for `REACH` steps, and cut valleys where many drops have run."""
    rows, columns = heights.shape
    wide = pad(heights, (1, 1, 1, 1), value=torch.inf)
    slopes = [(heights - wide[1 + y : 1 + y + rows, 1 + x : 1 + x + columns]) / far for y, x, far in NEAR]
    steps = torch.tensor([y * columns + x for y, x, _ in NEAR])[torch.stack(slopes).argmax(0).flatten()]
    to = torch.arange(rows * columns) + steps
    drops = flow = torch.ones(rows * columns, dtype=torch.float64)
    for _ in range(REACH):
        drops = torch.zeros_like(drops).index_add(0, to, drops * (steps != 0))
        flow = flow + drops
    return heights - flow.reshape(heights.shape).log().float()


land = sum(octave(size) * size for size in (128, 64, 32, 16, 8, 4))
valleys = land.map(eroded, halo=REACH + 1, window=128)


def picture(heights: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """Paint land, lit from the north-west, and rivers in valleys of some depth."""
    light = 1 + 0.25 * torch.diff(heights, dim=1, prepend=heights[:, :1])
    shown = torch.tensor(plt.get_cmap("gist_earth")(0.35 + heights.numpy() / 400))[..., :3] * light[..., None]
    return torch.where(depth[..., None] > 4, torch.tensor([0.15, 0.4, 0.7], dtype=torch.float64), shown).clamp(0, 1)


if __name__ == "__main__":
    before, after = land[AREA], valleys[AREA]
    plt.imsave("erosion.png", torch.cat([picture(before, 0 * before), picture(after, before - after)], 1).numpy())
    for halo in (REACH // 4, REACH + 1):
        print(f"halo {halo}: {land.map(eroded, halo=halo, window=128).check(AREA)}")
