"""A terrain generator in the stages of the public ones: a climate, latents, a decoder, and the biomes of a landscape.

``python examples/generator.py`` stores them in generator.zarr, and writes generator.png. Run it again with another
``--y`` and ``--x``: it goes on with what is stored. The networks have fixed weights, and stand for trained ones.
"""

import argparse
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import conv2d, interpolate

from infinite_tensor import InfiniteTensor, TileStore, map_windows, noise, open_store

BIOMES = (
    "sea #2a5d8f",
    "beach #d8c690",
    "desert #c9a86a",
    "meadow #7fae5c",
    "forest #2f6b45",
    "rock #8d8478",
    "snow #f4f6f8",
)


class Network(nn.Module):
    """A network that finds blobs of one size in each channel."""

    def __init__(self, size: float) -> None:
        super().__init__()
        line = torch.arange(-6.0, 7) ** 2
        blob = torch.exp(-(line + line[:, None]) / size)
        self.weight = nn.Parameter((blob / blob.norm())[None, None], requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many channels, with values from -1 to 1."""
        return conv2d(x, self.weight.expand(x.shape[1], -1, -1, -1), padding="same", groups=x.shape[1]).tanh()


coarse, denoiser = Network(2).eval(), Network(8).eval()


def denoise(level: float, latents: torch.Tensor, climate: torch.Tensor) -> torch.Tensor:
    """Remove some noise from a batch of windows, on the condition of the climate: one phase of joint diffusion."""
    wanted = interpolate(climate, scale_factor=8, mode="bilinear")
    return level * latents + (1 - level) * (0.6 * denoiser(latents) + 0.8 * wanted)


def decode(latents: torch.Tensor) -> torch.Tensor:
    """Return height, temperature and rain, with eight times the resolution."""
    found = interpolate(latents[None], scale_factor=8, mode="bicubic")[0]
    found[1] -= found[0].clamp(min=0)
    return found


def classify(landscape: torch.Tensor) -> torch.Tensor:
    """Return the biome of each pixel: sea, beach, desert, meadow, forest, rock or snow."""
    height, degrees, rain = landscape
    biome = 2 + (rain > -0.5).int() + (rain > 0.2)
    biome[height > 1], biome[degrees < -1], biome[height < 0.05], biome[height < 0] = 5, 6, 1, 0
    return biome.to(torch.uint8)


def world(seed: int, store: TileStore) -> tuple[InfiniteTensor, InfiniteTensor]:
    """Return the landscape and its biomes."""
    numbers = [noise((3, None, None), seed, stream, "normal", dims=("c", "y", "x")) for stream in (0, 1)]
    climate, latents = numbers[0].map(coarse, window=32, overlap=0.5, store=store), numbers[1]
    options = {"window": 64, "overlap": 0.5, "scale": (1, 8), "batch_size": 4, "store": store}
    for level in (0.6, 0.2, 0.05):
        latents = map_windows(partial(denoise, level), latents, climate, **options)
    landscape = latents.map(decode, halo=2, scale=8, window=64, store=store)
    biomes = landscape.map(classify, channels=(), dtype="uint8")
    return landscape, biomes.describe(colours=dict(enumerate(BIOMES)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--y", "--x"):
        parser.add_argument(name, type=int, default=0)
    given = parser.parse_args()
    with open_store("generator.zarr") as store:
        landscape, biomes = world(7, store)
        y, x = slice(given.y, given.y + 640), slice(given.x, given.x + 640)
        figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
        landscape.show((0, y, x), ax=axes[0], cmap="gist_earth")
        biomes.show((y, x), ax=axes[1])
        axes[0].set_title("height")
        axes[1].set_title("biome")
        figure.savefig("generator.png", dpi=100)
