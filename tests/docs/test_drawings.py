"""The scripts that draw pictures of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread

from tests.docs.test_examples import succeeds

ROOT = Path(__file__).parents[2]

DRAWN = [
    ("borders.py", ["borders.png", "seams.png"], ["docs/borders.md"]),
    pytest.param(
        "endless.py",
        ["endless.png"],
        ["README.md", "docs/index.md", "docs/terrain.md"],
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("script", "pictures", "pages"), DRAWN)
def test_a_script_draws_the_pictures_that_pages_show(
    script: str, pictures: list[str], pages: list[str], tmp_path: Path
) -> None:
    succeeds(ROOT / "docs" / "drawings" / script, "--folder", tmp_path, cwd=ROOT)
    for name in pictures:
        assert all(f"images/{name}" in (ROOT / page).read_text(encoding="utf-8") for page in pages)
        drawn, kept = imread(tmp_path / name), imread(ROOT / "docs" / "images" / name)
        assert drawn.shape == kept.shape
        # Fonts differ from machine to machine.
        assert abs(drawn - kept).mean() < 0.05
