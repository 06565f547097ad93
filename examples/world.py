"""Draw a place in a world whose height, biomes and colours come from one network, all from the same call.

A network with random weights, decided by a seed, turns a coarse map of noise into a relief and a rainfall, and these
into biomes and colours. It sees one window at a time, so it knows nothing of what lies beyond the border of a window:
windows overlap by half, and fade into each other. Biomes are numbers, which cannot fade, so of these each window gives
its middle only. The four tensors are a group, which is read, stored and found again as one; the coarse map is an
eighth of the size of the others.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np
import torch
from PIL import Image
from terrain import arguments
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate, one_hot

from infinite_tensor import (
    InfiniteTensor,
    Output,
    TensorGroup,
    TensorWindow,
    TileStore,
    ValidationError,
    open_store,
    window_rng,
)
from infinite_tensor.errors import RegionError

SIDE = 96
"""Side of a window, in pixels."""
STRIDE = SIDE // 2
COARSE = 8
"""Side of a pixel of the coarse map, in pixels."""
AROUND = 4
"""Coarse pixels on each side of a window that the network is given too."""
GAP = 8
"""White pixels between the parts of the picture."""

FADE = torch.outer(torch.hann_window(SIDE), torch.hann_window(SIDE))
"""From 0 at the border of a window to 1 in its middle; overlapping windows add up to one."""

BIOMES = {
    "deep sea": (28, 58, 112),
    "shallow sea": (84, 148, 186),
    "beach": (214, 200, 150),
    "steppe": (176, 176, 104),
    "grassland": (126, 164, 84),
    "forest": (62, 112, 64),
    "rock": (128, 122, 116),
    "snow": (238, 240, 244),
}
COLOURS = torch.tensor(list(BIOMES.values()), dtype=torch.float32) / 255


class Painter(nn.Module):
    """Turns a coarse map of noise into a relief and a rainfall.

    Parameters
    ----------
    seed : int
        Decides the weights.
    """

    def __init__(self, seed: int, channels: int = 24) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Conv2d(6, channels, 5, padding=2, padding_mode="reflect"),
                nn.Tanh(),
                nn.Conv2d(channels, channels, 3, padding=3, dilation=3, padding_mode="reflect"),
                nn.Tanh(),
                nn.Conv2d(channels, 2, 1),
            )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Relief and rainfall of shape (2, rows, columns), from coarse noise of shape (2, rows, columns)."""
        # Noise of three sizes: the larger, the higher.
        octaves = [avg_pool2d(noise[None], n, 1, n // 2, count_include_pad=False) * n for n in (7, 3, 1)]
        fine = interpolate(torch.cat(octaves, dim=1), scale_factor=COARSE, mode="bicubic", align_corners=False)
        margin = AROUND * COARSE
        fine = fine[..., margin:-margin, margin:-margin]
        mean = 0.7 * fine[0, 0:2] + 0.3 * fine[0, 2:4] + 0.08 * fine[0, 4:6]
        detail: torch.Tensor = self.layers(fine)[0]
        return mean + 0.8 * detail


class World:
    """Height, biome and colour of every place, decided by a seed.

    Parameters
    ----------
    seed : int
        Which of all worlds.
    store : TileStore
        Where it is kept.

    Attributes
    ----------
    group : TensorGroup
        ``height`` and ``colour``, ``("biome", "id")``, and ``noise`` at an eighth of the resolution.
    calls : int
        How often a function was called.
    """

    def __init__(self, seed: int, store: TileStore) -> None:
        self.seed = seed
        self.calls = 0
        noise = InfiniteTensor(
            (2, None, None), self.noise, TensorWindow((2, 32, 32)), tile_store=store, tensor_id="noise", version=seed
        )
        coarse = TensorWindow((2, SIDE // COARSE, SIDE // COARSE), stride=STRIDE // COARSE, dimension_map=(None, 0, 1))
        window = TensorWindow((SIDE, SIDE), stride=STRIDE)
        middle = TensorWindow((STRIDE, STRIDE), offset=SIDE // 4)
        painted = InfiniteTensor.from_multi(
            partial(self.paint, Painter(seed).eval()),
            {
                "height": Output((None, None), torch.float32, window),
                "biome": {"id": Output((None, None), torch.uint8, middle)},
                "colour": Output(
                    (3, None, None),
                    torch.float32,
                    TensorWindow((3, SIDE, SIDE), stride=(3, STRIDE, STRIDE), dimension_map=(None, 0, 1)),
                ),
            },
            args=[noise],
            args_windows=[coarse.padded(AROUND)],
            tile_store=store,
            tensor_id="world",
            version=seed,
        )
        self.group = TensorGroup({**dict(painted.items()), "noise": noise}, scale={"noise": 1 / COARSE})

    def noise(self, ctx: tuple[int, ...]) -> torch.Tensor:
        """One window of the coarse map, shape (2, 32, 32)."""
        self.calls += 1
        rng = window_rng(self.seed, ctx)
        return torch.from_numpy(rng.standard_normal((2, 32, 32), np.float32))

    def paint(self, painter: Painter, ctx: tuple[int, ...], noise: torch.Tensor) -> dict[str, object]:
        """One window of everything else."""
        del ctx  # The noise says where it is.
        self.calls += 1
        relief, rain = painter(noise)
        biome = biomes(relief, rain)
        south, east = torch.gradient(relief.clamp(min=0))
        light = (0.9 + 3 * (south + east)).clamp(0.5, 1.15)
        colour = (COLOURS[biome] * light[..., None]).clamp(0, 1)
        inner = slice(SIDE // 4, SIDE // 4 + STRIDE)
        return {
            "height": FADE * relief * 1500,
            "biome": {"id": biome[inner, inner].to(torch.uint8)},
            "colour": FADE * colour.permute(2, 0, 1),
        }


def biomes(relief: torch.Tensor, rain: torch.Tensor) -> torch.Tensor:
    """The number of the biome at each pixel."""
    land = torch.where(rain > 0.35, 5, torch.where(rain > -0.35, 4, 3))
    land = torch.where(relief > 1.4, 7, torch.where(relief > 1.0, 6, land))
    sea = torch.where(relief < -0.5, 0, 1)
    return torch.where(relief < 0, sea, torch.where(relief < 0.07, 2, land))


def draw(height: torch.Tensor, biome: torch.Tensor, colour: torch.Tensor) -> Image.Image:
    """Height in grey, biomes in their colours, and the colours, side by side."""
    grey = ((height + 4000) / 7500).clamp(0, 1)[..., None].expand(-1, -1, 3)
    kinds = one_hot(biome.long(), len(BIOMES)).float() @ COLOURS
    gap = torch.ones(len(height), GAP, 3)
    picture = torch.cat([grey, gap, kinds, gap, colour.clamp(0, 1)], dim=1)
    return Image.fromarray((picture * 255).round().numpy().astype(np.uint8))


def main() -> None:
    """Read a region of the world, draw it, and tell what it took."""
    args = arguments(__doc__, "world", size=384)
    torch.set_num_threads(1)
    started = time.perf_counter()
    with open_store(args.store, tile_size=256) as store:
        try:
            world = World(args.seed, store)
        except ValidationError as error:
            sys.exit(f"{error}\n\nA store keeps one world: give another --store, or delete this one.")
        # From now on anybody may read what is stored, without this script: store.open_group("world").
        world.group.save(store, "world")
        place = world.group.exclude("noise")[args.y : args.y + args.size, args.x : args.x + args.size]
    seconds = time.perf_counter() - started

    draw(place["height"], place["biome", "id"], place["colour"]).save(args.output)
    remark = "everything was in the store" if world.calls == 0 else "run it again, and there will be none"
    print(f"{world.calls} calls of f in {seconds:.2f} s: {remark}")
    counts = torch.bincount(place["biome", "id"].flatten().long(), minlength=len(BIOMES))
    shares = [f"{name} {count / counts.sum():.0%}" for name, count in zip(BIOMES, counts, strict=True) if count]
    print(f"wrote {args.output}: {', '.join(shares)}")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError, RegionError) as error:
        sys.exit(str(error))
