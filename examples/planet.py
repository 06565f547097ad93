"""A planet without a seam: its heights go around, and its climate depends on the latitude.

``python examples/planet.py`` writes planet.png: a map with the seam in the middle, and a globe that shows the seam.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import interpolate

from infinite_tensor import InfiniteTensor, Periodic, map_windows, noise

ROWS, COLUMNS = 512, 1024
COLOURS = torch.tensor([(30, 70, 120), (70, 130, 170), (90, 140, 70), (190, 170, 110), (245, 245, 250)]) / 255


def octave(size: int) -> InfiniteTensor:
    """Smooth noise, with a random number every `size` pixels."""
    coarse = noise((ROWS // size, Periodic(COLUMNS // size)), seed=size, dims=("y", "x"))
    return coarse.map(lambda x: interpolate(x[None, None], scale_factor=size, mode="bicubic")[0, 0], halo=2, scale=size)


def climate(heights: torch.Tensor, start: tuple[int, ...]) -> torch.Tensor:
    """Degrees Celsius: it is cold near the poles, and on mountains."""
    latitude = (torch.arange(len(heights)) + start[0] + 0.5) / ROWS * torch.pi
    return 45 * latitude.sin()[:, None] - 15 - 25 * heights


def paint(heights: torch.Tensor, degrees: torch.Tensor) -> torch.Tensor:
    """Deep sea, shallow sea, forest, desert or ice, lit from the west."""
    kind = (heights > -0.2).int() + (heights > 0) + ((heights > 0) & (degrees > 22))
    kind[degrees < -5] = 4
    light = 1 + 8 * heights.clamp(min=0).diff(dim=1, append=heights[:, -1:])
    return COLOURS[kind].movedim(-1, 0) * light


heights = sum(octave(size) * size**0.8 for size in (128, 64, 32, 16, 8, 4)) / 50 - 1
planet = map_windows(paint, heights, heights.map(climate, coordinates=True), halo=1, channels=3)

if __name__ == "__main__":
    across = planet[:, :, -COLUMNS // 2 : COLUMNS // 2].clamp(0, 1)
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, ROWS)] * 2, indexing="ij")
    z = (1 - y**2 - x**2).clamp(min=0).sqrt()
    row, column = (y.asin() / torch.pi + 0.5) * (ROWS - 1), (torch.atan2(x, z) / torch.pi + 1) * (COLUMNS - 1) / 2
    globe = across[:, row.nan_to_num().long(), column.long()] * z + (z == 0)
    plt.imsave("planet.png", torch.cat([across, globe], 2).movedim(0, -1).clamp(0, 1).numpy())
