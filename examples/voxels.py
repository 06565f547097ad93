"""Voxels: land with caves under it, and the edits of players over it, 64 blocks high and without end.

``python examples/voxels.py`` writes voxels.png: the world from above, and cut open along the red line.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import interpolate

from infinite_tensor import InfiniteTensor, from_array, map_windows, noise, overlay, placed

DEPTH = 64
AIR, WATER, STONE, GRASS, BRICK, NO_EDIT = range(6)
COLOURS = torch.tensor([(225, 235, 245), (70, 110, 180), (120, 115, 110), (95, 150, 70), (190, 80, 50)]) / 255


def smooth(shape: tuple[int | None, ...], seed: int, size: int) -> InfiniteTensor:
    """Random numbers, with `size` pixels from one to the next."""
    mode = "trilinear" if len(shape) == 3 else "bicubic"
    coarse = noise(shape, seed, dims=("z", "y", "x")[-len(shape) :])
    return coarse.map(lambda x: interpolate(x[None, None], scale_factor=size, mode=mode)[0, 0], halo=2, scale=size)


def blocks(caves: torch.Tensor, heights: torch.Tensor, start: tuple[int, ...]) -> torch.Tensor:
    """Fill a part of the world, whose first block lies at `start`, from numbers in 3-D and in 2-D."""
    z = (torch.arange(len(caves)) + start[0])[:, None, None]
    kind = torch.where(z < heights, STONE + (z > heights - 2), torch.where(z < 24, WATER, AIR))
    kind[(caves > 0.62) & (z < heights)] = AIR
    return kind.to(torch.uint8)


heights = smooth((None, None), 1, 64) * 48 + smooth((None, None), 2, 16) * 12
caves = smooth((DEPTH // 8, None, None), 3, 8)
world = map_windows(blocks, caves, heights, coordinates=True, dtype="uint8", window=(DEPTH, 32, 32))

tower = torch.full((DEPTH, 12, 12), NO_EDIT, dtype=torch.uint8)
tower[:60, 2:10, 2:10], tower[:58, 4:8, 4:8], tower[58:, 2:10:3, 2:10:3] = BRICK, AIR, BRICK
edits = placed(from_array(tower, dims=("z", "y", "x")), (100, 140), fill=NO_EDIT).describe(nodata=NO_EDIT)
edited = overlay(edits, world)

if __name__ == "__main__":
    seen = edited[:, 0:160, 0:320].long()
    top = DEPTH - 1 - (seen.flip(0) != AIR).int().argmax(0)
    light = 1 + 0.08 * top.diff(dim=1, append=top[:, -1:]).clamp(-4, 4)[..., None]
    above = COLOURS[seen.gather(0, top[None])[0]] * light * (0.55 + top[..., None] / 110)
    above[105:107] = torch.tensor([0.9, 0.1, 0.1])
    side = COLOURS[edited[:, 106, 0:320].long().flip(0)].repeat_interleave(2, 0).repeat_interleave(2, 1)
    above = above.repeat_interleave(2, 0).repeat_interleave(2, 1)
    plt.imsave("voxels.png", torch.cat([above, side]).clamp(0, 1).numpy())
