"""Learn a photograph with a network whose first layer is drawn from an infinite field.

The first layer looks at where a pixel is, by waves of random directions and lengths; only the second one, which
mixes the waves into colours, is learnt. The waves are rows of a field without end: a wider network takes more of
them, and its first ones are those of the narrower network. So the field needs a seed and no memory, and a checkpoint
holds the second layer and where the field is found, not the waves.

The photograph is the portrait of Grace Hopper among matplotlib's sample data: of the US Navy, in the public domain.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from PIL import Image, ImageOps
from torch import nn
from torch.nn.functional import linear

from infinite_tensor import (
    InfiniteBuffer,
    InfiniteTensor,
    TensorWindow,
    TileStore,
    ValidationError,
    VirtualTensor,
    ZarrTileStore,
    window_rng,
)

ROWS = 64
"""How many waves a window of the field holds."""
DETAIL = 14.0
"""How many of the shorter waves lie across the picture."""
RIDGE = 1e-4
"""How much less is made of waves that hardly help, so that what is learnt stays small."""
GAP = 8
"""White pixels between the parts of the picture."""


class Waves:
    """An endless supply of random waves.

    Parameters
    ----------
    seed : int
        Which of all supplies.
    store : TileStore
        Where they are kept, as ``waves``.

    Attributes
    ----------
    field : InfiniteTensor
        Shape (None, 3): by wave, how often it repeats downwards and rightwards, and where it begins.
    calls : int
        How often a window was drawn.
    """

    def __init__(self, seed: int, store: TileStore) -> None:
        self.seed = seed
        self.calls = 0
        self.field = InfiniteTensor(
            (None, 3), self.draw, TensorWindow((ROWS, 3)), tile_store=store, tensor_id="waves", version={"seed": seed}
        )

    def draw(self, ctx: tuple[int, ...]) -> torch.Tensor:
        """One window: ROWS waves."""
        self.calls += 1
        rng = window_rng(self.seed, ctx)
        scale, phase = rng.random((2, ROWS, 1), np.float32)
        # Long waves for what is large in a picture, short ones for its details.
        waves = DETAIL * scale * rng.standard_normal((ROWS, 2), np.float32)
        return torch.from_numpy(np.concatenate([waves, phase], axis=1))


class Painter(nn.Module):
    """From places to colours.

    Parameters
    ----------
    width : int
        How many waves it mixes.
    waves : InfiniteTensor, optional
        The field that they are drawn from. Default: the one that a state names, once it is loaded.
    """

    waves: VirtualTensor

    def __init__(self, width: int, waves: InfiniteTensor | None = None) -> None:
        super().__init__()
        self.width = width
        self.field = InfiniteBuffer(waves)
        self.mix = nn.Linear(width, 3)
        VirtualTensor.create(self, "waves", "first")

    def first(self, _dtype: torch.dtype, _device: torch.device) -> torch.Tensor:
        """The waves that it mixes, shape (width, 3)."""
        waves: torch.Tensor = self.field[0 : self.width]
        return waves

    def features(self, places: torch.Tensor) -> torch.Tensor:
        """How high each wave is, for places of shape (N, 2) from 0 to 1; shape (N, width)."""
        waves = self.waves.value
        return torch.cos(2 * math.pi * linear(places, waves[:, :2], waves[:, 2]))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Red, green and blue from 0 to 1, shape (N, 3)."""
        colours: torch.Tensor = self.mix(self.features(places)).clamp(0, 1)
        return colours

    @torch.no_grad()
    def learn(self, places: torch.Tensor, colours: torch.Tensor) -> None:
        """Find the mixture that comes closest to `colours` at `places`: no steps, it has a formula."""
        features = self.features(places)
        centre, mean = features.mean(dim=0), colours.mean(dim=0)
        features = features - centre
        gram = features.T @ features + RIDGE * len(places) * torch.eye(self.width)
        self.mix.weight.copy_(torch.linalg.solve(gram, features.T @ (colours - mean)).T)
        self.mix.bias.copy_(mean - self.mix.weight @ centre)


def photograph(size: int) -> torch.Tensor:
    """The middle of the photograph, shape (size, size, 3), from 0 to 1."""
    with get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        pixels = np.array(ImageOps.fit(image.convert("RGB"), (size, size)))
    return torch.from_numpy(pixels).float() / 255


def grid(size: int) -> torch.Tensor:
    """The places of the pixels of a square picture, shape (size * size, 2), from 0 to 1."""
    line = (torch.arange(size) + 0.5) / size
    return torch.cartesian_prod(line, line)


def error(found: torch.Tensor, colours: torch.Tensor) -> float:
    """By how many steps of 256 colours are off: the root of the mean square."""
    return 255 * (found - colours).square().mean().sqrt().item()


def write_side_by_side(path: Path, parts: list[torch.Tensor]) -> None:
    """Write pictures of shape (size, size, 3) to one file, with white gaps between them."""
    gap = torch.ones(parts[0].shape[0], GAP, 3)
    row = torch.cat([parts[0], *(each for part in parts[1:] for each in (gap, part))], dim=1)
    Image.fromarray((row * 255).round().byte().numpy()).save(path)


def learn(widths: list[int], waves: InfiniteTensor, image: torch.Tensor, checkpoint: Path) -> list[torch.Tensor]:
    """Learn the picture with networks of several widths, and save the last one; what each of them paints."""
    places, colours = grid(image.shape[0]), image.reshape(-1, 3)
    found = []
    for width in widths:
        painter = Painter(width, waves)
        painter.learn(places, colours)
        with torch.no_grad():
            found.append(painter(places).reshape(image.shape))
        print(f"{width} waves: off by {error(found[-1], image):.1f} of 255")
        torch.save(painter.state_dict(), checkpoint)
    return found


def painted(checkpoint: Path, size: int) -> torch.Tensor:
    """The picture of a network that is made from its checkpoint alone."""
    state = torch.load(checkpoint, weights_only=True)
    painter = Painter(state["mix.weight"].shape[1])
    painter.load_state_dict(state)
    with torch.no_grad():
        return painter(grid(size)).reshape(size, size, 3)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=96, help="side of the picture, in pixels (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the waves (default: %(default)s)")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[64, 512, 2048], help="how many waves to mix (default: 64 512 2048)"
    )
    parser.add_argument("--output", type=Path, default=Path("features.png"), help="PNG to write (default: %(default)s)")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("features.pt"), help="state to write (default: %(default)s)"
    )
    parser.add_argument(
        "--store",
        default="features.zarr",
        help="where the waves are kept: a path or URL of a Zarr store (default: %(default)s)",
    )
    args = parser.parse_args()
    if min(args.size, *args.widths) < 1:
        parser.error("--size and --widths must be at least 1")
    return args


def main() -> None:
    """Learn the photograph, and paint it from the checkpoint of the widest network."""
    args = arguments()
    image = photograph(args.size)
    started = time.perf_counter()
    with ZarrTileStore(args.store, tile_size=4 * ROWS) as store:
        waves = Waves(args.seed, store)
        waves.field[0 : max(args.widths)]
        print(f"{waves.calls} calls of f in {time.perf_counter() - started:.2f} s to draw the waves")
        pictures = [image, *learn(sorted(args.widths), waves.field, image, args.checkpoint)]
    # Nothing of what has learnt is left but the file.
    pictures[-1] = painted(args.checkpoint, args.size)
    write_side_by_side(args.output, pictures)
    print(f"wrote {args.output}: the photograph, and as it is learnt; the last one is painted from {args.checkpoint}")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError, ValidationError) as problem:
        sys.exit(str(problem))
