"""Draws the layers of the library, as the contract in pyproject.toml has them, into layers.svg beside it.

python docs/drawings/layers.py
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
DRAWING = Path(__file__).with_suffix(".svg")

WIDTH, ROW, GAP, MARGIN = 900, 40, 8, 16
LABELS = {
    "cli": "the command infinite-tensor",
    "compat": "the spelling of version 0.2",
    "views": "what other people's tools open: zarr, xarray, Dask, files",
    "pipelines": "a user's work in one call: sources, noise, map, predict",
    "testing": "for backends",
    "datasets": "for a DataLoader",
    "modules": "for a torch.nn.Module",
    "infinite_tensor_stores": "zarr, hdf5, S3, blobs",
    "groups": "tensors under names",
    "opening": "from an id, from a pickle",
    "describing": "what pixels mean",
    "tensor": "InfiniteTensor",
    "construction": "checks a new tensor, and stores it",
    "outputs": "what users declare of an f",
    "refusals": "what only a torch.Tensor can do",
    "operators": "a + b, torch.where: lazy tensors",
    "filling": "plan, fill, invalidate",
    "engine": "plan, run, assemble",
    "tilestore": "keeps windows and tiles",
    "values": "what a pixel is",
    "geometry": "integers: windows, regions, sets",
    "support": "nothing of tensors",
    "errors": "every exception",
}


def layers() -> list[list[str]]:
    """The rows from the roof down; the modules of a row do not know each other."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    house, stores, _ = contracts["contracts"]
    rows = [[name.strip() for name in row.split("|")] for row in house["layers"]]
    below = stores["layers"][stores["layers"].index("infinite_tensor_stores") + 1]
    at = rows.index([below.split(":")[0].strip().rpartition(".")[2]])
    return [*rows[:at], ["infinite_tensor_stores"], *rows[at:]]


def drawing() -> str:
    """The rows as an SVG."""
    rows = layers()
    height = 2 * MARGIN + len(rows) * (ROW + GAP) - GAP
    font = 'font-family="DejaVu Sans, Verdana, Arial, sans-serif" font-size="15" fill="#1f2328"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {font}>',
        "  <title>The layers of the library: each imports what stands below it, and nothing above.</title>",
        f'  <rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, names in enumerate(rows):
        width = (WIDTH - 2 * MARGIN - (len(names) - 1) * GAP) // len(names)
        for at, name in enumerate(names):
            x, y = MARGIN + at * (width + GAP), MARGIN + number * (ROW + GAP)
            colour = "#fff3bf" if name == "infinite_tensor_stores" else "#e7f5ff"
            bold = f'<tspan font-weight="bold">{escape(name)}</tspan>'
            label = f'<tspan dx="12" fill="#57606a">{escape(LABELS[name])}</tspan>'
            parts += [
                f'  <rect x="{x}" y="{y}" width="{width}" height="{ROW}" rx="4" fill="{colour}" stroke="#1971c2"/>',
                f'  <text x="{x + 12}" y="{y + 25}">{bold}{label}</text>',
            ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    DRAWING.write_text(drawing(), encoding="utf-8")
