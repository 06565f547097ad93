"""Runs the examples and keeps small pictures of what they write, for docs/gallery.md, docs/index.md and the README.

``python docs/drawings/gallery.py`` writes them, which takes about four minutes; ``--folder`` says where to.
"""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from matplotlib import colormaps, get_data_path
from matplotlib.cbook import get_sample_data
from PIL import Image, ImageDraw, ImageFont

from infinite_tensor import open_store, sl

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 480, 350
PANEL, GAP = (320, 400), 8
"""Width and height of each half of the pictures on the first page, and the pixels between them."""
WORLDS = ("planet", "joint_diffusion", "voxels", "erosion", "generator")
PAINTERS = (*WORLDS, "blur", "terrain", "world", "features", "train", "segment")
PLACES = (sl[:, -120:280, 0:320], sl[:, 0:400, 10**12 : 10**12 + 320])
"""What the first page shows of the terrain: near the origin, and far from it."""


def run(example: str, folder: Path) -> str:
    """Run an example in a folder. Returns what it prints."""
    command = [sys.executable, str(ROOT / "examples" / f"{example}.py")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout  # noqa: S603  (an example)


def save(picture: Image.Image, path: Path) -> None:
    """Write a picture in few bytes."""
    picture.save(path, quality=80, method=6)


def thumbnail(path: Path) -> Image.Image:
    """A picture in the width of a card, without what would make it higher than that is."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").resize((WIDTH, round(picture.height * WIDTH / picture.width)), Image.LANCZOS)
    return small.crop((0, 0, WIDTH, min(small.height, HEIGHT)))


def written(text: str) -> Image.Image:
    """What a terminal shows."""
    lines = text.strip().splitlines()
    picture = Image.new("RGB", (WIDTH, 23 * len(lines) + 20), (30, 33, 41))
    font = ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf", 14)
    ImageDraw.Draw(picture).multiline_text((16, 14), "\n".join(lines), (220, 223, 228), font, spacing=8)
    return picture


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Two panels, and a transparent gap between them."""
    width, height = PANEL
    both = Image.new("RGBA", (2 * width + GAP, height))
    both.paste(left, (0, 0))
    both.paste(right, (width + GAP, 0))
    return both


def worlds(folder: Path) -> Image.Image:
    """Two places of the terrain that an example has stored."""
    example = runpy.run_path(str(ROOT / "examples" / "terrain.py"))
    with open_store(folder / "terrain.zarr") as store:
        _, picture = example["terrain"](0, store)
        return beside(*(Image.fromarray(picture[place].permute(1, 2, 0).numpy()) for place in PLACES))


def segmentation(folder: Path) -> Image.Image:
    """The photograph that an example segments, and the classes that it has stored for its pixels."""
    with open_store(folder / "segment.zarr", mode="r") as store:
        (tensor_id,) = store.tensor_ids()
        classes = store.open(tensor_id)[::20, ::20].numpy()
    labels = Image.fromarray((colormaps["Set2"](classes)[..., :3] * 255).round().astype("uint8"))
    with Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)) as photograph:
        halves = [photograph.convert("RGB").crop((20, 0, 470, 600)), labels]
    width, height = PANEL
    return beside(*(half.resize((width, width * 4 // 3)).crop((0, 0, width, height)) for half in halves))


def gallery(images: Path) -> None:
    """Run all examples, and write the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for example in PAINTERS:
            run(example, folder)
            save(thumbnail(folder / f"{example}.png"), images / f"gallery-{example}.webp")
        save(written(run("embeddings", folder)), images / "gallery-embeddings.webp")
        save(worlds(folder), images / "world-far.webp")
        save(segmentation(folder), images / "segmentation.webp")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    gallery(parser.parse_args().folder)
