"""The script that draws the pictures of docs/borders.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from matplotlib.image import imread

ROOT = Path(__file__).parents[2]


def test_it_draws_the_pictures_that_the_page_shows(tmp_path: Path) -> None:
    script = ROOT / "docs" / "drawings" / "borders.py"
    subprocess.run([sys.executable, script, "--folder", tmp_path], check=True)
    page = (ROOT / "docs" / "borders.md").read_text(encoding="utf-8")
    for name in ("borders.png", "seams.png"):
        assert f"images/{name}" in page
        drawn, kept = imread(tmp_path / name), imread(ROOT / "docs" / "images" / name)
        assert drawn.shape == kept.shape
        # Fonts differ from machine to machine.
        assert abs(drawn - kept).mean() < 0.05
