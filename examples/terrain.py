"""Draw a place in a world without end: islands and mountains, the same ones whenever you come back.

Heights are the sum of three layers of random detail, each four times finer than the one before. A layer is a
tensor that reads the coarser one at its own resolution, so a picture costs the same at the origin and a billion
pixels away. Windows overlap by half, and the default sum blends them. What a window read is weighted by squares
that add up to one, the detail that it adds by their roots: so independent details vary as much between two
windows as in the middle of one, and no seam shows.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn.functional import avg_pool2d

from infinite_tensor import (
    InfiniteTensor,
    RegionError,
    TensorWindow,
    TileStore,
    ValidationError,
    cell_generator,
    open_store,
)

SIDE = 64
"""Side of a window, in pixels of its layer."""
LAYERS = (16, 4, 1)
"""Side of a pixel of each layer, in pixels of the finest one."""
FINER = 4
"""How many pixels of a layer lie along one pixel of the coarser layer."""
PIXEL = 50.0
"""Side of a pixel of the finest layer, in metres, which is the unit of heights too."""
STEEPNESS = 1.2
"""Scales all heights; more makes the slopes steeper."""

FADE = torch.sin(torch.pi / 2 * torch.hann_window(SIDE))
FADE = torch.outer(FADE, FADE)
"""From 0 at the border of a window to 1 in its middle; squared, overlapping windows add up to one."""

SHADES = {
    -3000: (16, 36, 82),
    -1200: (26, 66, 126),
    -250: (66, 128, 178),
    0: (118, 176, 204),
    1: (206, 194, 146),
    60: (128, 158, 86),
    400: (88, 132, 70),
    1000: (122, 124, 78),
    1700: (124, 106, 86),
    2300: (140, 132, 126),
    2700: (216, 222, 228),
    3600: (236, 239, 242),
}
"""Red, green and blue by height; between them colours change gradually."""


class World:
    """Heights above the sea in metres, decided by a seed.

    Parameters
    ----------
    seed : int
        Which of all worlds.
    store : TileStore
        Where its layers are kept, as ``terrain-16``, ``terrain-4`` and ``terrain-1``.

    Attributes
    ----------
    heights : InfiniteTensor
        The finest layer, of shape (None, None): row, column.
    calls : int
        How often a window of any layer was computed.
    """

    def __init__(self, seed: int, store: TileStore) -> None:
        self.seed = seed
        self.calls = 0
        window = TensorWindow((SIDE, SIDE), stride=SIDE // 2)
        # The same place in pixels of the coarser layer, and what `enlarge` needs around it.
        coarser = TensorWindow((SIDE // FINER + 3,) * 2, stride=SIDE // 2 // FINER, offset=-1)
        layers: list[InfiniteTensor] = []
        for pixel in LAYERS:
            upstream = layers[-1:]
            layer = InfiniteTensor(
                (None, None),
                partial(self.layer, pixel),
                window,
                args=upstream,
                args_windows=[coarser] * len(upstream),
                tile_store=store,
                tensor_id=f"terrain-{pixel}",
                # A store that holds a world of another seed will say so.
                version={"seed": seed},
            )
            layers.append(layer)
        self.heights = layers[-1]

    def layer(self, pixel: int, ctx: tuple[int, ...], coarse: torch.Tensor | None = None) -> torch.Tensor:
        """One window of the layer whose pixels have the side `pixel`, shape (SIDE, SIDE)."""
        self.calls += 1
        detail = FADE * self.detail(pixel, ctx)
        if coarse is None:
            return detail
        base = enlarge(coarse)
        # Mountains are rugged, lowlands and the bottom of the sea are smooth.
        ruggedness = 0.1 + 1.6 * torch.sigmoid((base - 300) / 500)
        return FADE**2 * base + ruggedness * detail

    def detail(self, pixel: int, ctx: tuple[int, ...]) -> torch.Tensor:
        """Random heights: always the same ones for one seed, layer and window."""
        rng = cell_generator(self.seed, (pixel, *ctx))
        noise = torch.fft.rfft2(torch.from_numpy(rng.standard_normal((SIDE, SIDE), np.float32)))
        heights: torch.Tensor = torch.fft.irfft2(noise * amplitudes(pixel))
        return STEEPNESS * SIDE * pixel * PIXEL * heights


def amplitudes(pixel: int) -> torch.Tensor:
    """How strong each Fourier component of a window is, in the layer whose pixels have the side `pixel`."""
    waves = torch.hypot(torch.fft.fftfreq(SIDE, 1 / SIDE)[:, None], torch.fft.rfftfreq(SIDE, 1 / SIDE))
    # A finer layer holds the waves that are too short for this one.
    shortest = 2 * FINER if pixel > 1 else SIDE
    # The longer a wave, the higher, so that relief looks alike at every scale.
    return torch.where((waves >= 2) & (waves < shortest), waves.clamp(min=1) ** -2, 0)


def enlarge(coarse: torch.Tensor) -> torch.Tensor:
    """The pixels of one finer window, interpolated by a cubic spline: square pixels, averaged three times."""
    fine = coarse.repeat_interleave(FINER, 0).repeat_interleave(FINER, 1).unsqueeze(0)
    for _ in range(3):
        fine = avg_pool2d(fine, FINER, stride=1)
    return fine[0, :SIDE, :SIDE]


def draw(heights: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Colours by height, lit from the north-west; one pixel smaller on each side than `heights`."""
    inner = heights[1:-1, 1:-1].numpy()
    stops, colours = list(SHADES), np.array(list(SHADES.values()))
    colour = np.stack([np.interp(inner, stops, colours[:, channel]) for channel in range(3)], axis=-1)
    surface = heights.clamp(min=0)
    south = (surface[2:, 1:-1] - surface[:-2, 1:-1]) / (2 * PIXEL)
    east = (surface[1:-1, 2:] - surface[1:-1, :-2]) / (2 * PIXEL)
    light = (1.3 + south + east) / torch.sqrt(1 + south**2 + east**2) / 1.3
    shade = 0.35 + 0.65 * light.clamp(min=0).numpy()
    return np.clip(colour * shade[..., None], 0, 255).astype(np.uint8)


