"""Train a small network on a stored tensor: it takes the noise out of maps of heights.

The land of terrain.py is computed and stored once. Training then opens the store for reading, without the functions
that made the land: two worker processes read random patches from it, and nothing is computed any more. The picture
shows land that the network has never seen: with noise, without it as far as the network knows, and as it is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from terrain import shaded, terrain
from torch import nn
from torch.utils.data import DataLoader

from infinite_tensor import PatchDataset, ValidationError, ZarrTileStore, sl

PATCH = 64
"""Side of the patches that the network is trained on, in pixels."""
BATCH = 8
NOISE = 60.0
"""Standard deviation of the noise, in metres; what the network takes for one unit of height."""
REACH = 18
"""How far away the pixels are that decide about one, for the network."""
UNSEEN = (slice(-80, 240), slice(-460, -140))
"""Land that nothing is learnt from: that begins at column 0."""
GAP = 8
"""White pixels between the parts of the picture."""


class Denoiser(nn.Module):
    """Estimates the noise in heights of shape (batch, rows, columns), in metres, and takes it away."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        # Dilated, so that few layers reach far.
        layers: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU()]
        for dilation in (2, 4, 8, 2):
            layers += [nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation), nn.ReLU()]
        layers.append(nn.Conv2d(channels, 1, 3, padding=1))
        self.layers = nn.Sequential(*layers)

    def forward(self, heights: torch.Tensor) -> torch.Tensor:
        """Heights without the noise, in metres."""
        level = heights.mean(dim=(1, 2), keepdim=True)
        noise: torch.Tensor = self.layers((heights - level).unsqueeze(1) / NOISE).squeeze(1) * NOISE
        return heights - noise


def with_noise(heights: torch.Tensor) -> torch.Tensor:
    """Heights as a poor instrument would measure them."""
    return heights + NOISE * torch.randn_like(heights)


def error(found: torch.Tensor, heights: torch.Tensor) -> float:
    """By how many metres heights are off: the root of the mean square."""
    return (found - heights).square().mean().sqrt().item()


def train(network: Denoiser, patches: PatchDataset[torch.Tensor], seconds: float) -> Iterator[tuple[int, float]]:
    """Train for some time; yields the number of each step, and its error in metres."""
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    stop = time.perf_counter() + seconds
    loader = DataLoader(patches, batch_size=BATCH, num_workers=2)
    for step, heights in enumerate(loader, 1):
        cleaned = network(with_noise(heights))
        loss = (cleaned - heights).square().mean() / NOISE**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, error(cleaned.detach(), heights)
        if time.perf_counter() > stop:
            return


def picture(parts: list[torch.Tensor]) -> Image.Image:
    """Several maps of one land, side by side."""
    drawn = [shaded(part)[:, 1:-1, 1:-1].permute(1, 2, 0).numpy() for part in parts]
    gap = np.full((drawn[0].shape[0], GAP, 3), 255, np.uint8)
    return Image.fromarray(np.hstack([drawn[0], *(each for part in drawn[1:] for each in (gap, part))]))


def fill(store: str, size: int) -> None:
    """Compute and store the land to learn from, and beside it the land to be tested on."""
    with ZarrTileStore(store, tile_size=256) as tiles:
        heights, _picture = terrain(0, tiles)
        reports = [heights.fill(region) for region in (sl[0:size, 0:size], around(UNSEEN))]
    calls, seconds = sum(report.windows for report in reports), sum(report.seconds for report in reports)
    print(f"{calls} calls of f in {seconds:.2f} s to fill {store}")


def around(region: tuple[slice, ...]) -> tuple[slice, ...]:
    """A region with the pixels around it that the network and the picture look at."""
    margin = REACH + 1
    return tuple(slice(side.start - margin, side.stop + margin) for side in region)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long to train (default: %(default)s)")
    parser.add_argument(
        "--size", type=int, default=2048, help="side of the land to learn from, in pixels (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, default=Path("train.png"), help="PNG to write (default: %(default)s)")
    parser.add_argument(
        "--store",
        default="train.zarr",
        help="where the land is kept: a path or URL of a Zarr store (default: %(default)s)",
    )
    args = parser.parse_args()
    if args.size < PATCH:
        parser.error(f"--size must be at least {PATCH} pixels")
    return args


def main() -> None:
    """Fill the store, train, and show what was learnt."""
    args = arguments()
    # Two workers read meanwhile.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    fill(args.store, args.size)

    heights = ZarrTileStore(args.store, mode="r").open("heights")
    patches = PatchDataset(heights, PATCH, sl[0 : args.size, 0 : args.size], length=10**7)
    network, errors, told = Denoiser(), list[float](), time.perf_counter()
    started = told
    for step, off in train(network, patches, args.seconds):
        errors.append(off)
        if time.perf_counter() - told > args.seconds / 10:
            told = time.perf_counter()
            print(f"{told - started:5.1f} s, step {step}: off by {np.mean(errors):.1f} m")
            errors.clear()

    land = heights[around(UNSEEN)]
    noisy = with_noise(land)
    with torch.no_grad():
        cleaned = network(noisy.unsqueeze(0))[0]
    noisy, cleaned, land = (part[REACH:-REACH, REACH:-REACH] for part in (noisy, cleaned, land))
    picture([noisy, cleaned, land]).save(args.output)
    print(f"land never seen: off by {error(noisy, land):.1f} m with noise, by {error(cleaned, land):.1f} m without")
    print(f"wrote {args.output}: with noise, as the network cleans it, as it is")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError, ValidationError) as problem:
        sys.exit(str(problem))
