"""Blur a picture without borders twice, window by window; a second run computes nothing.

The image is mirrored at its borders over and over, so that it fills a plane without end. Two blurs are
chained behind it. A window of a blur reads its input with a margin as wide as the kernel reaches, so the
borders between windows do not show. All three tensors live in one store, where a later run finds them again.

The default image is the portrait of Grace Hopper among matplotlib's sample data: a photograph of the US Navy,
in the public domain.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from PIL import Image, ImageOps
from torch.nn.functional import conv2d

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore, ValidationError, open_store, sl

SIDE = 128
"""Side of a window, and of a tile in the store, in pixels."""
GAP = 8
"""Pixels between the two pictures."""


class BlurredPlane:
    """The mirrored image, and what is left of it after one and after two blurs.

    Parameters
    ----------
    image : torch.Tensor
        Pixels of shape (3, height, width), float32 from 0 to 1.
    sigma : float
        Standard deviation of each blur, in pixels.
    store : TileStore
        Where the tensors ``plane``, ``once`` and ``twice`` are kept.
    """

    def __init__(self, image: torch.Tensor, sigma: float, store: TileStore) -> None:
        self.image = image
        self.kernel = gaussian(sigma)
        self.calls = 0
        margin = len(self.kernel) // 2
        self.window = TensorWindow((3, SIDE, SIDE))
        self.padded = self.window.padded((0, margin, margin))
        digest = hashlib.sha256(image.numpy().tobytes()).hexdigest()
        self.plane = InfiniteTensor(
            (3, None, None),
            self.mirrored,
            self.window,
            tile_store=store,
            tensor_id="plane",
            # A store that holds another image will say so.
            version={"image": digest, "shape": list(image.shape)},
        )
        self.once = self.blur_of(self.plane, "once", sigma)
        self.twice = self.blur_of(self.once, "twice", sigma)

    def blur_of(self, source: InfiniteTensor, tensor_id: str, sigma: float) -> InfiniteTensor:
        """`source` blurred: each window is computed from a larger region of `source` around it."""
        return InfiniteTensor(
            source.shape,
            self.blurred,
            self.window,
            args=(source,),
            args_windows=(self.padded,),
            tile_store=source.tile_store,
            tensor_id=tensor_id,
            version={"sigma": sigma},
        )

    def mirrored(self, ctx: tuple[int, ...]) -> torch.Tensor:
        """One window of the plane, shape (3, SIDE, SIDE)."""
        self.calls += 1
        _, rows, columns = self.window.get_bounds(ctx)
        height, width = self.image.shape[1:]
        return self.image[:, mirror(rows, height)][:, :, mirror(columns, width)]

    def blurred(self, _ctx: tuple[int, ...], region: torch.Tensor) -> torch.Tensor:
        """One window of a blur, shape (3, SIDE, SIDE), from `region`, which is a margin larger on each side."""
        self.calls += 1
        # Each channel is an image of its own; a Gaussian is a blur along the columns, then along the rows.
        along_columns = conv2d(region.unsqueeze(1), self.kernel.view(1, 1, -1, 1))
        return conv2d(along_columns, self.kernel.view(1, 1, 1, -1)).squeeze(1)


def gaussian(sigma: float) -> torch.Tensor:
    """Weights that sum to one, out to three standard deviations on either side."""
    reach = math.ceil(3 * sigma)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    return weights / weights.sum()


def mirror(pixels: slice, extent: int) -> torch.Tensor:
    """Where in the image each pixel of the plane comes from: for extent 3 it is ... 1 0 0 1 2 2 1 0 0 1 ..."""
    position = torch.arange(pixels.start, pixels.stop) % (2 * extent)
    return torch.minimum(position, 2 * extent - 1 - position)


def read_image(path: Path) -> torch.Tensor:
    """The pixels of an image file, shape (3, height, width), from 0 to 1."""
    with Image.open(path) as file:
        pixels = np.array(ImageOps.exif_transpose(file).convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous() / 255


def write_side_by_side(path: Path, left: torch.Tensor, right: torch.Tensor) -> None:
    """Write two pictures of shape (3, height, width) to one file, with a white gap between them."""
    row = torch.cat([left, torch.ones(3, left.shape[1], GAP), right], dim=2)
    Image.fromarray((row * 255).round().byte().permute(1, 2, 0).numpy()).save(path)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", type=Path, help="any image file (default: Grace Hopper)")
    parser.add_argument("--output", type=Path, default=Path("blur.png"), help="PNG to write (default: %(default)s)")
    parser.add_argument(
        "--store",
        default="blur.zarr",
        help="where the tiles are kept: a path or URL of a Zarr store, or an .h5 file (default: %(default)s)",
    )
    parser.add_argument("--sigma", type=float, default=4.0, help="of each blur, in pixels (default: %(default)s)")
    parser.add_argument(
        "--size", type=int, help="side of the square to show, around the middle of the image (default: the image)"
    )
    args = parser.parse_args()
    if not 0 < args.sigma <= 100:
        parser.error("--sigma must be more than 0 and at most 100 pixels")
    if args.size is not None and args.size < 1:
        parser.error("--size must be at least 1 pixel")
    return args


def main() -> None:
    """Read both ends of the chain, write the picture, and tell what it took."""
    args = arguments()
    # Windows are small: more threads would cost more than they bring.
    torch.set_num_threads(1)
    image = read_image(args.image or Path(get_sample_data("grace_hopper.jpg", asfileobj=False)))
    height, width = image.shape[1:]
    rows, columns = args.size or height, args.size or width
    top, left = (height - rows) // 2, (width - columns) // 2
    region = sl[:, top : top + rows, left : left + columns]

    started = time.perf_counter()
    with open_store(args.store, tile_size=SIDE) as store:
        try:
            tensors = BlurredPlane(image, args.sigma, store)
        except ValidationError as error:
            sys.exit(f"{error}\n\nA store keeps one image and one sigma: give another --store, or delete this one.")
        before, after = tensors.plane[region], tensors.twice[region]
    seconds = time.perf_counter() - started

    write_side_by_side(args.output, before, after)
    remark = "everything was in the store" if tensors.calls == 0 else "run it again, and there will be none"
    print(f"{tensors.calls} calls of f in {seconds:.2f} s: {remark}")
    print(f"wrote {args.output}: the image on the left, blurred twice on the right")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError) as error:
        sys.exit(str(error))
