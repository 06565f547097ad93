"""Blur a picture without borders twice, window by window; a second run computes nothing.

The image is mirrored at its borders over and over, so that it fills a plane without end. `map` chains two blurs behind
it, each of which is given its input with a halo as wide as the kernel reaches: so borders between windows do not show.
All three tensors are kept in one store, where a later run finds them again. The default image is in the public domain.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from PIL import Image, ImageOps
from torch.nn.functional import conv2d

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore, ValidationError, from_array, open_store, sl

SIDE = 128  # of a window, and of a tile in the store, in pixels


def blurred_plane(image: torch.Tensor, sigma: float, store: TileStore) -> tuple[InfiniteTensor, InfiniteTensor]:
    """The mirrored image, of shape (3, None, None), from 0 to 1, and what is left of it after two blurs."""
    args, window = [from_array(image)], TensorWindow((3, SIDE, SIDE))
    mirrored = {"args": args, "args_windows": [window], "args_padding": "symmetric", "tile_store": store}
    plane = InfiniteTensor((3, None, None), lambda _, pixels: pixels / 255, window, tensor_id="plane", **mirrored)
    # Three standard deviations on either side, in weights that sum to one.
    reach = math.ceil(3 * sigma)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    kernel /= kernel.sum()

    def blur(region: torch.Tensor) -> torch.Tensor:
        # Each channel is an image of its own; a Gaussian is a blur along the columns, then along the rows.
        along_columns = conv2d(region.unsqueeze(1), kernel.view(1, 1, -1, 1))
        return conv2d(along_columns, kernel.view(1, 1, 1, -1)).squeeze(1)

    once = plane.map(blur, halo=reach, window=SIDE, store=store, tensor_id="once")
    return plane, once.map(blur, halo=reach, window=SIDE, store=store, tensor_id="twice")


def read_image(path: Path) -> torch.Tensor:
    """The pixels of an image file, shape (3, height, width), from 0 to 255."""
    with Image.open(path) as file:
        return torch.from_numpy(np.array(ImageOps.exif_transpose(file).convert("RGB"))).permute(2, 0, 1)


def main() -> None:
    """Fill the chain where the picture is, write the picture, and tell what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", type=Path, help="any image file (default: Grace Hopper, of the US Navy)")
    parser.add_argument("--output", type=Path, default=Path("blur.png"), help="PNG to write (default: %(default)s)")
    parser.add_argument("--store", default="blur.zarr", help="a path or URL of a Zarr store, or .h5 file: %(default)s")
    parser.add_argument("--sigma", type=float, default=4.0, help="of each blur, in pixels (default: %(default)s)")
    parser.add_argument("--size", type=int, help="side of the square to show, around the middle (default: the image)")
    args = parser.parse_args()
    if not (0 < args.sigma <= 100 and (args.size is None or args.size > 0)):
        parser.error("--sigma must be above 0 and at most 100, and --size at least 1")

    torch.set_num_threads(1)  # windows are small: more would cost more than they bring
    image = read_image(args.image or Path(get_sample_data("grace_hopper.jpg", asfileobj=False)))
    height, width = image.shape[1:]
    rows, columns = args.size or height, args.size or width
    top, left = (height - rows) // 2, (width - columns) // 2
    region = sl[:, top : top + rows, left : left + columns]
    with open_store(args.store, tile_size=SIDE) as store:
        plane, twice = blurred_plane(image, args.sigma, store)
        report = twice.fill(region, progress=False)
        before, after = plane[region], twice[region]

    row = torch.cat([before, torch.ones(3, rows, 8), after], dim=2)
    Image.fromarray((row * 255).round().byte().permute(1, 2, 0).numpy()).save(args.output)
    remark = "run it again, and there will be none" if report.windows else "everything was in the store"
    print(f"{report.windows} calls of f in {report.seconds:.2f} s: {remark}")
    print(f"wrote {args.output}: the image on the left, blurred twice on the right")


if __name__ == "__main__":
    try:
        main()
    except ValidationError as error:
        sys.exit(f"{error}\n\nA store keeps one image and one sigma: give another --store, or delete this one.")
    except (ImportError, OSError) as error:
        sys.exit(str(error))