def arguments(description: str | None, name: str, size: int) -> argparse.Namespace:
    """What the command line says; `name` begins the names of the files, `size` is the default side of the picture."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--x", type=int, default=0, help="leftmost column, in pixels (default: %(default)s)")
    parser.add_argument("--y", type=int, default=0, help="uppermost row, in pixels (default: %(default)s)")
    parser.add_argument("--size", type=int, default=size, help="side of the picture, in pixels (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which world (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(f"{name}.png"), help="PNG to write (default: %(default)s)")
    parser.add_argument(
        "--store",
        default=f"{name}.zarr",
        help="where the tiles are kept: a path or URL of a Zarr store, or an .h5 file (default: %(default)s)",
    )
    args = parser.parse_args()
    if args.size < 1:
        parser.error("--size must be at least 1 pixel")
    if args.seed < 0:
        parser.error("--seed must be at least 0")
    return args


def main() -> None:
    """Read a region of the world, draw it, and tell what it took."""
    args = arguments(__doc__, "terrain", size=640)
    # Windows are small: more threads would cost more than they bring.
    torch.set_num_threads(1)
    started = time.perf_counter()
    with open_store(args.store, tile_size=256) as store:
        try:
            world = World(args.seed, store)
        except ValidationError as error:
            sys.exit(f"{error}\n\nA store keeps one world: give another --store, or delete this one.")
        # A slope is told from the pixels on either side.
        heights = world.heights[args.y - 1 : args.y + args.size + 1, args.x - 1 : args.x + args.size + 1]
    seconds = time.perf_counter() - started

    Image.fromarray(draw(heights)).save(args.output)
    remark = "everything was in the store" if world.calls == 0 else "run it again, and there will be none"
    print(f"{world.calls} calls of f in {seconds:.2f} s: {remark}")
    print(f"wrote {args.output}: heights from {heights.min():.0f} to {heights.max():.0f} m")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError, RegionError) as error:
        sys.exit(str(error))
