"""Draw a place in a world without end: islands and mountains, the same ones whenever you come back.

Heights are the sum of three octaves of noise, each four times finer than the one before. `map` gives each function what
it needs around a window, and crops it again: ten pixels for the filter and enlargement of an octave, one for the hill
shading. So no seam shows, and a picture costs the same at the origin and a billion pixels away. Heights and picture are
kept in a store, where a later run finds them again.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import conv2d, interpolate

import infinite_tensor
from infinite_tensor import InfiniteTensor, TileStore, ValidationError, noise, open_store, sl
from infinite_tensor.errors import RegionError

PIXEL = 50.0  # metres, the unit of heights too
HEIGHTS = (-3000, -1200, -250, 0, 1, 60, 400, 1000, 1700, 2300, 2700, 3600)
COLOURS = (  # red, green and blue at these heights
    (16, 26, 66, 118, 206, 128, 88, 122, 124, 140, 216, 236),
    (36, 66, 128, 176, 194, 158, 132, 124, 106, 132, 222, 239),
    (82, 126, 178, 204, 146, 86, 70, 78, 86, 126, 228, 242),
)


def terrain(seed: int, store: TileStore) -> tuple[InfiniteTensor, InfiniteTensor]:
    """Heights in metres, of shape (None, None), and the picture of them, of shape (3, None, None)."""
    octaves = [
        noise((None, None), seed, size, "normal").map(partial(octave, size), halo=10, scale=size) for size in (16, 4, 1)
    ]
    heights = infinite_tensor.map_windows(total, *octaves, store=store, tensor_id="heights", version={"seed": seed})
    return heights, heights.map(shaded, halo=1, channels=3, dtype="uint8", store=store, tensor_id="picture")


def octave(size: int, numbers: torch.Tensor) -> torch.Tensor:
    """Hills of the finest resolution, from random numbers for pixels that are `size` times as long."""
    line = torch.arange(-8, 9.0)
    # The larger a hill, the higher, so that relief looks alike at every scale.
    kernel = torch.log(8 / torch.hypot(line, line[:, None]).clamp(min=1)).clamp(min=0)
    hills = conv2d(numbers[None, None], kernel[None, None], padding="same")
    return 7 * size * interpolate(hills, scale_factor=size, mode="bicubic", antialias=True)[0, 0]


def total(heights: torch.Tensor, *finer: torch.Tensor) -> torch.Tensor:
    """The sum of all octaves: mountains are rugged, lowlands and the bottom of the sea are smooth."""
    for hills in finer:
        heights = heights + (0.1 + 1.6 * torch.sigmoid((heights - 300) / 500)) * hills
    return heights


def shaded(heights: torch.Tensor) -> torch.Tensor:
    """Colours by height, lit from the north-west: shape (3, height, width)."""
    south, east = torch.gradient(heights.clamp(min=0), spacing=PIXEL)
    light = 0.35 + 0.5 * ((1.3 + south + east) / torch.sqrt(1 + south**2 + east**2)).clamp(min=0)
    colours = torch.from_numpy(np.stack([np.interp(heights.numpy(), HEIGHTS, band) for band in COLOURS]))
    return (colours * light).clamp(max=255).byte()


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
    """Fill a region of the picture, write it, and tell what it took."""
    args = arguments(__doc__, "terrain", size=640)
    # Windows are small: more threads would cost more than they bring.
    torch.set_num_threads(1)
    place = sl[args.y : args.y + args.size, args.x : args.x + args.size]
    with open_store(args.store, tile_size=256) as store:
        try:
            heights, picture = terrain(args.seed, store)
        except ValidationError as error:
            sys.exit(f"{error}\n\nA store keeps one world: give another --store, or delete this one.")
        report = picture.fill((slice(None), *place), progress=False)
        metres, pixels = heights[place], picture[(slice(None), *place)]

    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(args.output)
    remark = "run it again, and there will be none" if report.windows else "everything was in the store"
    print(f"{report.windows} calls of f in {report.seconds:.2f} s: {remark}")
    print(f"wrote {args.output}: heights from {metres.min():.0f} to {metres.max():.0f} m")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError, RegionError) as error:
        sys.exit(str(error))
