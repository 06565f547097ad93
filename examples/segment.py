"""Find face, flag and uniform in a photograph of 48 megapixels; kill it, run it again, and it continues.

A small network learns from a few rectangles that somebody has marked, in some seconds, and to the same bits in every
run. One call of `predict` slides it over the photograph, blends its windows, and stores a class for each pixel. The
photograph is enlarged for that to 8000 x 6000 pixels, window by window: it is never in memory.

It is the portrait of Grace Hopper among matplotlib's sample data: a photograph of the US Navy, in the public domain.
"""

from __future__ import annotations

import argparse
import sys
import time
from fractions import Fraction
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.cbook import get_sample_data
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy, interpolate

from infinite_tensor import (
    InfiniteTensor,
    Mask,
    MemoryTileStore,
    ValidationError,
    from_array,
    from_image,
    predict,
    sl,
)

ENLARGED = Fraction(8000, 600)
CELL = 16
"""Pixels along a side of what the network sees as one."""
MARKS = {
    "wall": [(17, 317, 100, 367), (192, 308, 267, 367)],
    "flag": [
        (4, 60, 50, 133),
        (25, 4, 117, 92),
        (110, 70, 150, 110),
        (160, 10, 217, 83),
        (180, 118, 215, 135),
        (200, 112, 275, 138),
        (205, 65, 245, 112),
        (245, 25, 288, 83),
        (290, 12, 320, 28),
        (220, 0, 285, 12),
        (335, 0, 390, 5),
    ],
    "face": [
        (121, 160, 137, 258),
        (140, 125, 225, 283),
        (225, 165, 255, 255),
        (275, 175, 317, 242),
        (320, 190, 330, 212),
    ],
    "uniform": [
        (45, 140, 90, 270),
        (96, 130, 108, 285),
        (275, 145, 345, 165),
        (300, 242, 345, 275),
        (345, 170, 360, 230),
        (350, 17, 500, 358),
        (350, 190, 410, 225),
        (403, 250, 440, 362),
    ],
}
"""What somebody has marked: top, left, bottom and right of rectangles, in cells of the enlarged photograph."""
UNMARKED = -1
PART = 64
"""Side of what is learnt from at a time, in cells: of as many pixels as a window."""
BATCH = 12


class Segmenter(nn.Module):
    """Scores of the classes for pixels of 0 to 255: from shape (N, 3, rows, columns) to (N, classes, rows, columns)."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        # Dilated, so that few layers reach far: 15 cells.
        for given, dilation in ((3, 1), (channels, 2), (channels, 4), (channels, 8)):
            convolution = nn.Conv2d(given, channels, 3, padding=dilation, dilation=dilation, padding_mode="reflect")
            layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
        self.of_cells = nn.Sequential(*layers, nn.Conv2d(channels, len(MARKS), 1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """The scores."""
        return interpolate(self.of_cells(in_cells(pixels)), scale_factor=CELL, mode="bilinear")


def in_cells(pixels: torch.Tensor) -> torch.Tensor:
    """The mean colours of cells, from 0 to 1."""
    return avg_pool2d(pixels / 255, CELL)


def enlarge(region: torch.Tensor) -> torch.Tensor:
    """A part of the photograph as if it had been taken with more pixels."""
    size = [int(n * ENLARGED) for n in region.shape[1:]]
    return interpolate(region[None].float(), size, mode="bicubic")[0].round().clamp(0, 255).byte()


def train(cells: torch.Tensor, steps: int) -> Segmenter:
    """A network that has learnt the marks on the photograph, of shape (3, rows, columns) in cells."""
    classes = torch.full(cells.shape[1:], UNMARKED)
    marks = [(*rectangle, number) for number, each in enumerate(MARKS.values()) for rectangle in each]
    for top, left, bottom, right, number in marks:
        classes[top:bottom, left:right] = number
    places = torch.tensor(marks)[:, :4]

    torch.manual_seed(0)
    net = Segmenter()
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for _ in range(steps):
        # Parts that hold a cell of some marks.
        begins, ends = places[torch.randint(len(places), (BATCH,))].split(2, dim=1)
        marked = begins + (torch.rand(BATCH, 2) * (ends - begins)).long()
        corners = (marked - torch.randint(PART, (BATCH, 2))).clamp(min=0).minimum(torch.tensor(classes.shape) - PART)
        parts = [sl[y : y + PART, x : x + PART] for y, x in corners.tolist()]
        scores = net.of_cells(torch.stack([cells[:, *part] for part in parts]))
        loss = cross_entropy(scores, torch.stack([classes[part] for part in parts]), ignore_index=UNMARKED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def draw(path: Path, photograph: torch.Tensor, labels: InfiniteTensor, region: tuple[slice, slice]) -> None:
    """Write a part of the photograph, with what was marked, beside the classes of its pixels."""
    rows, columns = region
    step = max(1, (rows.stop - rows.start) // 1000)
    # What the mask left out is not computed now.
    classes = labels.stored_only(len(MARKS))[rows.start : rows.stop : step, columns.start : columns.stop : step]
    names = [*MARKS, "left out"] if (classes == len(MARKS)).any() else [*MARKS]
    colours = ListedColormap([*colormaps["Set2"].colors[: len(MARKS)], (0.93, 0.93, 0.93)])

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.set_title(f"{labels.shape[0]} x {labels.shape[1]} pixels, and what was marked", fontsize=10)
    left.imshow(photograph.permute(1, 2, 0), extent=(0, labels.shape[1], labels.shape[0], 0))
    for number, rectangles in enumerate(MARKS.values()):
        for y0, x0, y1, x1 in rectangles:
            place = (x0 * CELL, y0 * CELL), (x1 - x0) * CELL, (y1 - y0) * CELL
            left.add_patch(Rectangle(*place, fill=False, edgecolor=colours(number), linewidth=1.5))
    left.set(xlim=(columns.start, columns.stop), ylim=(rows.stop, rows.start))
    right.set_title("the class of each pixel", fontsize=10)
    right.imshow(classes, cmap=colours, vmin=0, vmax=len(MARKS), interpolation="nearest")
    for axes in (left, right):
        axes.set_axis_off()
    handles = [Patch(color=colours(number), label=name) for number, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(path, dpi=100, bbox_inches="tight")


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("segment.png"), help="PNG to write (default: %(default)s)")
    parser.add_argument(
        "--store", default="segment.zarr", help="a path or URL of a Zarr store, or an .h5 file: %(default)s"
    )
    parser.add_argument(
        "--size", type=int, default=8000, help="side of the square to segment, around the middle (default: everything)"
    )
    parser.add_argument("--steps", type=int, default=200, help="how long to learn (default: %(default)s)")
    parser.add_argument("--only", choices=MARKS, help="leave out what looks from afar as if it were something else")
    return parser.parse_args()


def main() -> None:
    """Learn what was marked, find it everywhere, and draw it."""
    args = arguments()
    torch.set_num_threads(1)
    photograph = from_image(get_sample_data("grace_hopper.jpg", asfileobj=False))[:, :, 20:470]
    enlarged = from_array(photograph, dims=("c", "y", "x")).map(
        enlarge, halo=3, window=60, scale=ENLARGED, store=MemoryTileStore("64MB")
    )
    started = time.perf_counter()
    cells = enlarged.map(in_cells, window=1600, scale=Fraction(1, CELL), dtype="float32")[...]
    net = train(cells, args.steps)
    print(f"learnt from {sum(map(len, MARKS.values()))} marks in {time.perf_counter() - started:.1f} s")

    where = None
    if args.only:
        with torch.no_grad():
            seen = net.of_cells(cells[None])[0].argmax(dim=0)
        where = Mask(seen == list(MARKS).index(args.only), scale=CELL)
    rows, columns = [slice(max(0, (n - args.size) // 2), min(n, (n + args.size) // 2)) for n in enlarged.shape[1:]]
    started = time.perf_counter()
    labels = predict(net, enlarged, args.store, window=1024, reduce="argmax", region=(rows, columns), where=where)
    print(f"segmented in {time.perf_counter() - started:.1f} s")
    draw(args.output, photograph, labels, (rows, columns))
    print(f"wrote {args.output}")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, OSError, ValidationError) as error:
        sys.exit(str(error))
